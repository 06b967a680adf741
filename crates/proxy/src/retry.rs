//! Retries after a failed attempt.
//!
//! The code that detects the failure knows if a retry is *safe* (`AttemptFailure`). This module decides if a retry is
//! possible (the request is still buffered) and if the backend's retry budget allows it. The policy is
//! [`balance::retry`]'s.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use balance::AttemptResult;
use codec::grpc::{GrpcCallStatus, RetryPushback};
use codec::head::BodyFraming;
use gateway::snapshot::{BackendSettings, Rule};

use crate::accept::client::WaitInterrupt;
use crate::backend::{BackendRef, Slot};
use crate::clock;
use crate::context::AttemptContext;
use crate::dial::abandon;
use crate::dial::attempt::{AttemptConnection, AttemptFailure, RetryEligibility};
use crate::dial::pool::Endpoint;
use crate::exchange::{Exchange, RequestPolicy};
use crate::failure::Failure;
use crate::grpc;
use crate::outcome::AttemptConclusion;
use crate::relay;
use crate::worker::Worker;

/// The next attempt.
pub(crate) enum NextAttempt {
    /// An attempt with a new slot. Endpoints that were tried are excluded while another is left.
    NewSlot,
    /// An attempt with the same slot, on a fresh connection.
    SameSlot(Slot),
}

/// The retries of one request.
pub(crate) struct RetryState<'r> {
    rule: &'r Rule,
    backend: &'r BackendRef,
    /// Attempts after the first. Not counted: retries after an attempt that sent nothing, or that used a stale
    /// connection.
    attempts_made: u32,
    /// Attempts that failed before a connection was established.
    unsent_attempts: usize,
    /// True if no endpoint was reachable and the request has waited for one.
    has_waited: bool,
    /// Endpoints at which the request was tried, in order.
    tried: Vec<Arc<Endpoint>>,
    /// Backoff before the next attempt.
    pause: Option<Duration>,
}

impl<'r> RetryState<'r> {
    pub(crate) fn new(rule: &'r Rule, backend: &'r BackendRef) -> Self {
        let (tried, pause) = (Vec::new(), None);
        Self {
            rule,
            backend,
            attempts_made: 0,
            unsent_attempts: 0,
            has_waited: false,
            tried,
            pause,
        }
    }

    /// Endpoints at which the request was tried, in order.
    pub(crate) fn tried(&self) -> &[Arc<Endpoint>] {
        &self.tried
    }

    /// Decides on the next attempt after a failed one.
    pub(crate) fn after_failure(
        &mut self,
        context: &mut AttemptContext<'_>,
        failed_attempt: AttemptFailure,
    ) -> Result<NextAttempt, Failure> {
        let worker = context.worker;
        match failed_attempt.retry {
            // The connection was stale: the endpoint is not at fault and sees the request once. So the retry takes
            // nothing from the budget and does not count as an attempt. A fresh connection cannot be stale, so this
            // ends.
            RetryEligibility::SameEndpoint(slot) if context.exchange.upload.rewind() => {
                self.backend.counters[worker.index].retries.add(1);
                Ok(NextAttempt::SameSlot(slot))
            }
            // Nothing was sent, so the retry takes nothing from the budget either: each endpoint is tried once.
            RetryEligibility::Unsent(endpoint) => {
                self.tried.push(endpoint);
                self.unsent_attempts += 1;
                if !self.may_find_another(failed_attempt.failure) && !self.may_wait_for_one() {
                    return Err(failed_attempt.failure);
                }
                self.backend.counters[worker.index].retries.add(1);
                Ok(NextAttempt::NewSlot)
            }
            RetryEligibility::AnotherEndpoint { endpoint, in_flight }
                if self.is_worth_retrying(failed_attempt.failure, &endpoint)
                    && self.may_retry(context, || {
                        let is_broken = matches!(
                            failed_attempt.failure,
                            Failure::EndpointClosed | Failure::EndpointReset
                        );
                        is_broken && endpoint.resends.takes(in_flight, clock::now())
                    }) =>
            {
                self.tried.push(endpoint);
                // The first retry follows at once, later ones after a backoff.
                self.pause = (self.attempts_made > 1).then(|| self.backoff(worker, context.policy));
                context.exchange.upload.rewind();
                Ok(NextAttempt::NewSlot)
            }
            RetryEligibility::SameEndpoint(_)
            | RetryEligibility::AnotherEndpoint { .. }
            | RetryEligibility::Never => Err(failed_attempt.failure),
        }
    }

