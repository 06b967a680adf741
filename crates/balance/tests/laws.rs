//! The laws of slots and queue, over random sequences of what can happen, against a plain model.
#![cfg(not(loom))]

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Arc;

use balance::{
    Admission, Algorithm, Cap, Endpoint, EndpointSet, Entry, Ledger, Limits, Member, Picker, Queue,
    Refusal, Ticket, Wish,
};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

/// How many endpoints there are; sets are subsets of them.
const ENDPOINTS: usize = 4;

const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::LeastLoad,
    Algorithm::RoundRobin,
    Algorithm::Random,
    Algorithm::PeakEwma,
    Algorithm::ConsistentHash,
    Algorithm::Maglev,
];

/// What a request wishes, by endpoints' numbers.
#[derive(Clone, Copy, Debug, Default)]
struct Asks {
    except: Option<usize>,
    only: Option<usize>,
    key: Option<u64>,
}

#[derive(Clone, Debug)]
enum Step {
    Enter(Asks),
    /// Of the slots held, the one at this place (modulo how many).
    Release(usize),
    /// Of the waiters, the one at this place (modulo how many).
    Cancel(usize),
    /// The weight of each endpoint and whether it is on trial; `None`: not in the set.
    Replace {
        weights: [Option<(u32, bool)>; ENDPOINTS],
        limits: Limits,
    },
    Dispatch,
}

fn limits() -> impl Strategy<Value = Limits> {
    let cap = prop_oneof![1 => Just(Cap::None), 6 => (1_u32..4).prop_map(Cap::of)];
    (cap, 0_u32..6).prop_map(|(cap, max_waiting)| Limits { cap, max_waiting })
}

fn asks() -> impl Strategy<Value = Asks> {
    let one = |often| proptest::option::weighted(often, 0..ENDPOINTS);
    let key = proptest::option::weighted(0.7, any::<u64>());
    // What a key binds to instead of the endpoint it failed at is for the pickers' own laws.
    (one(0.3), one(0.2), key).prop_map(|(except, only, key)| Asks {
        except,
        only,
        key: key.filter(|_| except.is_none()),
    })
}

fn step() -> impl Strategy<Value = Step> {
    let weight = prop_oneof![
        1 => Just(None),
        1 => Just(Some((0, false))),
        1 => Just(Some((1, true))),
        6 => (1_u32..4).prop_map(|weight| Some((weight, false))),
    ];
    let weights = proptest::array::uniform4(weight);
    prop_oneof![
        12 => asks().prop_map(Step::Enter),
        8 => any::<usize>().prop_map(Step::Release),
        3 => any::<usize>().prop_map(Step::Cancel),
        1 => (weights, limits()).prop_map(|(weights, limits)| Step::Replace { weights, limits }),
        1 => Just(Step::Dispatch),
    ]
}

