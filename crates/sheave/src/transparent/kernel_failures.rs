//! Failures of the kernel's rules, as one thread meets them: counted, logged, and reported if they go on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use intercept::InterceptError;
use kube::{EventRecorder, ObjectEvent};
use proxy::{Time, clock};

use super::agent_status::{AgentStatus, KernelOperation};
use super::events;

/// Time after which the same error is logged again.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Time after which a failure that goes on is an Event.
const LASTING_FAILURE: Duration = Duration::from_secs(5);

/// Failures of the operations of one thread.
pub(super) struct KernelFailures {
    reporter: ConditionReporter,
    ongoing: BTreeMap<KernelOperation, OngoingFailure>,
}

/// A failure that has not been followed by a success.
struct OngoingFailure {
    since: Time,
    logged_at: Time,
    message: String,
}

impl KernelFailures {
    pub(super) fn new(reporter: ConditionReporter) -> Self {
        Self { reporter, ongoing: BTreeMap::new() }
    }

    /// Counts and logs an error, and reports one that goes on; returns the value if there is none.
    pub(super) fn judge<T>(
        &mut self,
        operation: KernelOperation,
        result: Result<T, InterceptError>,
    ) -> Option<T> {
        let error = match result {
            Ok(value) => {
                if self.ongoing.remove(&operation).is_some() {
                    self.reporter.report(events::failure_reason(operation), None);
                }
                return Some(value);
            }
            Err(error) => error,
        };
        self.reporter.status.count_error(operation);
        self.record(operation, format!("{:#}", anyhow::Error::from(error)));
        None
    }

    fn record(&mut self, operation: KernelOperation, message: String) {
        let now = clock::now();
        let before = self.ongoing.remove(&operation);
        let since = before.as_ref().map_or(now, |before| before.since);
        let is_recent = |it: &OngoingFailure| now.saturating_since(it.logged_at) < LOG_INTERVAL;
        let logged = before.filter(|it| it.message == message && is_recent(it));
        let logged_at = logged.map_or(now, |it| it.logged_at);
        if logged_at == now {
            tracing::error!(
                operation = operation.label(),
                error = message,
                "the kernel's rules: it is tried again"
            );
        }
        if now.saturating_since(since) >= LASTING_FAILURE {
            self.reporter.report(events::failure_reason(operation), Some(message.clone()));
        }
        self.ongoing.insert(operation, OngoingFailure { since, logged_at, message });
    }
}

/// Reports conditions of the rules of this node.
#[derive(Clone)]
pub(super) struct ConditionReporter {
    pub(super) status: Arc<AgentStatus>,
    pub(super) node: String,
    pub(super) events: EventRecorder,
}

impl ConditionReporter {
    /// Reports something that holds of this node; with `None`, that it no longer holds.
    pub(super) fn report(&self, reason: &'static str, message: Option<String>) {
        // Locked to the end: two threads report, and the newest list must be the last.
        let mut details = self.status.details();
        let is_changed = match message {
            Some(message) => {
                details.node_conditions.insert(reason, vec![message.clone()]) != Some(vec![message])
            }
            None => details.node_conditions.remove(reason).is_some(),
        };
        if !is_changed {
            return;
        }
        let conditions = details.node_conditions.iter().filter(|(it, _)| events::is_of_rules(it));
        let standing: Vec<ObjectEvent> = conditions
            .flat_map(|(reason, messages)| {
                messages.iter().map(|message| events::of_node(&self.node, reason, message.clone()))
            })
            .collect();
        self.events.set_standing("rules", standing);
    }
}
