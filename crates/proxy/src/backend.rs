//! A backend as workers share it: who may get requests, who waits, and the slot that one request holds.
//!
//! What health makes of the configured endpoints is [`crate::health`]'s; here is only what is in force.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Poll, Waker};
use std::time::Duration;

use balance::limit::Visit;
use balance::outcome::{End, Outcome, Testimony};
use balance::retry::RetryBudget;
use balance::{
    Admission, Algorithm, Cap, Deal, Delay, EndpointSet, Entry, LimitSettings, Limits, Member,
    Picker, Priority, Queue, Rank, Ticket, Time, Wish,
};
use gateway::snapshot::{BackendKey, BackendSettings, EndpointProtocol};

use crate::affinity::Tokens;
use crate::bounds::Bounds;
use crate::clock;
use crate::demand::Account;
use crate::dial::pool::{Endpoint, EndpointData, lock};
use crate::failure::Failure;
use crate::health::Care;
use crate::live::{Live, Ours};
use crate::observe::BackendCounters;
use crate::published::{Edition, Published};
use crate::reachability;
use crate::tls::Trust;
use crate::worker::Worker;

/// One Service's port, with the state that outlives Snapshots.
pub(crate) struct Backend {
    pub(crate) key: BackendKey,
    /// The key as metrics and logs write it.
    pub(crate) name: Arc<str>,
    pub(crate) current: Published<Current>,
    admission: Admission,
    queue: Mutex<Queue<EndpointData, Waker>>,
    /// One per worker: a lock that nobody else takes.
    pickers: Box<[OwnPicker]>,
    /// One per worker.
    pub(crate) counters: Box<[BackendCounters]>,
    /// What all requests together may be tried again.
    pub(crate) budget: RetryBudget,
    pub(crate) care: Care,
    pub(crate) demand: Account,
    pub(crate) bounds: Bounds,
}

/// One worker's picker, on cache lines of its own.
#[repr(align(64))]
struct OwnPicker(Mutex<Picker>);

/// What may change while requests run.
pub(crate) struct Current {
    pub(crate) set: Arc<EndpointSet<EndpointData>>,
    pub(crate) settings: BackendSettings,
    /// With what connections are secured; `None`: they are not.
    pub(crate) trust: Option<Arc<Trust>>,
    pub(crate) limits: Limits,
    /// Made when the first request needs them.
    pub(crate) tokens: OnceLock<Tokens>,
}

impl Current {
    pub(crate) fn new(
        set: Arc<EndpointSet<EndpointData>>,
        settings: BackendSettings,
        trust: Option<Arc<Trust>>,
    ) -> Self {
        let delay = |target| Delay { target, interval: settings.queue_timeout };
        let limits = Limits {
            cap: cap(&settings),
            max_waiting: settings.queue_max_requests,
            fair: settings.queue_fair,
            delay: settings.queue_target.map(delay),
        };
        set.prepare(settings.algorithm);
        Self { set, settings, trust, limits, tokens: OnceLock::new() }
    }

    /// Between which bounds limits are learned, if they are.
    pub(crate) fn limit_settings(&self) -> Option<LimitSettings> {
        let settings = self.settings.auto_limit?;
        let most = match self.settings.protocol {
            EndpointProtocol::Http1 => self.settings.connection_max.map_or(u32::MAX, Into::into),
            EndpointProtocol::Http2 | EndpointProtocol::Http3 => u32::MAX,
        };
        let max = settings.max.min(most);
        Some(LimitSettings { min: settings.min.min(max), max, start: settings.start.min(max) })
    }

    /// All but the endpoints.
    pub(crate) fn policy(&self) -> (BackendSettings, Option<Arc<Trust>>) {
        (self.settings.clone(), self.trust.clone())
    }
}

/// How many requests each endpoint may have at once.
pub(crate) fn cap(settings: &BackendSettings) -> Cap {
    if settings.auto_limit.is_some() {
        return Cap::Learned;
    }
    // Over HTTP/1.1 a connection carries one request at a time, so a limit of connections is a limit of requests.
    let most_connections = match settings.protocol {
        EndpointProtocol::Http1 => settings.connection_max,
        EndpointProtocol::Http2 | EndpointProtocol::Http3 => None,
    };
    let caps = [settings.max_in_flight_per_endpoint, most_connections];
    caps.into_iter().flatten().min().into()
}

/// A worker's own hold on a [`Current`], as [`Ours`] is on a `Live`.
pub(crate) type Held = Edition<Current>;

