//! What a program has written, and what it was written from.

use std::env;
use std::process::Command;

use crate::assert_no_offences;
use crate::tree::SourceTree;

#[test]
fn keda_code_matches_its_proto_file() {
    let tree = SourceTree::read();
    let text = |path: &str| {
        let found = std::fs::read_to_string(tree.root.join(path));
        found.unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    let proto = text("tests/scaler/externalscaler.proto");
    let made = format!("of {} bytes with the sum {:016x}.", proto.len(), sum(&proto));
    let both = ["crates/sheave/src/scaler/externalscaler.rs", "tests/src/keda/externalscaler.rs"];
    let old = both.into_iter().filter(|path| !text(path).lines().next().unwrap().ends_with(&made));
    assert_no_offences(
        old.map(|path| format!("{path}: made from another text than it is now: `make gen`")),
    );
}

#[test]
fn plain_manifests_are_generated_from_the_chart() {
    let tree = SourceTree::read();
    let is_built = std::fs::read_dir(tree.root.join(".cache/helm")).is_ok_and(|it| it.count() > 0);
    if !is_built && env::var_os("CONFORMANCE_ALL").is_none() {
        eprintln!("skipped: Helm is not built; `scripts/helm version` builds it");
        return;
    }
    for name in ["install", "transparent"] {
        let script = tree.root.join("scripts/manifests");
        let made = Command::new(script).arg(name).output().expect("bash runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let path = format!("deploy/manifests/{name}.yaml");
        let found = std::fs::read(tree.root.join(&path)).expect("plain manifests");
        assert!(found == made.stdout, "{path}: the chart is another than it was: `make gen`");
    }
}

#[test]
fn dashboard_is_bundled_from_its_source() {
    let tree = SourceTree::read();
    let is_installed = tree.root.join("dashboard/node_modules").is_dir();
    if !is_installed && env::var_os("CONFORMANCE_ALL").is_none() {
        eprintln!("skipped: the bundler is not installed; `scripts/dashboard` installs it");
        return;
    }
    let target = tree.root.join("target/dashboard");
    let bundled = Command::new(tree.root.join("scripts/dashboard")).arg(&target).output();
    let bundled = bundled.expect("bash runs");
    assert!(bundled.status.success(), "{}", String::from_utf8_lossy(&bundled.stderr));
    for name in ["index.html", "app.js", "app.css", "icon.svg"] {
        let path = format!("crates/sheave/src/admin/dashboard/{name}");
        let found = std::fs::read(tree.root.join(&path)).expect("a file of the dashboard");
        let made = std::fs::read(target.join(name)).expect("a bundled file");
        assert!(found == made, "{path}: the source is another than it was: `make gen`");
    }
}

#[test]
fn conformance_table_matches_the_report() {
    let tree = SourceTree::read();
    let read = |report| std::fs::read_to_string(tree.root.join(report)).expect("a report");
    let readme = std::fs::read_to_string(tree.root.join("README.md")).expect("a README");
    let rows: Vec<_> = REPORTS.iter().flat_map(|report| rows(&read(report))).collect();
    assert_eq!(rows.len(), 7, "{rows:?}");
    assert_no_offences(
        rows.into_iter().filter(|row| !readme.contains(row)).map(|row| format!("README.md: {row}")),
    );
}

const REPORTS: [&str; 2] =
    ["docs/conformance/gateway-api-v1.6.3.yaml", "docs/conformance/gateway-api-mesh-v1.6.3.yaml"];

/// A line for each profile of a report: how many tests have passed and failed, of the core and of what is extended.
fn rows(report: &str) -> Vec<String> {
    let (mut rows, mut counts) = (Vec::new(), Vec::new());
    for line in report.lines() {
        let (name, value) = line.trim().split_once(": ").unwrap_or_default();
        match name {
            "Failed" | "Passed" => counts.push(value.to_owned()),
            "name" if value.starts_with("GATEWAY-") || value.starts_with("MESH-") => {
                rows.push(match &std::mem::take(&mut counts)[..] {
                    [core_failed, core, failed, extended] => {
                        format!("| {value} | {core} | {core_failed} | {extended} | {failed} |")
                    }
                    [core_failed, core] => format!("| {value} | {core} | {core_failed} | | |"),
                    other => panic!("{value} has the counts {other:?}"),
                });
            }
            _ => {}
        }
    }
    rows
}

/// As `tests/scaler` computes it (FNV-1a).
fn sum(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}
