//! The laws of slots and queue, over random sequences of what can happen, against a plain model.
#![cfg(not(loom))]

use std::cell::RefCell;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use balance::{
    Admission, Algorithm, Endpoint, EndpointSet, Entry, Ledger, Limits, Member, Picker, Queue,
    Refusal, Ticket, Wish,
};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

/// How many endpoints there are; sets are subsets of them.
const ENDPOINTS: usize = 4;

#[derive(Clone, Debug)]
enum Step {
    Enter {
        except: Option<usize>,
    },
    /// Of the slots held, the one at this place (modulo how many).
    Release(usize),
    /// Of the waiters, the one at this place (modulo how many).
    Cancel(usize),
    /// The weight of each endpoint; `None`: not in the set.
    Replace {
        weights: [Option<u32>; ENDPOINTS],
        limits: Limits,
    },
    Dispatch,
}

fn limits() -> impl Strategy<Value = Limits> {
    let cap = prop_oneof![1 => Just(None), 6 => (1_u32..4).prop_map(NonZeroU32::new)];
    (cap, 0_u32..6).prop_map(|(cap, max_waiting)| Limits { cap, max_waiting })
}

fn step() -> impl Strategy<Value = Step> {
    let weight = prop_oneof![1 => Just(None), 1 => Just(Some(0)), 6 => (1_u32..4).prop_map(Some)];
    let weights = proptest::array::uniform4(weight);
    prop_oneof![
        12 => proptest::option::weighted(0.3, 0..ENDPOINTS).prop_map(|except| Step::Enter { except }),
        8 => any::<usize>().prop_map(Step::Release),
        3 => any::<usize>().prop_map(Step::Cancel),
        1 => (weights, limits()).prop_map(|(weights, limits)| Step::Replace { weights, limits }),
        1 => Just(Step::Dispatch),
    ]
}

struct Waiter {
    id: usize,
    except: Option<usize>,
    ticket: Arc<Ticket<usize>>,
}

/// The real thing, and beside it what a reader of the rules would expect.
struct World {
    endpoints: Vec<Arc<Endpoint<usize>>>,
    admission: Admission,
    queue: RefCell<Queue<usize, usize>>,
    picker: Picker,
    set: Arc<EndpointSet<usize>>,
    limits: Limits,
    held: Vec<usize>,
    waiters: Vec<Waiter>,
    next_id: usize,
}