    /// True if a request that could not be sent may try another endpoint: one at which it was not tried. If the latest
    /// endpoint was only slow to accept the connection, any endpoint may be tried once more, with a longer timeout. An
    /// endpoint that has left the backend since it was tried does not count against the remaining ones.
    fn may_find_another(&self, failure: Failure) -> bool {
        let current = self.backend.config();
        let members = || current.set.members().iter().filter(|member| member.weight > 0);
        let is_tried = |it: &Arc<Endpoint>| self.tried.iter().any(|tried| Arc::ptr_eq(tried, it));
        let all_tried = members().all(|member| is_tried(&member.endpoint));
        let is_member =
            |it: &Arc<Endpoint>| members().any(|member| Arc::ptr_eq(&member.endpoint, it));
        let left = self.tried.iter().filter(|tried| !is_member(tried)).count();
        let most = members().count() + left + usize::from(failure == Failure::ConnectSlow);
        self.unsent_attempts < most.max(1) && (!all_tried || failure == Failure::ConnectSlow)
    }

    /// True unless a retry would most likely fail alike. A malformed response is retried once, at another endpoint:
    /// this one may be about to crash, or the fault may be that of another stream on the same connection. If the second
    /// endpoint answers alike, the request is at fault (RFC 9110 §9.2.2: no retry of a failed retry).
    fn is_worth_retrying(&self, failure: Failure, endpoint: &Arc<Endpoint>) -> bool {
        if !matches!(failure, Failure::BadResponse(_)) {
            return true;
        }
        let current = self.backend.config();
        let mut others = current
            .set
            .members()
            .iter()
            .filter(|member| member.weight > 0 && !Arc::ptr_eq(&member.endpoint, endpoint));
        self.attempts_made == 0 && others.next().is_some()
    }

    /// True if no endpoint is reachable and the backend has a queue in which the request can wait for one. A request
    /// waits so once: if an endpoint returns and is lost again, the request fails.
    fn may_wait_for_one(&mut self) -> bool {
        let current = self.backend.config();
        let may_wait = current.limits.max_waiting > 0 && current.set.is_unreachable();
        may_wait && !std::mem::replace(&mut self.has_waited, true)
    }

    /// True if the response, whose head has arrived, is to be discarded and the request retried.
    pub(crate) fn should_retry_response(&mut self, context: &AttemptContext<'_>) -> bool {
        let AttemptContext { exchange, policy, .. } = context;
        let is_named = match grpc::trailers_only_status(exchange) {
            Some(status) => is_retryable_call(policy.backend_settings(), status),
            None => self.is_retryable_status(exchange, policy),
        };
        is_named && self.may_retry(context, || false)
    }

    fn is_retryable_status(&self, exchange: &Exchange, policy: &RequestPolicy<'_>) -> bool {
        let own = self.rule.retry.as_ref().map(|retry| &retry.statuses);
        let statuses = own.unwrap_or_else(|| &policy.backend_settings().retry_statuses);
        !statuses.is_empty()
            && statuses.binary_search(&exchange.response.status).is_ok()
            && exchange.request.method.is_idempotent()
    }

