//! What one request is made of while it is served, and what holds for it.

use std::rc::Rc;
use std::time::Duration;

use balance::{AttemptResult, PriorityLevel, QueueParameters, Time};
use gateway::snapshot::{BackendSettings, ClientSettings};

use crate::affinity::Bond;
use crate::backend::{Held, Slot};
use crate::body::Pump;
use crate::filter::Filtering;
use crate::grpc::Call;
use crate::head::{RequestHead, ResponseHead};
use crate::live::Ours;

/// The memory of one request, used again by the next.
pub(crate) struct Exchange {
    pub(crate) request: RequestHead,
    pub(crate) response: ResponseHead,
    /// `None`: no route has been found yet, or it has no filters.
    pub(crate) filtering: Option<Filtering>,
    /// `None`: it is no call of gRPC, or nobody has had to look.
    pub(crate) call: Option<Call>,
    /// From the client to the endpoint.
    pub(crate) upload: Pump,
    /// From the endpoint to the client.
    pub(crate) download: Pump,
}

/// What becomes of the client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    KeepAlive,
    Close,
    /// Without the end of a response, so that the client cannot take what it got for whole.
    Cut,
}

/// What holds for one request from its admission on.
pub(crate) struct Terms<'l> {
    /// What was in force when the request came.
    pub(crate) live: &'l Ours,
    pub(crate) client: &'l ClientSettings,
    /// What clients that do not speak HTTP/3 are told of it; `None`: it is not served.
    pub(crate) alt_svc: Option<&'l str>,
    pub(crate) current: Rc<Held>,
    /// What the request has in common with those that are to meet at one endpoint.
    pub(crate) key: Option<u64>,
    pub(crate) bond: Option<Bond>,
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

impl Terms<'_> {
    pub(crate) fn backend(&self) -> &BackendSettings {
        &self.current.settings
    }

    /// Where the request stands if it has to wait from now on.
    pub(crate) fn rank(&self, now: Time) -> QueueParameters {
        let until = self.deadline.min(now + self.backend().queue_timeout);
        QueueParameters { priority: self.priority, route: self.route, deadline: until }
    }

    /// What an attempt that ended so says of its endpoint.
    ///
    /// One that got a request with less time left than the request had waited before says nothing by letting it pass: a
    /// long queue would take out the endpoints that it waits for.
    pub(crate) fn judge(&self, end: AttemptResult, slot: &Slot) -> AttemptResult {
        let waited = slot.started.saturating_since(self.started);
        let had = self.deadline.saturating_since(slot.started);
        if end == AttemptResult::TimedOut && had < waited { AttemptResult::Cancelled } else { end }
    }

    /// Slots are counted and queued for: an endpoint's connections belong to its slots.
    pub(crate) fn is_capped(&self) -> bool {
        self.current.limits.cap.is_some()
    }
}

impl Default for Exchange {
    fn default() -> Self {
        Self {
            request: RequestHead::new(),
            response: ResponseHead::new(),
            filtering: None,
            call: None,
            upload: Pump::new(),
            download: Pump::new(),
        }
    }
}

impl Exchange {
    /// Forgets the request and keeps the memory, unless it is much.
    pub(crate) fn clear(&mut self) {
        self.request.clear();
        self.response.clear();
        self.filtering = None;
        self.call = None;
        self.upload.clear();
        self.download.clear();
    }
}
