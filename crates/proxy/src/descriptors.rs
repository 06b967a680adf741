//! File descriptors: the share of the process's limit for each use, and the closing of idle connections when
//! descriptors run out.
//!
//! Client connections, UDP flows and connections to endpoints have shares, so that none of them takes them all. A part
//! is kept in reserve for the admin API, DNS, the API server, configuration files and listeners. The kernel assigns
//! the lowest free number to a descriptor: so the number of a new one tells how many are in use.

use std::cell::Cell;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use balance::Time;

use crate::clock;

/// Bounds of the reserve, which is an eighth of the limit.
const MIN_RESERVE: u64 = 32;
const MAX_RESERVE: u64 = 1024;

/// Upper bound of the connections with the address of a client that are kept for later requests.
const MAX_MARKED: u32 = 32_768;

/// Idle time from which on connections are closed first when descriptors run out; it is halved at each further tick.
const LONG_IDLE: Duration = Duration::from_secs(60);
/// Idle time below which no connection is closed: the client may be about to send its next request.
const SHORT_IDLE: Duration = Duration::from_millis(200);

/// The shares of the process's descriptors.
#[derive(Debug)]
pub(crate) struct DescriptorBudget {
    /// Descriptors that the process may have; `None`: any number.
    limit: Option<u64>,
    /// Client connections over TCP: half of what is not in reserve, since each may need a connection to an endpoint.
    pub(crate) max_clients: u32,
    /// UDP flows, each with a socket to its endpoint: a quarter.
    max_flows: u32,
    /// The lowest descriptor number that connections to endpoints, and pipes, may not have.
    endpoint_end: i32,
    /// Connections with the address of a client beyond which none of them is kept for later requests.
    max_marked: u32,
    clients: AtomicU32,
    flows: AtomicU32,
    marked: AtomicU32,
}

impl DescriptorBudget {
    /// Divides a limit of descriptors; `None`: there is no limit.
    pub(crate) fn new(limit: Option<u64>) -> Self {
        let all = limit.unwrap_or(u64::MAX);
        let reserve = (all / 8).clamp(MIN_RESERVE, MAX_RESERVE);
        let usable = all.saturating_sub(reserve);
        let count = |descriptors: u64| u32::try_from(descriptors.max(1)).unwrap_or(u32::MAX);
        Self {
            limit,
            max_clients: count(usable / 2),
            max_flows: count(usable / 4),
            endpoint_end: i32::try_from(usable - usable / 8).unwrap_or(i32::MAX),
            max_marked: count(usable / 8).min(MAX_MARKED),
            clients: AtomicU32::new(0),
            flows: AtomicU32::new(0),
            marked: AtomicU32::new(0),
        }
    }

    /// True if another client connection may be accepted.
    pub(crate) fn has_room_for_client(&self) -> bool {
        self.clients.load(Ordering::Relaxed) < self.max_clients
    }

