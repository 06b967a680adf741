//! Names and sentences: the standard terms of the field, in plain English.

use std::collections::{BTreeMap, BTreeSet};

use crate::assert_no_offences;
use crate::tree::{SourceTree, TextFile, words};

/// The table of terms; its last column names types.
const GLOSSARY: &str = "docs/glossary.md";

/// Names that traits of other crates give to their associated types.
const FOREIGN_TYPES: &[&str] = &[
    "Addr",
    "ConnectInfo",
    "Err",
    "Error",
    "Future",
    "Io",
    "Item",
    "Output",
    "Response",
    "Target",
    "Writer",
];

/// Words for persons. Requests, connections and bytes are things.
const PERSONS: &[&str] =
    &["who", "whom", "whoever", "whomever", "nobody", "somebody", "anybody", "someone", "anyone"];

/// Words with which no doc comment opens: its subject comes first.
const RIDDLES: &[&str] =
    &["what", "who", "whom", "whose", "of", "whether", "that", "which", "where", "as", "how"];

/// Code that another project's generator has written.
const GENERATED: &[&str] = &["crates/sheave/src/scaler/externalscaler.rs"];

#[test]
fn type_names_have_two_words_or_stand_in_the_glossary() {
    let tree = SourceTree::read();
    let glossary = &tree.file(GLOSSARY).expect("the glossary").text;
    let terms: BTreeSet<&str> = glossary.split('`').skip(1).step_by(2).collect();
    let is_known =
        |name: &str| count_words(name) > 1 || FOREIGN_TYPES.contains(&name) || terms.contains(name);
    let sources = written_sources(&tree);
    assert_no_offences(sources.flat_map(|file| {
        let unknown = types_of(file).into_iter().filter(|(_, name)| !is_known(name));
        unknown
            .map(|(line, name)| file.at(line, format_args!("{name}: one word, not in {GLOSSARY}")))
            .collect::<Vec<_>>()
    }));
}

#[test]
fn type_names_are_unique_in_their_crate() {
    let tree = SourceTree::read();
    let mut places: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for file in written_sources(&tree) {
        for (line, name) in types_of(file) {
            if !FOREIGN_TYPES.contains(&name.as_str()) {
                let place = file.at(line, &name);
                places.entry((crate_of(file).to_owned(), name)).or_default().push(place);
            }
        }
    }
    let repeated = places.into_values().filter(|places| places.len() > 1);
    assert_no_offences(repeated.map(|places| places.join(", ")));
}

#[test]
fn doc_comments_open_with_their_subject() {
    let tree = SourceTree::read();
    assert_no_offences(written_sources(&tree).flat_map(|file| {
        let riddles = doc_comments(file).into_iter().filter(|(_, text)| {
            let first = words(text).next().unwrap_or_default().to_lowercase();
            RIDDLES.contains(&first.as_str())
        });
        riddles.map(|(line, text)| file.at(line, text)).collect::<Vec<_>>()
    }));
}

#[test]
fn things_are_not_called_persons() {
    let tree = SourceTree::read();
    let comments = written_sources(&tree).flat_map(|file| {
        let lines = file.lines().filter(|(_, line)| line.trim_start().starts_with("//"));
        persons(file, lines)
    });
    let is_page = |file: &&TextFile| file.path.ends_with(".md") || is_user_text(&file.path);
    let pages = tree.files.iter().filter(is_page).flat_map(|file| persons(file, file.lines()));
    assert_no_offences(comments.chain(pages));
}

/// CRDs, manifests and examples: `kubectl explain` and editors show them.
fn is_user_text(path: &str) -> bool {
    (path.starts_with("deploy/") || path.starts_with("examples/")) && path.ends_with(".yaml")
}

fn persons<'t>(file: &TextFile, lines: impl Iterator<Item = (usize, &'t str)>) -> Vec<String> {
    let is_person = |word: &str| PERSONS.contains(&word.to_lowercase().as_str());
    let found = lines.filter(|(_, line)| words(line).any(is_person));
    found.map(|(number, line)| file.at(number, line.trim())).collect()
}

/// Sources that people have written.
fn written_sources(tree: &SourceTree) -> impl Iterator<Item = &TextFile> {
    tree.product().filter(|file| !GENERATED.contains(&file.path.as_str()))
}

fn crate_of(file: &TextFile) -> &str {
    file.path.split('/').nth(1).expect("a path below crates/")
}

/// The types that a file defines before its unit tests, with their lines.
fn types_of(file: &TextFile) -> Vec<(usize, String)> {
    const KEYWORDS: &[&str] = &["struct", "enum", "trait", "union", "type"];
    let mut types = Vec::new();
    for (number, line) in file.code() {
        let mut before = words(&line)
            .skip_while(|word| matches!(*word, "pub" | "crate" | "super" | "in" | "unsafe"));
        if before.next().is_some_and(|word| KEYWORDS.contains(&word))
            && let Some(name) = before.next()
            && name.starts_with(|first: char| first.is_ascii_uppercase())
        {
            types.push((number, name.to_owned()));
        }
    }
    types
}

/// Counts the words of a name in camel case; letters in upper case that follow one another are one.
fn count_words(name: &str) -> usize {
    let letters: Vec<char> = name.chars().collect();
    let begins_word = |at: usize| {
        let is_upper = |at: usize| letters.get(at).is_some_and(char::is_ascii_uppercase);
        let is_lower = |at: usize| letters.get(at).is_some_and(|it| !it.is_ascii_uppercase());
        is_upper(at) && (at == 0 || !is_upper(at - 1) || is_lower(at + 1))
    };
    (0..letters.len()).filter(|&at| begins_word(at)).count()
}

/// The doc comments of a file before its unit tests, with the lines at which they begin.
fn doc_comments(file: &TextFile) -> Vec<(usize, &str)> {
    let mut comments = Vec::new();
    let mut is_inside = false;
    for (number, line) in file.lines().take_while(|(_, line)| !line.starts_with("#[cfg(test)")) {
        let line = line.trim_start();
        let text = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        if let Some(text) = text
            && !is_inside
        {
            comments.push((number, text.trim_start()));
        }
        is_inside = text.is_some();
    }
    comments
}

#[test]
fn words_of_a_name_are_counted() {
    for (name, count) in [
        ("Slot", 1),
        ("PeakEwma", 2),
        ("H2Connection", 2),
        ("TlsInfo", 2),
        ("AWSKey", 2),
        ("IO", 1),
    ] {
        assert_eq!(count_words(name), count, "{name}");
    }
}