impl Backend {
    pub(crate) fn new(
        key: BackendKey,
        configured: EndpointSet<EndpointData>,
        settings: BackendSettings,
        trust: Option<Arc<Trust>>,
        workers: usize,
    ) -> Self {
        let care = Care::new();
        let set = care.admit(&key, configured, &settings.health, |set| set);
        let current = Current::new(set, settings, trust);
        let picker = |worker| {
            OwnPicker(Mutex::new(Picker::new(current.settings.algorithm, seed(&key, worker))))
        };
        let backend = Self {
            name: key.to_string().into(),
            pickers: (0..workers).map(picker).collect(),
            counters: (0..workers).map(|_| BackendCounters::default()).collect(),
            admission: Admission::new(),
            queue: Mutex::new(Queue::new(Arc::clone(&current.set), current.limits)),
            current: Published::new(current),
            budget: RetryBudget::new(workers),
            demand: Account::new(workers),
            care,
            bounds: Bounds::default(),
            key,
        };
        backend.limit(&backend.current(), clock::now());
        backend
    }

    /// What is in force now; requests [hold](BackendRef::hold) it, which costs less.
    pub(crate) fn current(&self) -> Arc<Current> {
        self.current.load()
    }

    pub(crate) fn waiting(&self) -> u32 {
        self.admission.waiting()
    }

    /// How many wait with each priority, about.
    pub(crate) fn waiting_by_priority(&self) -> [usize; Priority::COUNT] {
        lock(&self.queue).waiting_by_priority()
    }

    /// How long a request that comes now would wait, if that is known.
    pub(crate) fn expected_wait(&self) -> Option<Duration> {
        self.admission.expected_wait(clock::now())
    }

    /// From the next request on these endpoints are chosen among, as far as their health allows.
    pub(crate) fn configure(
        &self,
        configured: EndpointSet<EndpointData>,
        settings: BackendSettings,
        trust: Option<Arc<Trust>>,
    ) {
        let health = settings.health;
        self.care.admit(&self.key, configured, &health, |set| {
            self.replace(Current::new(set, settings, trust));
        });
    }

    /// All its endpoints, whatever their health.
    pub(crate) fn configured(&self) -> Arc<EndpointSet<EndpointData>> {
        self.care.configured()
    }

    /// From the next request on each endpoint is given those of its slots that the deal says.
    pub(crate) fn deal(&self, deal: &Deal) {
        let (settings, trust) = self.current().policy();
        let cap = cap(&settings);
        if cap.fixed().is_none() {
            return;
        }
        let configured = self.configured();
        let dealt = |member: &Member<_>| Member {
            most: deal.most(member.endpoint.address, cap),
            ..member.clone()
        };
        let members = configured.members().iter().map(dealt).collect();
        self.configure(EndpointSet::new(members), settings, trust);
    }

    /// From the next request on `current` is in force; who waits and may now go is woken.
    pub(crate) fn replace(&self, current: Current) {
        let (set, limits) = (Arc::clone(&current.set), current.limits);
        if self.current().settings.algorithm != current.settings.algorithm {
            for (worker, picker) in self.pickers.iter().enumerate() {
                *lock(&picker.0) = Picker::new(current.settings.algorithm, seed(&self.key, worker));
            }
        }
        // No request finds an endpoint without a limit.
        let raised = self.limit(&current, clock::now());
        self.current.store(Arc::new(current));
        let woken = self.admission.replace(set, limits, clock::now(), || lock(&self.queue));
        woken.into_iter().for_each(Waker::wake);
        if raised {
            let current = self.current();
            let members = current.set.members().iter();
            let sharers = members.flat_map(|member| member.endpoint.data.other_sharers(self));
            sharers.for_each(|other| other.dispatch());
        }
    }

    /// Why somebody has waited for a slot until the queue's timeout.
    pub(crate) fn waited_in_vain(&self) -> Failure {
        let current = self.current();
        if current.set.members().is_empty() {
            Failure::NoEndpoint
        } else if current.set.is_unreachable() {
            Failure::Unreachable
        } else if current.set.is_dealt_out() {
            Failure::NoSlot
        } else {
            Failure::QueueTimeout
        }
    }

    /// An endpoint has been marked unreachable, or reachable: requests that wait look again for one that may serve them.
    pub(crate) fn reachability_changed(&self) {
        let current = self.current();
        let (set, limits) = (Arc::clone(&current.set), current.limits);
        let woken = self.admission.replace(set, limits, clock::now(), || lock(&self.queue));
        woken.into_iter().for_each(Waker::wake);
    }

    /// Gives free slots to those who wait.
    ///
    /// A grant of one backend that meets a cancel holds a shared endpoint's slot for a moment, in which another
    /// backend's newcomer may overlook it. So somebody looks again now and then.
    pub(crate) fn dispatch(&self) {
        let woken = self.admission.dispatch(clock::now, || lock(&self.queue));
        woken.into_iter().for_each(Waker::wake);
    }

    /// The endpoint has finished with a request of this backend.
    pub(crate) fn release(&self, endpoint: &Endpoint) {
        let woken = self.admission.release(endpoint, clock::now, || lock(&self.queue));
        woken.into_iter().for_each(Waker::wake);
        for other in endpoint.data.other_sharers(self) {
            other.dispatch();
        }
    }
}