impl World {
    fn new(algorithm: Algorithm, limits: Limits) -> Self {
        let mut ledger = Ledger::new();
        let address = |number: usize| SocketAddr::from(([10, 0, 0, 1], number as u16));
        let endpoints =
            (0..ENDPOINTS).map(|number| ledger.endpoint(address(number), || number)).collect();
        let set = Arc::new(EndpointSet::empty());
        Self {
            endpoints,
            admission: Admission::new(),
            queue: RefCell::new(Queue::new(set.clone(), limits)),
            picker: Picker::new(algorithm, 9),
            set,
            limits,
            held: Vec::new(),
            waiters: Vec::new(),
            next_id: 0,
        }
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Enter { except } => self.enter(*except),
            Step::Release(at) => self.release(*at),
            Step::Cancel(at) => self.cancel(*at),
            Step::Replace { weights, limits } => self.replace(weights, *limits),
            Step::Dispatch => {
                let woken = self.admission.dispatch(|| self.queue.borrow_mut());
                assert_eq!(woken, [], "all that could be given had been given");
            }
        }
        self.check();
    }

    fn enter(&mut self, except: Option<usize>) {
        let free: Vec<usize> = (0..ENDPOINTS)
            .filter(|&e| self.has_room(e) && self.may_use(except, e))
            .filter(|&e| !self.waiters.iter().any(|waiter| self.may_use(waiter.except, e)))
            .collect();
        let room_to_wait = self.waiters.len() < self.limits.max_waiting as usize;
        let id = self.next_id;
        self.next_id += 1;
        let entry = self.admission.enter(
            &mut self.picker,
            &self.set,
            self.limits,
            &Wish { except: except.map(|e| &self.endpoints[e]), ..Wish::default() },
            || self.queue.borrow_mut(),
            || id,
        );
        match entry {
            Entry::Slot(endpoint) => {
                assert!(free.contains(&endpoint.data), "{} of {free:?}", endpoint.data);
                self.held.push(endpoint.data);
            }
            Entry::Waiting(ticket) => {
                assert!(free.is_empty() && room_to_wait);
                self.waiters.push(Waiter { id, except, ticket });
            }
            Entry::Refused(refusal) => {
                // A full queue refuses at once, even if all in it shun an endpoint that is free.
                assert!(!room_to_wait && (free.is_empty() || !self.waiters.is_empty()));
                let nobody = self.limits.max_waiting == 0 && self.usable() == 0;
                let expected = if nobody { Refusal::NoEndpoint } else { Refusal::Full };
                assert_eq!(refusal, expected);
            }
        }
    }

    fn release(&mut self, at: usize) {
        if self.held.is_empty() {
            return;
        }
        let endpoint = self.held.swap_remove(at % self.held.len());
        let woken = self.admission.release(&self.endpoints[endpoint], || self.queue.borrow_mut());
        self.granted(woken);
    }

    fn cancel(&mut self, at: usize) {
        if self.waiters.is_empty() {
            return;
        }
        let waiter = self.waiters.remove(at % self.waiters.len());
        assert!(self.admission.cancel(&waiter.ticket));
        assert!(self.admission.cancel(&waiter.ticket), "again, which changes nothing");
        assert!(waiter.ticket.granted().is_none());
    }

    fn replace(&mut self, weights: &[Option<u32>; ENDPOINTS], limits: Limits) {
        let member = |(endpoint, weight): (&Arc<_>, &Option<u32>)| {
            weight.map(|weight| Member::new(Arc::clone(endpoint), weight))
        };
        let members = self.endpoints.iter().zip(weights).filter_map(member).collect();
        self.set = Arc::new(EndpointSet::new(members));
        self.limits = limits;
        let woken = self.admission.replace(self.set.clone(), limits, || self.queue.borrow_mut());
        self.granted(woken);
    }

    /// Each who is woken has a slot, in order among those who may use its endpoint.
    fn granted(&mut self, woken: impl IntoIterator<Item = usize>) {
        for id in woken {
            let position = self.waiters.iter().position(|waiter| waiter.id == id);
            let position = position.expect("who is woken has waited");
            let waiter = self.waiters.remove(position);
            let endpoint = waiter.ticket.granted().expect("who is woken has a slot").data;
            assert!(waiter.ticket.granted().is_none(), "a slot is given once");
            assert!(!self.admission.cancel(&waiter.ticket));
            assert!(self.weight(endpoint) > 0 && self.may_use(waiter.except, endpoint));
            let passed = self.waiters[..position].iter().any(|w| self.may_use(w.except, endpoint));
            assert!(!passed, "somebody came first");
            if let Some(cap) = self.limits.cap {
                assert!(self.endpoints[endpoint].in_flight() <= cap.get(), "over the cap");
            }
            self.held.push(endpoint);
        }
    }

    fn check(&self) {
        assert_eq!(self.admission.waiting() as usize, self.waiters.len());
        for (endpoint, state) in self.endpoints.iter().enumerate() {
            let held = self.held.iter().filter(|&&held| held == endpoint).count();
            assert_eq!(state.in_flight() as usize, held);
            let wanted = self.waiters.iter().any(|waiter| self.may_use(waiter.except, endpoint));
            assert!(!(wanted && self.has_room(endpoint)), "somebody waits for a free slot");
        }
    }

    fn weight(&self, endpoint: usize) -> u32 {
        let member = self.set.members().iter().find(|member| member.endpoint.data == endpoint);
        member.map_or(0, |member| member.weight)
    }

    fn usable(&self) -> usize {
        (0..ENDPOINTS).filter(|&endpoint| self.weight(endpoint) > 0).count()
    }

    fn has_room(&self, endpoint: usize) -> bool {
        let in_flight = self.endpoints[endpoint].in_flight();
        self.weight(endpoint) > 0 && self.limits.cap.is_none_or(|cap| in_flight < cap.get())
    }

    fn may_use(&self, except: Option<usize>, endpoint: usize) -> bool {
        except != Some(endpoint) || self.usable() == 1
    }

    /// Everybody leaves.
    fn end(&mut self) {
        while !self.waiters.is_empty() {
            self.cancel(0);
        }
        while !self.held.is_empty() {
            self.release(0);
        }
        self.check();
    }
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 2_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn slots_and_queue_do_what_the_rules_say(
        least_load: bool,
        start in limits(),
        steps in proptest::collection::vec(step(), 1..200),
    ) {
        let algorithm = if least_load { Algorithm::LeastLoad } else { Algorithm::RoundRobin };
        let mut world = World::new(algorithm, start);
        for step in &steps {
            world.run(step);
        }
        world.end();
    }

    #[test]
    fn round_robin_is_exact_over_a_cycle(
        weights in proptest::collection::vec(0_u32..20, 1..12),
        seed: u64,
    ) {
        let mut ledger = Ledger::new();
        let address = |number: usize| SocketAddr::from(([10, 0, 0, 1], number as u16));
        let members = weights.iter().enumerate().map(|(number, &weight)| {
            Member::new(ledger.endpoint(address(number), || number), weight)
        });
        let set = EndpointSet::new(members.collect());
        let mut picker = Picker::new(Algorithm::RoundRobin, seed);
        let mut served = vec![0; weights.len()];
        for _ in 0..weights.iter().sum() {
            served[picker.take(&set, None, &Wish::default()).unwrap().data] += 1;
        }
        prop_assert_eq!(served, weights);
    }
}

#[test]
fn those_who_gave_up_are_cleared_away() {
    let mut world =
        World::new(Algorithm::LeastLoad, Limits { cap: NonZeroU32::new(1), max_waiting: 3 });
    let weights = [Some(1), None, None, None];
    world.replace(&weights, world.limits);
    world.enter(None);
    world.enter(None);
    let first = world.waiters[0].ticket.clone();
    let tickets: Vec<_> = (0..10_000)
        .map(|_| {
            world.enter(None);
            let ticket = Arc::downgrade(&world.waiters[1].ticket);
            world.cancel(1);
            ticket
        })
        .collect();
    let kept = tickets.iter().filter(|ticket| ticket.strong_count() > 0).count();
    assert!(kept <= 32, "{kept} cancelled tickets are kept");
    world.release(0);
    assert!(world.waiters.is_empty() && !world.admission.cancel(&first));
    world.end();
}