    /// Discards a response before the request is retried.
    pub(crate) fn discard_response(
        &mut self,
        context: &mut AttemptContext<'_>,
        mut attempt: AttemptConnection,
    ) -> NextAttempt {
        let (worker, policy) = (context.worker, context.policy);
        let pushback = grpc::trailers_only_status(context.exchange).map(|status| status.pushback);
        let result = relay::attempt_end(&context.exchange.response);
        conclude_unread(context, &mut attempt, result);
        let exchange = &mut *context.exchange;
        self.tried.push(Arc::clone(&attempt.slot.endpoint));
        exchange.download.start(exchange.response.framing, BodyFraming::None);
        abandon::abandon(context, attempt);
        context.exchange.upload.rewind();
        self.pause = Some(match pushback {
            Some(RetryPushback::After(pause)) => pause,
            Some(RetryPushback::Unspecified | RetryPushback::Never) | None => {
                self.backoff(worker, policy)
            }
        });
        NextAttempt::NewSlot
    }

    /// Returns the backoff before the next attempt, if there is one.
    pub(crate) fn take_backoff(&mut self) -> Option<Duration> {
        self.pause.take()
    }

    /// True if one more attempt may be made; then it is counted. If `is_granted` returns true, the attempt takes
    /// nothing from the retry budget.
    fn may_retry(
        &mut self,
        context: &AttemptContext<'_>,
        is_granted: impl FnOnce() -> bool,
    ) -> bool {
        let settings = &context.policy.backend_settings().retry;
        let attempts = self.rule.retry.as_ref().map_or(settings.attempts, |own| own.attempts);
        if self.attempts_made + 1 >= attempts.get() || !context.exchange.upload.is_replayable() {
            return false;
        }
        let counters = &self.backend.counters[context.worker.index];
        if !is_granted() && !self.backend.retry_budget.allows(settings, clock::now()) {
            counters.retries_refused.add(1);
            return false;
        }
        counters.retries.add(1);
        self.attempts_made += 1;
        true
    }

    fn backoff(&self, worker: &Worker, policy: &RequestPolicy<'_>) -> Duration {
        let mut settings = policy.backend_settings().retry;
        if let Some(base) = self.rule.retry.as_ref().and_then(|own| own.backoff) {
            settings.backoff_base = base;
            settings.backoff_max = settings.backoff_max.max(base);
        }
        settings.backoff(self.attempts_made, &mut worker.rng.borrow_mut())
    }
}

/// Concludes an attempt whose response has arrived as far as its head, which is all that is read of it.
pub(crate) fn conclude_unread(
    context: &AttemptContext<'_>,
    attempt: &mut AttemptConnection,
    result: AttemptResult,
) {
    let now = clock::now();
    let conclusion = AttemptConclusion {
        at: now,
        result,
        head_after: attempt.head_latency_by(now),
        hold_time_is_signal: true,
    };
    attempt.slot.conclude(context.worker, &context.policy.backend_config, conclusion);
}

/// Waits for the backoff before an attempt.
pub(crate) async fn wait_backoff(
    context: &mut AttemptContext<'_>,
    pause: Duration,
) -> Result<(), Failure> {
    let AttemptContext { worker, client, policy, .. } = context;
    let until = clock::now() + pause;
    match client.wait_until(worker, until.min(policy.deadline), pending::<()>()).await {
        Err(WaitInterrupt::ClientGone) => Err(Failure::ClientGone),
        Err(WaitInterrupt::OutOfMemory) => Err(Failure::OutOfMemory),
        Ok(()) | Err(WaitInterrupt::Deadline) if until > policy.deadline => {
            Err(Failure::RequestTimeout)
        }
        Ok(()) | Err(WaitInterrupt::Deadline) => Ok(()),
    }
}

/// True if a gRPC call that ended with this status is retried. Every call is a POST: by naming a status, the policy
/// declares that calls which end with it may be repeated. If the endpoint asks for a longer pause than the policy's
/// maximum backoff, the status is passed to the client.
fn is_retryable_call(settings: &BackendSettings, status: GrpcCallStatus) -> bool {
    let may = match status.pushback {
        RetryPushback::Unspecified => true,
        RetryPushback::After(pause) => pause <= settings.retry.backoff_max,
        RetryPushback::Never => false,
    };
    may && settings.retry_grpc_statuses.binary_search(&status.code.number()).is_ok()
}
