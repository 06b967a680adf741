//! Keeps the requests under way. An event for one that has ended finds nobody.

use std::sync::Arc;

use balance::{Ticket, Time};

use crate::laws::{Grant, RequestHistory, Want};
use crate::world::Endpoint;

/// Which request; its place may serve another later, under another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Id {
    place: u32,
    generation: u32,
}

/// An attempt as a server sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) id: Id,
    pub(crate) attempt: u32,
}

/// A backend of one of the balancers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) balancer: usize,
    pub(crate) backend: usize,
}

pub(crate) struct Request {
    pub(crate) place: Place,
    pub(crate) worker: usize,
    pub(crate) stage: Stage,
    pub(crate) want: Want,
    /// So many have begun.
    pub(crate) attempts: u32,
    pub(crate) history: RequestHistory,
    pub(crate) client_gone: bool,
}

pub(crate) enum Stage {
    /// About to ask for a slot.
    Asks,
    /// In the queue; a `Grant` once somebody has woken it.
    Waits(Arc<Ticket<usize>>, Option<Box<Grant>>),
    /// At an endpoint, since then; and how many that had then, this one included.
    Runs(Arc<Endpoint>, Time, u32),
}

#[derive(Default)]
pub(crate) struct Requests {
    places: Vec<(u32, Option<Request>)>,
    free: Vec<u32>,
}

impl Requests {
    pub(crate) fn add(&mut self, request: Request) -> Id {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push((0, None));
            self.places.len() as u32 - 1
        });
        let (generation, content) = &mut self.places[place as usize];
        *content = Some(request);
        Id { place, generation: *generation }
    }

    pub(crate) fn find(&mut self, id: Id) -> Option<&mut Request> {
        let (generation, request) = &mut self.places[id.place as usize];
        request.as_mut().filter(|_| *generation == id.generation)
    }

    /// One that is known to be under way.
    pub(crate) fn known(&mut self, id: Id) -> &mut Request {
        self.find(id).expect("the request is under way")
    }

    /// Whether the attempt has not ended.
    pub(crate) fn runs(&mut self, job: Job) -> bool {
        self.find(job.id).is_some_and(|request| {
            request.attempts == job.attempt && matches!(request.stage, Stage::Runs(..))
        })
    }

    pub(crate) fn remove(&mut self, id: Id) {
        let (generation, request) = &mut self.places[id.place as usize];
        assert_eq!(*generation, id.generation);
        (*generation, *request) = (id.generation + 1, None);
        self.free.push(id.place);
    }

    /// Those that hold a slot, granted ones included.
    pub(crate) fn holding(&self) -> usize {
        let requests = self.places.iter().filter_map(|(_, request)| request.as_ref());
        let holds = |request: &&Request| match request.stage {
            Stage::Asks | Stage::Waits(_, None) => false,
            Stage::Waits(_, Some(_)) | Stage::Runs(..) => true,
        };
        requests.filter(holds).count()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.places.len() == self.free.len()
    }
}
