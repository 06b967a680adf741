//! Certificate and key files of `--cert` and `--key`: they become Secrets.
//!
//! The files are watched as files of objects are, including symbolic links, so a renewal needs no notification.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gateway::{ApiObject, ObjectOrigin, objects};

use super::path_tracker::{PathChanges, PathTracker};
use super::read::{SourceContents, error_text, file_problem};

/// Size limit of a file; a chain of a hundred certificates takes a quarter of it.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

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
    tracker: PathTracker,
    /// Content of the files when they were last read.
    pem_by_path: BTreeMap<PathBuf, Vec<u8>>,
}

impl CertificateFiles {
    /// Watches the files; reads nothing yet. Needs a running tokio runtime.
    pub(crate) fn new(pairs: Vec<CertificateKeyPair>) -> io::Result<Self> {
        let paths = pairs.iter().flat_map(|pair| [pair.certificate.clone(), pair.key.clone()]);
        Ok(Self {
            tracker: PathTracker::new(paths.collect())?,
            pairs,
            pem_by_path: BTreeMap::new(),
        })
    }

    /// Makes the next [`CertificateFiles::load`] read everything.
    pub(crate) fn expire(&mut self) {
        self.tracker.expire();
    }

    /// Returns a Secret for each pair. A file that is being written keeps its previous content.
    pub(crate) fn load(&mut self) -> SourceContents {
        let mut contents = SourceContents::default();
        let PathChanges { stale, unfinished, .. } = self.tracker.take_changes();
        let paths = self.pairs.iter().flat_map(|pair| [&pair.certificate, &pair.key]);
        for path in paths {
            let is_held = self.pem_by_path.contains_key(path);
            if is_held && (unfinished.contains(path) || !stale.contains(path)) {
                continue;
            }
            match read(path) {
                Ok(pem) => drop(self.pem_by_path.insert(path.clone(), pem)),
                Err(error) => {
                    self.pem_by_path.remove(path);
                    contents.problems.push(file_problem(path, error_text(&error)));
                }
            }
        }
        let secrets = (1..).zip(&self.pairs).filter_map(|(number, pair)| self.secret(number, pair));
        contents.objects.extend(secrets);
        contents
    }

    /// Waits until there is something to load. Cancel-safe: nothing is lost.
    pub(crate) async fn changed(&mut self) -> io::Result<()> {
        self.tracker.changed().await
    }

    /// Returns the Secret of a pair; `None` if one of its files could not be read.
    fn secret(&self, number: usize, pair: &CertificateKeyPair) -> Option<ApiObject> {
        let (certificate, key) =
            (self.pem_by_path.get(&pair.certificate)?, self.pem_by_path.get(&pair.key)?);
        let file = format!("{} and {}", pair.certificate.display(), pair.key.display());
        let origin = ObjectOrigin { file: Arc::from(file), document: 0 };
        Some(objects::certificate(number, origin, certificate.clone(), key.clone()))
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut pem = Vec::new();
    let read = File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut pem)?;
    if read as u64 > MAX_FILE_BYTES {
        return Err(io::Error::other("larger than 1 MiB: not a certificate or key"));
    }
    Ok(pem)
}

#[cfg(test)]
mod tests;
