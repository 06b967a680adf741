//! Recording of the load reports that endpoints send with responses (ORCA).
//!
//! Reports are parsed only for backends with learned limits. An invalid report is ignored as a whole, and counted. The
//! fields are forwarded to the client unchanged.

use balance::ConcurrencyCap;
use balance::limit::EndpointLoadReport;
use codec::head::FieldSection;
use codec::orca::{self, OrcaLoadReport};

use crate::backend::Slot;
use crate::clock;
use crate::exchange::RequestPolicy;
use crate::worker::Worker;

/// Records the load report in a response's fields or trailers, if there is one.
pub(crate) fn record(
    worker: &Worker,
    slot: &Slot,
    policy: &RequestPolicy<'_>,
    fields: &FieldSection,
) {
    if policy.backend_config.limits.cap != ConcurrencyCap::Learned {
        return;
    }
    let Some(read) = orca::report_in(fields) else { return };
    let counters = &slot.endpoint.data.counters[worker.index];
    let report = match read {
        Ok(OrcaLoadReport { utilization, max_in_flight }) => {
            EndpointLoadReport { utilization, max_in_flight }
        }
        Err(ignored) => return counters.load_reports_ignored[ignored as usize].add(1),
    };
    counters.load_reports.add(1);
    let now = clock::now();
    slot.endpoint.limit_counters.report(&report, slot.in_flight_at_start, now);
    if report.utilization.is_some_and(|utilization| utilization > 1.0) {
        slot.endpoint.record_overload(slot.in_flight_at_start, now);
        slot.backend.adaptive_limits.mark_overloaded(&worker.shared.health_waker);
    }
}
