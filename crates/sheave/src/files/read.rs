//! Reads and parses files; caches the results, so that one changed file costs one parse.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gateway::{ApiObject, ObjectOrigin, ObjectProblem, TranslationSettings};

use super::resolved_paths::{ResolvedPaths, StaleFiles};
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

/// Parsed files, by path.
#[derive(Debug, Default)]
pub(crate) struct FileCache {
    files: BTreeMap<PathBuf, ParsedFile>,
}

#[derive(Debug)]
struct ParsedFile {
    objects: Vec<ApiObject>,
    problems: Vec<ObjectProblem>,
}

impl FileCache {
    /// Reads files that are stale or new, and drops files that are gone. A file in `unfinished` is
    /// being written: it keeps its previous content, or is skipped if it has none.
    pub(crate) fn refresh(
        &mut self,
        resolved: &ResolvedPaths,
        stale: &StaleFiles,
        unfinished: &BTreeSet<PathBuf>,
    ) -> SourceContents {
        let mut contents = SourceContents::default();
        for (path, reason) in &resolved.unreadable {
            contents.problems.push(file_problem(path, reason.clone()));
        }
        let mut before = std::mem::take(&mut self.files);
        for path in &resolved.files {
            let known = before.remove(path).filter(|_| !stale.contains(path));
            let parsed = match known {
                Some(parsed) => parsed,
                None if unfinished.contains(path) => continue,
                None => ParsedFile::read(path),
            };
            contents.objects.extend(parsed.objects.iter().cloned());
            contents.problems.extend(parsed.problems.iter().cloned());
            self.files.insert(path.clone(), parsed);
        }
        contents
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
