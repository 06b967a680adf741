//! Resolves a list of paths to files, and records every directory entry on which the result
//! depends.
//!
//! A mounted ConfigMap is a directory of links to `..data/NAME`, where `..data` is itself a link that is replaced as a
//! whole; an editor saves by renaming; a volume may vanish and return. All of these are changes of directory entries,
//! so a path is walked as the kernel walks it, and each entry on the way is recorded.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use super::read::error_text;

/// Maximum number of links in one path, the same as the kernel's.
const MAX_LINKS: usize = 40;

/// Files that must be read again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StaleFiles {
    Everything,
    Files(BTreeSet<PathBuf>),
}

/// Files that a list of paths resolves to, with their dependencies.
#[derive(Debug, Default)]
pub(crate) struct ResolvedPaths {
    /// The files to read, as the paths name them, in their order.
    pub(crate) files: Vec<PathBuf>,
    /// Paths that cannot be read, and why.
    pub(crate) unreadable: Vec<(PathBuf, String)>,
    /// Files that become stale when a directory entry changes.
    entries: BTreeMap<PathBuf, BTreeMap<OsString, StaleFiles>>,
    /// Directories whose configuration files all count: the resolved path, and the path as given.
    folders: BTreeMap<PathBuf, PathBuf>,
    /// Resolved files, so that a file that is named twice is read once.
    seen: BTreeSet<PathBuf>,
}

impl StaleFiles {
    pub(crate) fn none() -> Self {
        Self::Files(BTreeSet::new())
    }

    pub(crate) fn file(path: PathBuf) -> Self {
        Self::Files(BTreeSet::from([path]))
    }

    pub(crate) fn is_none(&self) -> bool {
        matches!(self, Self::Files(files) if files.is_empty())
    }

    pub(crate) fn contains(&self, path: &Path) -> bool {
        match self {
            Self::Everything => true,
            Self::Files(files) => files.contains(path),
        }
    }

    pub(crate) fn merge(&mut self, other: Self) {
        match (&mut *self, other) {
            (Self::Everything, _) => {}
            (Self::Files(_), Self::Everything) => *self = Self::Everything,
            (Self::Files(files), Self::Files(more)) => files.extend(more),
        }
    }
}

impl ResolvedPaths {
    /// Resolves the paths; reads no file.
    pub(crate) fn resolve(paths: &[PathBuf]) -> Self {
        let mut resolved = Self::default();
        for path in paths {
            if let Err(error) = resolved.add(path) {
                resolved.unreadable.push((path.clone(), error_text(&error)));
            }
        }
        resolved
    }

    /// Returns the directories to watch.
    pub(crate) fn directories(&self) -> impl Iterator<Item = &Path> {
        self.entries.keys().chain(self.folders.keys()).map(PathBuf::as_path)
    }

    /// Returns the files that become stale when this entry changes.
    pub(crate) fn affected_by(&self, directory: &Path, name: &OsStr) -> StaleFiles {
        let recorded = self.entries.get(directory).and_then(|names| names.get(name));
        if let Some(stale) = recorded {
            return stale.clone();
        }
        match self.folders.get(directory) {
            Some(folder) if is_configuration(name) => StaleFiles::file(folder.join(name)),
            Some(_) | None => StaleFiles::none(),
        }
    }

    fn add(&mut self, path: &Path) -> io::Result<()> {
        let absolute = std::path::absolute(path)?;
        if fs::metadata(&absolute).is_ok_and(|metadata| metadata.is_dir()) {
            let resolved = self.walk(&absolute, &StaleFiles::Everything)?;
            self.add_folder(path, resolved)
        } else {
            self.add_file(path, &absolute)
        }
    }

    /// Adds the configuration files of a directory in the order of their names; subdirectories are
    /// not read.
    fn add_folder(&mut self, path: &Path, resolved: PathBuf) -> io::Result<()> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&resolved)? {
            let name = entry?.file_name();
            if is_configuration(&name) && !resolved.join(&name).is_dir() {
                names.push(name);
            }
        }
        names.sort();
        if names.is_empty() {
            let message = "holds no configuration: no file *.yaml, *.yml or *.json".to_owned();
            self.unreadable.push((path.to_owned(), message));
        }
        for name in names {
            let file = path.join(&name);
            if let Err(error) = self.add_file(&file, &resolved.join(&name)) {
                self.unreadable.push((file, error_text(&error)));
            }
        }
        self.folders.insert(resolved, path.to_owned());
        Ok(())
    }

    fn add_file(&mut self, path: &Path, absolute: &Path) -> io::Result<()> {
        let resolved = self.walk(absolute, &StaleFiles::file(path.to_owned()))?;
        if self.seen.insert(resolved) {
            self.files.push(path.to_owned());
        }
        Ok(())
    }

    /// Resolves an absolute path and records each entry on the way, including those before a missing one.
    fn walk(&mut self, absolute: &Path, dependents: &StaleFiles) -> io::Result<PathBuf> {
        let mut at = PathBuf::from("/");
        let mut links = 0;
        let mut ahead: Vec<PathBuf> = parts(absolute);
        while let Some(part) = ahead.pop() {
            match part.components().next() {
                Some(Component::Normal(name)) => self.add_dependency(&at, name, dependents),
                Some(Component::ParentDir) => {
                    at.pop();
                    continue;
                }
                Some(Component::RootDir) => {
                    at = PathBuf::from("/");
                    continue;
                }
                Some(Component::CurDir | Component::Prefix(_)) | None => continue,
            }
            let entry = at.join(&part);
            if !fs::symlink_metadata(&entry)?.is_symlink() {
                at = entry;
                continue;
            }
            links += 1;
            if links > MAX_LINKS {
                return Err(io::Error::other("too many levels of symbolic links"));
            }
            ahead.extend(parts(&fs::read_link(&entry)?));
        }
        Ok(at)
    }

    fn add_dependency(&mut self, directory: &Path, name: &OsStr, dependents: &StaleFiles) {
        let names = self.entries.entry(directory.to_owned()).or_default();
        names.entry(name.to_owned()).or_insert_with(StaleFiles::none).merge(dependents.clone());
    }
}

/// Splits a path into its components, the first one last.
fn parts(path: &Path) -> Vec<PathBuf> {
    path.components().rev().map(|component| PathBuf::from(component.as_os_str())).collect()
}

/// True if a directory entry with this name is a configuration file; hidden files are not.
fn is_configuration(name: &OsStr) -> bool {
    let path = Path::new(name);
    let known = path.extension().is_some_and(|it| it == "yaml" || it == "yml" || it == "json");
    known && !name.as_encoded_bytes().starts_with(b".")
}
