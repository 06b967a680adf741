//! What prose says about the tree.

use std::collections::HashSet;
use std::path::Path;

use crate::assert_no_offences;
use crate::tree::{SourceTree, TextFile, words};

#[test]
fn document_links_resolve() {
    let tree = SourceTree::read();
    assert_no_offences(tree.with_suffix(".md").flat_map(|file| broken_links(file, &tree.root)));
}

fn broken_links(file: &TextFile, root: &Path) -> Vec<String> {
    let folder = root.join(&file.path);
    let folder = folder.parent().unwrap();
    let mut broken = Vec::new();
    for (number, line) in prose(file) {
        for target in line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next()) {
            let path = target.split('#').next().unwrap();
            if !path.is_empty() && !target.contains(':') && !folder.join(path).exists() {
                broken.push(file.at(number, format_args!("nothing at {target}")));
            }
        }
    }
    broken
}

#[test]
fn names_in_the_architecture_exist() {
    let tree = SourceTree::read();
    let architecture = tree.file("ARCHITECTURE.md").expect("ARCHITECTURE.md");
    let code: Vec<String> =
        tree.with_suffix(".rs").flat_map(|file| file.code().map(|(_, code)| code)).collect();
    let names: HashSet<&str> = code.iter().flat_map(|line| words(line)).collect();
    let mut absent = Vec::new();
    for (number, line) in prose(architecture) {
        for quoted in line.split('`').skip(1).step_by(2) {
            if !exists(quoted, &tree, &names) {
                absent.push(architecture.at(number, format_args!("`{quoted}` does not exist")));
            }
        }
    }
    assert_no_offences(absent);
}

/// Whether the tree holds this file or item. What looks like neither is taken for a word of another language.
fn exists(quoted: &str, tree: &SourceTree, names: &HashSet<&str>) -> bool {
    if is_path(quoted) {
        let path = quoted.trim_end_matches('/');
        let end = format!("/{path}");
        let listed = tree.files.iter().any(|file| file.path.ends_with(&end));
        return listed || tree.root.join(path).exists();
    }
    let item = quoted.trim_end_matches("()").trim_end_matches('!');
    !is_item(item) || item.split("::").all(|segment| names.contains(segment))
}

/// A file or folder of ours; `/metrics` is a path of another kind, and so is what has a variable part.
fn is_path(quoted: &str) -> bool {
    let plain = !quoted.starts_with('/') && !quoted.contains([' ', '*', '<', '{', ':', '=']);
    let suffixed = [".rs", ".md", ".toml", ".yaml"].iter().any(|suffix| quoted.ends_with(suffix));
    plain && (suffixed || quoted.contains('/') && quoted.starts_with(|c: char| c.is_lowercase()))
}

/// Something only code is written like: `a::b`, `snake_case`, `CamelCase`.
fn is_item(quoted: &str) -> bool {
    let letters = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let written = quoted.chars().all(letters) && quoted.starts_with(char::is_alphabetic);
    let camel = quoted.starts_with(char::is_uppercase) && quoted.contains(char::is_lowercase);
    written && (camel || quoted.contains("::") || quoted.contains('_'))
}

/// Lines outside fenced blocks.
fn prose(file: &TextFile) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    file.lines().filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

#[test]
fn quoted_names_are_classified() {
    let cases = [
        ("crates/proxy/src/request.rs", true, false),
        ("request.rs", true, false),
        ("/metrics", false, false),
        ("make test", false, false),
        ("Retry-After", false, false),
        ("gateway::translate", false, true),
        ("Snapshot", false, true),
        ("in_flight", false, true),
        ("splice", false, false),
        ("GET", false, false),
    ];
    for (quoted, path, item) in cases {
        assert_eq!((is_path(quoted), is_item(quoted)), (path, item), "{quoted}");
    }
}
