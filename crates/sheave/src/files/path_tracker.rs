//! Which files of a list of paths may have changed since they were last read.
//!
//! It knows directories and what happens in them, and reads no file.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use tokio::time::sleep;

use super::resolved_paths::{ResolvedPaths, StaleFiles};
use super::watch::{DirectoryChange, DirectoryWatcher};

/// Changes that follow one another within this are read together.
const COALESCE: Duration = Duration::from_millis(5);

/// How much longer a name may be missing before it counts as removed: editors rename the old file away before they write
/// the new one, and nothing should stop serving in between.
const RENAME_GRACE: Duration = Duration::from_millis(20);

/// Directories appear while they are looked up; whoever creates them faster than this is not waited for.
const MAX_RESOLVE_PASSES: usize = 8;

/// A list of paths, and what has happened to them since they were last read.
#[derive(Debug)]
pub(super) struct PathTracker {
    paths: Vec<PathBuf>,
    watcher: DirectoryWatcher,
    resolved: ResolvedPaths,
    stale: StaleFiles,
    /// Files that were created and not yet closed.
    unfinished: BTreeSet<PathBuf>,
}

/// What a look at the paths tells.
pub(super) struct PathChanges<'t> {
    pub(super) resolved: &'t ResolvedPaths,
    pub(super) stale: StaleFiles,
    /// Files that are being written.
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

    /// Lets the next [`PathTracker::take_changes`] tell everything.
    pub(super) fn expire(&mut self) {
        self.stale = StaleFiles::Everything;
        self.unfinished.clear();
    }

    /// What the paths stand for now, and what of it must be read again.
    pub(super) fn take_changes(&mut self) -> PathChanges<'_> {
        self.resolve_paths();
        let stale = std::mem::replace(&mut self.stale, StaleFiles::none());
        self.unfinished.retain(|file| self.resolved.files.contains(file));
        PathChanges { resolved: &self.resolved, stale, unfinished: &self.unfinished }
    }

    /// Waits until there is something to load. May be dropped and called again: nothing is lost.
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

    /// Watches first and looks second, so that no change falls between the two.
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
                // What has happened is noted before the end is looked at: a file that is there may be half written.
                biased;
                change = self.watcher.next_change() => self.apply_change(change?),
                () = &mut end => return Ok(()),
            }
        }
        Ok(())
    }

    /// Whether a file that has changed is not there: its successor may be on its way.
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

    /// A file that is being written keeps what it held until it is closed.
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
