//! The queue priority of a request: from its header field, else from its route.

use balance::PriorityLevel;
use codec::head::RequestHead;
use gateway::snapshot::{PriorityRules, Rule};

use crate::backend::BackendRef;
use crate::worker::Worker;

/// Returns the priority of a request, after filters have changed its fields. An invalid value is counted and ignored.
pub(crate) fn of_request(
    worker: &Worker,
    backend: &BackendRef,
    priorities: &PriorityRules,
    rule: &Rule,
    request: &RequestHead,
) -> PriorityLevel {
    let from_header = priorities.header.as_ref().and_then(|header| {
        let value = request.fields.get(&header.name)?;
        let priority = header.read(value);
        if priority.is_none() {
            backend.counters[worker.index].priorities_ignored.add(1);
        }
        priority
    });
    from_header.unwrap_or_else(|| priorities.of_rule(&rule.name))
}
