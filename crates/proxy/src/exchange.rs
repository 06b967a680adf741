//! What one request is made of while it is served, and what holds for it.

use std::rc::Rc;
use std::time::Duration;

use balance::{AttemptResult, PriorityLevel, QueueParameters, Time};
use gateway::snapshot::{BackendSettings, ClientSettings};

use crate::active_config::WorkerConfig;
use crate::affinity::SessionAffinity;
use crate::backend::{BackendConfigRef, Slot};
use crate::body::BodyPump;
use crate::filter::RequestFilters;
use crate::grpc::GrpcCall;
use crate::head::{RequestHead, ResponseHead};

/// The memory of one request, used again by the next.
pub(crate) struct Exchange {
    pub(crate) request: RequestHead,
    pub(crate) response: ResponseHead,
    /// `None`: no route has been found yet, or it has no filters.
    pub(crate) filters: Option<RequestFilters>,
    /// `None`: it is no call of gRPC, or nobody has had to look.
    pub(crate) grpc_call: Option<GrpcCall>,
    /// From the client to the endpoint.
    pub(crate) upload: BodyPump,
    /// From the endpoint to the client.
    pub(crate) download: BodyPump,
}

/// What becomes of the client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionOutcome {
    KeepAlive,
    Close,
    /// Without the end of a response, so that the client cannot take what it got for whole.
    Abort,
}

/// What holds for one request from its admission on.
pub(crate) struct RequestPolicy<'l> {
    /// What was in force when the request came.
    pub(crate) config: &'l WorkerConfig,
    pub(crate) client: &'l ClientSettings,
    /// What clients that do not speak HTTP/3 are told of it; `None`: it is not served.
    pub(crate) alt_svc: Option<&'l str>,
    pub(crate) backend_config: Rc<BackendConfigRef>,
    /// What the request has in common with those that are to meet at one endpoint.
    pub(crate) hash_key: Option<u64>,
    pub(crate) affinity: Option<SessionAffinity>,
    /// Where the request stands if it has to wait.
    pub(crate) priority: PriorityLevel,
    /// Whose share of the queue it takes.
    pub(crate) route: u64,
    /// When the request came.
    pub(crate) started: Time,
    /// The request has to be over by then.
    pub(crate) deadline: Time,
    /// What an attempt may take, to the last byte of its response.
    pub(crate) attempt_timeout: Option<Duration>,
}

impl RequestPolicy<'_> {
    pub(crate) fn backend_settings(&self) -> &BackendSettings {
        &self.backend_config.settings
    }

    /// Where the request stands if it has to wait from now on.
    pub(crate) fn queue_priority(&self, now: Time) -> QueueParameters {
        let until = self.deadline.min(now + self.backend_settings().queue_timeout);
        QueueParameters { priority: self.priority, route: self.route, deadline: until }
    }

    /// What an attempt that ended so says of its endpoint.
    ///
    /// One that got a request with less time left than the request had waited before says nothing by letting it pass: a
    /// long queue would take out the endpoints that it waits for.
    pub(crate) fn discount_late_timeout(&self, end: AttemptResult, slot: &Slot) -> AttemptResult {
        let waited = slot.started.saturating_since(self.started);
        let had = self.deadline.saturating_since(slot.started);
        if end == AttemptResult::TimedOut && had < waited { AttemptResult::Cancelled } else { end }
    }

    /// Slots are counted and queued for: an endpoint's connections belong to its slots.
    pub(crate) fn is_capped(&self) -> bool {
        self.backend_config.limits.cap.is_some()
    }
}

impl Default for Exchange {
    fn default() -> Self {
        Self {
            request: RequestHead::new(),
            response: ResponseHead::new(),
            filters: None,
            grpc_call: None,
            upload: BodyPump::new(),
            download: BodyPump::new(),
        }
    }
}

impl Exchange {
    /// Forgets the request and keeps the memory, unless it is much.
    pub(crate) fn clear(&mut self) {
        self.request.clear();
        self.response.clear();
        self.filters = None;
        self.grpc_call = None;
        self.upload.clear();
        self.download.clear();
    }
}
