//! Backoff of watches, and of failed writes per object: each is retried after an increasing delay, independently of the
//! others.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Duration;

use backon::ExponentialBuilder;
use kube_runtime::watcher::ExponentialBackoff;
use tokio::time::Instant;

/// First and longest delay between attempts to watch; each is extended by up to its own length at random. Requests go to
/// endpoints that have ended until EndpointSlices are watched again, so that these delays are a small part of an outage.
/// kube-runtime's default is up to a minute, and does not begin anew for an outage within two minutes of another.
const WATCH_DELAYS: RangeInclusive<Duration> = Duration::from_millis(500)..=Duration::from_secs(2);

/// Delay after the first failure; it doubles with each further one.
const MIN_BACKOFF: Duration = Duration::from_secs(2);
/// Longest delay: a cause that is fixed elsewhere, such as permissions, is noticed within this
/// time.
const MAX_BACKOFF: Duration = Duration::from_secs(64);

/// The same for a kind that the cluster does not have, which may come with a new CRD.
const ABSENCE_DELAYS: RangeInclusive<Duration> =
    Duration::from_millis(500)..=Duration::from_secs(30);

/// Returns the delays between attempts of a watch.
pub(crate) fn watch_backoff() -> ExponentialBackoff {
    delays(&WATCH_DELAYS)
}

/// Returns the delays between attempts to watch a kind that the cluster does not have.
pub(crate) fn absence_backoff() -> ExponentialBackoff {
    delays(&ABSENCE_DELAYS)
}

fn delays(range: &RangeInclusive<Duration>) -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(*range.start())
        .with_max_delay(*range.end())
        .without_max_times()
        .with_jitter()
        .into()
}

/// Kind, namespace, name and version: a new version of an object starts without backoff.
pub(crate) type WriteKey = (&'static str, String, String, String);

/// Writes that failed and are still pending.
#[derive(Debug, Default)]
pub(crate) struct WriteBackoff(BTreeMap<WriteKey, BackoffEntry>);

#[derive(Debug)]
struct BackoffEntry {
    retry_at: Instant,
    delay: Duration,
}

impl WriteBackoff {
    /// Removes entries of writes that are no longer pending.
    pub(crate) fn retain_pending(&mut self, due: &BTreeSet<WriteKey>) {
        self.0.retain(|key, _| due.contains(key));
    }

    /// True if the write may be attempted, for the first time or again.
    pub(crate) fn is_due(&self, key: &WriteKey, now: Instant) -> bool {
        self.0.get(key).is_none_or(|it| it.retry_at <= now)
    }

    /// Records a failure; returns whether it is the first one.
    pub(crate) fn record_failure(&mut self, key: WriteKey, now: Instant) -> bool {
        let before = self.0.get(&key).map(|it| it.delay);
        let pause = before.map_or(MIN_BACKOFF, |pause| (2 * pause).min(MAX_BACKOFF));
        self.0.insert(key, BackoffEntry { retry_at: now + pause, delay: pause });
        before.is_none()
    }

    /// Returns the earliest time of a retry.
    pub(crate) fn next_retry_at(&self) -> Option<Instant> {
        self.0.values().map(|it| it.retry_at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> WriteKey {
        ("HTTPRoute", "shop".to_owned(), name.to_owned(), "7".to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn rejected_objects_back_off_individually() {
        let mut refusals = WriteBackoff::default();
        let mut now = Instant::now();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            assert!(refusals.is_due(&key("a"), now));
            assert_eq!(refusals.record_failure(key("a"), now), pauses.is_empty());
            assert!(!refusals.is_due(&key("a"), now) && refusals.is_due(&key("b"), now));
            let next = refusals.next_retry_at().unwrap();
            pauses.push((next - now).as_secs());
            now = next;
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 64, 64]);
        refusals.retain_pending(&BTreeSet::from([key("b")]));
        assert_eq!(refusals.next_retry_at(), None);
    }
}
