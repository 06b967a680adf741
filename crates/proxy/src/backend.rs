//! A backend, shared by all workers: its endpoints in force, its queue, and the slot that one request holds.
//!
//! [`crate::health`] derives the endpoints in force from the configured ones; this module only keeps them.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Poll, Waker};
use std::time::Duration;

use balance::leases::EndpointShare;
use balance::retry::RetryBudget;
use balance::{
    Admission, AdmissionConfig, AdmissionDecision, AdmissionLimits, Algorithm, ConcurrencyCap,
    ControlledDelay, EndpointSet, FirstWaiting, LimitSettings, PickRequest, Picker, PriorityLevel,
    Queue, QueueParameters, SetMember, SharedBacklog, SlotAssignment, Ticket, Time,
};
use gateway::snapshot::{BackendKey, BackendSettings, EndpointProtocol};
use tls::EndpointTlsContext;

use crate::active_config::{ActiveConfig, WorkerConfig};
use crate::adaptive_limits::AdaptiveLimits;
use crate::address_share::{AddressPlace, AddressShares};
use crate::affinity::{AffinityKey, AffinityTokens};
use crate::clock;
use crate::cold_start::ColdStart;
use crate::config_cell::{CachedConfig, ConfigCell};
use crate::demand::DemandTracker;
use crate::dial::pool::{Endpoint, EndpointData};
use crate::failure::Failure;
use crate::health::BackendHealth;
use crate::lease_signal::LeaseSignal;
use crate::mutex::lock;
use crate::observe::BackendCounters;

/// One Service's port, with the state that outlives Snapshots.
pub(crate) struct Backend {
    pub(crate) key: BackendKey,
    /// The key as text, for metrics and logs.
    pub(crate) name: Arc<str>,
    pub(crate) current: ConfigCell<BackendConfig>,
    admission: Admission,
    queue: Mutex<Queue<EndpointData, Waker>>,
    /// One per worker: the lock is uncontended.
    pickers: Box<[WorkerPicker]>,
    /// One per worker.
    pub(crate) counters: Box<[BackendCounters]>,
    /// Retry budget of all requests together.
    pub(crate) retry_budget: RetryBudget,
    pub(crate) health: BackendHealth,
    pub(crate) demand: DemandTracker,
    pub(crate) cold_start: ColdStart,
    pub(crate) adaptive_limits: AdaptiveLimits,
    pub(crate) affinity_key: Arc<AffinityKey>,
    pub(crate) address_shares: AddressShares,
    /// Leases of slots among replicas; `None`: there are none.
    pub(crate) leases: Option<Arc<LeaseSignal>>,
    /// Requests that were rejected since the thread of the leases last read this, because they may not wait.
    rejected_at_once: AtomicU32,
}

/// One worker's picker, on cache lines of its own.
#[repr(align(64))]
struct WorkerPicker(Mutex<Picker>);

/// The part of a backend that may change while requests run.
pub(crate) struct BackendConfig {
    pub(crate) set: Arc<EndpointSet<EndpointData>>,
    pub(crate) settings: BackendSettings,
    /// TLS of connections to endpoints; `None`: plain connections.
    pub(crate) tls_context: Option<Arc<EndpointTlsContext>>,
    pub(crate) limits: AdmissionLimits,
    /// Built when the first request needs them.
    pub(crate) affinity_tokens: OnceLock<AffinityTokens>,
}

impl BackendConfig {
    pub(crate) fn new(
        set: Arc<EndpointSet<EndpointData>>,
        settings: BackendSettings,
        tls_context: Option<Arc<EndpointTlsContext>>,
    ) -> Self {
        let delay = |target| ControlledDelay { target, interval: settings.queue_timeout };
        let limits = AdmissionLimits {
            cap: cap(&settings),
            max_waiting: settings.queue_max_requests,
            fair: settings.queue_fair,
            delay: settings.queue_target.map(delay),
        };
        set.prepare(settings.algorithm);
        Self { set, settings, tls_context, limits, affinity_tokens: OnceLock::new() }
    }

