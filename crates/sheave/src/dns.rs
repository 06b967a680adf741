//! DNS names as endpoints: each name is resolved again when the TTL of its last answer ends.
//!
//! It knows names and addresses only; the configuration turns them into endpoints. A failed lookup changes nothing: the
//! last known addresses stay in use.

/// One lookup of a name, and its result.
mod lookup;
/// Last known addresses of a name.
mod resolved_name;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::report::ProcessReport;
use lookup::{DualStackLookup, LookupFunction, lookup_by};
use resolved_name::ResolvedName;

/// Maximum number of concurrent lookups.
const MAX_CONCURRENT_LOOKUPS: usize = 16;
/// Shortest time between two lookups of a name, whatever its TTL, and the initial backoff after a failure, doubled with
/// each further failure.
const MIN_REFRESH: Duration = Duration::from_secs(1);
/// Longest time between two lookups, so that a mistaken record with a long TTL is corrected.
const MAX_REFRESH: Duration = Duration::from_secs(3600);
const MAX_FAILURE_DELAY: Duration = Duration::from_secs(30);
/// Time that the first configuration waits for the answers of its names.
const FIRST_LOOKUP_TIMEOUT: Duration = Duration::from_secs(3);

/// Resolves single names.
#[derive(Clone)]
pub(crate) struct NameResolver(LookupFunction);

impl NameResolver {
    /// Returns the addresses of a name.
    pub(crate) async fn addresses(&self, name: &Arc<str>) -> Result<Vec<IpAddr>, String> {
        let lookup = (self.0)(Arc::clone(name)).await;
        let addresses = lookup.addresses();
        match lookup.problem() {
            // One family is enough.
            Some(problem) if addresses.is_empty() => Err(format!("{name}: {problem}")),
            Some(_) | None => Ok(addresses),
        }
    }
}

/// The DNS names in use, each with a task that resolves it.
pub(crate) struct DnsWatcher {
    lookup: LookupFunction,
    names: BTreeMap<Arc<str>, WatchedName>,
    permits: Arc<Semaphore>,
    sender: mpsc::Sender<(Arc<str>, DualStackLookup)>,
    lookups: mpsc::Receiver<(Arc<str>, DualStackLookup)>,
    report: watch::Sender<ProcessReport>,
}

struct WatchedName {
    resolved: ResolvedName,
    task: JoinHandle<()>,
}

impl Drop for WatchedName {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl DnsWatcher {
    /// Uses this server, or the servers of `/etc/resolv.conf`.
    pub(crate) fn new(server: Option<SocketAddr>, report: watch::Sender<ProcessReport>) -> Self {
        Self::with_lookup(lookup_by(server), report)
    }

    /// Returns a resolver that asks the same servers.
    pub(crate) fn resolver(&self) -> NameResolver {
        NameResolver(Arc::clone(&self.lookup))
    }

    fn with_lookup(lookup: LookupFunction, report: watch::Sender<ProcessReport>) -> Self {
        let (sender, lookups) = mpsc::channel(MAX_CONCURRENT_LOOKUPS);
        Self {
            lookup,
            names: BTreeMap::new(),
            permits: Arc::new(Semaphore::new(MAX_CONCURRENT_LOOKUPS)),
            sender,
            lookups,
            report,
        }
    }

    /// Resolves these names from now on and no others. Answers of new names arrive later.
    pub(crate) fn watch_hosts(&mut self, hosts: BTreeSet<Arc<str>>) {
        self.names.retain(|host, _| hosts.contains(host));
        for host in hosts {
            if !self.names.contains_key(&host) {
                let task = tokio::spawn(self.lookup_loop(host.clone()));
                self.names.insert(host, WatchedName { resolved: ResolvedName::default(), task });
            }
        }
        self.count_failing();
    }

    /// Waits a limited time for the first answer of each name.
    pub(crate) async fn wait_for_first_answers(&mut self) {
        let answered = async {
            while self.names.values().any(|watched| watched.resolved.is_pending()) {
                self.take_lookup().await;
            }
        };
        // Slower answers arrive later, through `changed`.
        timeout(FIRST_LOOKUP_TIMEOUT, answered).await.ok();
    }

    /// Waits for the next name whose addresses have changed. Cancel-safe: nothing is lost.
    pub(crate) async fn changed(&mut self) -> Arc<str> {
        loop {
            if let Some(host) = self.take_lookup().await {
                return host;
            }
        }
    }

    /// Returns the addresses of a name, sorted; empty while none is known.
    pub(crate) fn addresses(&self, host: &str) -> Vec<IpAddr> {
        self.names.get(host).map(|watched| watched.resolved.addresses()).unwrap_or_default()
    }

    /// True if a name is watched, and no lookup of it has ended yet.
    pub(crate) fn is_pending(&self, host: &str) -> bool {
        self.names.get(host).is_some_and(|watched| watched.resolved.is_pending())
    }

    /// Returns the names that are watched, each with the ID of its task.
    #[cfg(test)]
    pub(crate) fn tasks(&self) -> BTreeMap<String, tokio::task::Id> {
        let names = self.names.iter();
        names.map(|(host, watched)| (host.to_string(), watched.task.id())).collect()
    }

    /// Takes the next lookup result; returns the name if its addresses have changed, or if it is the first result.
    async fn take_lookup(&mut self) -> Option<Arc<str>> {
        let (host, lookup) = self.lookups.recv().await.expect("self holds a sender");
        let watched = self.names.get_mut(&host)?;
        let failed = lookup.problem().is_some();
        let is_first = watched.resolved.is_pending();
        let changed = watched.resolved.update(&host, lookup) || is_first;
        self.report.send_modify(|report| report.lookups[usize::from(failed)] += 1);
        self.count_failing();
        changed.then_some(host)
    }

    fn count_failing(&self) {
        let failing = self.names.values().filter(|watched| watched.resolved.is_failing()).count();
        self.report.send_if_modified(|report| {
            std::mem::replace(&mut report.names_failing, failing) != failing
        });
    }

    /// Resolves a name repeatedly, forever, and sends the results.
    fn lookup_loop(&self, host: Arc<str>) -> impl Future<Output = ()> + use<> {
        let (lookup, permits, sender) =
            (self.lookup.clone(), self.permits.clone(), self.sender.clone());
        async move {
            let mut failures = 0;
            loop {
                let permit = permits.acquire().await.expect("the semaphore is never closed");
                let result = lookup(host.clone()).await;
                drop(permit);
                let pause = refresh_delay(&result, &mut failures);
                if sender.send((host.clone(), result)).await.is_err() {
                    return;
                }
                sleep(pause + jitter(pause)).await;
            }
        }
    }
}

/// Returns the time until the next lookup: the TTL of an answer, or the backoff after consecutive failures.
fn refresh_delay(lookup: &DualStackLookup, failures: &mut u32) -> Duration {
    if lookup.problem().is_none() {
        *failures = 0;
        return lookup.ttl().clamp(MIN_REFRESH, MAX_REFRESH);
    }
    let pause = MIN_REFRESH * 2u32.pow((*failures).min(5));
    *failures += 1;
    pause.min(MAX_FAILURE_DELAY)
}

/// Adds up to 10 % of random delay, so that names resolved at the same time spread out.
fn jitter(pause: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish();
    pause.mul_f64((random % 1000) as f64 / 10_000.0)
}

/// DNS whose answers a test sets.
#[cfg(test)]
pub(crate) mod scripted;
#[cfg(test)]
mod tests;
