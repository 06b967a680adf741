//! Table of requests in progress. An event for a request that has ended finds none.

use std::sync::Arc;

use balance::{Ticket, Time};

use crate::fault_simulation::ServerEndpoint;
use crate::invariants::{GrantCheck, RequestConstraints, RequestHistory};

/// Identifier of a request; its index may serve another request later, under another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestId {
    index: u32,
    generation: u32,
}

/// Identifier of an attempt, as a server sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttemptId {
    pub(crate) id: RequestId,
    pub(crate) attempt: u32,
}

/// Identifier of a backend of one of the balancers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BackendId {
    pub(crate) balancer: usize,
    pub(crate) backend: usize,
}

pub(crate) struct SimulatedRequest {
    pub(crate) backend: BackendId,
    pub(crate) worker: usize,
    pub(crate) stage: RequestStage,
    pub(crate) constraints: RequestConstraints,
    /// Number of attempts begun.
    pub(crate) attempts: u32,
    pub(crate) history: RequestHistory,
    pub(crate) client_gone: bool,
}

pub(crate) enum RequestStage {
    /// About to ask for a slot.
    Entering,
    /// In the queue; with a `GrantCheck` once it has been woken.
    Queued(Arc<Ticket<usize>>, Option<Box<GrantCheck>>),
    /// In flight at an endpoint: the begin, and the number of requests that the endpoint had then,
    /// this one included.
    InFlight(Arc<ServerEndpoint>, Time, u32),
}

#[derive(Default)]
pub(crate) struct RequestTable {
    entries: Vec<(u32, Option<SimulatedRequest>)>,
    free: Vec<u32>,
}

impl RequestTable {
    pub(crate) fn add(&mut self, request: SimulatedRequest) -> RequestId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push((0, None));
            self.entries.len() as u32 - 1
        });
        let (generation, content) = &mut self.entries[index as usize];
        *content = Some(request);
        RequestId { index, generation: *generation }
    }

    pub(crate) fn find(&mut self, id: RequestId) -> Option<&mut SimulatedRequest> {
        let (generation, request) = &mut self.entries[id.index as usize];
        request.as_mut().filter(|_| *generation == id.generation)
    }

    /// Returns a request that is known to be in progress.
    pub(crate) fn get(&mut self, id: RequestId) -> &mut SimulatedRequest {
        self.find(id).expect("the request is in progress")
    }

    /// True if the attempt has not ended.
    pub(crate) fn is_in_flight(&mut self, job: AttemptId) -> bool {
        self.find(job.id).is_some_and(|request| {
            request.attempts == job.attempt && matches!(request.stage, RequestStage::InFlight(..))
        })
    }

    pub(crate) fn remove(&mut self, id: RequestId) {
        let (generation, request) = &mut self.entries[id.index as usize];
        assert_eq!(*generation, id.generation);
        (*generation, *request) = (id.generation + 1, None);
        self.free.push(id.index);
    }

    /// Returns the number of requests that hold a slot, granted ones included.
    pub(crate) fn slots_held(&self) -> usize {
        let requests = self.entries.iter().filter_map(|(_, request)| request.as_ref());
        let holds = |request: &&SimulatedRequest| match request.stage {
            RequestStage::Entering | RequestStage::Queued(_, None) => false,
            RequestStage::Queued(_, Some(_)) | RequestStage::InFlight(..) => true,
        };
        requests.filter(holds).count()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.len() == self.free.len()
    }
}