struct Waiter {
    id: usize,
    asks: Asks,
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
    /// On trial, and tried already.
    tried: [bool; ENDPOINTS],
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
            tried: [false; ENDPOINTS],
            held: Vec::new(),
            waiters: Vec::new(),
            next_id: 0,
        }
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Enter(asks) => self.enter(*asks),
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

    fn enter(&mut self, asks: Asks) {
        let free: Vec<usize> = (0..ENDPOINTS)
            .filter(|&e| self.has_room(e) && (self.may_use(asks, e) || self.may_try(asks, e)))
            .filter(|&e| !self.waiters.iter().any(|waiter| self.may_use(waiter.asks, e)))
            .collect();
        let room_to_wait = self.waiters.len() < self.limits.max_waiting as usize;
        let id = self.next_id;
        self.next_id += 1;
        let wish = Wish {
            except: asks.except.map(|e| &self.endpoints[e]),
            only: asks.only.map(|e| &self.endpoints[e]),
            key: asks.key,
            ..Wish::default()
        };
        let entry = self.admission.enter(
            &mut self.picker,
            &self.set,
            self.limits,
            &wish,
            || self.queue.borrow_mut(),
            || id,
        );
        match entry {
            Entry::Slot(endpoint) => {
                assert!(free.contains(&endpoint.data), "{} of {free:?}", endpoint.data);
                let untried = free.iter().any(|&free| self.is_on_trial(free));
                assert!(!untried || self.is_on_trial(endpoint.data), "the trial comes first");
                self.takes(endpoint.data);
            }
            Entry::Waiting(ticket) => {
                assert!(free.is_empty() && room_to_wait);
                self.waiters.push(Waiter { id, asks, ticket });
            }
            Entry::Refused(refusal) => {
                // A full queue refuses at once, even if all in it shun an endpoint that is free.
                assert!(!room_to_wait && (free.is_empty() || !self.waiters.is_empty()));
                let usable = self.set.members().iter().any(|m| m.weight > 0);
                let nobody = self.limits.max_waiting == 0 && !usable;
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

    fn replace(&mut self, weights: &[Option<(u32, bool)>; ENDPOINTS], limits: Limits) {
        let member = |(endpoint, weight): (&Arc<_>, &Option<(u32, bool)>)| {
            weight.map(|(weight, trial)| Member {
                trial,
                ..Member::new(Arc::clone(endpoint), weight)
            })
        };
        let members = self.endpoints.iter().zip(weights).filter_map(member).collect();
        self.tried = [false; ENDPOINTS];
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
            assert!(self.weight(endpoint) > 0 && self.may_use(waiter.asks, endpoint));
            let passed = self.waiters[..position].iter().any(|w| self.may_use(w.asks, endpoint));
            assert!(!passed, "somebody came first");
            if let Some(most) = self.endpoints[endpoint].limit(self.limits.cap) {
                assert!(self.endpoints[endpoint].in_flight() <= most, "over the cap");
            }
            self.takes(endpoint);
        }
    }

    fn takes(&mut self, endpoint: usize) {
        if self.is_on_trial(endpoint) {
            assert_eq!(self.endpoints[endpoint].in_flight(), 1, "a trial is alone");
            assert!(!self.tried[endpoint], "one trial in each set");
            self.tried[endpoint] = true;
        }
        self.held.push(endpoint);
    }

    fn check(&self) {
        assert_eq!(self.admission.waiting() as usize, self.waiters.len());
        for (endpoint, state) in self.endpoints.iter().enumerate() {
            let held = self.held.iter().filter(|&&held| held == endpoint).count();
            assert_eq!(state.in_flight() as usize, held);
            let wanted = self.waiters.iter().any(|waiter| self.may_use(waiter.asks, endpoint));
            assert!(!(wanted && self.has_room(endpoint)), "somebody waits for a free slot");
        }
    }

    fn member(&self, endpoint: usize) -> Option<&Member<usize>> {
        self.set.members().iter().find(|member| member.endpoint.data == endpoint)
    }

    fn weight(&self, endpoint: usize) -> u32 {
        self.member(endpoint).map_or(0, |member| member.weight)
    }

    fn is_on_trial(&self, endpoint: usize) -> bool {
        self.member(endpoint).is_some_and(|member| member.trial)
    }

    fn is_regular(&self, endpoint: usize) -> bool {
        self.weight(endpoint) > 0 && !self.is_on_trial(endpoint)
    }

    fn has_room(&self, endpoint: usize) -> bool {
        let in_flight = self.endpoints[endpoint].in_flight();
        if self.is_on_trial(endpoint) {
            return in_flight == 0 && !self.tried[endpoint];
        }
        let most = self.endpoints[endpoint].limit(self.limits.cap);
        self.weight(endpoint) > 0 && most.is_none_or(|most| in_flight < most)
    }

    fn may_use(&self, asks: Asks, endpoint: usize) -> bool {
        match self.bound(asks) {
            Some(only) => endpoint == only,
            None => Some(endpoint) != self.except(asks),
        }
    }

    /// A key yields to a trial, for who comes while nobody waits but for an endpoint of its own.
    fn may_try(&self, asks: Asks, endpoint: usize) -> bool {
        let keyed = asks.only.is_none() && self.home(asks.key).is_some();
        let alone = self.waiters.iter().all(|waiter| self.bound(waiter.asks).is_some());
        keyed && alone && self.is_on_trial(endpoint)
    }

    /// The endpoint that it is to be kept from.
    fn except(&self, asks: Asks) -> Option<usize> {
        let others = (0..ENDPOINTS).filter(|&e| self.is_regular(e)).count() > 1;
        asks.except.filter(|_| others)
    }

    /// The only endpoint that will do.
    fn bound(&self, asks: Asks) -> Option<usize> {
        let is_well = |&only: &usize| self.is_regular(only) && Some(only) != self.except(asks);
        asks.only.filter(is_well).or_else(|| self.home(asks.key))
    }

    /// The endpoint that a key leaves no choice but.
    fn home(&self, key: Option<u64>) -> Option<usize> {
        let key = key.filter(|_| self.picker.algorithm() == Algorithm::Maglev)?;
        let member = self.set.maglev().member(key)?;
        Some(self.set.members()[member].endpoint.data)
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
        algorithm in proptest::sample::select(&ALGORITHMS[..]),
        start in limits(),
        steps in proptest::collection::vec(step(), 1..200),
    ) {
        let mut world = World::new(algorithm, start);
        for step in &steps {
            world.run(step);
        }
        world.end();
    }
}

#[test]
fn those_who_gave_up_are_cleared_away() {
    let mut world = World::new(Algorithm::LeastLoad, Limits { cap: Cap::of(1), max_waiting: 3 });
    let weights = [Some((1, false)), None, None, None];
    world.replace(&weights, world.limits);
    world.enter(Asks::default());
    world.enter(Asks::default());
    let first = world.waiters[0].ticket.clone();
    let tickets: Vec<_> = (0..10_000)
        .map(|_| {
            world.enter(Asks::default());
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

#[test]
fn a_long_line_at_one_endpoint_refuses_nobody_who_can_be_served_by_another() {
    let mut world = World::new(Algorithm::LeastLoad, Limits { cap: Cap::of(1), max_waiting: 3 });
    let weights = [Some((1, false)), Some((1, false)), None, None];
    world.replace(&weights, world.limits);
    let bound = Asks { only: Some(0), ..Asks::default() };
    for _ in 0..4 {
        world.enter(bound);
    }
    assert_eq!((world.held.len(), world.waiters.len()), (1, 3));
    world.enter(bound);
    assert_eq!(world.held, [0], "the queue is full");
    world.enter(Asks::default());
    assert_eq!(world.held, [0, 1], "but the other is free");
    world.enter(Asks::default());
    assert_eq!((world.held.len(), world.waiters.len()), (2, 3), "now that is full too");
    world.end();
}
