//! Results of the requests, by kind of client.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use anyhow::Result;

/// Number of error messages that are kept for each kind of client.
const KEPT_ERRORS: usize = 5;

/// Results so far; clones share them.
#[derive(Clone, Default)]
pub(crate) struct RequestResults(Arc<Mutex<BTreeMap<&'static str, ClientResults>>>);

/// Results of the clients of one kind.
#[derive(Default)]
struct ClientResults {
    /// True if every request must succeed, because its endpoints are healthy.
    must_succeed: bool,
    succeeded: u64,
    failed: u64,
    errors: Vec<String>,
}

impl RequestResults {
    /// Adds the result of a request whose endpoints are healthy.
    pub(crate) fn add(&self, kind: &'static str, result: &Result<()>) {
        self.add_to(kind, true, result);
    }

    /// Adds the result of a request whose endpoints fail: a failure is no problem.
    pub(crate) fn add_of_faulty(&self, kind: &'static str, result: &Result<()>) {
        self.add_to(kind, false, result);
    }

    fn add_to(&self, kind: &'static str, must_succeed: bool, result: &Result<()>) {
        let mut all = self.lock();
        let results = all.entry(kind).or_default();
        results.must_succeed = must_succeed;
        match result {
            Ok(()) => results.succeeded += 1,
            Err(error) => {
                results.failed += 1;
                if results.errors.len() < KEPT_ERRORS {
                    results.errors.push(format!("{error:#}"));
                }
            }
        }
    }

    /// Returns a sentence for each kind of client that must not fail and did, or that did nothing.
    pub(crate) fn problems(&self) -> impl Iterator<Item = String> + use<> {
        let all = self.lock();
        let failed = all.iter().filter(|(_, results)| results.must_succeed && results.failed > 0);
        let failed = failed.map(|(kind, results)| {
            let ClientResults { failed, succeeded, errors, .. } = results;
            format!("{kind}: {failed} failed beside {succeeded}: {}", errors.join("; "))
        });
        let idle = all.iter().filter(|(_, results)| results.succeeded == 0);
        let idle = idle.map(|(kind, _)| format!("{kind}: no request succeeded"));
        failed.chain(idle).collect::<Vec<_>>().into_iter()
    }

    /// Returns a Markdown table of all results.
    pub(crate) fn table(&self) -> String {
        let mut text =
            "| clients | succeeded | failed | failures allowed |\n| --- | --- | --- | --- |\n"
                .to_owned();
        for (kind, results) in &*self.lock() {
            let allowed = if results.must_succeed { "no" } else { "yes" };
            text +=
                &format!("| {kind} | {} | {} | {allowed} |\n", results.succeeded, results.failed);
        }
        text
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, ClientResults>> {
        self.0.lock().expect("no holder of the lock panics")
    }
}

impl fmt::Display for RequestResults {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.lock();
        let succeeded: u64 = all.values().map(|results| results.succeeded).sum();
        let wrong = all.values().filter(|results| results.must_succeed);
        let wrong: u64 = wrong.map(|results| results.failed).sum();
        let expected = all.values().filter(|results| !results.must_succeed);
        let expected: u64 = expected.map(|results| results.failed).sum();
        write!(formatter, "{succeeded} requests, {wrong} failed, {expected} as expected")
    }
}
