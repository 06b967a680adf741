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

use super::survey::{Stale, Survey};
use super::watch::{Change, Watcher};

/// Changes that follow one another within this are read together.
const COALESCE: Duration = Duration::from_millis(5);

/// How much longer a name may be missing before it counts as removed: editors rename the old file away before they write
/// the new one, and nothing should stop serving in between.
const SUCCESSION: Duration = Duration::from_millis(20);

/// Directories appear while they are looked up; whoever creates them faster than this is not waited for.
const MAX_SURVEYS: usize = 8;

/// A list of paths, and what has happened to them since they were last read.
#[derive(Debug)]
pub(super) struct Tracked {
    paths: Vec<PathBuf>,
    watcher: Watcher,
    survey: Survey,
    stale: Stale,
    /// Files that were created and not yet closed.
    begun: BTreeSet<PathBuf>,
}

/// What a look at the paths tells.
pub(super) struct Look<'t> {
    pub(super) survey: &'t Survey,
    pub(super) stale: Stale,
    /// Files that are being written.
    pub(super) begun: &'t BTreeSet<PathBuf>,
}

impl Tracked {
    /// Watches the paths; reads nothing yet. Needs a running tokio runtime.
    pub(super) fn new(paths: Vec<PathBuf>) -> io::Result<Self> {
        Ok(Self {
            paths,
            watcher: Watcher::new()?,
            survey: Survey::default(),
            stale: Stale::Everything,
            begun: BTreeSet::new(),
        })
    }

    /// Lets the next [`Tracked::look`] tell everything.
    pub(super) fn expire(&mut self) {
        self.stale = Stale::Everything;
        self.begun.clear();
    }

    /// What the paths stand for now, and what of it must be read again.
    pub(super) fn look(&mut self) -> Look<'_> {
        self.look_up();
        let stale = std::mem::replace(&mut self.stale, Stale::none());
        self.begun.retain(|file| self.survey.files.contains(file));
        Look { survey: &self.survey, stale, begun: &self.begun }
    }

    /// Waits until there is something to load. May be dropped and called again: nothing is lost.
    pub(super) async fn changed(&mut self) -> io::Result<()> {
        loop {
            while self.stale.is_none() {
                let change = self.watcher.change().await?;
                self.note(change);
            }
            self.note_for(COALESCE, |_| true).await?;
            self.note_for(SUCCESSION, Self::lacks_a_file).await?;
            if !self.stale.is_none() {
                return Ok(());
            }
        }
    }

    /// Watches first and looks second, so that no change falls between the two.
    fn look_up(&mut self) {
        for _ in 0..MAX_SURVEYS {
            self.survey = Survey::of(&self.paths);
            if !self.watcher.follow(self.survey.directories()) {
                return;
            }
        }
    }

    async fn note_for(&mut self, span: Duration, pending: fn(&Self) -> bool) -> io::Result<()> {
        let mut end = pin!(sleep(span));
        while pending(self) {
            tokio::select! {
                // What has happened is noted before the end is looked at: a file that is there may be half written.
                biased;
                change = self.watcher.change() => self.note(change?),
                () = &mut end => return Ok(()),
            }
        }
        Ok(())
    }

    /// Whether a file that has changed is not there: its successor may be on its way.
    fn lacks_a_file(&self) -> bool {
        match &self.stale {
            Stale::Everything => self.paths.iter().any(|path| !path.exists()),
            Stale::Files(files) => files.iter().any(|file| !file.exists()),
        }
    }

    fn note(&mut self, change: Change) {
        match change {
            Change::Complete(directory, name) | Change::Gone(directory, name) => {
                let stale = self.survey.depends_on(&directory, &name);
                self.begun.retain(|file| !stale.contains(file));
                self.stale.merge(stale);
            }
            Change::Begun(directory, name) => self.begin(&directory, &name),
            Change::Lost => self.expire(),
        }
    }

    /// A file that is being written keeps what it held until it is closed.
    fn begin(&mut self, directory: &Path, name: &OsStr) {
        let Stale::Files(files) = self.survey.depends_on(directory, name) else {
            return;
        };
        if let Stale::Files(stale) = &mut self.stale {
            stale.retain(|file| !files.contains(file));
        }
        self.begun.extend(files);
    }
}
