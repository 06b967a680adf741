//! Files as a source of objects: read once, or watched for changes.
//!
//! It knows when the content of files may have changed and which objects they hold, not what the objects mean.

/// The files that a list of paths resolves to.
mod resolved_paths;
/// Reads and parses files.
mod read;
/// Changes in watched directories, by inotify.
mod watch;
/// Files that may have changed since they were read.
mod path_tracker;
/// Files with certificates and keys.
mod pem_files;
/// Certificate and key files that become Secrets.
mod certificates;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use tokio::time::{Instant, sleep_until};

pub(crate) use certificates::{CertificateFiles, CertificateKeyPair};
use path_tracker::{PathChanges, PathTracker};
pub(crate) use pem_files::PemFiles;
use read::FileCache;
pub(crate) use read::SourceContents;
use resolved_paths::{ResolvedPaths, StaleFiles};

/// Reads every file that the paths resolve to.
pub(crate) fn read(paths: &[PathBuf]) -> SourceContents {
    let (resolved, unfinished) = (ResolvedPaths::resolve(paths), BTreeSet::new());
    let changes =
        PathChanges { resolved: &resolved, stale: StaleFiles::Everything, unfinished: &unfinished };
    let mut contents = FileCache::default().refresh(changes, Instant::now());
    // A route may have a Service as its parent, for clients of `sheave serve --xds`.
    contents.settings.proxyless = true;
    contents
}

/// Watched files of objects.
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

    /// Makes the next [`FileSource::load`] read everything, and take what it finds as it is.
    pub(crate) fn expire(&mut self) {
        self.tracker.expire();
        self.cache.confirm();
    }

    /// Returns the content of the files now; reads only those that have changed.
    pub(crate) fn load(&mut self) -> SourceContents {
        self.cache.refresh(self.tracker.take_changes(), Instant::now())
    }

    /// Waits until there is something to load. Cancel-safe: nothing is lost.
    pub(crate) async fn changed(&mut self) -> io::Result<()> {
        let Some(due) = self.cache.confirm_at() else { return self.tracker.changed().await };
        tokio::select! {
            changed = self.tracker.changed() => changed,
            () = sleep_until(due) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
