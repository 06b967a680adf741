//! Checks of slots and requests in flight, by an account that is kept apart from the tables.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use balance::Time;
use balance::leases::{LeaseTable, SlotAccount};

/// Time for which a higher cap may still be in use after a change: replicas learn of it late, and
/// then leases expire.
const CAP_MEMORY: Duration = Duration::from_millis(1_900);

/// Requests in flight and cap of one endpoint.
#[derive(Clone, Debug)]
pub(super) struct EndpointAudit {
    /// Requests that the endpoint works on.
    pub(super) in_flight: u32,
    /// Requests among them of replicas that are gone.
    pub(super) of_dead: u32,
    cap: u32,
    /// Previous caps, and until when they may be in use.
    former: VecDeque<(Time, u32)>,
}

/// Slots that replicas may use at one endpoint, and requests beside them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SlotsInForce {
    /// Slots that live replicas may use.
    pub(super) usable: u32,
    /// Slots beyond, by the policy for replicas that are cut off.
    pub(super) emergency: u32,
    /// Requests in flight beyond the slots of their replica: the lease has expired, or the base has
    /// changed, after they began.
    pub(super) outlasting: u32,
}

impl EndpointAudit {
    pub(super) fn new(cap: u32) -> Self {
        Self { in_flight: 0, of_dead: 0, cap, former: VecDeque::new() }
    }

    pub(super) fn cap(&self) -> u32 {
        self.cap
    }

    pub(super) fn set_cap(&mut self, cap: u32, now: Time) {
        self.former.push_back((now + CAP_MEMORY, self.cap));
        self.cap = cap;
    }

    /// Returns the highest cap that a replica may have in force.
    pub(super) fn allowed(&mut self, now: Time) -> u32 {
        while self.former.front().is_some_and(|&(until, _)| until < now) {
            self.former.pop_front();
        }
        self.former.iter().map(|&(_, cap)| cap).fold(self.cap, u32::max)
    }

    /// Checks that replicas may not use more slots than there are.
    pub(super) fn check_slots(&mut self, endpoint: usize, slots: SlotsInForce, now: Time) {
        let allowed = self.allowed(now);
        let SlotsInForce { usable, .. } = slots;
        assert!(usable <= allowed, "endpoint {endpoint}: {usable} slots in use of {allowed}");
    }

    /// Checks the requests in flight after one has begun. Returns true if there are more than the
    /// cap.
    pub(super) fn check_begin(&mut self, endpoint: usize, slots: SlotsInForce, now: Time) -> bool {
        let (in_flight, allowed) = (self.in_flight, self.allowed(now));
        let apart = self.of_dead + slots.outlasting + slots.emergency;
        assert!(
            in_flight <= allowed + apart,
            "endpoint {endpoint}: {in_flight} in flight, the cap is {allowed}, {apart} are apart"
        );
        in_flight > allowed
    }
}

/// Accounts of a replica before its table is polled. A poll hands slots over, and takes none.
#[derive(Debug)]
pub(super) struct HandoverAudit {
    accounts: Vec<(SocketAddr, SlotAccount)>,
    returned: u64,
}

impl HandoverAudit {
    pub(super) fn new(table: &LeaseTable, endpoints: impl Iterator<Item = SocketAddr>) -> Self {
        let accounts = endpoints.map(|endpoint| (endpoint, table.account(endpoint))).collect();
        Self { accounts, returned: table.counts().returned }
    }

    /// Checks that no request is in a slot that was handed over: those in flight fit into the slots
    /// that are left, whether they may still be used or not.
    pub(super) fn check(&self, table: &LeaseTable, in_flight: impl Fn(usize) -> u32) {
        let pairs: Vec<_> =
            self.accounts.iter().map(|&(endpoint, old)| (old, table.account(endpoint))).collect();
        let gone = |(old, new): &(SlotAccount, SlotAccount)| old.held.saturating_sub(new.held);
        // Slots of a peer that is no longer a member can be lost in a poll.
        let all_gone: u64 = pairs.iter().map(|pair| u64::from(gone(pair))).sum();
        let are_returned = all_gone == table.counts().returned - self.returned;
        for (number, (old, new)) in pairs.iter().enumerate() {
            let is_handed_over = are_returned && new.held < old.held || new.lent > old.lent;
            let left = new.base.saturating_sub(new.lent) + new.held;
            let in_flight = in_flight(number);
            assert!(
                !is_handed_over || in_flight <= left,
                "endpoint {number}: {in_flight} in flight, {left} slots left: {old:?}, {new:?}"
            );
        }
    }
}
