//! TLS connections of the API: each client may show a certificate, and is served with or without one.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Context;
use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use proxy::clock;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::front_proxy::PeerIdentity;
use super::proxy_certificate::TimelessVerifier;
use crate::admin::{BoundedConnection, BoundedListener};

/// Protocol of the API.
const ALPN: &[u8] = b"http/1.1";

/// Newest settings of TLS; `None`: there is no certificate yet.
pub(super) type NewestConfig = watch::Receiver<Option<Arc<ServerConfig>>>;

/// Listener whose connections have finished their handshakes. Dropping it stops accepting.
pub(super) struct TlsListener {
    address: SocketAddr,
    connections: mpsc::Receiver<(TlsStream<BoundedConnection>, SocketAddr)>,
    accepting: JoinHandle<()>,
}

/// Returns the settings of TLS for a certificate, its key, and the authorities of clients, all in PEM.
///
/// # Errors
/// If one of them cannot be used.
pub(super) fn config(
    chain: &str,
    key: &str,
    authorities: &str,
) -> anyhow::Result<Arc<ServerConfig>> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(authorities.as_bytes()) {
        roots.add(authority.context("an authority of the API server's proxy")?)?;
    }
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .allow_unauthenticated()
            .build()
            .context("the authorities of the API server's proxy")?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain.as_bytes()).collect();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes())?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(Arc::new(TimelessVerifier(clients)))
        .with_single_cert(chain?, key)?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(Arc::new(config))
}

impl TlsListener {
    /// Accepts connections from now on. Handshakes do not wait for one another; the bounds of the listener hold for
    /// them too.
    pub(super) fn new(listener: BoundedListener, configs: NewestConfig) -> Self {
        let address = listener.address;
        let (sender, connections) = mpsc::channel(1);
        let accepting = tokio::spawn(accept(listener, configs, sender));
        Self { address, connections, accepting }
    }
}

impl Drop for TlsListener {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(
    mut listener: BoundedListener,
    configs: NewestConfig,
    sender: mpsc::Sender<(TlsStream<BoundedConnection>, SocketAddr)>,
) {
    loop {
        let (connection, address) = listener.accept().await;
        let Some(config) = configs.borrow().clone() else { continue };
        let sender = sender.clone();
        tokio::spawn(async move {
            // A client that does not finish its handshake is not worth a log line: any machine can be one.
            if let Ok(stream) = TlsAcceptor::from(config).accept(connection).await {
                drop(sender.send((stream, address)).await);
            }
        });
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<BoundedConnection>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.connections.recv().await {
            Some(accepted) => accepted,
            // The task that accepts has ended with the runtime.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

impl Connected<IncomingStream<'_, TlsListener>> for PeerIdentity {
    fn connect_info(stream: IncomingStream<'_, TlsListener>) -> Self {
        let (_, session) = stream.io().get_ref();
        let now = clock::wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self::of(session.peer_certificates(), now.as_secs())
    }
}
