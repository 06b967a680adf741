//! TLS clients that send any server name byte for byte, even one that rustls would normalise or
//! reject.
//!
//! rustls gets a valid name of the same length. Its ClientHello is rewritten when it is sent, and
//! also in the transcript hash, so that both sides agree on the transcript. The server's
//! certificate must be for the valid name.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use anyhow::Result;
use quinn::crypto::rustls::QuicClientConfig;
use quinn_proto::ConnectError;
use quinn_proto::crypto;
use quinn_proto::transport_parameters::TransportParameters;
use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs::{self, cipher_suite};
use rustls::crypto::{CipherSuiteCommon, CryptoProvider, hash};
use rustls::pki_types::ServerName;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{ClientConfig, SupportedCipherSuite, Tls13CipherSuite};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::certificates::{CertificateAuthority, IssuedCertificate};
use crate::changed_session::{ChangedSession, SessionChange};
use crate::waiting::within;

/// Type of the handshake message that contains the name (RFC 8446 §4).
const CLIENT_HELLO: u8 = 1;

/// TLS 1.3 client that sends one server name byte for byte.
pub struct LiteralClient {
    config: ClientConfig,
    rewrite: ServerNameRewrite,
}

/// Replacement of a name by another one of the same length.
#[derive(Clone)]
struct ServerNameRewrite {
    valid: Arc<str>,
    literal: Arc<str>,
}

/// Returns the name that a certificate must be for, if `literal` is sent.
pub fn valid_name(literal: &str) -> String {
    format!("{}x", &literal[..literal.len() - 1])
}

impl LiteralClient {
    /// Returns a client that trusts this authority, and presents `identity` to a server that
    /// requests a certificate.
    pub fn new(
        literal: &str,
        authority: &CertificateAuthority,
        identity: Option<&IssuedCertificate>,
    ) -> Result<Self> {
        let rewrite =
            ServerNameRewrite { valid: valid_name(literal).into(), literal: literal.into() };
        let builder = ClientConfig::builder_with_provider(Arc::new(provider(&rewrite)?));
        let builder = builder.with_protocol_versions(&[&TLS13])?;
        let mut config = builder.with_root_certificates(authority.roots()).with_no_client_auth();
        config.resumption = Resumption::disabled();
        if let Some(identity) = identity {
            let key = aws_lc_rs::sign::any_supported_type(&identity.key())?;
            let certified = CertifiedKey::new(identity.chain(), key);
            config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(certified));
        }
        Ok(Self { config, rewrite })
    }

    /// Connects over TCP.
    pub async fn connect(&self, address: SocketAddr) -> Result<TlsStream<RewritingStream>> {
        let tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        let name = ServerName::try_from(self.rewrite.valid.to_string())?;
        let stream = RewritingStream { tcp, rewrite: Some(self.rewrite.clone()) };
        let connector = TlsConnector::from(Arc::new(self.config.clone()));
        Ok(within("a handshake", connector.connect(name, stream)).await??)
    }

    /// Returns the QUIC configuration for HTTP/3; the name that a connection is made to is ignored.
    pub fn quic_config(&self) -> Result<quinn::ClientConfig> {
        let mut config = self.config.clone();
        config.alpn_protocols = vec![b"h3".to_vec()];
        let inner = Arc::new(QuicClientConfig::try_from(config)?);
        let config = RewritingConfig { inner, rewrite: self.rewrite.clone() };
        Ok(quinn::ClientConfig::new(Arc::new(config)))
    }
}

impl ServerNameRewrite {
    /// Replaces the name in bytes that contain it.
    fn apply(&self, bytes: &mut [u8]) {
        let (valid, literal) = (self.valid.as_bytes(), self.literal.as_bytes());
        if let Some(at) = bytes.windows(valid.len()).position(|window| window == valid) {
            bytes[at..at + literal.len()].copy_from_slice(literal);
        }
    }

