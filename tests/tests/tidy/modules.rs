//! Import circles: how many files of a crate can only be understood together.

use std::collections::{BTreeMap, BTreeSet};

use crate::assert_no_offences;
use crate::tree::{SourceTree, TextFile};

/// The most files that an import circle may have.
const LARGEST_CIRCLE: usize = 12;

#[test]
fn import_circles_are_small() {
    let tree = SourceTree::read();
    let mut crates: BTreeMap<&str, Vec<&TextFile>> = BTreeMap::new();
    for file in tree.product().filter(|file| file.path.contains("/src/")) {
        crates.entry(file.path.split('/').nth(1).unwrap()).or_default().push(file);
    }
    assert_no_offences(crates.into_iter().filter_map(|(name, files)| {
        let circle = largest_circle(&imports(&files));
        let size = circle.len();
        let is_too_large = size > LARGEST_CIRCLE;
        is_too_large
            .then(|| format!("{name}: {size} files import one another: {}", circle.join(" ")))
    }));
}

/// A module path within a crate.
type ModulePath = Vec<String>;

/// The modules that each module of a crate names in its code, by path.
fn imports(files: &[&TextFile]) -> BTreeMap<ModulePath, BTreeSet<ModulePath>> {
    let modules: BTreeSet<ModulePath> = files.iter().map(|file| module_of(file)).collect();
    let imported = |file: &&TextFile| {
        let here = module_of(file);
        let code: String = file.code().map(|(_, line)| line + "\n").collect();
        let targets = paths(&code).into_iter().filter_map(|path| resolve(&here, &path, &modules));
        let targets = targets.filter(|target| *target != here).collect();
        (here.clone(), targets)
    };
    files.iter().map(imported).collect()
}

fn module_of(file: &TextFile) -> ModulePath {
    let (_, path) = file.path.split_once("/src/").expect("a path below src/");
    let mut parts: ModulePath =
        path.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|last| matches!(last.as_str(), "lib" | "main" | "mod")) {
        parts.pop();
    }
    parts
}

/// The paths in code that begin with `crate` or `super`, with their groups in braces taken apart.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            let is_whole = !code[..at].ends_with(|before: char| is_name(before) || before == ':');
            if is_whole {
                expand(&code[at..], &mut Vec::new(), &mut found);
            }
        }
    }
    found
}

/// Adds the paths that `text` begins with, each below `prefix`; returns what follows them.
fn expand<'t>(text: &'t str, prefix: &mut Vec<String>, found: &mut Vec<Vec<String>>) -> &'t str {
    let depth = prefix.len();
    let mut text = text.trim_start();
    loop {
        let end = text.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
        let (name, rest) = text.split_at(end.unwrap_or(text.len()));
        prefix.push(name.to_owned());
        let Some(rest) = rest.strip_prefix("::") else {
            found.push(prefix.clone());
            prefix.truncate(depth);
            return rest;
        };
        text = rest.trim_start();
        let Some(group) = text.strip_prefix('{') else { continue };
        let mut rest = group;
        loop {
            rest = rest.trim_start_matches([' ', '\n', ',']);
            if rest.is_empty() || rest.starts_with('}') {
                break;
            }
            let after = expand(rest, prefix, found);
            // An alias, a star or anything else that is no path.
            rest = if after.len() == rest.len() { &rest[1..] } else { after };
            rest = rest.trim_start_matches(|letter| letter != ',' && letter != '}');
        }
        prefix.truncate(depth);
        return rest.strip_prefix('}').unwrap_or(rest);
    }
}

/// The module that a path leads to: as much of it as names modules.
fn resolve(here: &[String], path: &[String], modules: &BTreeSet<ModulePath>) -> Option<ModulePath> {
    let ups = path.iter().take_while(|name| *name == "super").count();
    let base = if ups > 0 { here.get(..here.len().checked_sub(ups)?)? } else { &[] };
    let below = if ups > 0 { &path[ups..] } else { &path[1..] };
    let mut target: ModulePath = base.iter().chain(below).cloned().collect();
    while !target.is_empty() {
        if modules.contains(&target) {
            return Some(target);
        }
        target.pop();
    }
    None
}

/// The largest set of modules that import one another, directly or not.
fn largest_circle(imports: &BTreeMap<ModulePath, BTreeSet<ModulePath>>) -> Vec<String> {
    let reached: BTreeMap<&ModulePath, BTreeSet<&ModulePath>> =
        imports.keys().map(|module| (module, reachable(module, imports))).collect();
    let circle_of = |module: &ModulePath| -> Vec<String> {
        let both = reached[module].iter().filter(|other| reached[**other].contains(module));
        both.map(|other| other.join("/")).collect()
    };
    imports.keys().map(circle_of).max_by_key(Vec::len).unwrap_or_default()
}

/// The modules to which imports lead from a module; the module itself only if a circle leads back.
fn reachable<'m>(
    from: &ModulePath,
    imports: &'m BTreeMap<ModulePath, BTreeSet<ModulePath>>,
) -> BTreeSet<&'m ModulePath> {
    let mut reached = BTreeSet::new();
    let mut left: Vec<&ModulePath> = imports[from].iter().collect();
    while let Some(module) = left.pop() {
        if reached.insert(module) {
            left.extend(&imports[module]);
        }
    }
    reached
}

#[test]
fn groups_of_imports_are_taken_apart() {
    let code = "use crate::a::{self, b::C, d::{E, f as g}};\nlet x = super::h::I::new();";
    let found: Vec<String> = paths(code).iter().map(|path| path.join("::")).collect();
    let expected = [
        "crate::a::self",
        "crate::a::b::C",
        "crate::a::d::E",
        "crate::a::d::f",
        "super::h::I::new",
    ];
    assert_eq!(found, expected);
}
