//! Certificate and key files of `--cert` and `--key`: they become Secrets.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use gateway::{ApiObject, ObjectOrigin, objects};

use super::pem_files::PemFiles;
use super::read::SourceContents;

/// Paths of a certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CertificateKeyPair {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

/// Watched certificate and key files.
#[derive(Debug)]
pub(crate) struct CertificateFiles {
    pairs: Vec<CertificateKeyPair>,
    files: PemFiles,
}

impl CertificateFiles {
    /// Watches the files; reads nothing yet. Needs a running tokio runtime.
    pub(crate) fn new(pairs: Vec<CertificateKeyPair>) -> io::Result<Self> {
        let paths = pairs.iter().flat_map(|pair| [pair.certificate.clone(), pair.key.clone()]);
        Ok(Self { files: PemFiles::new(paths.collect())?, pairs })
    }

    /// Makes the next [`CertificateFiles::load`] read everything.
    pub(crate) fn expire(&mut self) {
        self.files.expire();
    }

    /// Returns a Secret for each pair. A file that is being written keeps its previous content.
    pub(crate) fn load(&mut self) -> SourceContents {
        let problems = self.files.load();
        let secrets = (1..).zip(&self.pairs).filter_map(|(number, pair)| self.secret(number, pair));
        SourceContents { objects: secrets.collect(), problems, ..SourceContents::default() }
    }

    /// Waits until there is something to load. Cancel-safe: nothing is lost.
    pub(crate) async fn changed(&mut self) -> io::Result<()> {
        self.files.changed().await
    }

    /// Returns the Secret of a pair; `None` if one of its files could not be read.
    fn secret(&self, number: usize, pair: &CertificateKeyPair) -> Option<ApiObject> {
        let content = |path: &PathBuf| self.files.content(path).map(<[u8]>::to_vec);
        let (certificate, key) = (content(&pair.certificate)?, content(&pair.key)?);
        let file = format!("{} and {}", pair.certificate.display(), pair.key.display());
        let origin = ObjectOrigin { file: Arc::from(file), document: 0 };
        Some(objects::certificate(number, origin, certificate, key))
    }
}

#[cfg(test)]
mod tests;
