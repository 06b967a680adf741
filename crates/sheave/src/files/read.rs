//! Reads and parses files; caches the results, so that one changed file costs one parse.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gateway::{ApiObject, ObjectOrigin, ObjectProblem, TranslationSettings};
use tokio::time::Instant;

use super::path_tracker::PathChanges;
use crate::configuration::ErrorPolicy;

/// Size limit of a file; ten thousand routes take about 5 MiB.
const MAX_FILE_BYTES: u64 = 64 * 1024 * 1024;

/// Content of a configuration source.
#[derive(Debug, Default)]
pub(crate) struct SourceContents {
    pub(crate) objects: Vec<ApiObject>,
    pub(crate) problems: Vec<ObjectProblem>,
    /// Settings of their translation.
    pub(crate) settings: TranslationSettings,
    pub(crate) error_policy: ErrorPolicy,
}

/// Time after which a file that has lost all its objects is read again. Only then is it taken as it is: some editors
/// empty a file before they write it.
const CONFIRM_AFTER: Duration = Duration::from_secs(2);

/// Parsed files, by path.
#[derive(Debug, Default)]
pub(crate) struct FileCache {
    files: BTreeMap<PathBuf, ParsedFile>,
    /// Files that were found without objects; their previous objects stay until they are read again at this time.
    emptied: BTreeMap<PathBuf, Instant>,
}

#[derive(Debug)]
struct ParsedFile {
    objects: Vec<ApiObject>,
    problems: Vec<ObjectProblem>,
}

impl FileCache {
    /// Reads files that are stale or new, and drops files that are gone. A file that is being written keeps its
    /// previous content, or is skipped if it has none.
    ///
    /// A file that has lost all its objects keeps them until a second read confirms that.
    pub(crate) fn refresh(&mut self, changes: PathChanges<'_>, now: Instant) -> SourceContents {
        let PathChanges { resolved, stale, unfinished } = changes;
        let mut contents = SourceContents::default();
        for (path, reason) in &resolved.unreadable {
            contents.problems.push(file_problem(path, reason.clone()));
        }
        let mut before = std::mem::take(&mut self.files);
        for path in &resolved.files {
            let is_unfinished = unfinished.contains(path);
            if is_unfinished {
                self.emptied.remove(path);
            }
            let is_current = !stale.contains(path) && !self.emptied.contains_key(path);
            let parsed = match before.remove(path) {
                Some(known) if is_current || is_unfinished => known,
                None if is_unfinished => continue,
                known => self.read(path, known, now),
            };
            contents.add(&parsed);
            self.files.insert(path.clone(), parsed);
        }
        self.emptied.retain(|path, _| self.files.contains_key(path));
        contents
    }

    /// Takes the files that have lost their objects as they are at the next read.
    pub(crate) fn confirm(&mut self) {
        let now = Instant::now();
        self.emptied.values_mut().for_each(|due| *due = now);
    }

    /// Returns the time of the next read that confirms what an earlier one found.
    pub(crate) fn confirm_at(&self) -> Option<Instant> {
        self.emptied.values().min().copied()
    }

    /// Reads a file; if it has just lost all objects, returns its previous content.
    fn read(&mut self, path: &Path, known: Option<ParsedFile>, now: Instant) -> ParsedFile {
        let parsed = ParsedFile::read(path);
        let known = known.filter(|known| !known.objects.is_empty());
        if parsed.objects.is_empty()
            && parsed.problems.is_empty()
            && let Some(known) = known
            && self.is_unconfirmed(path, now)
        {
            return known;
        }
        self.emptied.remove(path);
        parsed
    }

    /// Notes that a file has lost its objects. Returns false if this is confirmed by now.
    fn is_unconfirmed(&mut self, path: &Path, now: Instant) -> bool {
        let file = path.display();
        match self.emptied.get(path) {
            Some(due) if *due <= now => {
                tracing::warn!(%file, "the file still has no objects: they are removed");
                self.emptied.remove(path);
                false
            }
            Some(_) => true,
            None => {
                let seconds = CONFIRM_AFTER.as_secs();
                tracing::warn!(
                    %file,
                    "the file has lost all its objects: they stay in force until it is read again in {seconds} s"
                );
                self.emptied.insert(path.to_owned(), now + CONFIRM_AFTER);
                true
            }
        }
    }
}

impl SourceContents {
    fn add(&mut self, parsed: &ParsedFile) {
        self.objects.extend(parsed.objects.iter().cloned());
        self.problems.extend(parsed.problems.iter().cloned());
    }
}

impl ParsedFile {
    fn read(path: &Path) -> Self {
        match read_text(path) {
            Ok(text) => {
                let (objects, problems) = gateway::parse(&text, &path.to_string_lossy());
                Self { objects, problems }
            }
            Err(error) => {
                Self { objects: Vec::new(), problems: vec![file_problem(path, error_text(&error))] }
            }
        }
    }
}

fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let read = File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    if read as u64 > MAX_FILE_BYTES {
        return Err(io::Error::other("larger than 64 MiB: split it"));
    }
    Ok(text)
}

/// Returns a problem that concerns a file as a whole.
pub(super) fn file_problem(path: &Path, message: String) -> ObjectProblem {
    let origin = ObjectOrigin { file: Arc::from(path.to_string_lossy()), document: 0 };
    ObjectProblem { origin, object: String::new(), field: String::new(), message }
}

/// Returns the error in plain words.
pub(super) fn error_text(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such file or directory".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        io::ErrorKind::InvalidData => "not UTF-8 text".to_owned(),
        _ => error.to_string(),
    }
}
