//! TLS by rustls: clients with all options that a test may vary, and a terminating proxy for any
//! server.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use anyhow::Result;
use quinn::crypto::rustls::QuicClientConfig;
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::ServerName;
use rustls::server::WebPkiClientVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{
    ClientConfig, ClientConnection, ConfigBuilder, ProtocolVersion, ServerConfig, ServerConnection,
    SupportedProtocolVersion, WantsVerifier,
};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::certificates::{CertificateAuthority, IssuedCertificate};
use crate::waiting::within;

/// TLS options of a client.
#[derive(Clone)]
pub struct TlsClientOptions {
    config: ClientConfig,
}

impl TlsClientOptions {
    /// Returns a client that trusts this authority, supports TLS 1.2 and 1.3, sends no ALPN, and
    /// resumes no session.
    pub fn trusting(authority: &CertificateAuthority) -> Self {
        Self::with_versions(&[&TLS12, &TLS13], authority)
    }

    /// Like [`TlsClientOptions::trusting`], with these versions.
    pub fn with_versions(
        versions: &[&'static SupportedProtocolVersion],
        authority: &CertificateAuthority,
    ) -> Self {
        let builder = ClientConfig::builder_with_provider(provider());
        let builder = builder.with_protocol_versions(versions).expect("the provider has them");
        let mut config = builder.with_root_certificates(authority.roots()).with_no_client_auth();
        config.resumption = Resumption::disabled();
        Self { config }
    }

    /// Presents this certificate if the server requests one.
    pub fn with_client_certificate(mut self, identity: &IssuedCertificate) -> Self {
        let key = aws_lc_rs::sign::any_supported_type(&identity.key()).expect("a usual key");
        let certified = CertifiedKey::new(identity.chain(), key);
        self.config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(certified));
        self
    }

    /// Offers these protocols by ALPN, in order of preference.
    pub fn with_alpn(mut self, protocols: &[&str]) -> Self {
        self.config.alpn_protocols = alpn_names(protocols);
        self
    }

    /// Keeps session tickets, so that a later handshake can resume.
    pub fn with_resumption(mut self) -> Self {
        self.config.resumption = Resumption::in_memory_sessions(256);
        self
    }

    /// Sends early data, if an earlier session allows it.
    pub fn with_early_data(mut self) -> Self {
        self.config.enable_early_data = true;
        self.with_resumption()
    }

    /// Returns the options as a QUIC configuration for HTTP/3.
    pub fn quic_config(&self) -> Result<quinn::ClientConfig> {
        Ok(quinn::ClientConfig::new(self.quic_crypto()?))
    }

    /// Returns the part of that configuration that encrypts.
    pub fn quic_crypto(&self) -> Result<Arc<QuicClientConfig>> {
        let config = self.clone().with_alpn(&["h3"]).config;
        Ok(Arc::new(QuicClientConfig::try_from(config)?))
    }

    /// Sends no server name (SNI).
    pub fn without_server_name(mut self) -> Self {
        self.config.enable_sni = false;
        self
    }

    /// Returns the bytes of a ClientHello for this host: all that a flood needs, since the server
    /// does the work.
    pub fn client_hello(&self, host: &str) -> Result<Vec<u8>> {
        let name = ServerName::try_from(host.to_owned())?;
        let mut session = ClientConnection::new(Arc::new(self.config.clone()), name)?;
        let mut bytes = Vec::new();
        session.write_tls(&mut bytes)?;
        Ok(bytes)
    }

    /// Connects to this host at this address.
    pub async fn connect(&self, address: SocketAddr, host: &str) -> Result<TlsStream<TcpStream>> {
        let tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        let name = ServerName::try_from(host.to_owned())?;
        let connector = TlsConnector::from(Arc::new(self.config.clone()));
        Ok(within("a handshake", connector.connect(name, tcp)).await??)
    }
}

/// TLS-terminating proxy in front of a server without TLS; it stops, with its connections, when
/// dropped.
pub struct TlsFront {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<HandshakeRecord>>>,
    accepting: AbortHandle,
}

/// Results of a completed handshake on the server side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandshakeRecord {
    pub server_name: Option<String>,
    pub protocol: Option<String>,
    pub version: Option<ProtocolVersion>,
    pub client_certificates: usize,
}

impl TlsFront {
    /// Starts a proxy in front of this server, with these ALPN protocols to choose from.
    pub async fn of(
        server: SocketAddr,
        identity: &IssuedCertificate,
        protocols: &[&str],
    ) -> Result<Self> {
        let config = server_versions()?.with_no_client_auth();
        let config = config.with_single_cert(identity.chain(), identity.key())?;
        Self::start(server, config, protocols).await
    }

    /// Like [`TlsFront::of`], but only for clients with a certificate of this authority.
    pub async fn with_client_authority(
        server: SocketAddr,
        identity: &IssuedCertificate,
        protocols: &[&str],
        clients: &CertificateAuthority,
    ) -> Result<Self> {
        let roots = Arc::new(clients.roots());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).build()?;
        let config = server_versions()?.with_client_cert_verifier(verifier);
        let config = config.with_single_cert(identity.chain(), identity.key())?;
        Self::start(server, config, protocols).await
    }

    async fn start(
        server: SocketAddr,
        mut config: ServerConfig,
        protocols: &[&str],
    ) -> Result<Self> {
        config.alpn_protocols = alpn_names(protocols);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let seen = Arc::<Mutex<Vec<HandshakeRecord>>>::default();
        let accepting = accept(listener, TlsAcceptor::from(Arc::new(config)), server, seen.clone());
        Ok(Self { address, seen, accepting: tokio::spawn(accepting).abort_handle() })
    }

    /// Returns the handshakes that succeeded, in order.
    pub fn handshakes(&self) -> Vec<HandshakeRecord> {
        self.seen.lock().expect("no holder of the lock panics").clone()
    }
}

impl Drop for TlsFront {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    server: SocketAddr,
    seen: Arc<Mutex<Vec<HandshakeRecord>>>,
) {
    // Aborting this task drops the set, which aborts the connections.
    let mut connections = JoinSet::new();
    while let Ok((tcp, _)) = listener.accept().await {
        let (acceptor, seen) = (acceptor.clone(), seen.clone());
        connections.spawn(async move {
            // The error is the peer's disconnect or a failed handshake; the client has received an
            // alert.
            drop(terminate_tls(tcp, &acceptor, server, &seen).await);
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn terminate_tls(
    tcp: TcpStream,
    acceptor: &TlsAcceptor,
    server: SocketAddr,
    seen: &Mutex<Vec<HandshakeRecord>>,
) -> Result<()> {
    tcp.set_nodelay(true)?;
    let mut tls = acceptor.accept(tcp).await?;
    seen.lock().expect("no holder of the lock panics").push(HandshakeRecord::of(tls.get_ref().1));
    let mut plain = TcpStream::connect(server).await?;
    plain.set_nodelay(true)?;
    copy_bidirectional(&mut tls, &mut plain).await?;
    Ok(())
}

impl HandshakeRecord {
    fn of(session: &ServerConnection) -> Self {
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        Self {
            server_name: session.server_name().map(str::to_owned),
            protocol: session.alpn_protocol().map(text),
            version: session.protocol_version(),
            client_certificates: session.peer_certificates().map_or(0, <[_]>::len),
        }
    }
}

fn server_versions() -> Result<ConfigBuilder<ServerConfig, WantsVerifier>> {
    Ok(ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn alpn_names(protocols: &[&str]) -> Vec<Vec<u8>> {
    protocols.iter().map(|name| name.as_bytes().to_vec()).collect()
}
