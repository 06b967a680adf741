//! Files as a source of objects: read once, or watched.
//!
//! It knows when the files' content may have changed and what objects they hold, not what the objects mean.

/// Which files the paths stand for.
mod survey;
/// From files to objects.
mod read;
/// What happens in their directories.
mod watch;
/// Which of them may have changed.
mod track;
/// Files of certificates and keys.
mod certificates;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

pub(crate) use certificates::{CertificateFiles, Pair};
use read::Cache;
pub(crate) use read::Contents;
use survey::{Stale, Survey};
use track::{Look, Tracked};

/// Reads every file that the paths stand for.
pub(crate) fn read(paths: &[PathBuf]) -> Contents {
    Cache::default().refresh(&Survey::of(paths), &Stale::Everything, &BTreeSet::new())
}

/// Files of objects, watched.
#[derive(Debug)]
pub(crate) struct Files {
    tracked: Tracked,
    cache: Cache,
}

impl Files {
    /// Watches the paths; reads nothing yet. Needs a running tokio runtime.
    pub(crate) fn new(paths: Vec<PathBuf>) -> io::Result<Self> {
        Ok(Self { tracked: Tracked::new(paths)?, cache: Cache::default() })
    }

    /// Lets the next [`Files::load`] read everything.
    pub(crate) fn expire(&mut self) {
        self.tracked.expire();
    }

    /// What the files hold now; reads those that have changed.
    pub(crate) fn load(&mut self) -> Contents {
        let Look { survey, stale, begun } = self.tracked.look();
        self.cache.refresh(survey, &stale, begun)
    }

    /// Waits until there is something to load. May be dropped and called again: nothing is lost.
    pub(crate) async fn changed(&mut self) -> io::Result<()> {
        self.tracked.changed().await
    }
}

#[cfg(test)]
mod tests;
