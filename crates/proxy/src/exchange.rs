//! The memory and the policy of one request while it is served.

use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use balance::{AttemptResult, PriorityLevel, QueueParameters, Time};
use codec::head::{RequestHead, ResponseHead};
use gateway::snapshot::{BackendSettings, ClientSettings, EndpointProtocol};

use crate::active_config::WorkerConfig;
use crate::affinity::SessionAffinity;
use crate::backend::{BackendConfigRef, Slot};
use crate::body::BodyPump;
use crate::filter::RequestFilters;
use crate::grpc::GrpcCall;

/// The memory of one request, reused by the next.
pub(crate) struct Exchange {
    pub(crate) request: RequestHead,
    pub(crate) response: ResponseHead,
    /// `None`: no route has been found yet, or it has no filters.
    pub(crate) filters: Option<RequestFilters>,
    /// True if this proxy answers the expectation of the request (100), and not the endpoint.
    pub(crate) owes_continue: bool,
    /// `None`: it is not a gRPC call, or this has not been checked.
    pub(crate) grpc_call: Option<GrpcCall>,
    /// From the client to the endpoint.
    pub(crate) upload: BodyPump,
    /// From the endpoint to the client.
    pub(crate) download: BodyPump,
}

/// The disposition of the client connection after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionOutcome {
    KeepAlive,
    Close,
    /// Closes the connection before the end of the response, so that the client cannot mistake it for complete.
    Abort,
}

/// The policy of one request, from its admission on.
pub(crate) struct RequestPolicy<'l> {
    /// The configuration that was in force when the request arrived.
    pub(crate) config: &'l Rc<WorkerConfig>,
    pub(crate) client: &'l ClientSettings,
    /// `Alt-Svc` value for clients that do not speak HTTP/3; `None`: HTTP/3 is not served.
    pub(crate) alt_svc: Option<&'l str>,
    pub(crate) backend_config: Rc<BackendConfigRef>,
    /// Protocol in which the endpoint gets the request.
    pub(crate) endpoint_protocol: EndpointProtocol,
    /// Hash key: requests with the same key go to the same endpoint.
    pub(crate) hash_key: Option<u64>,
    pub(crate) affinity: Option<SessionAffinity<'l>>,
    /// Priority of the request in the queue.
    pub(crate) priority: PriorityLevel,
    /// Index of the route: the key of the request's fair-queueing flow.
    pub(crate) route: u64,
    /// Arrival time of the request.
    pub(crate) started: Time,
    /// Time from which the request asks for a slot: later than its arrival if it has waited for its body.
    pub(crate) ready: Time,
    /// Address of the client, if the backend limits the requests of an address.
    pub(crate) client_address: Option<IpAddr>,
    /// Time by which the request has to be complete.
    pub(crate) deadline: Time,
    /// Maximum duration of an attempt, to the last byte of its response.
    pub(crate) attempt_timeout: Option<Duration>,
}

impl RequestPolicy<'_> {
    pub(crate) fn backend_settings(&self) -> &BackendSettings {
        &self.backend_config.settings
    }

    /// Queue parameters of the request, if it waits from `now` on.
    pub(crate) fn queue_priority(&self, now: Time) -> QueueParameters {
        let until = self.deadline.min(now + self.backend_settings().queue_timeout);
        QueueParameters { priority: self.priority, route: self.route, deadline: until }
    }

    /// Turns the timeout of an attempt that began late into a neutral result.
    ///
    /// If the endpoint got the request with less time left than the request had waited before, its timeout says nothing
    /// about the endpoint. Otherwise a long queue would eject the endpoints that it waits for.
    pub(crate) fn discount_late_timeout(&self, end: AttemptResult, slot: &Slot) -> AttemptResult {
        let waited = slot.started.saturating_since(self.started);
        let had = self.deadline.saturating_since(slot.started);
        if end == AttemptResult::TimedOut && had < waited { AttemptResult::Cancelled } else { end }
    }

    /// True if the backend has a concurrency limit: an endpoint then has at most one connection per slot.
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
            owes_continue: false,
            grpc_call: None,
            upload: BodyPump::for_requests(),
            download: BodyPump::new(),
        }
    }
}

impl Exchange {
    /// Clears the request and keeps its memory for reuse, unless it is large.
    pub(crate) fn clear(&mut self) {
        self.request.clear();
        self.response.clear();
        self.filters = None;
        self.owes_continue = false;
        self.grpc_call = None;
        self.upload.clear();
        self.download.clear();
    }
}