    /// Replaces the name in a ClientHello alone: certificates contain it too.
    fn apply_to_hello(&self, message: &[u8]) -> Vec<u8> {
        let mut message = message.to_vec();
        if message.first() == Some(&CLIENT_HELLO) {
            self.apply(&mut message);
        }
        message
    }
}

/// Returns the default provider with a hash of the bytes that are sent, not of those that rustls
/// believes to be sent.
fn provider(rewrite: &ServerNameRewrite) -> Result<CryptoProvider> {
    let SupportedCipherSuite::Tls13(usual) = cipher_suite::TLS13_AES_128_GCM_SHA256 else {
        anyhow::bail!("the suite is one of TLS 1.3");
    };
    let inner = usual.common.hash_provider;
    // A cipher suite holds static references, so it is leaked; a test creates few.
    let hash_provider = Box::leak(Box::new(RewritingHash { inner, rewrite: rewrite.clone() }));
    let suite = Box::leak(Box::new(Tls13CipherSuite {
        common: CipherSuiteCommon { hash_provider, ..usual.common },
        ..*usual
    }));
    let cipher_suites = vec![SupportedCipherSuite::Tls13(suite)];
    Ok(CryptoProvider { cipher_suites, ..aws_lc_rs::default_provider() })
}

struct RewritingHash {
    inner: &'static dyn hash::Hash,
    rewrite: ServerNameRewrite,
}

impl hash::Hash for RewritingHash {
    fn start(&self) -> Box<dyn hash::Context> {
        Box::new(RewritingContext { inner: self.inner.start(), rewrite: self.rewrite.clone() })
    }

    fn hash(&self, data: &[u8]) -> hash::Output {
        self.inner.hash(&self.rewrite.apply_to_hello(data))
    }

    fn output_len(&self) -> usize {
        self.inner.output_len()
    }

    fn algorithm(&self) -> hash::HashAlgorithm {
        self.inner.algorithm()
    }
}

struct RewritingContext {
    inner: Box<dyn hash::Context>,
    rewrite: ServerNameRewrite,
}

impl hash::Context for RewritingContext {
    fn fork_finish(&self) -> hash::Output {
        self.inner.fork_finish()
    }

    fn fork(&self) -> Box<dyn hash::Context> {
        Box::new(Self { inner: self.inner.fork(), rewrite: self.rewrite.clone() })
    }

    fn finish(self: Box<Self>) -> hash::Output {
        self.inner.finish()
    }

    fn update(&mut self, data: &[u8]) {
        self.inner.update(&self.rewrite.apply_to_hello(data));
    }
}

/// Connection that rewrites the first bytes sent, which contain the ClientHello.
pub struct RewritingStream {
    tcp: TcpStream,
    rewrite: Option<ServerNameRewrite>,
}

impl AsyncRead for RewritingStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_read(cx, space)
    }
}

impl AsyncWrite for RewritingStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut bytes = bytes.to_vec();
        if let Some(rewrite) = &self.rewrite {
            rewrite.apply(&mut bytes);
        }
        let written = Pin::new(&mut self.tcp).poll_write(cx, &bytes);
        if written.is_ready() {
            self.rewrite = None;
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}

struct RewritingConfig {
    inner: Arc<QuicClientConfig>,
    rewrite: ServerNameRewrite,
}

impl crypto::ClientConfig for RewritingConfig {
    fn start_session(
        self: Arc<Self>,
        version: u32,
        _server_name: &str,
        parameters: &TransportParameters,
    ) -> Result<Box<dyn crypto::Session>, ConnectError> {
        let inner = Arc::clone(&self.inner);
        let inner = inner.start_session(version, &self.rewrite.valid, parameters)?;
        Ok(Box::new(ChangedSession::new(inner, self.rewrite.clone())))
    }
}

impl SessionChange for ServerNameRewrite {
    fn change_handshake(&self, message: &mut [u8]) {
        let changed = self.apply_to_hello(message);
        message.copy_from_slice(&changed);
    }
}
