//! DNS whose answers a test sets, so that names are tested in virtual time.

use std::collections::HashMap;
use std::future::pending;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::DnsWatcher;
use super::lookup::{DualStackLookup, FamilyLookup};
use crate::report::ProcessReport;

/// The answers for each name. A name without an answer does not exist.
#[derive(Clone, Default)]
pub(crate) struct ScriptedDns(Arc<Mutex<DnsScript>>);

#[derive(Default)]
struct DnsScript {
    answers: HashMap<String, ScriptedAnswer>,
    lookups: Vec<(String, Instant)>,
}

#[derive(Clone)]
enum ScriptedAnswer {
    Addresses(Vec<IpAddr>, Duration),
    Failure(String),
    Never,
}

impl ScriptedDns {
    /// Returns a watcher that looks names up here.
    pub(crate) fn watcher(&self, report: watch::Sender<ProcessReport>) -> DnsWatcher {
        let script = self.clone();
        let lookup = Arc::new(move |host: Arc<str>| {
            let script = script.clone();
            Box::pin(async move { script.answer(&host).await }) as _
        });
        DnsWatcher::with_lookup(lookup, report)
    }

    /// Sets the IPv4 addresses of a name, with their TTL.
    pub(crate) fn set_addresses(&self, name: &str, addresses: &[&str], ttl: Duration) {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        self.set(name, ScriptedAnswer::Addresses(addresses, ttl));
    }

    /// Makes lookups of a name fail for this reason.
    pub(crate) fn fail(&self, name: &str, reason: &str) {
        self.set(name, ScriptedAnswer::Failure(reason.to_owned()));
    }

    /// Leaves lookups of a name without an answer.
    pub(crate) fn silence(&self, name: &str) {
        self.set(name, ScriptedAnswer::Never);
    }

    /// Returns the times at which a name was looked up.
    pub(crate) fn lookup_times(&self, name: &str) -> Vec<Instant> {
        let script = self.script();
        let lookups = script.lookups.iter().filter(|(looked_up, _)| looked_up == name);
        lookups.map(|(_, at)| *at).collect()
    }

    /// Returns the number of names that were looked up.
    pub(crate) fn lookup_count(&self) -> usize {
        self.script().lookups.len()
    }

    async fn answer(&self, host: &str) -> DualStackLookup {
        let answer = {
            let mut script = self.script();
            script.lookups.push((host.to_owned(), Instant::now()));
            script.answers.get(host).cloned()
        };
        match answer {
            Some(ScriptedAnswer::Addresses(addresses, ttl)) => DualStackLookup {
                v4: FamilyLookup::Addresses(addresses, ttl),
                v6: FamilyLookup::NoAddress,
            },
            Some(ScriptedAnswer::Failure(reason)) => DualStackLookup::failed(&reason),
            Some(ScriptedAnswer::Never) => pending().await,
            None => DualStackLookup::failed("no such name"),
        }
    }

    fn set(&self, name: &str, answer: ScriptedAnswer) {
        self.script().answers.insert(name.to_owned(), answer);
    }

    fn script(&self) -> MutexGuard<'_, DnsScript> {
        self.0.lock().expect("no holder of the lock panics")
    }
}
