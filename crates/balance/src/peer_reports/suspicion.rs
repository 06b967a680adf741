//! Endpoints that other replicas have ejected, as hints: a hint makes this replica judge its own
//! failures sooner, and never ejects by itself.
//!
//! So a replica whose own requests are the reason for the failures, or that lies, takes no endpoint
//! away from the others as long as that endpoint serves them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use super::ReportRefusal;
use crate::time::Time;

/// Time for which a hint holds. A peer repeats it each second while it holds there.
const HINT_LIFETIME: Duration = Duration::from_secs(3);

/// Shortest interval between two hints about one endpoint that count, over all peers.
const HINT_INTERVAL: Duration = Duration::from_millis(500);

/// Time for which peers together can have an endpoint suspected; then for the same time not again.
const MAX_SUSPICION: Duration = Duration::from_secs(60);

/// Bound on hints about ejected endpoints.
#[derive(Debug, Default)]
pub struct SuspicionHints {
    suspicions: BTreeMap<SocketAddr, EndpointSuspicion>,
}

#[derive(Clone, Copy, Debug)]
struct EndpointSuspicion {
    begun: Time,
    /// Time of the last hint that counted.
    last: Time,
}

impl SuspicionHints {
    /// Returns the time until which the endpoint is suspected because of a hint; `None`: the last
    /// one suffices.
    ///
    /// # Errors
    ///
    /// Returns the reason if peers have had the endpoint suspected for long enough.
    pub fn admit(
        &mut self,
        endpoint: SocketAddr,
        now: Time,
    ) -> Result<Option<Time>, ReportRefusal> {
        let fresh = EndpointSuspicion { begun: now, last: now };
        let known = self.suspicions.get(&endpoint).filter(|it| !it.is_over(now));
        let mut suspicion = known.copied().unwrap_or(fresh);
        let end = suspicion.begun + MAX_SUSPICION;
        if now >= end {
            return Err(ReportRefusal::Exhausted);
        }
        let is_news = known.is_none() || now.saturating_since(suspicion.last) >= HINT_INTERVAL;
        if is_news {
            suspicion.last = now;
            self.suspicions.insert(endpoint, suspicion);
        }
        Ok(is_news.then(|| end.min(now + HINT_LIFETIME)))
    }

    /// Forgets what is no longer of use. To be called for each message.
    pub fn forget_expired(&mut self, now: Time) {
        self.suspicions.retain(|_, it| !it.is_over(now));
    }
}

impl EndpointSuspicion {
    /// True if hints count from the beginning again.
    fn is_over(self, now: Time) -> bool {
        now.saturating_since(self.begun) >= MAX_SUSPICION * 2
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn milli(millis: u64) -> Time {
        Time::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn peers_have_an_endpoint_suspected_for_half_of_the_time_at_most() {
        let mut hints = SuspicionHints::default();
        let endpoint = SocketAddr::from(([10, 0, 0, 1], 80));
        let (mut suspected_until, mut suspected) = (Time::ZERO, 0);
        for now in (0..240_000).step_by(1_000) {
            hints.forget_expired(milli(now));
            if let Ok(Some(until)) = hints.admit(endpoint, milli(now)) {
                suspected_until = until;
            }
            suspected += u32::from(milli(now) < suspected_until);
        }
        assert_eq!(suspected, 120);
    }

    #[test]
    fn hint_holds_for_three_seconds_and_counts_twice_a_second() {
        let mut hints = SuspicionHints::default();
        let endpoint = SocketAddr::from(([10, 0, 0, 1], 80));
        assert_eq!(hints.admit(endpoint, milli(0)), Ok(Some(milli(3_000))));
        assert_eq!(hints.admit(endpoint, milli(499)), Ok(None));
        assert_eq!(hints.admit(endpoint, milli(500)), Ok(Some(milli(3_500))));
        assert_eq!(hints.admit(endpoint, milli(59_000)), Ok(Some(milli(60_000))));
        assert_eq!(hints.admit(endpoint, milli(60_000)), Err(ReportRefusal::Exhausted));
        hints.forget_expired(milli(120_000));
        assert!(hints.suspicions.is_empty());
    }
}
