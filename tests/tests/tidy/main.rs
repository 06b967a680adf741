//! What the tree must look like: agreements that no compiler and no lint keeps.
//!
//! Each test reads the tree and names every offence at once, with its file and line.

#![expect(clippy::unwrap_used, reason = "all of it is a test")]

use std::fs;
use std::path::Path;

/// Reading the tree.
mod tree;
/// Which crates may know which, and what the pure ones may not touch.
mod crates;
/// What each source file owes its reader.
mod sources;
/// Names and sentences.
mod language;
/// Import circles.
mod modules;
/// What prose says about the tree.
mod documents;
/// How tests wait.
mod waits;
/// What a program has written.
mod generated;

use tree::SourceTree;

/// Fails with all offences, if there are any.
fn assert_no_offences(offences: impl IntoIterator<Item = String>) {
    let offences: Vec<String> = offences.into_iter().collect();
    assert!(offences.is_empty(), "{} offences:\n{}", offences.len(), offences.join("\n"));
}

#[test]
fn every_experiment_is_complete() {
    let tree = SourceTree::read();
    let experiments = tree.root.join("lab/experiments");
    // A checkout without the lab has nothing to complete.
    let Ok(folders) = fs::read_dir(experiments) else { return };
    let folders = folders.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
    assert_no_offences(folders.flat_map(|folder| missing_files(&folder)));
}

fn missing_files(folder: &Path) -> Vec<String> {
    let parts = ["README.md", "experiment.toml", "expect.toml"];
    let absent = parts.iter().filter(|part| !folder.join(part).is_file());
    absent.map(|part| format!("{}: no {part}", folder.display())).collect()
}