    /// The part that admission applies.
    pub(crate) fn admission(&self) -> AdmissionConfig<'_, EndpointData> {
        AdmissionConfig { set: &self.set, limits: self.limits }
    }

    /// Bounds of the learned limits, if limits are learned.
    pub(crate) fn limit_settings(&self) -> Option<LimitSettings> {
        let settings = self.settings.auto_limit?;
        let most = match self.settings.protocol {
            EndpointProtocol::Http1 => self.settings.connection_max.map_or(u32::MAX, Into::into),
            EndpointProtocol::Http2 | EndpointProtocol::Http3 => u32::MAX,
        };
        let max = settings.max.min(most);
        Some(LimitSettings { min: settings.min.min(max), max, start: settings.start.min(max) })
    }

    /// Number of slots of all endpoints together; without a cap there is no limit.
    pub(crate) fn slots(&self) -> u32 {
        let slots = |member: &SetMember<_>| member.limit(self.limits.cap).unwrap_or(u32::MAX);
        let members = self.set.members().iter().filter(|member| member.weight > 0);
        members.fold(0, |sum: u32, member| sum.saturating_add(slots(member)))
    }

    /// Number of requests in flight at all endpoints together.
    pub(crate) fn in_flight(&self) -> u32 {
        let members = self.set.members().iter();
        members.fold(0, |sum: u32, member| sum.saturating_add(member.endpoint.in_flight()))
    }

    /// The settings and TLS context, without the endpoints.
    pub(crate) fn policy(&self) -> (BackendSettings, Option<Arc<EndpointTlsContext>>) {
        (self.settings.clone(), self.tls_context.clone())
    }
}

/// Maximum number of concurrent requests per endpoint.
pub(crate) fn cap(settings: &BackendSettings) -> ConcurrencyCap {
    if settings.auto_limit.is_some() {
        return ConcurrencyCap::Learned;
    }
    // Over HTTP/1.1 a connection carries one request at a time, so a connection limit is also a request limit.
    let most_connections = match settings.protocol {
        EndpointProtocol::Http1 => settings.connection_max,
        EndpointProtocol::Http2 | EndpointProtocol::Http3 => None,
    };
    let caps = [settings.max_in_flight_per_endpoint, most_connections];
    caps.into_iter().flatten().min().into()
}

/// This replica's share of the slots of a backend's endpoints, as its set has it.
pub(crate) struct SlotShare<'a> {
    assignment: &'a SlotAssignment,
    cap: ConcurrencyCap,
    /// True if leases limit the endpoints, and the set does not.
    is_leased: bool,
}

impl<'a> SlotShare<'a> {
    pub(crate) fn of(
        assignment: &'a SlotAssignment,
        settings: &BackendSettings,
        leases_slots: bool,
    ) -> Self {
        let cap = cap(settings);
        let is_leased = leases_slots && cap.fixed().is_some() && !binds_requests(settings);
        Self { assignment, cap, is_leased }
    }

    /// Returns the limit on requests in flight at an endpoint.
    pub(crate) fn at(&self, endpoint: SocketAddr) -> u32 {
        if self.is_leased { u32::MAX } else { self.assignment.max_in_flight(endpoint, self.cap) }
    }

    /// Returns the share of an endpoint until the thread of the leases sets it; `None`: its slots are not leased.
    pub(crate) fn before_leases(&self, endpoint: SocketAddr) -> Option<EndpointShare> {
        let cap = self.cap.fixed().filter(|_| self.is_leased)?;
        Some(EndpointShare::assigned(self.assignment.share(endpoint, cap.get())))
    }
}

/// True if requests are bound to endpoints, by a key or by affinity.
pub(crate) fn binds_requests(settings: &BackendSettings) -> bool {
    let is_keyed = matches!(settings.algorithm, Algorithm::ConsistentHash | Algorithm::Maglev);
    is_keyed || settings.affinity.is_some() || settings.has_rule_affinity
}