    pub(crate) fn add_client(&self) {
        self.clients.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn remove_client(&self) {
        self.clients.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts one more UDP flow, if their share allows it.
    pub(crate) fn add_flow(&self) -> bool {
        let more = |flows: u32| (flows < self.max_flows).then_some(flows + 1);
        self.flows.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    pub(crate) fn remove_flow(&self) {
        self.flows.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts one more connection to an endpoint with the address of a client, which other clients cannot use.
    pub(crate) fn add_marked(&self) {
        self.marked.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn remove_marked(&self) {
        self.marked.fetch_sub(1, Ordering::Relaxed);
    }

    /// True if such a connection may be kept for later requests: each client has its own to each endpoint.
    pub(crate) fn keeps_marked(&self) -> bool {
        self.marked.load(Ordering::Relaxed) <= self.max_marked
    }

    /// True if this new socket of a connection to an endpoint, or pipe, leaves enough descriptors for the rest.
    pub(crate) fn allows(&self, socket: &impl AsRawFd) -> bool {
        socket.as_raw_fd() < self.endpoint_end
    }

    /// Returns the client connections beyond nine tenths of their share.
    pub(crate) fn excess_clients(&self) -> u32 {
        let most = self.max_clients - self.max_clients / 10;
        self.clients.load(Ordering::Relaxed).saturating_sub(most)
    }

    /// Writes the shares to the log.
    pub(crate) fn log(&self) {
        let Self { limit, max_clients, max_flows, .. } = self;
        let Some(limit) = limit else { return };
        tracing::info!(
            limit,
            max_client_connections = max_clients,
            max_udp_flows = max_flows,
            "file descriptors are divided"
        );
    }
}

impl Default for DescriptorBudget {
    /// Returns the budget of a process without a limit.
    fn default() -> Self {
        Self::new(None)
    }
}

/// Closing of a worker's idle client connections, those that have been idle for longest first.
#[derive(Debug, Default)]
pub(crate) struct IdleShedding {
    /// Idle time from which on connections are closed; `None`: none is.
    idle_from: Cell<Option<Duration>>,
    /// Number of connections still to close.
    left: Cell<u32>,
}

impl IdleShedding {
    /// Begins another round, in which `excess` connections are to be closed. Returns true if idle connections are to
    /// check if they are among them.
    pub(crate) fn tick(&self, excess: u32) -> bool {
        self.left.set(excess);
        let next = match self.idle_from.get() {
            _ if excess == 0 => None,
            None => Some(LONG_IDLE),
            Some(idle) => Some((idle / 2).max(SHORT_IDLE)),
        };
        self.idle_from.set(next);
        excess > 0
    }

    /// True if a connection that has been idle since this time must be closed; then it is counted.
    pub(crate) fn must_close(&self, idle_since: Time) -> bool {
        let Some(idle_from) = self.idle_from.get() else { return false };
        let left = self.left.get();
        if left == 0 || clock::now().saturating_since(idle_since) < idle_from {
            return false;
        }
        self.left.set(left - 1);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_leave_a_reserve_and_room_for_endpoints() {
        for limit in [64, 400, 1024, 65_536, 1 << 20] {
            let budget = DescriptorBudget::new(Some(limit));
            let taken = u64::from(budget.max_clients) + u64::from(budget.max_flows);
            assert!(taken + MIN_RESERVE <= limit, "{limit}: {budget:?}");
            let endpoints = u64::try_from(budget.endpoint_end).unwrap();
            assert!(endpoints > u64::from(budget.max_clients), "{limit}: {budget:?}");
            assert!(endpoints < limit - MIN_RESERVE, "{limit}: {budget:?}");
        }
        assert_eq!(DescriptorBudget::new(None).max_clients, u32::MAX);
        assert_eq!(DescriptorBudget::new(Some(0)).max_clients, 1);
    }

    #[test]
    fn flows_stop_at_their_share() {
        let budget = DescriptorBudget::new(Some(400));
        let opened = (0..400).filter(|_| budget.add_flow()).count();
        assert_eq!(opened, 87);
        budget.remove_flow();
        assert!(budget.add_flow() && !budget.add_flow());
    }

    #[test]
    fn connections_with_the_address_of_a_client_are_kept_up_to_their_share() {
        let budget = DescriptorBudget::new(Some(400));
        let kept = (0..400).take_while(|_| {
            budget.add_marked();
            budget.keeps_marked()
        });
        assert_eq!(kept.count(), 43);
        budget.remove_marked();
        assert!(budget.keeps_marked());
        assert_eq!(DescriptorBudget::new(None).max_marked, MAX_MARKED);
    }

    #[test]
    fn clients_beyond_nine_tenths_are_in_excess() {
        let budget = DescriptorBudget::new(Some(400));
        assert_eq!(budget.max_clients, 175);
        (0..158).for_each(|_| budget.add_client());
        assert_eq!(budget.excess_clients(), 0);
        (0..17).for_each(|_| budget.add_client());
        assert_eq!((budget.excess_clients(), budget.has_room_for_client()), (17, false));
    }

    #[test]
    fn connections_idle_for_longest_are_closed_first() {
        let shedding = IdleShedding::default();
        let now = clock::now();
        assert!(!shedding.must_close(Time::ZERO));
        assert!(shedding.tick(2));
        assert!(!shedding.must_close(now), "it has just become idle");
        while shedding.idle_from.get() > Some(SHORT_IDLE) {
            assert!(shedding.tick(2));
        }
        assert!(!shedding.must_close(clock::now()));
        assert!(!shedding.tick(0));
        assert_eq!(shedding.idle_from.get(), None);
    }
}
