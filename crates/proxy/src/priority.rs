//! Which priority a request has if it has to wait: what its header field says, else that of its route.

use balance::PriorityLevel;
use gateway::snapshot::{PriorityRules, Rule};

use crate::backend::BackendRef;
use crate::head::RequestHead;
use crate::worker::Worker;

/// The priority of a request, as filters have left it. A value that says nothing is counted.
pub(crate) fn of_request(
    worker: &Worker,
    backend: &BackendRef,
    priorities: &PriorityRules,
    rule: &Rule,
    request: &RequestHead,
) -> PriorityLevel {
    let said = priorities.header.as_ref().and_then(|header| {
        let value = request.fields.get(&header.name)?;
        let priority = header.read(value);
        if priority.is_none() {
            backend.counters[worker.index].priorities_ignored.add(1);
        }
        priority
    });
    said.unwrap_or_else(|| priorities.of_rule(&rule.name))
}
