//! What each source file owes its reader.

use std::path::Path;

use crate::assert_no_offences;
use crate::tree::{SourceTree, TextFile, words};

/// Names that say nothing about what a module decides or owns.
const BANNED_MODULES: &[&str] =
    &["util", "utils", "common", "core", "shared", "misc", "manager", "helper", "helpers"];

/// Words of RFC 9110 that prose may use. In identifiers, the second word of each pair stands for the first.
const SYNONYMS: &[(&str, &str)] = &[("downstream", "client"), ("upstream", "endpoint")];

/// Where `unsafe` is at home, under `// SAFETY:`.
const UNSAFE: &[&str] = &[
    "crates/bgp/src/sys.rs",
    "crates/l4/src/layout.rs",
    "crates/proxy/src/sys.rs",
    "crates/quic/src/sys.rs",
    "crates/sheave/src/memory.rs",
    "crates/sheave/src/memory/allocator.rs",
];

/// The only caller of the system's clock. The runtime's own, by which its timers go, is another.
const CLOCK: &str = "crates/proxy/src/clock.rs";

#[test]
fn every_source_file_has_a_module_comment() {
    let tree = SourceTree::read();
    let silent = tree.with_suffix(".rs").filter(|file| !file.text.starts_with("//! "));
    assert_no_offences(silent.map(|file| file.at(0, "the first line is no `//!`")));
}

#[test]
fn modules_have_no_banned_names() {
    let tree = SourceTree::read();
    let empty = |file: &&TextFile| {
        let names = Path::new(&file.path).with_extension("");
        names.iter().any(|name| BANNED_MODULES.contains(&name.to_str().unwrap()))
    };
    assert_no_offences(
        tree.with_suffix(".rs").filter(empty).map(|file| file.at(0, "a name that says nothing")),
    );
}

#[test]
fn identifiers_use_no_banned_synonyms() {
    let tree = SourceTree::read();
    assert_no_offences(tree.product().flat_map(synonyms));
}

fn synonyms(file: &TextFile) -> Vec<String> {
    let mut found = Vec::new();
    for (number, code) in file.code() {
        for (word, instead) in SYNONYMS {
            if code.to_lowercase().contains(word) {
                found.push(file.at(number, format_args!("{word}: say {instead}")));
            }
        }
    }
    found
}

#[test]
fn unsafe_is_confined_to_allowed_files() {
    let tree = SourceTree::read();
    let abroad = tree.with_suffix(".rs").filter(|file| !UNSAFE.contains(&file.path.as_str()));
    assert_no_offences(abroad.flat_map(|file| {
        let lines = file.code().filter(|(_, code)| words(code).any(|word| word == "unsafe"));
        lines.map(|(number, _)| file.at(number, "unsafe")).collect::<Vec<_>>()
    }));
}

#[test]
fn only_the_clock_module_reads_the_clock() {
    let tree = SourceTree::read();
    let timers = ["use tokio::time::Instant", "use tokio::time::{Instant"];
    let by_timers = |file: &TextFile| timers.iter().any(|it| file.text.contains(it));
    let others = tree.product().filter(|file| file.path != CLOCK && !by_timers(file));
    let reads = |code: &str| code.contains("Instant::now") || code.contains("SystemTime::now");
    assert_no_offences(others.flat_map(|file| {
        let lines = file.code().filter(|(_, code)| reads(code));
        lines.map(|(number, _)| file.at(number, "reads the clock")).collect::<Vec<_>>()
    }));
}

#[test]
fn no_tabs_and_no_trailing_whitespace() {
    let tree = SourceTree::read();
    assert_no_offences(tree.files.iter().flat_map(|file| {
        let lines = file.text.split('\n').enumerate();
        let untidy = lines.filter(|(_, line)| line.contains('\t') || line.ends_with([' ', '\r']));
        untidy
            .map(|(number, _)| file.at(number, "a tab, or a blank at the end"))
            .collect::<Vec<_>>()
    }));
}

#[test]
fn every_dependency_has_a_comment() {
    let tree = SourceTree::read();
    assert_no_offences(dependencies_without_comment(tree.file("Cargo.toml").expect("Cargo.toml")));
}

/// Dependencies from elsewhere with no comment above them or above their neighbours.
fn dependencies_without_comment(manifest: &TextFile) -> Vec<String> {
    let section = manifest.lines().skip_while(|(_, line)| *line != "[workspace.dependencies]");
    let section = section.skip(1).take_while(|(_, line)| !line.starts_with('['));
    let mut explained = false;
    let mut found = Vec::new();
    for (number, line) in section {
        match line.chars().next() {
            None => explained = false,
            // A line that only parts the groups explains nothing.
            Some('#') => explained = !line.starts_with("# --"),
            Some(_) if explained || line.contains("path = ") => {}
            Some(_) => found.push(manifest.at(number, "no reason given")),
        }
    }
    found
}
