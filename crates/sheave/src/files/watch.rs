//! What happens in directories, by inotify: a file was completed, is being written, or has gone.
//!
//! It knows names and directories, not configuration. A file counts as complete when it was closed after writing, or
//! came by a rename or a link: what an editor or `kubectl` has half written is never announced as complete.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use inotify::{EventMask, EventOwned, EventStream, Inotify, StreamExt, WatchDescriptor, WatchMask};

/// Room for a few hundred events; a burst beyond it is read in several turns.
const BUFFER_BYTES: usize = 16 * 1024;

/// Something happened to an entry of a watched directory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DirectoryChange {
    /// The entry is complete: written and closed, renamed to, linked, or a directory.
    Complete(PathBuf, OsString),
    /// A file was created and is open for writing.
    Writing(PathBuf, OsString),
    /// The entry was removed or renamed away.
    Removed(PathBuf, OsString),
    /// The kernel dropped events: anything may have happened.
    Overflow,
}

/// Watches a set of directories.
#[derive(Debug)]
pub(crate) struct DirectoryWatcher {
    events: EventStream<Vec<u8>>,
    directories: HashMap<WatchDescriptor, PathBuf>,
    /// Directories that could not be watched; each is reported once.
    unwatchable: BTreeSet<PathBuf>,
}

impl DirectoryWatcher {
    /// Watches nothing yet. Needs a running tokio runtime.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            events: Inotify::init()?.into_event_stream(vec![0; BUFFER_BYTES])?,
            directories: HashMap::new(),
            unwatchable: BTreeSet::new(),
        })
    }

    /// Watches exactly these directories; tells whether one of them was not watched before.
    ///
    /// A path that has come to mean another directory is a new one: the kernel watches directories, not paths.
    pub(crate) fn watch<'a>(&mut self, directories: impl Iterator<Item = &'a Path>) -> bool {
        let mut followed = HashMap::new();
        for directory in directories.collect::<BTreeSet<_>>() {
            if let Some(watch) = self.add(directory) {
                followed.insert(watch, directory.to_owned());
            }
        }
        let grown = followed.keys().any(|watch| !self.directories.contains_key(watch));
        for watch in self.directories.keys().filter(|watch| !followed.contains_key(*watch)) {
            // It fails only if the directory has gone, and its watch with it.
            self.events.watches().remove(watch.clone()).ok();
        }
        self.directories = followed;
        grown
    }

    /// The next change. Nothing is lost if the future is dropped.
    pub(crate) async fn next_change(&mut self) -> io::Result<DirectoryChange> {
        loop {
            let event = self.events.next().await.expect("a stream of events has no end")?;
            if let Some(change) = self.to_change(event) {
                return Ok(change);
            }
        }
    }

    /// What an event says; `None`: nothing to us.
    fn to_change(&mut self, event: EventOwned) -> Option<DirectoryChange> {
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            return Some(DirectoryChange::Overflow);
        }
        if event.mask.contains(EventMask::IGNORED) {
            self.directories.remove(&event.wd);
            return None;
        }
        let directory = self.directories.get(&event.wd)?.clone();
        let name = event.name?;
        if event.mask.intersects(EventMask::DELETE | EventMask::MOVED_FROM) {
            Some(DirectoryChange::Removed(directory, name))
        } else if event.mask.contains(EventMask::CREATE) && is_being_written(&directory.join(&name))
        {
            Some(DirectoryChange::Writing(directory, name))
        } else {
            Some(DirectoryChange::Complete(directory, name))
        }
    }

    fn add(&mut self, directory: &Path) -> Option<WatchDescriptor> {
        let mask = WatchMask::CLOSE_WRITE
            | WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::MOVED_FROM
            | WatchMask::MOVED_TO
            | WatchMask::ONLYDIR;
        match self.events.watches().add(directory, mask) {
            Ok(watch) => {
                self.unwatchable.remove(directory);
                Some(watch)
            }
            // It has gone since it was looked up; an entry of its parent tells when it returns.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                if self.unwatchable.insert(directory.to_owned()) {
                    tracing::warn!(
                        directory = %directory.display(),
                        %error,
                        "changes in this directory go unseen: after one, send SIGHUP"
                    );
                }
                None
            }
        }
    }
}

/// Whether a file that has just been created came by `open` and not by `link`, `symlink` or `mkdir`. It will be closed.
fn is_being_written(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.nlink() == 1)
}
