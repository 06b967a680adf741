//! Properties of slots and queue, over random sequences of events, compared with a plain model.
#![cfg(not(loom))]

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use balance::{
    Admission, AdmissionConfig, AdmissionDecision, AdmissionLimits, AdmissionRejection, Algorithm,
    ConcurrencyCap, ControlledDelay, Endpoint, EndpointRegistry, EndpointSet, PickRequest, Picker,
    PriorityLevel, Queue, QueueParameters, SetMember, Ticket, Time,
};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

const MILLISECOND: Duration = Duration::from_millis(1);

/// Number of endpoints; sets are subsets of them.
const ENDPOINTS: usize = 4;

const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::LeastLoad,
    Algorithm::RoundRobin,
    Algorithm::Random,
    Algorithm::PeakEwma,
    Algorithm::ConsistentHash,
    Algorithm::Maglev,
];

/// Constraints of a request, by endpoints' numbers.
#[derive(Clone, Copy, Debug, Default)]
struct SlotRequest {
    tried: TriedEndpoints,
    only: Option<usize>,
    key: Option<u64>,
    priority: PriorityLevel,
    route: u64,
    /// Longest wait; `None` if it is unlimited.
    patience: Option<Duration>,
}

/// Endpoints at which a request has been tried, the latest one last.
#[derive(Clone, Copy, Debug, Default)]
struct TriedEndpoints {
    endpoints: [usize; ENDPOINTS],
    count: usize,
}

impl TriedEndpoints {
    fn as_slice(&self) -> &[usize] {
        &self.endpoints[..self.count]
    }
}

#[derive(Clone, Debug)]
enum Step {
    Enter(SlotRequest),
    /// Releases the held slot at this index, modulo their number.
    Release(usize),
    /// Cancels the waiting request at this index, modulo their number.
    Cancel(usize),
    /// The weight of each endpoint and whether it is half-open; `None` if it is not in the set.
    Replace {
        weights: [Option<(u32, bool)>; ENDPOINTS],
        limits: AdmissionLimits,
    },
    /// The endpoint is marked unreachable, or reachable.
    Mark {
        endpoint: usize,
        reachable: bool,
    },
    Dispatch,
    /// Time passes.
    Pass(Duration),
}

fn limits() -> impl Strategy<Value = AdmissionLimits> {
    let cap =
        prop_oneof![1 => Just(ConcurrencyCap::None), 6 => (1_u32..4).prop_map(ConcurrencyCap::of)];
    let delay = prop_oneof![
        2 => Just(None),
        1 => Just(Some(ControlledDelay { target: 2 * MILLISECOND, interval: 10 * MILLISECOND })),
    ];
    (cap, 0_u32..6, any::<bool>(), delay).prop_map(|(cap, max_waiting, fair, delay)| {
        AdmissionLimits { cap, max_waiting, fair, delay }
    })
}

fn asks() -> impl Strategy<Value = SlotRequest> {
    let only = proptest::option::weighted(0.2, 0..ENDPOINTS);
    let order = Just(std::array::from_fn(|endpoint| endpoint)).prop_shuffle();
    let count = prop_oneof![6 => Just(0), 4 => 1..=ENDPOINTS];
    let tried = (order, count).prop_map(|(endpoints, count)| TriedEndpoints { endpoints, count });
    let key = proptest::option::weighted(0.7, any::<u64>());
    let priority = prop_oneof![3 => Just(3), 1 => Just(1), 1 => Just(6)];
    let priority = priority.prop_map(|number| PriorityLevel::new(number).expect("a priority"));
    let patience =
        prop_oneof![3 => Just(None), 1 => (0_u32..20).prop_map(|it| Some(it * MILLISECOND))];
    // The fallback of a key whose endpoint has failed is part of the pickers' own tests.
    (tried, only, key, priority, 0_u64..3, patience).prop_map(
        |(tried, only, key, priority, route, patience)| {
            let key = key.filter(|_| tried.count == 0);
            SlotRequest { tried, only, key, priority, route, patience }
        },
    )
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
        2 => (0..ENDPOINTS, any::<bool>())
            .prop_map(|(endpoint, reachable)| Step::Mark { endpoint, reachable }),
        1 => Just(Step::Dispatch),
        4 => (0_u32..5).prop_map(|it| Step::Pass(it * MILLISECOND)),
    ]
}

