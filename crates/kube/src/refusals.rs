//! Writes that failed, by object: each is tried again later and later, whatever becomes of others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

/// Before a first failure is tried again; twice as long after each further one.
const SHORTEST: Duration = Duration::from_secs(2);
/// What is mended elsewhere, as permissions are, is seen after so long at most.
const LONGEST: Duration = Duration::from_secs(64);

/// A kind, a namespace, a name and a version: an object that has changed is another matter.
pub(crate) type Key = (&'static str, String, String, String);

/// What failed, as long as it is to be written.
#[derive(Debug, Default)]
pub(crate) struct Refusals(BTreeMap<Key, Refusal>);

#[derive(Debug)]
struct Refusal {
    again_at: Instant,
    pause: Duration,
}

impl Refusals {
    /// Forgets all that is not due any more.
    pub(crate) fn keep(&mut self, due: &BTreeSet<Key>) {
        self.0.retain(|key, _| due.contains(key));
    }

    /// Whether it is time to try this, for the first time or again.
    pub(crate) fn allow(&self, key: &Key, now: Instant) -> bool {
        self.0.get(key).is_none_or(|refusal| refusal.again_at <= now)
    }

    /// It has failed; tells whether for the first time.
    pub(crate) fn add(&mut self, key: Key, now: Instant) -> bool {
        let before = self.0.get(&key).map(|refusal| refusal.pause);
        let pause = before.map_or(SHORTEST, |pause| (2 * pause).min(LONGEST));
        self.0.insert(key, Refusal { again_at: now + pause, pause });
        before.is_none()
    }

    /// When something is to be tried again.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.values().map(|refusal| refusal.again_at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        ("HTTPRoute", "shop".to_owned(), name.to_owned(), "7".to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn rejected_objects_back_off_individually() {
        let mut refusals = Refusals::default();
        let mut now = Instant::now();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            assert!(refusals.allow(&key("a"), now));
            assert_eq!(refusals.add(key("a"), now), pauses.is_empty());
            assert!(!refusals.allow(&key("a"), now) && refusals.allow(&key("b"), now));
            let next = refusals.next().unwrap();
            pauses.push((next - now).as_secs());
            now = next;
        }
        assert_eq!(pauses, [2, 4, 8, 16, 32, 64, 64, 64]);
        refusals.keep(&BTreeSet::from([key("b")]));
        assert_eq!(refusals.next(), None);
    }
}