/// A worker's own reference to a [`BackendConfig`], as [`WorkerConfig`] is to an [`ActiveConfig`].
pub(crate) type BackendConfigRef = CachedConfig<BackendConfig>;

impl Backend {
    pub(crate) fn new(
        key: BackendKey,
        configured: EndpointSet<EndpointData>,
        settings: BackendSettings,
        tls_context: Option<Arc<EndpointTlsContext>>,
        affinity_key: Arc<AffinityKey>,
        workers: usize,
        leases: Option<Arc<LeaseSignal>>,
    ) -> Self {
        let health = BackendHealth::new();
        let set = health.configure_endpoints(&key, configured, &settings.health, |set| set);
        let current = BackendConfig::new(set, settings, tls_context);
        let picker = |worker| {
            WorkerPicker(Mutex::new(Picker::new(current.settings.algorithm, seed(&key, worker))))
        };
        let backend = Self {
            name: key.to_string().into(),
            pickers: (0..workers).map(picker).collect(),
            counters: (0..workers).map(|_| BackendCounters::default()).collect(),
            admission: Admission::new(),
            queue: Mutex::new(Queue::new(Arc::clone(&current.set), current.limits)),
            current: ConfigCell::new(current),
            retry_budget: RetryBudget::new(workers),
            demand: DemandTracker::new(workers, leases.clone()),
            cold_start: ColdStart::default(),
            health,
            adaptive_limits: AdaptiveLimits::default(),
            affinity_key,
            address_shares: AddressShares::default(),
            leases,
            rejected_at_once: AtomicU32::new(0),
            key,
        };
        backend.update_limits(&backend.current(), clock::now());
        backend
    }

    /// Returns the configuration in force. Requests use [`BackendRef::config`], which is cheaper.
    pub(crate) fn current(&self) -> Arc<BackendConfig> {
        self.current.load()
    }

    pub(crate) fn waiting(&self) -> u32 {
        self.admission.waiting()
    }

    /// Returns the approximate number of waiting requests of each priority.
    pub(crate) fn waiting_by_priority(&self) -> [usize; PriorityLevel::COUNT] {
        lock(&self.queue).waiting_by_priority()
    }

    /// Returns the waiting requests of the highest priority that has any.
    pub(crate) fn first_waiting(&self) -> Option<FirstWaiting> {
        lock(&self.queue).first_waiting()
    }

    /// Tells the queue what waits at all replicas together for the slots of its endpoints: `queued_elsewhere` requests at
    /// others, for `slots` slots.
    pub(crate) fn set_shared_queue(&self, queued_elsewhere: u64, slots: u64) {
        let gap_nanos = self.demand.service_nanos().checked_div(slots).unwrap_or_default();
        self.admission.set_shared_backlog(SharedBacklog { queued_elsewhere, gap_nanos });
    }

    /// Returns the expected queue wait of a request that arrives now, if it is known.
    pub(crate) fn expected_wait(&self) -> Option<Duration> {
        self.admission.expected_wait(clock::now())
    }

    /// Replaces the endpoints, settings and TLS context from the next request on. Health decides which endpoints get
    /// requests.
    pub(crate) fn configure(
        &self,
        configured: EndpointSet<EndpointData>,
        settings: BackendSettings,
        tls_context: Option<Arc<EndpointTlsContext>>,
    ) {
        let health = settings.health;
        self.health.configure_endpoints(&self.key, configured, &health, |set| {
            self.replace(BackendConfig::new(set, settings, tls_context));
        });
    }

    /// Returns all configured endpoints, regardless of their health.
    pub(crate) fn configured(&self) -> Arc<EndpointSet<EndpointData>> {
        self.health.configured()
    }

