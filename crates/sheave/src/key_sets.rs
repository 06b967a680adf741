//! Key sets of issuers by URL (JWKS): each one is fetched again after its interval, and earlier if a client sends a token
//! of a key that is not in it.
//!
//! It knows URLs and keys only; the configuration gives them to the data plane. A failed fetch changes nothing until the
//! last key set is too old: then there is none, and tokens of the issuer are refused.

/// One fetch of a key set.
mod fetch;

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gateway::AddressFilter;
use gateway::jwks::{JsonWebKeySet, JwksSubscription, KeySetState};
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::dns::NameResolver;
use crate::report::ProcessReport;
use fetch::KeySetClient;

/// Maximum number of concurrent fetches.
const MAX_CONCURRENT_FETCHES: usize = 16;
/// Shortest time between two fetches of a key set, whatever tokens clients send, and the initial backoff after a failure,
/// Time after which a fetch that was due and has not ended counts as failed.
const FETCH_GRACE: Duration = Duration::from_secs(30);
/// doubled with each further failure.
const MIN_PAUSE: Duration = Duration::from_secs(5);
const MAX_FAILURE_PAUSE: Duration = Duration::from_secs(60);
/// Time that the first configuration waits for its key sets.
const FIRST_FETCH_TIMEOUT: Duration = Duration::from_secs(3);

/// Fetches a key set; the error is for operators.
type FetchFunction = Arc<dyn Fn(Arc<JwksSubscription>) -> PendingFetch + Send + Sync>;
type PendingFetch = Pin<Box<dyn Future<Output = FetchResult> + Send>>;
type FetchResult = Result<JsonWebKeySet, String>;

/// The key sets in use, each with a task that fetches it.
pub(crate) struct KeySetWatcher {
    fetch: FetchFunction,
    /// The filter of addresses that objects of a cluster name.
    filter: SharedFilter,
    sets: BTreeMap<Arc<JwksSubscription>, WatchedKeySet>,
    permits: Arc<Semaphore>,
    sender: mpsc::Sender<(Arc<JwksSubscription>, FetchResult)>,
    results: mpsc::Receiver<(Arc<JwksSubscription>, FetchResult)>,
    report: watch::Sender<ProcessReport>,
}

/// The filter of addresses, which each configuration sets.
#[derive(Clone, Default)]
struct SharedFilter(Arc<Mutex<AddressFilter>>);

impl SharedFilter {
    fn lock(&self) -> MutexGuard<'_, AddressFilter> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct WatchedKeySet {
    keys: Option<Arc<JsonWebKeySet>>,
    /// Time of the last fetch that succeeded.
    fetched_at: Instant,
    /// True until the first fetch has ended.
    is_pending: bool,
    problem: Option<String>,
    /// Wakes the task early.
    early: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Drop for WatchedKeySet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl WatchedKeySet {
    /// Returns the time at which the key set is too old, if it has not been fetched again since. A fetch that is due may
    /// take some time.
    fn expiry(&self, subscription: &JwksSubscription) -> Option<Instant> {
        let JwksSubscription { max_age, refresh_interval, .. } = subscription;
        let grace = match self.problem {
            Some(_) => Duration::ZERO,
            None => *refresh_interval / 10 + FETCH_GRACE,
        };
        self.keys.is_some().then(|| self.fetched_at + *max_age + grace)
    }
}

impl KeySetWatcher {
    /// Fetches key sets over the network.
    pub(crate) fn new(names: NameResolver, report: watch::Sender<ProcessReport>) -> Self {
        let filter = SharedFilter::default();
        let client = Arc::new(KeySetClient::new(names, filter.clone()));
        let fetch = Arc::new(move |subscription: Arc<JwksSubscription>| {
            let client = Arc::clone(&client);
            Box::pin(async move { client.fetch(&subscription).await }) as PendingFetch
        });
        Self::with_fetch(fetch, filter, report)
    }

    fn with_fetch(
        fetch: FetchFunction,
        filter: SharedFilter,
        report: watch::Sender<ProcessReport>,
    ) -> Self {
        let (sender, results) = mpsc::channel(MAX_CONCURRENT_FETCHES);
        let permits = Arc::new(Semaphore::new(MAX_CONCURRENT_FETCHES));
        Self { fetch, filter, sets: BTreeMap::new(), permits, sender, results, report }
    }

    /// Fetches these key sets from now on and no others. One whose URL was fetched before keeps its keys.
    pub(crate) fn watch_sets(
        &mut self,
        wanted: BTreeSet<Arc<JwksSubscription>>,
        filter: &AddressFilter,
    ) {
        filter.clone_into(&mut self.filter.lock());
        let new = wanted.iter().filter(|it| !self.sets.contains_key(*it));
        let new: Vec<_> = new.map(|it| self.start(it)).collect();
        self.sets.retain(|subscription, _| wanted.contains(subscription));
        self.sets.extend(new);
        self.count_failing();
    }

    fn start(
        &self,
        subscription: &Arc<JwksSubscription>,
    ) -> (Arc<JwksSubscription>, WatchedKeySet) {
        let early = Arc::new(Notify::new());
        let task = tokio::spawn(self.fetch_loop(Arc::clone(subscription), Arc::clone(&early)));
        let former = self.sets.iter().find(|(it, _)| it.has_url_of(subscription));
        let former = former.map(|(_, it)| it);
        let set = WatchedKeySet {
            keys: former.and_then(|it| it.keys.clone()),
            fetched_at: former.map_or_else(Instant::now, |it| it.fetched_at),
            is_pending: true,
            problem: former.and_then(|it| it.problem.clone()),
            early,
            task,
        };
        (Arc::clone(subscription), set)
    }