/// Workers start at different endpoints, the same at each start.
fn seed(key: &BackendKey, worker: usize) -> u64 {
    let name = key.service.bytes().fold(u64::from(key.port), |seed, byte| {
        seed.wrapping_mul(31).wrapping_add(u64::from(byte))
    });
    name.wrapping_add((worker as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// A backend of the [`Ours`] that a request goes by.
#[derive(Clone)]
pub(crate) struct BackendRef {
    live: Rc<Ours>,
    index: usize,
}

impl BackendRef {
    pub(crate) fn new(live: Rc<Ours>, index: usize) -> Self {
        Self { live, index }
    }

    /// The backend alone, for what may outlast every request.
    pub(crate) fn alone(&self) -> &Arc<Backend> {
        &self.live.backends[self.index]
    }

    /// What is in force now, for a request to hold to its end.
    pub(crate) fn hold(&self) -> Rc<Held> {
        self.live.hold(self.index)
    }

    /// The same backend without the rest of what is in force: for what may outlast many Snapshots.
    pub(crate) fn apart(&self) -> Self {
        let backends = vec![Arc::clone(self.alone())];
        let live = Live { backends, ..Live::default() };
        Self { live: Rc::new(Ours::new(&Published::new(live))), index: 0 }
    }
}

impl std::ops::Deref for BackendRef {
    type Target = Backend;

    fn deref(&self) -> &Backend {
        self.alone()
    }
}

/// The right to have one request in flight at one endpoint; given back when dropped.
pub(crate) struct Slot {
    pub(crate) backend: BackendRef,
    pub(crate) endpoint: Arc<Endpoint>,
    /// When it was taken.
    pub(crate) started: Time,
    /// How many requests the endpoint had then, this one included.
    pub(crate) level: u32,
    /// Who took it, and gives it back.
    worker: usize,
    /// When the endpoint finished, where that is known; else it is when the slot is dropped.
    freed: Option<Time>,
    /// The request has been sent, and nothing has come of it yet.
    awaits_answer: Cell<bool>,
}

impl Slot {
    fn new(backend: BackendRef, endpoint: Arc<Endpoint>, started: Time, worker: usize) -> Self {
        let level = endpoint.in_flight();
        let awaits_answer = Cell::new(false);
        Self { backend, endpoint, started, level, worker, freed: None, awaits_answer }
    }

    /// The endpoint has been asked: an answer is to come.
    pub(crate) fn asked(&self) {
        if !self.awaits_answer.replace(true) {
            self.endpoint.data.counters[self.worker].asked.add(1);
        }
    }

    /// The endpoint has answered, or the answer is not waited for any more.
    pub(crate) fn answered(&self) {
        if self.awaits_answer.replace(false) {
            self.endpoint.data.counters[self.worker].answered.add(1);
        }
    }

    /// A connection attempt at the endpoint has failed so: perhaps it cannot be reached.
    pub(crate) fn found(&self, worker: &Worker, failure: Failure) {
        let cannot_be_reached = matches!(
            failure,
            Failure::ConnectFailed | Failure::ConnectTimeout | Failure::ConnectSlow
        );
        if cannot_be_reached {
            let (backend, cause) = (self.backend.alone(), failure.details());
            reachability::mark_unreachable(&worker.shared, backend, &self.endpoint, cause);
        }
    }

    /// The endpoint finished at `at`: the slot is free.
    pub(crate) fn free(mut self, at: Time) {
        self.freed = Some(at);
    }

    /// The Outcome of one attempt: what metrics, pickers and health learn from, and nothing else.
    ///
    /// `head_after`: how long the head of the response took, where that tells how busy the endpoint is.
    pub(crate) fn conclude(
        &self,
        worker: &Worker,
        current: &Current,
        end: End,
        head_after: Option<Duration>,
    ) {
        self.conclude_at(clock::now(), worker, current, end, head_after);
    }

    /// As [`conclude`](Self::conclude), for a caller that knows what time it is.
    pub(crate) fn conclude_at(
        &self,
        now: Time,
        worker: &Worker,
        current: &Current,
        end: End,
        head_after: Option<Duration>,
    ) {
        let counters = &self.endpoint.data.counters[worker.index];
        counters.attempts.add(1);
        match end.testimony() {
            Testimony::For => {}
            Testimony::Against => counters.failures.add(1),
            Testimony::Neither => counters.untold.add(1),
        }
        let outcome = Outcome { started: self.started, head_after, end };
        match current.settings.algorithm {
            Algorithm::PeakEwma => self.endpoint.learn(&outcome, now),
            Algorithm::LeastLoad
            | Algorithm::RoundRobin
            | Algorithm::Random
            | Algorithm::ConsistentHash
            | Algorithm::Maglev => self.endpoint.learn_usual(&outcome, now),
        }
        if self.endpoint.health.learn(&outcome, &current.settings.health) {
            self.backend.care.ask();
            worker.shared.bell.ring();
        }
        if end == End::Success && !self.endpoint.is_reachable() {
            reachability::is_back(self.backend.alone(), &self.endpoint, self.started);
        }
        if let End::Refused { retry_after } = end {
            self.refused(worker, current, retry_after);
        }
    }

    /// As [`conclude`](Self::conclude), where how long the endpoint has had the request tells how busy it is.
    pub(crate) fn conclude_stay(
        &self,
        now: Time,
        worker: &Worker,
        current: &Current,
        end: End,
        head_after: Option<Duration>,
    ) {
        if current.limits.cap == Cap::Learned {
            let held = now.saturating_since(self.started);
            self.endpoint.evidence.learn(Visit { level: self.level, held }, end);
        }
        self.conclude_at(now, worker, current, end, head_after);
    }

    #[cold]
    fn refused(&self, worker: &Worker, current: &Current, retry_after: Option<Duration>) {
        if !current.settings.heeds_refusals {
            return;
        }
        let heed = self.endpoint.refused(self.level, retry_after, clock::now());
        self.endpoint.data.counters[worker.index].heeded(heed);
        self.backend.bounds.is_full(worker);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.answered();
        let freed = self.freed.unwrap_or_else(clock::now);
        self.backend.demand.of(self.worker).give_back(self.started, freed);
        self.backend.release(&self.endpoint);
    }
}

/// A place in the queue; given up when dropped.
pub(crate) struct Place {
    backend: BackendRef,
    ticket: Arc<Ticket<EndpointData>>,
    worker: usize,
}

impl Place {
    /// The slot, once it has been granted, or why there will be none.
    pub(crate) fn poll(&self) -> Poll<Result<Slot, Failure>> {
        if let Some(slot) = self.granted() {
            return Poll::Ready(Ok(slot));
        }
        self.ticket.refused().map_or(Poll::Pending, |refusal| Poll::Ready(Err(refusal.into())))
    }

    fn granted(&self) -> Option<Slot> {
        let endpoint = self.ticket.granted()?;
        let now = clock::now();
        self.backend.demand.of(self.worker).grant(now);
        Some(Slot::new(self.backend.clone(), endpoint, now, self.worker))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.backend.admission.cancel(&self.ticket) {
            self.backend.demand.of(self.worker).leave(clock::now());
        } else {
            // Where it was granted at the same moment: the slot passes on to the next.
            drop(self.granted());
        }
    }
}

/// What came of asking for a slot.
pub(crate) enum Admitted {
    Slot(Slot),
    Queued(Place),
    Refused(Failure),
}

/// Asks for a slot for one request; `waker` is woken when one that had to wait has got its slot.
pub(crate) fn enter(
    backend: &BackendRef,
    worker: usize,
    wish: &Wish<'_, EndpointData>,
    current: &Current,
    waker: impl FnOnce() -> Waker,
) -> Admitted {
    enter_within(backend, worker, wish, current, current.limits, waker)
}

/// Asks for a slot for one request that cannot wait.
pub(crate) fn enter_at_once(
    backend: &BackendRef,
    worker: usize,
    wish: &Wish<'_, EndpointData>,
) -> Option<Slot> {
    let current = backend.hold();
    let limits = Limits { max_waiting: 0, ..current.limits };
    let wish = &Wish { rank: Rank { until: wish.now, ..wish.rank }, ..*wish };
    match enter_within(backend, worker, wish, &current, limits, || Waker::noop().clone()) {
        Admitted::Slot(slot) => Some(slot),
        Admitted::Queued(_) | Admitted::Refused(_) => None,
    }
}

fn enter_within(
    backend: &BackendRef,
    worker: usize,
    wish: &Wish<'_, EndpointData>,
    current: &Current,
    limits: Limits,
    waker: impl FnOnce() -> Waker,
) -> Admitted {
    let mut picker = lock(&backend.pickers[worker].0);
    let entry = backend.admission.enter(
        &mut picker,
        &current.set,
        limits,
        wish,
        || lock(&backend.queue),
        waker,
    );
    match entry {
        Entry::Slot(endpoint) => {
            backend.demand.of(worker).take(wish.now);
            Admitted::Slot(Slot::new(backend.clone(), endpoint, wish.now, worker))
        }
        Entry::Waiting { ticket, turned_out } => {
            turned_out.into_iter().for_each(Waker::wake);
            backend.demand.of(worker).wait(wish.now);
            backend.demand.rise();
            Admitted::Queued(Place { backend: backend.clone(), ticket, worker })
        }
        Entry::Refused(refusal) => Admitted::Refused(refusal.into()),
    }
}