    /// Limits each endpoint to this replica's share of its slots, from the next request on.
    pub(crate) fn apply_slot_assignment(&self, assignment: &SlotAssignment) {
        let (settings, tls_context) = self.current().policy();
        let share = SlotShare::of(assignment, &settings, self.leases.is_some());
        if share.cap.fixed().is_none() || share.is_leased {
            return;
        }
        let configured = self.configured();
        let assigned = |member: &SetMember<_>| SetMember {
            max_in_flight: share.at(member.endpoint.address),
            ..member.clone()
        };
        let members = configured.members().iter().map(assigned).collect();
        self.configure(EndpointSet::new(members), settings, tls_context);
    }

    /// Puts `current` in force from the next request on, and wakes waiting requests that now get a slot.
    pub(crate) fn replace(&self, current: BackendConfig) {
        let (set, limits) = (Arc::clone(&current.set), current.limits);
        if self.current().settings.algorithm != current.settings.algorithm {
            for (worker, picker) in self.pickers.iter().enumerate() {
                *lock(&picker.0) = Picker::new(current.settings.algorithm, seed(&self.key, worker));
            }
        }
        // Set before the configuration is stored: no request must see an endpoint without a limit.
        let raised = self.update_limits(&current, clock::now());
        if !current.set.members().is_empty() {
            self.cold_start.record_endpoint(clock::now());
        }
        self.current.store(Arc::new(current));
        let woken = self.admission.replace(set, limits, clock::now(), || lock(&self.queue));
        woken.into_iter().for_each(Waker::wake);
        if raised {
            let current = self.current();
            let members = current.set.members().iter();
            let sharers = members.flat_map(|member| member.endpoint.data.other_backends(self));
            sharers.for_each(|other| other.dispatch());
        }
    }

    /// Returns the reason why a request has waited for a slot until the queue timeout.
    pub(crate) fn queue_timeout_failure(&self) -> Failure {
        let current = self.current();
        if current.set.members().is_empty() {
            Failure::NoEndpoint
        } else if current.set.is_unreachable() {
            Failure::Unreachable
        } else if current.set.has_no_assigned_slot() || current.slots() == 0 {
            Failure::NoSlot
        } else {
            Failure::QueueTimeout
        }
    }

    /// Lets waiting requests look for an endpoint again, after one has been marked unreachable or reachable.
    pub(crate) fn reachability_changed(&self) {
        let current = self.current();
        let (set, limits) = (Arc::clone(&current.set), current.limits);
        let woken = self.admission.replace(set, limits, clock::now(), || lock(&self.queue));
        woken.into_iter().for_each(Waker::wake);
    }

    /// Grants free slots to waiting requests.
    ///
    /// If a grant races with a cancellation, it holds a slot of a shared endpoint for a moment, and a new request of
    /// another backend may miss that slot. So each worker's sweep also calls this periodically.
    pub(crate) fn dispatch(&self) {
        let woken = self.admission.dispatch(clock::now, || lock(&self.queue));
        woken.into_iter().for_each(Waker::wake);
    }

    /// Releases a slot after the endpoint has finished a request of this backend.
    pub(crate) fn release(&self, endpoint: &Endpoint) {
        let woken = self.admission.release(endpoint, clock::now, || lock(&self.queue));
        woken.into_iter().for_each(Waker::wake);
        for other in endpoint.data.other_backends(self) {
            other.dispatch();
        }
        if let Some(leases) = self.leases.as_ref().filter(|_| endpoint.data.is_release_awaited()) {
            leases.wake();
        }
    }

    /// Returns the number of requests that were rejected since the last call because they may not wait.
    pub(crate) fn take_rejected(&self) -> u32 {
        self.rejected_at_once.swap(0, Ordering::Relaxed)
    }

    /// Asks replicas for a slot for the next request, if this one may not wait for it.
    #[cold]
    fn record_rejected(&self, limits: AdmissionLimits) {
        self.record_missing_endpoint();
        if let Some(leases) = &self.leases
            && limits.max_waiting == 0
            && limits.cap.fixed().is_some()
        {
            self.rejected_at_once.fetch_add(1, Ordering::Relaxed);
            leases.wake();
        }
    }

