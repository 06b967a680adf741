//! How tests wait.

use crate::assert_no_offences;
use crate::tree::{SourceTree, TextFile};

/// A sleep in real time is a load or a behaviour, and a comment says which; a test waits for an event by `eventually`.
#[test]
fn every_sleep_in_a_test_has_a_reason() {
    let tree = SourceTree::read();
    assert_no_offences(tree.with_suffix(".rs").flat_map(|file| {
        let lines = sleeps_without_reason(file, test_begin(file));
        lines
            .into_iter()
            .map(|line| file.at(line, "no comment says what the sleep stands for"))
            .collect::<Vec<_>>()
    }));
}

/// Returns the first line of tests in a file, or its length.
fn test_begin(file: &TextFile) -> usize {
    let is_test = file.path.starts_with("tests/")
        || file.path.contains("/tests/")
        || file.path.ends_with("/tests.rs");
    let tests = file.lines().find(|(_, line)| is_test || *line == "#[cfg(test)]");
    tests.map_or(usize::MAX, |(number, _)| number)
}

/// Returns the lines from `begin` on that sleep without a comment on them or directly above.
fn sleeps_without_reason(file: &TextFile, begin: usize) -> Vec<usize> {
    // Sleeps on tokio's paused clock take no time.
    if file.text.contains("start_paused = true") {
        return Vec::new();
    }
    let mut above = "";
    let mut found = Vec::new();
    for (number, line) in file.lines().skip(begin) {
        let is_explained = line.contains(" // ") || above.trim_start().starts_with("// ");
        if is_sleep(line) && !is_explained {
            found.push(number);
        }
        above = line;
    }
    found
}

fn is_sleep(line: &str) -> bool {
    let calls = ["sleep(", "sleep_until("];
    let is_whole = |before: &str| !before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
    calls.iter().any(|call| line.split_once(call).is_some_and(|(before, _)| is_whole(before)))
}

#[test]
fn sleeps_are_found() {
    let text = "\
async fn wait() {
    sleep(pause).await;
    tokio::time::sleep_until(end).await; // The pause of a client.
    // The work of an endpoint.
    std::thread::sleep(pause);
    thread::sleep(pause);
    fall_asleep();
    sleep_until(end).await;
}
";
    let file = TextFile { path: "tests/src/load.rs".into(), text: text.into() };
    assert_eq!(sleeps_without_reason(&file, 0), [1, 5, 7]);
}
