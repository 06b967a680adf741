//! Tracks which files of a list of paths may have changed since they were last read.
//!
//! It watches directories and reads no file.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use tokio::time::sleep;

use super::resolved_paths::{ResolvedPaths, StaleFiles};
use super::watch::{DirectoryChange, DirectoryWatcher};

/// Time within which successive changes are coalesced into one.
const COALESCE: Duration = Duration::from_millis(5);

/// Additional time that a name may be missing before it counts as removed: editors rename the old file away before they
/// write the new one, and serving must not stop in between.
const RENAME_GRACE: Duration = Duration::from_millis(20);

/// Limit of passes: directories may appear while paths are resolved, and a writer that creates them faster than this is
/// not followed.
const MAX_RESOLVE_PASSES: usize = 8;

/// A list of paths, with the changes since they were last read.
#[derive(Debug)]
pub(super) struct PathTracker {
    paths: Vec<PathBuf>,
    watcher: DirectoryWatcher,
    resolved: ResolvedPaths,
    stale: StaleFiles,
    /// Files that were created and not closed yet.
    unfinished: BTreeSet<PathBuf>,
}

/// Changes since the last call of [`PathTracker::take_changes`].
pub(super) struct PathChanges<'t> {
    pub(super) resolved: &'t ResolvedPaths,
    pub(super) stale: StaleFiles,
    /// Files that are still being written.
    pub(super) unfinished: &'t BTreeSet<PathBuf>,
}

impl PathTracker {
    /// Watches the paths; reads nothing yet. Needs a running tokio runtime.
    pub(super) fn new(paths: Vec<PathBuf>) -> io::Result<Self> {
        Ok(Self {
            paths,
            watcher: DirectoryWatcher::new()?,
            resolved: ResolvedPaths::default(),
            stale: StaleFiles::Everything,
            unfinished: BTreeSet::new(),
        })
    }

    /// Makes the next [`PathTracker::take_changes`] report everything.
    pub(super) fn expire(&mut self) {
        self.stale = StaleFiles::Everything;
        self.unfinished.clear();
    }

    /// Returns the files that the paths resolve to now, and those that must be read again.
    pub(super) fn take_changes(&mut self) -> PathChanges<'_> {
        self.resolve_paths();
        let stale = std::mem::replace(&mut self.stale, StaleFiles::none());
        self.unfinished.retain(|file| self.resolved.files.contains(file));
        PathChanges { resolved: &self.resolved, stale, unfinished: &self.unfinished }
    }

    /// Waits until there is something to load. Cancel-safe: nothing is lost.
    pub(super) async fn changed(&mut self) -> io::Result<()> {
        loop {
            while self.stale.is_none() {
                let change = self.watcher.next_change().await?;
                self.apply_change(change);
            }
            self.collect_for(COALESCE, |_| true).await?;
            self.collect_for(RENAME_GRACE, Self::is_file_missing).await?;
            if !self.stale.is_none() {
                return Ok(());
            }
        }
    }

    /// Sets watches first and resolves second, so that no change falls between the two.
    fn resolve_paths(&mut self) {
        for _ in 0..MAX_RESOLVE_PASSES {
            self.resolved = ResolvedPaths::resolve(&self.paths);
            if !self.watcher.watch(self.resolved.directories()) {
                return;
            }
        }
    }

    async fn collect_for(&mut self, span: Duration, pending: fn(&Self) -> bool) -> io::Result<()> {
        let mut end = pin!(sleep(span));
        while pending(self) {
            tokio::select! {
                // Pending events are handled before the timer: a file that exists may be half written.
                biased;
                change = self.watcher.next_change() => self.apply_change(change?),
                () = &mut end => return Ok(()),
            }
        }
        Ok(())
    }

    /// True if a changed file does not exist: its successor may be on its way.
    fn is_file_missing(&self) -> bool {
        match &self.stale {
            StaleFiles::Everything => self.paths.iter().any(|path| !path.exists()),
            StaleFiles::Files(files) => files.iter().any(|file| !file.exists()),
        }
    }

    fn apply_change(&mut self, change: DirectoryChange) {
        match change {
            DirectoryChange::Complete(directory, name)
            | DirectoryChange::Removed(directory, name) => {
                let stale = self.resolved.affected_by(&directory, &name);
                self.unfinished.retain(|file| !stale.contains(file));
                self.stale.merge(stale);
            }
            DirectoryChange::Writing(directory, name) => self.mark_unfinished(&directory, &name),
            DirectoryChange::Overflow => self.expire(),
        }
    }

    /// Keeps the previous content of a file that is being written, until it is closed.
    fn mark_unfinished(&mut self, directory: &Path, name: &OsStr) {
        let StaleFiles::Files(files) = self.resolved.affected_by(directory, name) else {
            return;
        };
        if let StaleFiles::Files(stale) = &mut self.stale {
            stale.retain(|file| !files.contains(file));
        }
        self.unfinished.extend(files);
    }
}
