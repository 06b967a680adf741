//! Refusals of endpoints at other replicas, as hints: an endpoint that is full refuses at each of
//! them, so the others need not find out one by one.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use super::ReportRefusal;
use crate::limit::MAX_BACKOFF;
use crate::time::Time;

/// Maximum number of reports in a message. The largest message has 20 kB.
pub const MAX_REFUSAL_REPORTS: usize = 512;

/// Reduced limits of endpoints that have refused requests of the sender.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusalMessage {
    /// At most [`MAX_REFUSAL_REPORTS`].
    pub reports: Vec<RefusalReport>,
}

/// Reduced limit of one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusalReport {
    /// Endpoint that has refused a request.
    pub endpoint: SocketAddr,
    /// Limit of the sender on requests in flight there, at least 1.
    pub limit: u32,
    /// Time for which it still holds.
    pub remaining: Duration,
}

impl RefusalMessage {
    /// Checks all numbers.
    ///
    /// # Errors
    ///
    /// Returns the reason if the message is to be refused as a whole.
    pub fn check(&self) -> Result<(), ReportRefusal> {
        let is_possible = |it: &RefusalReport| it.limit > 0 && it.remaining <= MAX_BACKOFF;
        if self.reports.len() > MAX_REFUSAL_REPORTS || !self.reports.iter().all(is_possible) {
            return Err(ReportRefusal::Absurd);
        }
        Ok(())
    }
}

/// Bound on hints: whatever peers say, they reduce the limit of an endpoint for as long as a
/// refusal can, and then for the same time not again, unless it refuses a request of this replica.
#[derive(Debug, Default)]
pub struct RefusalHints {
    /// Time of the first hint about each endpoint.
    begun: BTreeMap<SocketAddr, Time>,
}

impl RefusalHints {
    /// Returns the time for which a report counts. `own_refusal` is the time at which the endpoint
    /// last refused a request of this replica.
    ///
    /// # Errors
    ///
    /// Returns the reason if peers have reduced the limit of the endpoint for long enough.
    pub fn admit(
        &mut self,
        report: &RefusalReport,
        own_refusal: Option<Time>,
        now: Time,
    ) -> Result<Duration, ReportRefusal> {
        let begun = self.begun.entry(report.endpoint).or_insert(now);
        if own_refusal.is_some_and(|at| at > *begun) || is_over(*begun, now) {
            *begun = now;
        }
        let left = MAX_BACKOFF.saturating_sub(now.saturating_since(*begun));
        if left.is_zero() {
            return Err(ReportRefusal::Exhausted);
        }
        Ok(report.remaining.min(left))
    }

    /// Forgets what is no longer of use. To be called for each message.
    pub fn forget_expired(&mut self, now: Time) {
        self.begun.retain(|_, begun| !is_over(*begun, now));
    }
}

/// True if hints count again.
fn is_over(begun: Time, now: Time) -> bool {
    now.saturating_since(begun) >= MAX_BACKOFF * 2
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::endpoint::EndpointRegistry;
    use crate::load::ConcurrencyCap;

    fn second(seconds: u64) -> Time {
        Time::from_nanos(seconds * 1_000_000_000)
    }

    fn report(seconds: u64) -> RefusalReport {
        let endpoint = SocketAddr::from(([10, 0, 0, 1], 80));
        RefusalReport { endpoint, limit: 2, remaining: Duration::from_secs(seconds) }
    }

    #[test]
    fn peers_reduce_a_limit_for_as_long_as_a_refusal_can() {
        let mut hints = RefusalHints::default();
        // A peer that says each second that the endpoint is full for 30 s more.
        let reduced_until = |hints: &mut RefusalHints, from: u64, to: u64| {
            let admit = |now| {
                let admitted = hints.admit(&report(30), None, second(now)).ok()?;
                Some(second(now) + admitted)
            };
            (from..to).filter_map(admit).max()
        };
        assert_eq!(reduced_until(&mut hints, 100, 160), Some(second(160)));
        assert_eq!(reduced_until(&mut hints, 160, 220), None, "for the same time not again");
        assert_eq!(reduced_until(&mut hints, 220, 300), Some(second(280)));
        hints.forget_expired(second(340));
        assert!(hints.begun.is_empty());
    }

    #[test]
    fn own_refusal_makes_hints_count_again() {
        let mut hints = RefusalHints::default();
        let mut admit = |own: Option<u64>, now| {
            hints.admit(&report(30), own.map(second), second(now)).map(|it| it.as_secs())
        };
        assert_eq!(admit(None, 100), Ok(30));
        assert_eq!(admit(Some(90), 150), Ok(10), "a refusal before the first hint proves nothing");
        assert_eq!(admit(Some(90), 170), Err(ReportRefusal::Exhausted));
        assert_eq!(admit(Some(165), 170), Ok(30));
        assert_eq!(admit(Some(165), 229), Ok(1));
    }

    #[test]
    fn impossible_refusals_are_refused() {
        let check = |report| RefusalMessage { reports: vec![report] }.check();
        assert_eq!(check(report(60)), Ok(()));
        assert_eq!(check(report(61)), Err(ReportRefusal::Absurd));
        assert_eq!(check(RefusalReport { limit: 0, ..report(1) }), Err(ReportRefusal::Absurd));
        let reports = vec![report(1); MAX_REFUSAL_REPORTS + 1];
        assert_eq!(RefusalMessage { reports }.check(), Err(ReportRefusal::Absurd));
    }

    #[test]
    fn hint_lowers_the_limit_and_is_no_refusal_of_our_own() {
        let mut registry = EndpointRegistry::new();
        let endpoint = registry.endpoint(report(1).endpoint, || ());
        let limit = |now| {
            endpoint.reduced_limit(now);
            endpoint.limit(ConcurrencyCap::None)
        };
        endpoint.reduce_for_peer(3, Duration::from_secs(10), second(100));
        assert_eq!(limit(second(109)), Some(3));
        assert_eq!(endpoint.own_refusal(second(105)), None, "it is not reported as our own");
        assert_eq!(limit(second(110)), None);
        endpoint.record_refusal(5, Some(Duration::from_secs(10)), second(200));
        let own = endpoint.own_refusal(second(203)).expect("it has refused");
        assert_eq!((own.limit, own.remaining), (4, Duration::from_secs(7)));
        // A peer lowers the limit; the report of our own refusal stays as it is.
        endpoint.reduce_for_peer(1, Duration::from_secs(60), second(203));
        assert_eq!(limit(second(205)), Some(1));
        assert_eq!(endpoint.own_refusal(second(205)).map(|it| it.limit), Some(4));
        assert_eq!(endpoint.own_refusal(second(210)), None);
    }
}
