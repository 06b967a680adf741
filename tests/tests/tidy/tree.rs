//! Reading the tree.

use std::path::{Path, PathBuf};
use std::{fs, iter};

/// Every text file that people write.
pub(crate) struct SourceTree {
    pub(crate) root: PathBuf,
    pub(crate) files: Vec<TextFile>,
}

/// One of them.
pub(crate) struct TextFile {
    /// Relative to the root, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// Folders that hold what programs write: raw results stay as they were measured.
const WRITTEN_BY_PROGRAMS: &[&str] = &["target", "runs", "node_modules", "__pycache__", "corpus"];

const SUFFIXES: &[&str] = &["rs", "md", "toml", "yaml", "yml", "py", "sh"];

impl SourceTree {
    pub(crate) fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned();
        let mut paths = Vec::new();
        collect(&root, &mut paths);
        paths.sort();
        let files = paths.iter().map(|path| TextFile::read(&root, path)).collect();
        Self { root, files }
    }

    pub(crate) fn with_suffix(&self, suffix: &str) -> impl Iterator<Item = &TextFile> {
        self.files.iter().filter(move |file| file.path.ends_with(suffix))
    }

    /// Rust files of the product, without tests and examples that stand beside them.
    pub(crate) fn product(&self) -> impl Iterator<Item = &TextFile> {
        let folders = ["/tests/", "/benches/", "/examples/"];
        let beside = move |path: &str| {
            path.ends_with("/tests.rs") || folders.iter().any(|folder| path.contains(folder))
        };
        self.with_suffix(".rs")
            .filter(move |file| file.path.starts_with("crates/") && !beside(&file.path))
    }

    pub(crate) fn file(&self, path: &str) -> Option<&TextFile> {
        self.files.iter().find(|file| file.path == path)
    }
}

impl TextFile {
    fn read(root: &Path, path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let path = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        Self { path, text }
    }

    /// An offence in this line, counted from 0.
    pub(crate) fn at(&self, line: usize, what: impl std::fmt::Display) -> String {
        format!("{}:{}: {what}", self.path, line + 1)
    }

    /// Lines with their numbers.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate()
    }

    /// Lines of code before the unit tests, without comments and the contents of strings.
    pub(crate) fn code(&self) -> impl Iterator<Item = (usize, String)> {
        let before_tests = self.lines().take_while(|(_, line)| *line != "#[cfg(test)]");
        before_tests.map(|(number, line)| (number, without_comment(line)))
    }
}

/// The words of a line of code.
pub(crate) fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.starts_with('.') || WRITTEN_BY_PROGRAMS.contains(&name) {
            continue;
        }
        if path.is_dir() {
            collect(&path, paths);
            continue;
        }
        let suffix = path.extension().and_then(|suffix| suffix.to_str());
        if suffix.is_some_and(|suffix| SUFFIXES.contains(&suffix)) {
            paths.push(path);
        }
    }
}

/// The line up to `//`, with strings emptied.
fn without_comment(line: &str) -> String {
    let mut code = String::new();
    let mut quoted = false;
    let mut escaped = false;
    let next = line.chars().skip(1).chain(iter::once(' '));
    for (this, next) in line.chars().zip(next) {
        match (quoted, this) {
            (false, '/') if next == '/' => break,
            (_, '"') if !escaped => quoted = !quoted,
            (false, _) => code.push(this),
            (true, _) => {}
        }
        escaped = quoted && this == '\\' && !escaped;
    }
    code
}

#[test]
fn comments_and_strings_are_stripped() {
    let cases = [
        ("let a = 1; // unsafe", "let a = 1; "),
        (r#"f("// \" x", y)"#, "f(, y)"),
        ("//! unsafe", ""),
    ];
    for (line, code) in cases {
        assert_eq!(without_comment(line), code);
    }
}