struct Waiter {
    id: usize,
    asks: SlotRequest,
    ticket: Arc<Ticket<usize>>,
    since: Time,
    /// Number of times that a younger request of a higher priority got a slot that it could have
    /// used.
    passed: u32,
}

/// The real admission and queue, with a model of the rules beside it.
struct World {
    endpoints: Vec<Arc<Endpoint<usize>>>,
    admission: Admission,
    queue: RefCell<Queue<usize, usize>>,
    picker: Picker,
    set: Arc<EndpointSet<usize>>,
    /// The same set without half-open members, to ask where a key goes.
    regular: EndpointSet<usize>,
    limits: AdmissionLimits,
    /// True if the endpoint's half-open request has been sent.
    half_open_spent: [bool; ENDPOINTS],
    held: Vec<usize>,
    waiters: Vec<Waiter>,
    next_id: usize,
    now: Time,
    /// Time since which requests have been waiting without a break.
    waited_since: Time,
}

impl World {
    fn new(algorithm: Algorithm, limits: AdmissionLimits) -> Self {
        let mut registry = EndpointRegistry::new();
        let address = |number: usize| SocketAddr::from(([10, 0, 0, 1], number as u16));
        let endpoints =
            (0..ENDPOINTS).map(|number| registry.endpoint(address(number), || number)).collect();
        let set = Arc::new(EndpointSet::empty());
        Self {
            endpoints,
            admission: Admission::new(),
            queue: RefCell::new(Queue::new(set.clone(), limits)),
            picker: Picker::new(algorithm, 9),
            set,
            regular: EndpointSet::empty(),
            limits,
            half_open_spent: [false; ENDPOINTS],
            held: Vec::new(),
            waiters: Vec::new(),
            next_id: 0,
            now: Time::ZERO,
            waited_since: Time::ZERO,
        }
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Enter(asks) => self.enter(*asks),
            Step::Release(at) => self.release(*at),
            Step::Cancel(at) => self.cancel(*at),
            Step::Replace { weights, limits } => self.replace(weights, *limits),
            Step::Mark { endpoint, reachable } => self.mark(*endpoint, *reachable),
            Step::Dispatch => {
                let woken = self.admission.dispatch(|| self.now, || self.queue.borrow_mut());
                assert_eq!(woken, [], "every slot that could be granted had been granted");
            }
            Step::Pass(duration) => self.now = self.now + *duration,
        }
        self.check();
    }

    fn enter(&mut self, asks: SlotRequest) {
        let mut free: Vec<usize> = (0..ENDPOINTS)
            .filter(|&e| self.has_room(e) && (self.may_use(asks, e) || self.may_try(asks, e)))
            .filter(|&e| !self.waiters.iter().any(|waiter| self.may_use(waiter.asks, e)))
            .collect();
        if self.is_unreachable() && self.limits.max_waiting == 0 && self.waiters.is_empty() {
            let is_last_resort =
                |&e: &usize| self.is_regular(e) && self.is_within_cap(e) && self.may_use(asks, e);
            free.extend((0..ENDPOINTS).filter(is_last_resort));
        }
        let room_to_wait = self.waiters.len() < self.limits.max_waiting as usize;
        let id = self.next_id;
        self.next_id += 1;
        let tried: Vec<_> =
            asks.tried.as_slice().iter().map(|&e| self.endpoints[e].clone()).collect();
        let request = PickRequest {
            tried: &tried,
            only: asks.only.map(|e| &self.endpoints[e]),
            key: asks.key,
            now: self.now,
            queueing: QueueParameters {
                priority: asks.priority,
                route: asks.route,
                deadline: asks.patience.map_or(Time::MAX, |patience| self.now + patience),
            },
        };
        let entry = self.admission.enter(
            &mut self.picker,
            AdmissionConfig { set: &self.set, limits: self.limits },
            &request,
            || self.queue.borrow_mut(),
            || id,
        );
        match entry {
            AdmissionDecision::Slot(endpoint) => {
                assert!(free.contains(&endpoint.data), "{} of {free:?}", endpoint.data);
                let half_open = free.iter().any(|&free| self.is_half_open(free));
                assert!(
                    !half_open || self.is_half_open(endpoint.data),
                    "the half-open request comes first"
                );
                self.takes(endpoint.data);
            }
            AdmissionDecision::Waiting { ticket, evicted: victim } => {
                assert!(free.is_empty());
                assert_eq!(victim.is_none(), room_to_wait, "the limit holds");
                // A request that takes another's place continues the waiting time.
                if self.waiters.is_empty() {
                    self.waited_since = self.now;
                }
                if let Some(victim) = victim {
                    self.evicted(victim, asks);
                }
                self.waiters.push(Waiter { id, asks, ticket, since: self.now, passed: 0 });
            }
            // A request that is rejected without the lock is rejected even if no queued request may
            // use a free endpoint.
            AdmissionDecision::Rejected(AdmissionRejection::WouldMissDeadline) => {
                assert!(free.is_empty() || !self.waiters.is_empty());
                let overloaded = !self.waiters.is_empty() && self.is_overloaded();
                assert!(asks.patience.is_some() || overloaded, "it had no deadline");
            }
            AdmissionDecision::Rejected(refusal) => {
                assert!(!room_to_wait && (free.is_empty() || !self.waiters.is_empty()));
                let usable = self.set.members().iter().any(|m| m.weight > 0);
                let is_unusable = self.limits.max_waiting == 0 && !usable;
                let expected = match is_unusable {
                    _ if self.is_unreachable() => AdmissionRejection::Unreachable,
                    true => AdmissionRejection::NoEndpoint,
                    false => AdmissionRejection::Full,
                };
                assert_eq!(refusal, expected);
                let lower = self.waiters.iter().any(|it| it.asks.priority > asks.priority);
                assert!(!lower || self.limits.max_waiting == 0, "a lower priority kept its place");
            }
        }
    }

    /// A request lost its place in a full queue to one with these constraints.
    fn evicted(&mut self, victim: usize, asks: SlotRequest) {
        let position = self.waiters.iter().position(|waiter| waiter.id == victim);
        let position = position.expect("an evicted request has waited");
        let victim = self.waiters[position].asks;
        let lowest = self.waiters.iter().map(|waiter| waiter.asks.priority).max();
        assert_eq!(Some(victim.priority), lowest, "the lowest priority is evicted first");
        let flow = self.flow(victim);
        let last = self.waiters.iter().rposition(|waiter| self.flow(waiter.asks) == flow);
        assert_eq!(last, Some(position), "the last of its flow");
        let places = |asks| self.places(self.flow(asks));
        let most = self.waiters.iter().filter(|waiter| waiter.asks.priority == victim.priority);
        assert_eq!(most.map(|waiter| places(waiter.asks)).max(), Some(places(victim)));
        if victim.priority == asks.priority {
            assert!(places(victim) > places(asks) + 1, "for a route that has fewer places");
        } else {
            assert!(victim.priority > asks.priority, "for a higher priority");
        }
        let waiter = self.waiters.remove(position);
        assert_eq!(waiter.ticket.refused(), Some(AdmissionRejection::Evicted));
        self.gone(&waiter);
    }

    /// Checks a request that has no slot and no longer waits.
    fn gone(&self, waiter: &Waiter) {
        assert!(waiter.ticket.granted().is_none());
        assert!(self.admission.cancel(&waiter.ticket), "nothing is left to do");
    }

    /// Returns the fair-queueing flow of a request.
    fn flow(&self, asks: SlotRequest) -> (PriorityLevel, u64) {
        (asks.priority, if self.limits.fair { asks.route } else { 0 })
    }

    fn places(&self, flow: (PriorityLevel, u64)) -> usize {
        self.waiters.iter().filter(|waiter| self.flow(waiter.asks) == flow).count()
    }

    fn is_overloaded(&self) -> bool {
        let since = self.now.saturating_since(self.waited_since);
        self.limits.delay.is_some_and(|delay| since >= delay.interval)
    }

    fn release(&mut self, at: usize) {
        if self.held.is_empty() {
            return;
        }
        let endpoint = self.held.swap_remove(at % self.held.len());
        let endpoint = &self.endpoints[endpoint];
        let woken = self.admission.release(endpoint, || self.now, || self.queue.borrow_mut());
        self.granted(woken);
    }

    fn cancel(&mut self, at: usize) {
        if self.waiters.is_empty() {
            return;
        }
        let waiter = self.waiters.remove(at % self.waiters.len());
        assert!(self.admission.cancel(&waiter.ticket));
        assert!(self.admission.cancel(&waiter.ticket), "a second cancel changes nothing");
        assert!(waiter.ticket.granted().is_none());
    }

    fn replace(&mut self, weights: &[Option<(u32, bool)>; ENDPOINTS], limits: AdmissionLimits) {
        let member = |(endpoint, weight): (&Arc<_>, &Option<(u32, bool)>)| {
            weight.map(|(weight, half_open)| SetMember {
                half_open,
                ..SetMember::new(Arc::clone(endpoint), weight)
            })
        };
        let members: Vec<_> = self.endpoints.iter().zip(weights).filter_map(member).collect();
        let regular = |member: &SetMember<usize>| SetMember {
            half_open: false,
            weight: if member.half_open { 0 } else { member.weight },
            ..member.clone()
        };
        self.regular = EndpointSet::new(members.iter().map(regular).collect());
        self.half_open_spent = [false; ENDPOINTS];
        self.set = Arc::new(EndpointSet::new(members));
        self.limits = limits;
        self.look_again();
    }

    fn mark(&mut self, endpoint: usize, reachable: bool) {
        let it = &self.endpoints[endpoint];
        let before = it.is_reachable();
        let changed =
            if reachable { it.mark_reachable(self.now) } else { it.mark_unreachable(self.now) };
        assert_eq!(changed, before != reachable);
        if changed {
            self.look_again();
        }
    }

    /// Replaces the set by itself: all waiting requests look for an endpoint again.
    fn look_again(&mut self) {
        let (set, limits) = (self.set.clone(), self.limits);
        let woken = self.admission.replace(set, limits, self.now, || self.queue.borrow_mut());
        self.granted(woken);
    }

    /// Checks each woken request: it has a slot, in order among the requests that may use its
    /// endpoint, or is shed.
    fn granted(&mut self, woken: impl IntoIterator<Item = usize>) {
        for id in woken {
            let position = self.waiters.iter().position(|waiter| waiter.id == id);
            let position = position.expect("a woken request has waited");
            let waiter = self.waiters.remove(position);
            if waiter.ticket.refused() == Some(AdmissionRejection::Shed) {
                let target = self.limits.delay.expect("controlled delay is configured").target;
                assert!(self.is_overloaded() && self.now.saturating_since(waiter.since) > target);
                self.gone(&waiter);
                continue;
            }
            let endpoint = waiter.ticket.granted().expect("a woken request has a slot").data;
            assert!(waiter.ticket.granted().is_none(), "a slot is granted once");
            assert!(!self.admission.cancel(&waiter.ticket));
            assert!(self.weight(endpoint) > 0 && self.may_use(waiter.asks, endpoint));
            assert!(self.endpoints[endpoint].is_reachable(), "an unreachable endpoint is granted");
            self.check_order(&waiter, position, endpoint);
            if let Some(most) = self.endpoints[endpoint].limit(self.limits.cap) {
                assert!(self.endpoints[endpoint].in_flight() <= most, "over the cap");
            }
            self.takes(endpoint);
        }
    }

    /// Checks that a request at this position got a slot of the endpoint in the right order, and
    /// counts the requests that it has overtaken.
    fn check_order(&mut self, granted: &Waiter, position: usize, endpoint: usize) {
        let flow = self.flow(granted.asks);
        for other in 0..self.waiters.len() {
            let Waiter { asks, .. } = self.waiters[other];
            if !self.may_use(asks, endpoint) {
                continue;
            }
            let older = other < position;
            assert!(!older || self.flow(asks) != flow, "an older request of the same flow waits");
            let higher = asks.priority < granted.asks.priority;
            assert!(!higher || granted.passed >= 7, "a higher priority is served first");
            let lower = asks.priority > granted.asks.priority;
            self.waiters[other].passed += u32::from(older && lower);
        }
    }

    fn takes(&mut self, endpoint: usize) {
        if self.is_half_open(endpoint) {
            assert_eq!(self.endpoints[endpoint].in_flight(), 1, "a half-open request is alone");
            assert!(!self.half_open_spent[endpoint], "one half-open request in each set");
            self.half_open_spent[endpoint] = true;
        }
        self.held.push(endpoint);
    }

    fn check(&self) {
        assert_eq!(self.admission.waiting() as usize, self.waiters.len());
        for (endpoint, state) in self.endpoints.iter().enumerate() {
            let held = self.held.iter().filter(|&&held| held == endpoint).count();
            assert_eq!(state.in_flight() as usize, held);
            let wanted = self.waiters.iter().any(|waiter| self.may_use(waiter.asks, endpoint));
            assert!(!(wanted && self.has_room(endpoint)), "a request waits for a free slot");
        }
    }

    fn member(&self, endpoint: usize) -> Option<&SetMember<usize>> {
        self.set.members().iter().find(|member| member.endpoint.data == endpoint)
    }

    fn weight(&self, endpoint: usize) -> u32 {
        self.member(endpoint).map_or(0, |member| member.weight)
    }

    fn is_half_open(&self, endpoint: usize) -> bool {
        self.member(endpoint).is_some_and(|member| member.half_open)
    }

    fn is_regular(&self, endpoint: usize) -> bool {
        self.weight(endpoint) > 0 && !self.is_half_open(endpoint)
    }

    fn is_open(&self, endpoint: usize) -> bool {
        self.is_regular(endpoint) && self.endpoints[endpoint].is_reachable()
    }

    /// True if every endpoint that could be chosen is marked unreachable.
    fn is_unreachable(&self) -> bool {
        (0..ENDPOINTS).any(|e| self.is_regular(e)) && !(0..ENDPOINTS).any(|e| self.is_open(e))
    }

    fn has_room(&self, endpoint: usize) -> bool {
        if self.is_half_open(endpoint) {
            let state = &self.endpoints[endpoint];
            return state.in_flight() == 0
                && state.is_reachable()
                && !self.half_open_spent[endpoint];
        }
        self.is_open(endpoint) && self.is_within_cap(endpoint)
    }

    fn is_within_cap(&self, endpoint: usize) -> bool {
        let most = self.endpoints[endpoint].limit(self.limits.cap);
        most.is_none_or(|most| self.endpoints[endpoint].in_flight() < most)
    }

    fn may_use(&self, asks: SlotRequest, endpoint: usize) -> bool {
        match self.bound(asks) {
            Some(only) => endpoint == only,
            None => !self.excluded(asks).contains(&endpoint),
        }
    }

    /// True if the request may be the half-open request of the endpoint. A half-open endpoint takes
    /// precedence over a key.
    fn may_try(&self, asks: SlotRequest, endpoint: usize) -> bool {
        let keyed = asks.only.is_none() && self.home(asks.key).is_some();
        keyed && self.is_half_open(endpoint)
    }

    /// Returns the endpoints to avoid: all that were tried if an untried one can be chosen, else
    /// the latest if another one can be.
    fn excluded(&self, asks: SlotRequest) -> Vec<usize> {
        let mut choices: Vec<usize> = (0..ENDPOINTS).filter(|&e| self.is_open(e)).collect();
        if choices.is_empty() {
            choices = (0..ENDPOINTS).filter(|&e| self.is_regular(e)).collect();
        }
        let tried = asks.tried.as_slice();
        let latest = tried.last().copied();
        if choices.iter().any(|choice| !tried.contains(choice)) {
            tried.to_vec()
        } else if choices.iter().any(|&choice| Some(choice) != latest) {
            latest.into_iter().collect()
        } else {
            Vec::new()
        }
    }

    /// Returns the only endpoint that the request may use, if it is bound.
    fn bound(&self, asks: SlotRequest) -> Option<usize> {
        let is_well = |&only: &usize| self.is_open(only) && !self.excluded(asks).contains(&only);
        asks.only.filter(is_well).or_else(|| self.home(asks.key))
    }

    /// Returns the endpoint that a key binds to.
    fn home(&self, key: Option<u64>) -> Option<usize> {
        let key = key.filter(|_| self.picker.algorithm() == Algorithm::Maglev)?;
        let member = self.set.maglev().member(key)?;
        let home = self.set.members()[member].endpoint.data;
        if self.is_open(home) || self.is_unreachable() { Some(home) } else { self.fallback(key) }
    }

    /// Returns the endpoint of a key whose own endpoint is unreachable.
    fn fallback(&self, key: u64) -> Option<usize> {
        let request = PickRequest { key: Some(key), ..PickRequest::default() };
        let endpoint = Picker::new(Algorithm::Maglev, 9).take(
            &self.regular,
            ConcurrencyCap::None,
            &request,
        )?;
        let empty_queue = || Box::new(Queue::<_, ()>::new(self.set.clone(), self.limits));
        Admission::new().release(&endpoint, || self.now, empty_queue);
        Some(endpoint.data)
    }

    /// Cancels all waiting requests and releases all slots.
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
    fn slots_and_queue_match_the_model(
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
fn cancelled_tickets_are_removed_from_the_queue() {
    let mut world = World::new(
        Algorithm::LeastLoad,
        AdmissionLimits {
            cap: ConcurrencyCap::of(1),
            max_waiting: 3,
            ..AdmissionLimits::default()
        },
    );
    let weights = [Some((1, false)), None, None, None];
    world.replace(&weights, world.limits);
    world.enter(SlotRequest::default());
    world.enter(SlotRequest::default());
    let first = world.waiters[0].ticket.clone();
    let tickets: Vec<_> = (0..10_000)
        .map(|_| {
            world.enter(SlotRequest::default());
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
fn queue_full_of_pinned_requests_does_not_refuse_requests_for_a_free_endpoint() {
    let mut world = World::new(
        Algorithm::LeastLoad,
        AdmissionLimits {
            cap: ConcurrencyCap::of(1),
            max_waiting: 3,
            ..AdmissionLimits::default()
        },
    );
    let weights = [Some((1, false)), Some((1, false)), None, None];
    world.replace(&weights, world.limits);
    let bound = SlotRequest { only: Some(0), ..SlotRequest::default() };
    for _ in 0..4 {
        world.enter(bound);
    }
    assert_eq!((world.held.len(), world.waiters.len()), (1, 3));
    world.enter(bound);
    assert_eq!(world.held, [0], "the queue is full");
    world.enter(SlotRequest::default());
    assert_eq!(world.held, [0, 1], "but the other endpoint is free");
    world.enter(SlotRequest::default());
    assert_eq!(
        (world.held.len(), world.waiters.len()),
        (2, 3),
        "now the other endpoint is full too"
    );
    world.end();
}

/// Creates one endpoint that takes one request at a time, with a queue of this length, and takes
/// the only slot.
fn one_slot(max_waiting: u32, fair: bool) -> World {
    let limits = AdmissionLimits {
        cap: ConcurrencyCap::of(1),
        max_waiting,
        fair,
        ..AdmissionLimits::default()
    };
    let mut world = World::new(Algorithm::LeastLoad, limits);
    world.replace(&[Some((1, false)), None, None, None], limits);
    world.enter(SlotRequest::default());
    world
}

fn with_priority(number: u8) -> SlotRequest {
    SlotRequest {
        priority: PriorityLevel::new(number).expect("a priority"),
        ..SlotRequest::default()
    }
}

fn by_route(route: u64) -> SlotRequest {
    SlotRequest { route, ..SlotRequest::default() }
}

impl World {
    /// Releases the slot; returns the request that has it now.
    fn next(&mut self) -> SlotRequest {
        let before: Vec<(usize, SlotRequest)> =
            self.waiters.iter().map(|it| (it.id, it.asks)).collect();
        self.release(0);
        let gone = |(id, _): &&(usize, SlotRequest)| !self.waiters.iter().any(|it| it.id == *id);
        before.iter().find(gone).expect("a waiting request gets the slot").1
    }
}

#[test]
fn lower_priority_is_served_after_seven_newer_higher_priority_requests() {
    let mut world = one_slot(100, true);
    world.enter(with_priority(7));
    let mut order = Vec::new();
    for _ in 0..8 {
        world.enter(with_priority(0));
        world.enter(with_priority(0));
        order.push(world.next().priority.number());
    }
    assert_eq!(order, [0, 0, 0, 0, 0, 0, 0, 7]);
}

#[test]
fn lower_priority_gets_one_slot_in_eight_under_high_priority_flood() {
    let mut world = one_slot(1_000, true);
    for _ in 0..100 {
        world.enter(with_priority(6));
    }
    let mut lower = 0;
    for _ in 0..400 {
        world.enter(with_priority(1));
        lower += u32::from(world.next().priority.number() == 6);
    }
    assert_eq!(lower, 50);
}

#[test]
fn routes_are_served_fairly_regardless_of_queue_length() {
    let mut world = one_slot(100, true);
    for _ in 0..20 {
        world.enter(by_route(1));
    }
    (0..3).for_each(|_| world.enter(by_route(2)));
    world.enter(by_route(3));
    let order: Vec<u64> = (0..10).map(|_| world.next().route).collect();
    assert_eq!(order, [1, 2, 3, 1, 2, 1, 2, 1, 1, 1]);
}

#[test]
fn sparse_route_gains_no_advantage() {
    let mut world = one_slot(100, true);
    (0..50).for_each(|_| world.enter(by_route(1)));
    let mut seldom = 0;
    for _ in 0..40 {
        if !world.waiters.iter().any(|waiter| waiter.asks.route == 2) {
            world.enter(by_route(2));
        }
        seldom += u32::from(world.next().route == 2);
    }
    assert!((19..=21).contains(&seldom), "{seldom} of 40");
}

#[test]
fn queue_is_fifo_across_routes_without_fairness() {
    let mut world = one_slot(100, false);
    for route in [1, 1, 1, 2, 1] {
        world.enter(by_route(route));
    }
    let order: Vec<u64> = (0..5).map(|_| world.next().route).collect();
    assert_eq!(order, [1, 1, 1, 2, 1]);
}

#[test]
fn full_queue_is_shared_evenly_by_routes() {
    let mut world = one_slot(6, true);
    (0..20).for_each(|_| world.enter(by_route(1)));
    (0..20).for_each(|_| world.enter(by_route(2)));
    (0..20).for_each(|_| world.enter(by_route(3)));
    let places = |route| world.waiters.iter().filter(|it| it.asks.route == route).count();
    assert_eq!([1, 2, 3].map(places), [2, 2, 2]);
}

#[test]
fn higher_priority_evicts_lower_priority_and_not_the_reverse() {
    let mut world = one_slot(4, true);
    (0..4).for_each(|_| world.enter(with_priority(5)));
    (0..3).for_each(|_| world.enter(with_priority(2)));
    (0..3).for_each(|_| world.enter(with_priority(6)));
    let priorities: Vec<u8> =
        world.waiters.iter().map(|waiter| waiter.asks.priority.number()).collect();
    assert_eq!(priorities, [5, 2, 2, 2]);
}

#[test]
fn request_that_would_miss_its_deadline_is_refused_once_the_rate_is_known() {
    let mut world = one_slot(1_000, true);
    let patient = |patience: u32| SlotRequest {
        patience: Some(patience * MILLISECOND),
        ..SlotRequest::default()
    };
    let waits = |world: &mut World, asks: SlotRequest| {
        let before = world.waiters.len();
        world.enter(asks);
        world.waiters.len() > before
    };
    assert!((0..20).all(|_| waits(&mut world, patient(1))), "the grant rate is unknown");
    // One slot is released each 10 ms.
    for _ in 0..20 {
        world.now = world.now + 10 * MILLISECOND;
        world.next();
    }
    (0..9).for_each(|_| world.enter(SlotRequest::default()));
    assert!(!waits(&mut world, patient(99)), "the tenth waits 100 ms");
    assert!(waits(&mut world, patient(101)));
    let first = SlotRequest { priority: PriorityLevel::ALL[0], ..patient(11) };
    assert!(
        waits(&mut world, first),
        "a request of the highest priority does not wait behind them"
    );
    assert_eq!(world.admission.expected_wait(world.now), Some(120 * MILLISECOND));
    // A second endpoint makes the queue faster by an unknown factor.
    world.replace(&[Some((1, false)), Some((1, false)), None, None], world.limits);
    assert!(waits(&mut world, patient(1)));
    assert_eq!(world.admission.expected_wait(world.now), None);
    world.end();
}

#[test]
fn sustained_overload_sheds_requests_over_the_target_without_idle_slots() {
    let mut world = one_slot(1_000, true);
    let delay = Some(ControlledDelay { target: 50 * MILLISECOND, interval: 100 * MILLISECOND });
    let limits = AdmissionLimits { delay, ..world.limits };
    world.replace(&[Some((1, false)), None, None, None], limits);
    // Two requests come each 10 ms, and one is served.
    for tick in 0..100 {
        world.now = world.now + 10 * MILLISECOND;
        world.enter(SlotRequest::default());
        world.enter(SlotRequest::default());
        world.release(0);
        assert_eq!(world.held.len(), 1, "the slot is taken");
        if tick > 12 {
            let oldest = world.waiters.iter().map(|it| world.now.saturating_since(it.since)).max();
            assert!(oldest <= Some(60 * MILLISECOND), "{oldest:?} at {tick}");
        }
    }
    // All have waited too long: the last of them is served nevertheless.
    world.now = world.now + Duration::from_secs(1);
    world.release(0);
    assert_eq!((world.held.len(), world.waiters.len()), (1, 0));
    world.end();
}

#[test]
fn worker_with_stale_queue_limits_uses_the_last_resort_endpoint() {
    let mut world = one_slot(20, true);
    let before = world.limits;
    (0..20).for_each(|_| world.enter(SlotRequest::default()));
    // The queue learns its grant rate: a slot each 10 ms.
    for _ in 0..20 {
        world.now = world.now + 10 * MILLISECOND;
        world.next();
    }
    world.release(0);
    world.mark(0, false);
    let now_limits = AdmissionLimits { max_waiting: 0, ..before };
    world.replace(&[Some((1, false)), None, None, None], now_limits);
    let until = world.now + MILLISECOND;
    let request = PickRequest {
        now: world.now,
        queueing: QueueParameters { deadline: until, ..QueueParameters::default() },
        ..PickRequest::default()
    };
    let lock = || world.queue.borrow_mut();
    let picker = &mut world.picker;
    let config = AdmissionConfig { set: &world.set, limits: before };
    let entry = world.admission.enter(picker, config, &request, lock, || 0);
    assert!(matches!(entry, AdmissionDecision::Slot(_)), "{entry:?}");
}
