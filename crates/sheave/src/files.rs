//! Files as a source of objects: read once, or watched.
//!
//! It knows when the files' content may have changed and what objects they hold, not what the objects mean.

/// Which files the paths stand for.
mod resolved_paths;
/// From files to objects.
mod read;
/// What happens in their directories.
mod watch;
/// Which of them may have changed.
mod path_tracker;
/// Files of certificates and keys.
mod certificates;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

pub(crate) use certificates::{CertificateFiles, CertificateKeyPair};
use path_tracker::{PathChanges, PathTracker};
use read::FileCache;
pub(crate) use read::SourceContents;
use resolved_paths::{ResolvedPaths, StaleFiles};

/// Reads every file that the paths stand for.
pub(crate) fn read(paths: &[PathBuf]) -> SourceContents {
    FileCache::default().refresh(
        &ResolvedPaths::resolve(paths),
        &StaleFiles::Everything,
        &BTreeSet::new(),
    )
}

/// Files of objects, watched.
#[derive(Debug)]
pub(crate) struct FileSource {
    tracker: PathTracker,
    cache: FileCache,
}

impl FileSource {
    /// Watches the paths; reads nothing yet. Needs a running tokio runtime.
    pub(crate) fn new(paths: Vec<PathBuf>) -> io::Result<Self> {
        Ok(Self { tracker: PathTracker::new(paths)?, cache: FileCache::default() })
    }

    /// Lets the next [`FileSource::load`] read everything.
    pub(crate) fn expire(&mut self) {
        self.tracker.expire();
    }

    /// What the files hold now; reads those that have changed.
    pub(crate) fn load(&mut self) -> SourceContents {
        let PathChanges { resolved: survey, stale, unfinished: begun } =
            self.tracker.take_changes();
        self.cache.refresh(survey, &stale, begun)
    }

    /// Waits until there is something to load. May be dropped and called again: nothing is lost.
    pub(crate) async fn changed(&mut self) -> io::Result<()> {
        self.tracker.changed().await
    }
}

#[cfg(test)]
mod tests;
