//! A backend as the workers of the world use it: each call goes to the real `balance`, and its answer to the laws.

use std::sync::Arc;

use balance::{Admission, Entry, Picker, Queue, Ticket, Wish};

use crate::dice::Dice;
use crate::laws::{Line, View};
use crate::plan::Plan;
use crate::requests::Id;
use crate::world::Endpoint;

pub(crate) struct Backend {
    admission: Admission,
    queue: Queue<usize, Id>,
    /// What is in force.
    pub(crate) current: View,
    /// One for each worker.
    workers: Vec<Worker>,
    pub(crate) line: Line,
}

struct Worker {
    picker: Picker,
    seen: View,
}

impl Backend {
    pub(crate) fn new(plan: &Plan, backend: usize, view: View, dice: &mut Dice) -> Self {
        let algorithm = plan.backends[backend].algorithm;
        let mut worker =
            || Worker { picker: Picker::new(algorithm, dice.seed()), seen: view.clone() };
        Self {
            admission: Admission::new(),
            queue: Queue::new(view.set.clone(), view.limits),
            workers: (0..plan.workers).map(|_| worker()).collect(),
            line: Line::default(),
            current: view,
        }
    }

    pub(crate) fn enter(
        &mut self,
        id: Id,
        worker: usize,
        except: Option<&Arc<Endpoint>>,
    ) -> Entry<usize> {
        let Worker { picker, seen } = &mut self.workers[worker];
        let queue = &mut self.queue;
        let (set, limits) = (&seen.set, seen.limits);
        let wish = Wish { except, ..Wish::default() };
        let entry = self.admission.enter(picker, set, limits, &wish, || queue, || id);
        let except = except.map(|endpoint| endpoint.data);
        self.line.entered((id, except), &entry, seen, &self.current);
        entry
    }

    pub(crate) fn release(&mut self, endpoint: &Endpoint) -> Option<Id> {
        let woken = self.admission.release(endpoint, || &mut self.queue);
        if woken.is_some() {
            self.current.granted_at(endpoint);
        }
        woken
    }

    pub(crate) fn dispatch(&mut self) -> Vec<Id> {
        if self.line.len() == 0 {
            return Vec::new();
        }
        let before = self.current.loads();
        let woken = self.admission.dispatch(|| &mut self.queue);
        self.current.granted_since(&before, woken.len());
        woken
    }

    pub(crate) fn replace(&mut self, view: View) -> Vec<Id> {
        self.current = view;
        let before = self.current.loads();
        let (set, limits) = (self.current.set.clone(), self.current.limits);
        let woken = self.admission.replace(set, limits, || &mut self.queue);
        self.current.granted_since(&before, woken.len());
        woken
    }

    /// Holds who waits against who should.
    pub(crate) fn check(&self) {
        let waiting = self.admission.waiting() as usize;
        assert_eq!(waiting, self.line.len(), "who waits is counted");
        self.line.check(&self.current);
    }

    /// The slot, if it was granted all the same.
    pub(crate) fn give_up(&mut self, id: Id, ticket: &Ticket<usize>) -> Option<Arc<Endpoint>> {
        if self.admission.cancel(ticket) {
            self.line.gave_up(id);
            return None;
        }
        Some(ticket.granted().expect("a ticket that cannot be cancelled is granted"))
    }

    pub(crate) fn learn(&mut self, worker: usize) {
        self.workers[worker].seen = self.current.clone();
    }
}
