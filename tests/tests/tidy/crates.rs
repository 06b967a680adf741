//! Which crates may know which, and what the pure ones may not touch.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::assert_no_offences;
use crate::tree::{SourceTree, TextFile, words};

/// The drawing in `ARCHITECTURE.md`: a crate, and the crates below it that it may use.
const EDGES: &[(&str, &[&str])] = &[
    ("balance", &[]),
    ("codec", &[]),
    ("gateway", &["balance"]),
    ("tls", &["gateway", "balance"]),
    ("quic", &["tls", "gateway"]),
    ("proxy", &["quic", "tls", "gateway", "balance", "codec"]),
    ("kube", &["gateway"]),
    ("intercept", &[]),
    ("bgp", &[]),
    ("l4", &["balance"]),
    ("replica", &["balance"]),
    ("xds", &["gateway", "balance"]),
    ("sheave", &["proxy", "kube", "intercept", "l4", "bgp", "replica", "xds", "gateway"]),
    ("sim", &["balance"]),
];

/// These see Sheave from outside, by its command line and its sockets.
const CRATES_OUTSIDE_THE_ARCHITECTURE: &[&str] = &["tests", "loadgen", "link"];

/// They decide and do nothing else.
const PURE: &[&str] = &["crates/balance/src/", "crates/codec/src/", "crates/gateway/src/"];

const IMPURE_MODULES: &[&str] = &["fs", "env", "process", "thread", "io", "os"];

/// `std::net::{IpAddr, SocketAddr}` are plain data and welcome.
const IMPURE_NAMES: &[&str] = &[
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "UnixStream",
    "UnixListener",
    "ToSocketAddrs",
    "tokio",
    "async_std",
    "smol",
    "mio",
    "socket2",
    "rustix",
    "libc",
    "rand",
    "getrandom",
    "println",
    "eprintln",
];

#[test]
fn crate_dependencies_follow_the_architecture() {
    let tree = SourceTree::read();
    assert_no_offences(edges(&tree.root).into_iter().filter_map(|(user, used)| {
        let allowed = match EDGES.iter().find(|(name, _)| *name == user) {
            Some((_, below)) => below.contains(&used.as_str()),
            None => false,
        };
        (!allowed).then(|| format!("{user} -> {used} is not in the drawing"))
    }));
}

#[test]
fn every_crate_is_in_the_architecture() {
    let tree = SourceTree::read();
    let drawn = |name: &str| EDGES.iter().any(|(drawn, _)| *drawn == name);
    let members = packages(&tree.root);
    let members = members.iter().map(|package| package["name"].as_str().unwrap());
    assert_no_offences(
        members
            .filter(|name| !drawn(name) && !CRATES_OUTSIDE_THE_ARCHITECTURE.contains(name))
            .map(str::to_owned),
    );

    let architecture = &tree.file("ARCHITECTURE.md").expect("ARCHITECTURE.md").text;
    let fenced: String = architecture.split("```").skip(1).step_by(2).collect();
    let undrawn = EDGES.iter().filter(|(name, _)| !words(&fenced).any(|word| word == *name));
    assert_no_offences(
        undrawn.map(|(name, _)| format!("ARCHITECTURE.md: {name} is in no drawing")),
    );
}

#[test]
fn pure_crates_do_no_io() {
    let tree = SourceTree::read();
    let pure = |file: &&TextFile| PURE.iter().any(|folder| file.path.starts_with(folder));
    assert_no_offences(tree.with_suffix(".rs").filter(pure).flat_map(impurities));
}

/// Each crate of the workspace that uses another, in tests too.
fn edges(root: &Path) -> Vec<(String, String)> {
    let mut edges = Vec::new();
    for package in packages(root) {
        for dependency in package["dependencies"].as_array().unwrap() {
            if dependency["path"].is_string() {
                let name = |value: &Value| value["name"].as_str().unwrap().to_owned();
                edges.push((name(&package), name(dependency)));
            }
        }
    }
    edges
}

fn packages(root: &Path) -> Vec<Value> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--format-version", "1", "--no-deps", "--offline"]);
    let output = cargo.current_dir(root).output().expect("cargo runs");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo speaks JSON");
    metadata["packages"].as_array().expect("packages").clone()
}

fn impurities(file: &TextFile) -> Vec<String> {
    if file.path.ends_with("/tests.rs") {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (number, code) in file.code() {
        let named = words(&code).filter(|word| IMPURE_NAMES.contains(word)).map(str::to_owned);
        let modules = modules_of_std(&code).filter(|name| IMPURE_MODULES.contains(name));
        let modules = modules.map(|name| format!("std::{name}"));
        found.extend(named.chain(modules).map(|name| file.at(number, name)));
    }
    found
}

/// The modules of `std` that a line names: `std::fs::read`, `use std::{env, fs}`.
fn modules_of_std(code: &str) -> impl Iterator<Item = &str> {
    code.split("std::").skip(1).flat_map(|rest| {
        let group = rest.strip_prefix('{').map(|group| group.split('}').next().unwrap_or(group));
        let items = group.map_or_else(|| vec![rest], |group| group.split(',').collect());
        items.into_iter().filter_map(|item| words(item).next())
    })
}

#[test]
fn std_modules_are_found_in_grouped_imports() {
    let code = "use std::{env, fs::File}; std::thread::spawn(f)";
    assert_eq!(modules_of_std(code).collect::<Vec<_>>(), ["env", "fs", "thread"]);
}
