//! Certificates of the xDS server: `tls.crt`, `tls.key` and `ca.crt` in one folder, as a mounted Secret has them.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::sync::watch;

use crate::files::PemFiles;

/// Protocol of gRPC.
const ALPN: &[u8] = b"h2";

/// The watched folder, and the settings of TLS made from it.
pub(super) struct XdsCertificates {
    chain: PathBuf,
    key: PathBuf,
    authorities: PathBuf,
    files: PemFiles,
    config: Option<Arc<ServerConfig>>,
}

impl XdsCertificates {
    /// Watches the folder; reads nothing yet. Needs a running tokio runtime.
    pub(super) fn new(folder: &Path) -> io::Result<Self> {
        let path = |name| folder.join(name);
        let (chain, key, authorities) = (path("tls.crt"), path("tls.key"), path("ca.crt"));
        let files = PemFiles::new(vec![chain.clone(), key.clone(), authorities.clone()])?;
        Ok(Self { chain, key, authorities, files, config: None })
    }

    /// Reads the files that have changed.
    ///
    /// # Errors
    /// The first file that cannot be read, or the reason why the certificates cannot be used.
    pub(super) fn load(&mut self) -> anyhow::Result<()> {
        if let Some(problem) = self.files.load().into_iter().next() {
            anyhow::bail!("{problem}");
        }
        let content = |path: &Path| self.files.content(path).unwrap_or_default();
        let config = config(content(&self.chain), content(&self.key), content(&self.authorities));
        let folder = || self.chain.parent().unwrap_or(&self.chain).display().to_string();
        self.config = Some(config.with_context(folder)?);
        Ok(())
    }

    /// Returns the settings of TLS, which follow the files from now on. New ones that cannot be used are reported, and
    /// the former ones stay.
    pub(super) fn follow(mut self) -> watch::Receiver<Arc<ServerConfig>> {
        let config = self.config.clone().expect("the certificates have been loaded");
        let (sender, receiver) = watch::channel(config);
        tokio::spawn(async move {
            loop {
                if let Err(error) = self.files.changed().await {
                    tracing::error!(%error, "cannot watch the certificates of the xDS server");
                    return;
                }
                match self.load() {
                    Ok(()) => {
                        tracing::info!("new certificates of the xDS server");
                        sender.send_replace(self.config.clone().expect("just loaded"));
                    }
                    Err(error) => {
                        let error = format!("{error:#}");
                        tracing::error!(error, "new certificates of the xDS server cannot be used");
                    }
                }
            }
        });
        receiver
    }
}

/// Returns the settings of TLS: each client must show a certificate of one of the authorities.
fn config(chain: &[u8], key: &[u8], authorities: &[u8]) -> anyhow::Result<Arc<ServerConfig>> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(authorities) {
        roots.add(authority.context("ca.crt")?).context("ca.crt")?;
    }
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .context("ca.crt")?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain).collect();
    let key = PrivateKeyDer::from_pem_slice(key).context("tls.key")?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(clients)
        .with_single_cert(chain.context("tls.crt")?, key)
        .context("tls.crt and tls.key")?;
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(Arc::new(config))
}
