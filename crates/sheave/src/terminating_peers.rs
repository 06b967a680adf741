//! Terminating peers: each keeps its slots for the longest time that its shutdown may take, and no longer. A pod of a
//! failed node stays in the state terminating until its object is removed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use proxy::Time;

/// Peers that are terminating.
#[derive(Debug)]
pub(crate) struct TerminatingPeers {
    /// Longest time that a shutdown may take.
    termination_timeout: Duration,
    /// Time until which each peer keeps its slots.
    expires_at: BTreeMap<IpAddr, Time>,
    next_expiry: Option<Time>,
}

impl TerminatingPeers {
    pub(crate) const fn new(termination_timeout: Duration) -> Self {
        Self { termination_timeout, expires_at: BTreeMap::new(), next_expiry: None }
    }

    /// Returns the terminating peers whose time has not expired.
    pub(crate) fn update(&mut self, ending: &BTreeSet<IpAddr>, now: Time) -> Vec<IpAddr> {
        self.expires_at.retain(|address, _| ending.contains(address));
        for address in ending {
            self.expires_at.entry(*address).or_insert(now + self.termination_timeout);
        }
        let counts = || self.expires_at.iter().filter(|(_, until)| now < **until);
        self.next_expiry = counts().map(|(_, until)| *until).min();
        counts().map(|(address, _)| *address).collect()
    }

    /// Returns the next time at which a peer of the last update expires.
    pub(crate) const fn next_expiry(&self) -> Option<Time> {
        self.next_expiry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMINATION_TIMEOUT: Duration = Duration::from_secs(40);

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn terminating_peer_counts_for_the_grace_period() {
        let [a, b] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        let mut peers = TerminatingPeers::new(TERMINATION_TIMEOUT);
        assert_eq!(peers.update(&[a].into(), at(0)), [a]);
        assert_eq!(peers.update(&[a, b].into(), at(10)), [a, b]);
        assert_eq!(peers.next_expiry(), Some(at(40)));
        assert_eq!(peers.update(&[a, b].into(), at(39)), [a, b]);
        assert_eq!(peers.update(&[a, b].into(), at(40)), [b]);
        assert_eq!(peers.next_expiry(), Some(at(50)));
        assert!(peers.update(&[a, b].into(), at(50)).is_empty());
        assert_eq!(peers.next_expiry(), None);
    }

    #[test]
    fn new_pod_with_the_same_address_gets_its_own_grace_period() {
        let a = IpAddr::from([10, 0, 0, 1]);
        let mut peers = TerminatingPeers::new(TERMINATION_TIMEOUT);
        peers.update(&[a].into(), at(0));
        peers.update(&[].into(), at(100));
        assert_eq!(peers.update(&[a].into(), at(200)), [a]);
    }
}
