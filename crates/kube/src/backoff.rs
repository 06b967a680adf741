//! Writes that failed, by object: each is tried again later and later, whatever becomes of others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

/// Before a first failure is tried again; twice as long after each further one.
const MIN_BACKOFF: Duration = Duration::from_secs(2);
/// What is mended elsewhere, as permissions are, is seen after so long at most.
const MAX_BACKOFF: Duration = Duration::from_secs(64);

/// A kind, a namespace, a name and a version: an object that has changed is another matter.
pub(crate) type WriteKey = (&'static str, String, String, String);

/// What failed, as long as it is to be written.
#[derive(Debug, Default)]
pub(crate) struct WriteBackoff(BTreeMap<WriteKey, BackoffEntry>);

#[derive(Debug)]
struct BackoffEntry {
    retry_at: Instant,
    delay: Duration,
}

impl WriteBackoff {
    /// Forgets all that is not due any more.
    pub(crate) fn retain_pending(&mut self, due: &BTreeSet<WriteKey>) {
        self.0.retain(|key, _| due.contains(key));
    }

    /// Whether it is time to try this, for the first time or again.
    pub(crate) fn is_due(&self, key: &WriteKey, now: Instant) -> bool {
        self.0.get(key).is_none_or(|refusal| refusal.retry_at <= now)
    }

    /// It has failed; tells whether for the first time.
    pub(crate) fn record_failure(&mut self, key: WriteKey, now: Instant) -> bool {
        let before = self.0.get(&key).map(|refusal| refusal.delay);
        let pause = before.map_or(MIN_BACKOFF, |pause| (2 * pause).min(MAX_BACKOFF));
        self.0.insert(key, BackoffEntry { retry_at: now + pause, delay: pause });
        before.is_none()
    }

    /// When something is to be tried again.
    pub(crate) fn next_retry_at(&self) -> Option<Instant> {
        self.0.values().map(|refusal| refusal.retry_at).min()
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
