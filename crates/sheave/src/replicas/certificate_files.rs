//! Certificates of replicas: `tls.crt`, `tls.key` and `ca.crt` in one folder, as a mounted Secret has them.

use std::future::pending;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use replica::ReplicaCertificates;

use crate::authority;
use crate::files::PemFiles;

/// The watched folder.
#[derive(Debug)]
pub(super) struct ReplicaCertificateFiles {
    chain: PathBuf,
    key: PathBuf,
    authorities: PathBuf,
    files: PemFiles,
}

impl ReplicaCertificateFiles {
    /// Watches the folder; reads nothing yet. Needs a running tokio runtime.
    pub(super) fn new(folder: &Path) -> io::Result<Self> {
        let path = |name| folder.join(name);
        let (chain, key, authorities) = (path("tls.crt"), path("tls.key"), path("ca.crt"));
        let files = PemFiles::new(vec![chain.clone(), key.clone(), authorities.clone()])?;
        Ok(Self { chain, key, authorities, files })
    }

    /// Reads the files that have changed.
    ///
    /// # Errors
    /// The first file that cannot be read, or the reason why the certificates cannot be used.
    pub(super) fn load(&mut self) -> anyhow::Result<Arc<ReplicaCertificates>> {
        if let Some(problem) = self.files.load().into_iter().next() {
            anyhow::bail!("{problem}");
        }
        let content = |path: &Path| self.files.content(path).unwrap_or_default();
        let (chain, key) = (content(&self.chain), content(&self.key));
        let certificates = ReplicaCertificates::from_pem(chain, key, content(&self.authorities));
        let folder = || self.chain.parent().unwrap_or(&self.chain).display().to_string();
        certificates.map(Arc::new).with_context(folder)
    }

    /// Returns the end of the validity of the certificate that was read last, in seconds since 1970.
    pub(super) fn expiry(&self) -> Option<u64> {
        authority::expiry(self.files.content(&self.chain)?)
    }

    /// Waits until a file changes. Cancel-safe.
    pub(super) async fn changed(&mut self) {
        if let Err(error) = self.files.changed().await {
            tracing::error!(%error, "cannot watch the certificates of replicas");
            pending::<()>().await;
        }
    }
}