    /// Waits a limited time for the first fetch of each key set.
    pub(crate) async fn wait_for_first_sets(&mut self) {
        let fetched = async {
            while self.sets.values().any(|set| set.is_pending) {
                self.take_result().await;
            }
        };
        // Slower ones arrive later, through `changed`.
        timeout(FIRST_FETCH_TIMEOUT, fetched).await.ok();
    }

    /// Waits until a key set, or what is wrong with it, has changed. Cancel-safe: nothing is lost.
    pub(crate) async fn changed(&mut self) {
        loop {
            let expiries = self.sets.iter().filter_map(|(it, set)| set.expiry(it));
            let expiry = expiries.min();
            let expired = async {
                match expiry {
                    Some(at) => sleep_until(at).await,
                    None => pending().await,
                }
            };
            let has_changed = tokio::select! {
                has_changed = self.take_result() => has_changed,
                () = expired => self.expire(),
            };
            if has_changed {
                return;
            }
        }
    }

    /// Fetches these key sets as soon as may be, because clients have tokens of keys that are not in them.
    pub(crate) fn fetch_early(&self, stale: &BTreeSet<Arc<JwksSubscription>>) {
        for set in stale.iter().filter_map(|it| self.sets.get(it)) {
            set.early.notify_one();
        }
    }

    /// Returns the state of each key set that has been fetched, or whose fetch has failed.
    pub(crate) fn states(&self) -> BTreeMap<JwksSubscription, KeySetState> {
        let known = self.sets.iter().filter(|(_, set)| set.keys.is_some() || set.problem.is_some());
        let state = |set: &WatchedKeySet| KeySetState {
            keys: set.keys.clone(),
            problem: set.problem.clone(),
        };
        known.map(|(subscription, set)| ((**subscription).clone(), state(set))).collect()
    }

    /// Takes the next result of a fetch; returns true if the state of its key set has changed.
    async fn take_result(&mut self) -> bool {
        let (subscription, result) = self.results.recv().await.expect("self holds a sender");
        let Some(set) = self.sets.get_mut(&subscription) else { return false };
        set.is_pending = false;
        let url = &*subscription.url.text;
        let has_failed = result.is_err();
        let has_changed = match result {
            Ok(keys) => {
                let has_recovered = set.problem.take().is_some();
                if has_recovered {
                    tracing::info!(url, "the key set can be fetched again");
                }
                set.fetched_at = Instant::now();
                let is_same = set.keys.as_deref() == Some(&keys);
                if !is_same {
                    tracing::info!(url, keys = keys.keys.len(), "the key set has changed");
                    set.keys = Some(Arc::new(keys));
                }
                has_recovered || !is_same
            }
            Err(problem) => {
                let is_new = set.problem.as_ref() != Some(&problem);
                if is_new {
                    tracing::warn!(url, "cannot fetch a key set: {problem}");
                    set.problem = Some(problem);
                }
                is_new
            }
        };
        self.report.send_modify(|report| report.key_set_fetches[usize::from(has_failed)] += 1);
        self.count_failing();
        has_changed
    }

    /// Forgets key sets that are too old; returns true if there were any.
    fn expire(&mut self) -> bool {
        let now = Instant::now();
        let mut has_expired = false;
        for (subscription, set) in &mut self.sets {
            if set.expiry(subscription).is_some_and(|at| at <= now) {
                let url = &*subscription.url.text;
                tracing::error!(url, "the key set is too old: tokens of its issuer are refused");
                set.keys = None;
                has_expired = true;
            }
        }
        self.count_failing();
        has_expired
    }

    fn count_failing(&self) {
        let failing = self.sets.values().filter(|set| set.problem.is_some()).count();
        let missing = self.sets.values().filter(|set| set.keys.is_none()).count();
        self.report.send_if_modified(|report| {
            let before = (report.key_sets_failing, report.key_sets_missing);
            (report.key_sets_failing, report.key_sets_missing) = (failing, missing);
            before != (failing, missing)
        });
    }

    /// Fetches a key set repeatedly, forever, and sends the results.
    fn fetch_loop(
        &self,
        subscription: Arc<JwksSubscription>,
        early: Arc<Notify>,
    ) -> impl Future<Output = ()> + use<> {
        let (fetch, permits, sender) =
            (Arc::clone(&self.fetch), Arc::clone(&self.permits), self.sender.clone());
        async move {
            let mut failures = 0_u32;
            loop {
                let permit = permits.acquire().await.expect("the semaphore is never closed");
                let result = fetch(Arc::clone(&subscription)).await;
                drop(permit);
                let pause = match result {
                    Ok(_) => {
                        failures = 0;
                        subscription.refresh_interval
                    }
                    Err(_) => {
                        let backoff = MIN_PAUSE * 2_u32.pow(failures.min(4));
                        failures += 1;
                        backoff.min(MAX_FAILURE_PAUSE).min(subscription.refresh_interval)
                    }
                };
                let ended = Instant::now();
                if sender.send((Arc::clone(&subscription), result)).await.is_err() {
                    return;
                }
                tokio::select! {
                    () = sleep(pause + jitter(pause)) => {}
                    () = early.notified() => sleep_until(ended + MIN_PAUSE).await,
                }
            }
        }
    }
}

/// Returns up to 10 % of a pause, at random, so that key sets fetched at the same time spread out.
fn jitter(pause: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish();
    pause.mul_f64((random % 1000) as f64 / 10_000.0)
}

#[cfg(test)]
mod tests;
