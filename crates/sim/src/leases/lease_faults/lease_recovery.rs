//! State after the faults: bounds on when it must be reached, and checks.

use super::*;

impl LeaseFaultSimulation {
    /// Returns the time after the last fault in which all requests must be served and all slots be
    /// in use again: replicas learn the members, wait for the handover and for leases to expire;
    /// then the queues are served.
    pub(super) fn recovery_time(&self) -> Duration {
        let queued: usize = self.processes.iter().map(|process| process.replica.queued()).sum();
        let slots: u32 = self.plan.caps.iter().map(|&cap| cap.min(1)).sum();
        let rounds = queued as u32 / slots + 1;
        MAX_LAG + HANDOVER_TIME * 2 + LEASE_TERM * 2 + self.plan.service * (8 + 3 * rounds)
    }

    pub(super) fn check_end(&mut self) {
        for (number, process) in self.processes.iter().enumerate() {
            if process.is_alive {
                let queued = process.replica.queued();
                assert_eq!(queued, 0, "replica {number}: {queued} requests are starved");
                let counts = process.replica.table.counts();
                self.counts.refused += counts.refused.iter().sum::<u64>();
                self.counts.lent += counts.lent;
                self.counts.taken_back += counts.taken_back;
            }
        }
        for (number, endpoint) in self.endpoints.iter().enumerate() {
            let slots = self.slots_in_force(number);
            assert_eq!(endpoint.in_flight, 0, "endpoint {number}: a request has not ended");
            let usable = slots.usable;
            assert_eq!(usable, endpoint.cap(), "endpoint {number}: slots are lost");
            assert_eq!(slots.emergency, 0, "endpoint {number}: a replica is still cut off");
        }
    }
}
