//! Endpoints that other replicas cannot reach, as hints: a hint is a reason to connect to the
//! endpoint once, and never a verdict.
//!
//! So a replica that is cut off from all endpoints, or that lies, takes none away from the others:
//! an endpoint is unreachable here only if a connection of this replica fails, as it would be
//! without the hint.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use super::ReportRefusal;
use crate::time::Time;

/// Maximum number of endpoints of each kind in a message. The largest message has 32 kB.
pub const MAX_OUTAGE_REPORTS: usize = 512;

/// Time for which a peer need not repeat that it cannot reach an endpoint. After that it is news.
const NEWS_LIFETIME: Duration = Duration::from_secs(3);

/// Shortest interval between two checks of one endpoint because of hints.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Endpoints that the sender cannot reach or has ejected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutageMessage {
    /// Endpoints that cannot be reached, at most [`MAX_OUTAGE_REPORTS`].
    pub endpoints: Vec<SocketAddr>,
    /// Endpoints that are ejected because they fail, at most [`MAX_OUTAGE_REPORTS`].
    pub ejected: Vec<SocketAddr>,
}

impl OutageMessage {
    /// Checks the number of endpoints.
    ///
    /// # Errors
    ///
    /// Returns the reason if the message is to be refused as a whole.
    pub fn check(&self) -> Result<(), ReportRefusal> {
        let mut lists = [&self.endpoints, &self.ejected].into_iter();
        let fits = lists.all(|list| list.len() <= MAX_OUTAGE_REPORTS);
        if fits { Ok(()) } else { Err(ReportRefusal::Absurd) }
    }
}

/// Decides which hints cause a check: one for each outage that a peer reports, and at most one in a
/// `CHECK_INTERVAL` for each endpoint.
#[derive(Debug, Default)]
pub struct OutageHints {
    /// Last time at which each peer has reported each endpoint.
    reported: BTreeMap<(SocketAddr, SocketAddr), Time>,
    /// Last check of each endpoint.
    checked: BTreeMap<SocketAddr, Time>,
}

impl OutageHints {
    /// Returns true if the endpoint is to be checked now.
    pub fn should_check(&mut self, peer: SocketAddr, endpoint: SocketAddr, now: Time) -> bool {
        let is_recent = |at: Time, time| now.saturating_since(at) < time;
        let before = self.reported.insert((peer, endpoint), now);
        let is_news = !before.is_some_and(|at| is_recent(at, NEWS_LIFETIME));
        let checked = self.checked.get(&endpoint);
        let checks = is_news && !checked.is_some_and(|&at| is_recent(at, CHECK_INTERVAL));
        if checks {
            self.checked.insert(endpoint, now);
        }
        checks
    }

    /// Forgets what is no longer of use. To be called for each message.
    pub fn forget_expired(&mut self, now: Time) {
        self.reported.retain(|_, at| now.saturating_since(*at) < NEWS_LIFETIME);
        self.checked.retain(|_, at| now.saturating_since(*at) < CHECK_INTERVAL);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn milli(millis: u64) -> Time {
        Time::from_nanos(millis * 1_000_000)
    }

    fn address(number: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, number], 80))
    }

    #[test]
    fn each_outage_of_a_peer_causes_one_check() {
        let mut hints = OutageHints::default();
        let (peer, endpoint) = (address(1), address(9));
        let checks: Vec<u64> = (0..20_000)
            .step_by(500)
            // The outage ends at 10 s, and there is another one at 15 s.
            .filter(|now| !(10_000..15_000).contains(now))
            .filter(|&now| hints.should_check(peer, endpoint, milli(now)))
            .collect();
        assert_eq!(checks, [0, 15_000]);
    }

    #[test]
    fn peers_together_cause_a_check_a_second_at_most() {
        let mut hints = OutageHints::default();
        let mut check = |peer, now| hints.should_check(address(peer), address(9), milli(now));
        assert!(check(1, 0));
        assert!(!check(2, 10) && !check(3, 999));
        assert!(check(4, 1_000));
        assert!(!check(1, 1_100), "reported before");
    }

    #[test]
    fn memory_of_hints_ends() {
        let mut hints = OutageHints::default();
        for endpoint in 0..200 {
            hints.should_check(address(1), address(endpoint), milli(0));
        }
        hints.forget_expired(milli(3_000));
        assert!(hints.reported.is_empty() && hints.checked.is_empty());
        let endpoints = vec![address(1); MAX_OUTAGE_REPORTS + 1];
        let message = OutageMessage { endpoints, ejected: Vec::new() };
        assert_eq!(message.check(), Err(ReportRefusal::Absurd));
        let message = OutageMessage { endpoints: Vec::new(), ejected: message.endpoints };
        assert_eq!(message.check(), Err(ReportRefusal::Absurd));
    }
}
