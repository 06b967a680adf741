//! Changes in directories, by inotify: a file was completed, is being written, or was removed.
//!
//! It knows names and directories, not configuration. A file counts as complete when it was closed after writing, or
//! appeared by a rename or a link. So a file that an editor or `kubectl` has half written is never announced as
//! complete.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use inotify::{EventMask, EventOwned, EventStream, Inotify, StreamExt, WatchDescriptor, WatchMask};

/// Buffer for a few hundred events; a larger burst takes several reads.
const BUFFER_BYTES: usize = 16 * 1024;

/// Change of an entry in a watched directory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DirectoryChange {
    /// The entry is complete: written and closed, renamed to, linked, or a directory.
    Complete(PathBuf, OsString),
    /// A file was created and is open for writing.
    Writing(PathBuf, OsString),
    /// The entry was removed or renamed away.
    Removed(PathBuf, OsString),
    /// The kernel dropped events: any entry may have changed.
    Overflow,
}

/// Watches on a set of directories.
#[derive(Debug)]
pub(crate) struct DirectoryWatcher {
    events: EventStream<Vec<u8>>,
    directories: HashMap<WatchDescriptor, PathBuf>,
    /// Directories that could not be watched; each is logged once.
    unwatchable: BTreeSet<PathBuf>,
}

impl DirectoryWatcher {
    /// Creates a watcher without watches. Needs a running tokio runtime.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            events: Inotify::init()?.into_event_stream(vec![0; BUFFER_BYTES])?,
            directories: HashMap::new(),
            unwatchable: BTreeSet::new(),
        })
    }

    /// Watches exactly these directories; returns whether one of them was not watched before.
    ///
    /// A path that now resolves to another directory counts as new: the kernel watches directories, not paths.
    pub(crate) fn watch<'a>(&mut self, directories: impl Iterator<Item = &'a Path>) -> bool {
        let mut watched = HashMap::new();
        for directory in directories.collect::<BTreeSet<_>>() {
            if let Some(watch) = self.add(directory) {
                watched.insert(watch, directory.to_owned());
            }
        }
        let has_new = watched.keys().any(|watch| !self.directories.contains_key(watch));
        for watch in self.directories.keys().filter(|watch| !watched.contains_key(*watch)) {
            // This fails only if the directory has gone, and its watch with it.
            self.events.watches().remove(watch.clone()).ok();
        }
        self.directories = watched;
        has_new
    }

    /// Waits for the next change. Cancel-safe: nothing is lost.
    pub(crate) async fn next_change(&mut self) -> io::Result<DirectoryChange> {
        loop {
            let event = self.events.next().await.expect("an inotify event stream never ends")?;
            if let Some(change) = self.interpret(event) {
                return Ok(change);
            }
        }
    }

    /// Converts an event; `None` if it is irrelevant.
    fn interpret(&mut self, event: EventOwned) -> Option<DirectoryChange> {
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
            // The directory has gone since it was resolved; an event in its parent reports its
            // return.
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                if self.unwatchable.insert(directory.to_owned()) {
                    tracing::warn!(
                        directory = %directory.display(),
                        %error,
                        "cannot watch this directory: send SIGHUP after a change"
                    );
                }
                None
            }
        }
    }
}

/// True if a file that has just been created came from `open` and not from `link`, `symlink` or `mkdir`: it will be
/// closed.
fn is_being_written(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.nlink() == 1)
}