    /// Records that a request needs the first endpoint, if there is none.
    fn record_missing_endpoint(&self) {
        if self.current().set.members().is_empty() {
            self.cold_start.record_request(clock::now());
        }
    }

    /// Counts a request that waits, and asks replicas for a slot.
    fn record_waiting(&self, worker: usize, now: Time) {
        self.record_missing_endpoint();
        self.demand.shard(worker).wait(now);
        self.demand.signal_rise();
        if let Some(leases) =
            self.leases.as_ref().filter(|_| self.current().limits.cap.fixed().is_some())
        {
            leases.wake();
        }
    }
}

/// Returns a picker seed that differs between workers and is the same at each start.
fn seed(key: &BackendKey, worker: usize) -> u64 {
    let name = key.service.bytes().fold(u64::from(key.port), |seed, byte| {
        seed.wrapping_mul(31).wrapping_add(u64::from(byte))
    });
    name.wrapping_add((worker as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// A backend in the [`WorkerConfig`] that a request uses.
#[derive(Clone)]
pub(crate) struct BackendRef {
    active_config: Rc<WorkerConfig>,
    index: usize,
}

impl BackendRef {
    pub(crate) fn new(active_config: Rc<WorkerConfig>, index: usize) -> Self {
        Self { active_config, index }
    }

    /// Returns the backend itself, for tasks that may outlive the request.
    pub(crate) fn backend(&self) -> &Arc<Backend> {
        &self.active_config.backends[self.index]
    }

    /// Returns the configuration in force, for a request to keep to its end.
    pub(crate) fn config(&self) -> Rc<BackendConfigRef> {
        self.active_config.backend_config(self.index)
    }

    /// Returns the same backend without the rest of the configuration, for sessions that may outlive many Snapshots.
    pub(crate) fn detached(&self) -> Self {
        let backends = vec![Arc::clone(self.backend())];
        let active_config = ActiveConfig { backends, ..ActiveConfig::default() };
        Self {
            active_config: Rc::new(WorkerConfig::new(&ConfigCell::new(active_config))),
            index: 0,
        }
    }
}

impl std::ops::Deref for BackendRef {
    type Target = Backend;

    fn deref(&self) -> &Backend {
        self.backend()
    }
}

/// The right to have one request in flight at one endpoint; given back when dropped.
pub(crate) struct Slot {
    pub(crate) backend: BackendRef,
    pub(crate) endpoint: Arc<Endpoint>,
    /// Time at which it was taken.
    pub(crate) started: Time,
    /// Requests in flight at the endpoint at that time, this one included.
    pub(crate) in_flight_at_start: u32,
    /// The worker that took it and gives it back.
    worker: usize,
    /// Time at which the endpoint finished, if known; otherwise the time of the drop counts.
    released_at: Option<Time>,
    /// True if the request has been sent and no answer has arrived yet.
    awaits_answer: Cell<bool>,
    /// Place in the share of the client's address, if the policy limits that.
    pub(crate) address_place: Option<Box<AddressPlace>>,
}

impl Slot {
    fn new(backend: BackendRef, endpoint: Arc<Endpoint>, started: Time, worker: usize) -> Self {
        let in_flight_at_start = endpoint.in_flight();
        let awaits_answer = Cell::new(false);
        Self {
            backend,
            endpoint,
            started,
            in_flight_at_start,
            worker,
            released_at: None,
            awaits_answer,
            address_place: None,
        }
    }

    /// Records that the request has been sent: the endpoint owes an answer.
    pub(crate) fn mark_request_sent(&self) {
        if !self.awaits_answer.replace(true) {
            self.endpoint.data.counters[self.worker].requests_sent.add(1);
        }
    }

    /// Records that the endpoint has answered, or that the proxy no longer waits for the answer.
    pub(crate) fn mark_answered(&self) {
        if self.awaits_answer.replace(false) {
            self.endpoint.data.counters[self.worker].requests_settled.add(1);
        }
    }

    /// Frees the slot; the endpoint finished at `at`.
    pub(crate) fn free(mut self, at: Time) {
        self.released_at = Some(at);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.mark_answered();
        let freed = self.released_at.unwrap_or_else(clock::now);
        self.backend.demand.shard(self.worker).give_back(self.started, freed);
        self.backend.release(&self.endpoint);
    }
}

/// A place in the queue; leaves the queue when dropped.
pub(crate) struct QueueGuard {
    backend: BackendRef,
    ticket: Arc<Ticket<EndpointData>>,
    worker: usize,
}

impl QueueGuard {
    /// Ready with the slot once it is granted, or with the reason why the request is rejected.
    pub(crate) fn poll(&self) -> Poll<Result<Slot, Failure>> {
        if let Some(slot) = self.granted() {
            return Poll::Ready(Ok(slot));
        }
        self.ticket.refused().map_or(Poll::Pending, |refusal| Poll::Ready(Err(refusal.into())))
    }

    fn granted(&self) -> Option<Slot> {
        let endpoint = self.ticket.granted()?;
        let now = clock::now();
        self.backend.demand.shard(self.worker).grant(now);
        Some(Slot::new(self.backend.clone(), endpoint, now, self.worker))
    }
}

impl Drop for QueueGuard {
    fn drop(&mut self) {
        if self.backend.admission.cancel(&self.ticket) {
            self.backend.demand.shard(self.worker).abandon(clock::now());
        } else {
            // If the slot was granted at the same moment, it passes to the next waiting request.
            drop(self.granted());
        }
    }
}

/// The result of asking for a slot.
pub(crate) enum SlotAdmission {
    Slot(Slot),
    Queued(QueueGuard),
    Refused(Failure),
}

/// Asks for a slot for one request that must not wait in the queue.
pub(crate) fn enter_at_once(
    backend: &BackendRef,
    worker: usize,
    pick: &PickRequest<'_, EndpointData>,
) -> Option<Slot> {
    let current = backend.config();
    let limits = AdmissionLimits { max_waiting: 0, ..current.limits };
    let config = AdmissionConfig { set: &current.set, limits };
    let pick =
        &PickRequest { queueing: QueueParameters { deadline: pick.now, ..pick.queueing }, ..*pick };
    match enter(backend, worker, pick, config, || Waker::noop().clone()) {
        SlotAdmission::Slot(slot) => Some(slot),
        SlotAdmission::Queued(_) | SlotAdmission::Refused(_) => None,
    }
}

/// Asks for a slot for one request. If the request has to wait, `waker` is woken when it gets its slot.
pub(crate) fn enter(
    backend: &BackendRef,
    worker: usize,
    pick: &PickRequest<'_, EndpointData>,
    config: AdmissionConfig<'_, EndpointData>,
    waker: impl FnOnce() -> Waker,
) -> SlotAdmission {
    let limits = config.limits;
    let mut picker = lock(&backend.pickers[worker].0);
    let entry = backend.admission.enter(&mut picker, config, pick, || lock(&backend.queue), waker);
    match entry {
        AdmissionDecision::Slot(endpoint) => {
            backend.demand.shard(worker).take(pick.now);
            SlotAdmission::Slot(Slot::new(backend.clone(), endpoint, pick.now, worker))
        }
        AdmissionDecision::Waiting { ticket, evicted } => {
            evicted.into_iter().for_each(Waker::wake);
            backend.record_waiting(worker, pick.now);
            SlotAdmission::Queued(QueueGuard { backend: backend.clone(), ticket, worker })
        }
        AdmissionDecision::Rejected(refusal) => {
            backend.record_rejected(limits);
            SlotAdmission::Refused(refusal.into())
        }
    }
}
