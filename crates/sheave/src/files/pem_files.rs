//! Watched PEM files, such as certificates and keys, with their content.
//!
//! The files are watched as files of objects are, including symbolic links, so a renewal needs no notification.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use gateway::ObjectProblem;

use super::path_tracker::{PathChanges, PathTracker};
use super::read::{error_text, file_problem};

/// Size limit of a file; a chain of a hundred certificates takes a quarter of it.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// The files and their content.
#[derive(Debug)]
pub(crate) struct PemFiles {
    paths: Vec<PathBuf>,
    tracker: PathTracker,
    /// Content of the files when they were last read.
    contents: BTreeMap<PathBuf, Vec<u8>>,
}

impl PemFiles {
    /// Watches the files; reads nothing yet. Needs a running tokio runtime.
    pub(crate) fn new(paths: Vec<PathBuf>) -> io::Result<Self> {
        let tracker = PathTracker::new(paths.clone())?;
        Ok(Self { paths, tracker, contents: BTreeMap::new() })
    }

    /// Makes the next [`load`](Self::load) read everything.
    pub(crate) fn expire(&mut self) {
        self.tracker.expire();
    }

    /// Reads the files that have changed, and returns a problem for each that cannot be read. A file that is being
    /// written keeps its previous content.
    pub(crate) fn load(&mut self) -> Vec<ObjectProblem> {
        let mut problems = Vec::new();
        let PathChanges { stale, unfinished, .. } = self.tracker.take_changes();
        for path in &self.paths {
            let is_held = self.contents.contains_key(path);
            if is_held && (unfinished.contains(path) || !stale.contains(path)) {
                continue;
            }
            match read(path) {
                Ok(pem) => drop(self.contents.insert(path.clone(), pem)),
                Err(error) => {
                    self.contents.remove(path);
                    problems.push(file_problem(path, error_text(&error)));
                }
            }
        }
        problems
    }

    /// Returns the content of a file; `None` if it could not be read.
    pub(crate) fn content(&self, path: &Path) -> Option<&[u8]> {
        self.contents.get(path).map(Vec::as_slice)
    }

    /// Waits until there is something to load. Cancel-safe: nothing is lost.
    pub(crate) async fn changed(&mut self) -> io::Result<()> {
        self.tracker.changed().await
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
