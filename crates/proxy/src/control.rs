//! The handle on the control side: starts the workers, applies configuration, reads state and metrics.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroUsize;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use balance::demand::{ProxylessRequests, RequestRates, WINDOW};
use balance::rate_limit::ReplicaPart;
use balance::{RequestDemand, SlotAssignment};
use gateway::Snapshot;
use gateway::jwks::JwksSubscription;
use gateway::snapshot::{
    BackendKey, BackendSettings, EndpointProtocol, EndpointSpec, Listener, Rule, RuleTarget,
    TransportProtocol, WeightedTarget,
};
use quic::{SocketGroupChange, SocketGroups};
use thiserror::Error;
use tls::{ServerTlsConfigs, TicketKeyRing};
use tokio::sync::{mpsc, watch};

use crate::accept::bind::TcpOrUdpSocket;
use crate::active_config::{
    ActiveConfig, ActiveListener, BoundListener, HeadTreatment, ListenerHttp3, Route, StateRegistry,
};
use crate::affinity::AffinityKey;
use crate::alt_svc;
use crate::backend::Backend;
use crate::clock;
use crate::demand::{OtherDemand, RiseListener};
use crate::dial::pool::Endpoint;
use crate::health;
use crate::interception::{ConnectionInterceptor, InterceptionState};
use crate::lease_signal::LeaseSignal;
use crate::mutex::lock;
use crate::observe::{self, log_buffer};
use crate::resources::ResourceBudgets;
use crate::trace::TraceSettings;
use crate::worker::{self, DrainStage, ProxyState, Worker, WorkerCommand};

/// Binding of addresses.
mod binding;
/// Handover of listening sockets to another process.
mod handover;
/// Acceptance of intercepted connections.
mod interception;
/// Counts of the traffic, for pages and curves.
mod traffic;

use binding::SnapshotBinding;
pub use handover::ListeningSocket;
use handover::SocketHandover;
pub use traffic::{
    BackendTraffic, ListenerTraffic, RateLimitTraffic, RouteTraffic, TrafficSummary,
};

/// Interval at which a drain checks if the last connection has closed.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum time for which idle clients may still send a request during a drain; at most a third of the drain timeout.
const DRAIN_GRACE: Duration = Duration::from_secs(5);

/// Process-level settings of the data plane, as opposed to its configuration.
pub struct ProxySettings {
    pub workers: NonZeroUsize,
    pub access_log: Option<AccessLog>,
    /// True if histograms keep the trace IDs that clients send as exemplars.
    pub exemplars: bool,
    /// Traces of requests; `None`: requests are not traced.
    pub traces: Option<TraceSettings>,
    /// Bytes of memory that the process may have; `None`: memory is not limited.
    pub memory_limit: Option<u64>,
    /// File descriptors that the process may have; `None`: they are not limited.
    pub max_descriptors: Option<u64>,
    /// Key of session affinity, a secret of all replicas. `None`: the UID of each Service, or a random key.
    pub affinity_key: Option<Vec<u8>>,
    /// The interception of connections on this node; `None`: there is none.
    pub interceptor: Option<Arc<dyn ConnectionInterceptor>>,
    /// True if replicas lease slots of endpoints with a fixed cap to one another, and share what they know: then
    /// requests get no such slot before [`SlotLeases::step`](crate::SlotLeases::step) has been called, and there are
    /// no session tickets without a [`TicketKeyExchange`](crate::TicketKeyExchange).
    pub leases_slots: bool,
}

/// Output and sampling of the access log.
pub struct AccessLog {
    /// The fraction of requests that is logged: more than 0, at most 1.
    pub sample: f64,
    pub output: Box<dyn Write + Send>,
}

/// A running data plane.
pub struct Proxy {
    shared: Arc<ProxyState>,
    control: Mutex<ControlState>,
}

struct ControlState {
    registry: StateRegistry,
    server_tls: ServerTlsConfigs,
    groups: SocketGroups,
    handover: SocketHandover,
    threads: Vec<JoinHandle<()>>,
}

/// An error in binding a listener's address.
#[derive(Debug, Error)]
#[error("cannot listen on {address}{} ({name})", suffix(*transport))]
pub struct ListenError {
    pub name: Arc<str>,
    pub transport: TransportProtocol,
    pub address: SocketAddr,
    pub source: io::Error,
}

fn suffix(transport: TransportProtocol) -> &'static str {
    match transport {
        TransportProtocol::Tcp => "",
        TransportProtocol::Udp => "/udp",
    }
}

impl ListenError {
    fn of(
        requested: &Listener,
        transport: TransportProtocol,
        address: SocketAddr,
        source: io::Error,
    ) -> Self {
        Self { name: Arc::clone(&requested.name), transport, address, source }
    }
}

/// A listener as an operator sees it.
#[derive(Clone, Debug)]
pub struct ListenerView {
    pub name: Arc<str>,
    /// The bound address, with the port that the kernel assigned.
    pub address: SocketAddr,
    /// True if HTTP/3 is served at the UDP port of the same number.
    pub http3: bool,
    pub connections: u64,
}

/// A backend as an operator sees it.
#[derive(Clone, Debug)]
pub struct BackendView {
    pub key: BackendKey,
    pub settings: BackendSettings,
    /// Requests that are waiting for a slot.
    pub waiting: u32,
    /// True in panic mode: too few endpoints are healthy, so health is ignored.
    pub panicking: bool,
    /// Attempts beyond a request's first, since the start.
    pub retries: u64,
    /// Mean number of concurrent requests demanded of this replica over the [`WINDOW`].
    pub demand: RequestDemand,
    /// The same at all replicas together, as far as they report to this one.
    pub demand_of_all_replicas: RequestDemand,
    /// Rates of requests over the [`WINDOW`] at all replicas together.
    pub rates_of_all_replicas: RequestRates,
    /// Mean time for which a request holds a slot; `None`: no request has finished yet.
    pub service_time: Option<Duration>,
    pub endpoints: Vec<EndpointView>,
}

/// A rule of a route as an operator sees it.
#[derive(Clone, Debug)]
pub struct RouteView {
    /// `namespace/route/rule`.
    pub name: Arc<str>,
    /// Backends that the rule refers to.
    pub backends: Vec<BackendKey>,
    /// Rates of requests over the [`WINDOW`] at all replicas together; `None` unless they are averaged
    /// ([`Proxy::average_routes`]).
    pub rates_of_all_replicas: Option<RequestRates>,
}

/// An endpoint as an operator sees it.
#[derive(Clone, Debug)]
pub struct EndpointView {
    pub address: SocketAddr,
    /// Effective weight: 0 if the endpoint is ejected, reduced during slow start.
    pub weight: u32,
    /// Health status in a word.
    pub health: &'static str,
    pub in_flight: u32,
    /// Concurrency limit and the origin of the limit in a word; `None`: unlimited.
    pub limit: Option<(u32, &'static str)>,
    pub idle_connections: usize,
    /// Attempts since the start, over all backends that contain it.
    pub requests: u64,
    /// Attempts that failed through the endpoint's fault.
    pub failures: u64,
    /// Latency to the head of the response, if PeakEwma measures it; `None`: no current estimate.
    pub latency: Option<Duration>,
    /// Availability of HTTP/3 in a word; `None`: the backend does not use HTTP/3.
    pub http3: Option<&'static str>,
}

/// The demand for one backend at all replicas together, for autoscaling.
pub struct BackendDemand {
    backend: Arc<Backend>,
    rises: watch::Receiver<()>,
}

impl BackendDemand {
    fn of(backend: &Arc<Backend>) -> Self {
        let rises = backend.demand.subscribe_rises();
        Self { backend: Arc::clone(backend), rises }
    }

    /// Returns the mean over the last `window`, a minute at most, at all replicas that report to this one.
    #[must_use]
    pub fn average(&self, window: Duration) -> RequestDemand {
        self.backend.demand.average_of_all(window)
    }

    /// Returns the mean over the last `window` without what clients report to this replica.
    #[must_use]
    pub fn average_of_others(&self, window: Duration) -> OtherDemand {
        self.backend.demand.average_of_others(window)
    }

    /// Returns the rates of requests over the last [`WINDOW`] at all replicas that report to this one.
    #[must_use]
    pub fn rates(&self) -> RequestRates {
        self.backend.demand.rates_of_all()
    }

    /// True if the mean over the last `window` exceeded `threshold`. With a threshold of 0: true if there is or was any
    /// demand at all. Demand at all replicas that report to this one counts.
    #[must_use]
    pub fn is_active(&self, window: Duration, threshold: f64) -> bool {
        self.backend.demand.is_active(window, threshold)
    }

    /// True if the backend has an endpoint.
    #[must_use]
    pub fn has_endpoint(&self) -> bool {
        !self.backend.current().set.members().is_empty()
    }

    /// Arms [`wait_for_rise`](Self::wait_for_rise): the next request that does not get its slot at once ends that wait.
    /// A caller that arms first, then checks the demand, then waits, misses no request.
    pub fn expect_rise(&mut self) {
        self.rises.mark_unchanged();
        self.backend.demand.expect_rise(RiseListener::Subscribers);
    }

    /// Waits for the request that [`expect_rise`](Self::expect_rise) announces.
    pub async fn wait_for_rise(&mut self) {
        // The sender cannot be dropped: the backend owns it, and `self` holds the backend.
        drop(self.rises.changed().await);
    }

    /// Returns the concurrency limit of one endpoint; if limits are learned, their mean, rounded. `None`: unlimited, or
    /// no limit has been learned yet.
    #[must_use]
    pub fn cap(&self) -> Option<u32> {
        let current = self.backend.current();
        let cap = current.limits.cap;
        if let Some(fixed) = cap.fixed() {
            return Some(fixed.get());
        }
        let members = current.set.members().iter();
        let limits: Vec<u32> = members.filter_map(|member| member.limit(cap)).collect();
        let sum: u64 = limits.iter().copied().map(u64::from).sum();
        let mean = (sum + limits.len() as u64 / 2).checked_div(limits.len() as u64);
        mean.and_then(|mean| u32::try_from(mean).ok())
    }
}

impl Proxy {
    /// Starts the workers, without any listener.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(settings: ProxySettings) -> io::Result<Self> {
        let count = settings.workers.get();
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..count).map(|_| mpsc::unbounded_channel()).unzip();
        let budgets = ResourceBudgets::new(settings.memory_limit, settings.max_descriptors);
        let interception = InterceptionState::new(settings.interceptor.clone());
        let leases = settings.leases_slots.then(Arc::<LeaseSignal>::default);
        let state = ProxyState::new(
            senders,
            settings.exemplars,
            settings.traces.as_ref().map(|traces| Arc::clone(&traces.counts)),
            Arc::clone(&budgets),
            interception,
            leases.clone(),
        );
        let shared = Arc::new(state);
        let affinity_key = AffinityKey::new(settings.affinity_key.as_deref());
        let mut threads = Vec::new();
        let (mut sample, mut writer) = (0.0, None);
        if let Some(log) = settings.access_log {
            let (sender, thread) = log_buffer::start_writer(log.output)?;
            (sample, writer) = (log.sample, Some(sender));
            threads.push(thread);
        }
        for (index, commands) in receivers.into_iter().enumerate() {
            let (shared, writer) = (Arc::clone(&shared), writer.clone());
            let traces = settings.traces.clone();
            let work = move || {
                let log = log_buffer::AccessLogBuffer::new(sample, writer);
                if let Err(error) =
                    worker::run::run(Worker::new(index, shared, log, traces), commands)
                {
                    tracing::error!(worker = index, %error, "worker failed");
                }
            };
            let thread = std::thread::Builder::new().name(format!("worker-{index}"));
            threads.push(thread.spawn(work)?);
        }
        let watched = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("health".to_owned());
        threads.push(thread.spawn(move || {
            if let Err(error) = health::thread::run(&watched) {
                tracing::error!(%error, "health thread failed, endpoint health is not evaluated");
            }
        })?);
        let registry =
            StateRegistry::new(count, budgets, affinity_key, settings.interceptor, leases);
        let ticket_keys =
            settings.leases_slots.then(|| Arc::new(TicketKeyRing::new(clock::since_boot)));
        let (server_tls, groups) = (ServerTlsConfigs::new(ticket_keys), SocketGroups::default());
        let handover = SocketHandover::default();
        let control = Mutex::new(ControlState { registry, server_tls, groups, handover, threads });
        Ok(Self { shared, control })
    }

    /// Returns the keys of session tickets that replicas share, if they do.
    pub(crate) fn shared_ticket_keys(&self) -> Option<Arc<TicketKeyRing>> {
        lock(&self.control).server_tls.shared_ticket_keys().cloned()
    }

    /// Puts the Snapshot in force. Returns the listeners that could not be bound; everything else is in force.
    pub fn apply(&self, snapshot: &Snapshot) -> Vec<ListenError> {
        let mut control = lock(&self.control);
        let binding = self.bind_all(&mut control, snapshot);
        self.put_in_force(&mut control, snapshot, binding)
    }

    /// Puts the Snapshot in force if each of its listeners can be bound. Otherwise nothing changes, and the listeners
    /// that could not be bound are the error. A listener that waits for an address of one that closes is no obstacle:
    /// it is returned, and can be bound by the next call.
    ///
    /// # Errors
    /// The listeners that could not be bound.
    pub fn apply_whole(&self, snapshot: &Snapshot) -> Result<Vec<ListenError>, Vec<ListenError>> {
        let mut control = lock(&self.control);
        let binding = self.bind_all(&mut control, snapshot);
        let waits = |error: &ListenError| binding.closing.iter().any(|it| it.is_in_way_of(error));
        if binding.errors.iter().all(waits) {
            return Ok(self.put_in_force(&mut control, snapshot, binding));
        }
        control.groups.discard_unopened();
        control.handover.restore(binding.sockets);
        Err(binding.errors)
    }

    /// Replaces the configuration in force; returns the listeners that could not be bound.
    fn put_in_force(
        &self,
        control: &mut ControlState,
        snapshot: &Snapshot,
        binding: SnapshotBinding,
    ) -> Vec<ListenError> {
        let SnapshotBinding { listeners, sockets, groups, errors, .. } = binding;
        let tls = snapshot.listeners.iter().map(|it| it.tls.as_deref());
        let mut sni_tables = control.server_tls.sni_tables(tls);
        let is_traced = self.shared.trace_counts.is_some();
        let mut listener = |place: usize, (index, bound): (usize, Arc<BoundListener>)| {
            let requested = &snapshot.listeners[index];
            let public_port = requested.public_port.unwrap_or_else(|| bound.address.port());
            let http3 = requested.http3.filter(|_| groups.contains_key(&place));
            ActiveListener {
                name: Arc::clone(&requested.name),
                public_port,
                bound,
                client: Arc::clone(&requested.client),
                head_treatment: HeadTreatment::of(&requested.client, is_traced),
                protocol: requested.protocol.clone(),
                sni_table: sni_tables[index].take(),
                http3: http3.map(|settings| {
                    let alt_svc = alt_svc::value(&settings, public_port);
                    ListenerHttp3 { settings, alt_svc }
                }),
                interception: requested.interception,
                consumer_routes: requested.consumer_routes.clone(),
                sources: requested.sources.clone(),
            }
        };
        let places = listeners.into_iter().enumerate();
        let listeners: Vec<_> =
            places.map(|(place, it)| it.map(|it| listener(place, it))).collect();
        let active_config = ActiveConfig {
            intercepting: interception::by_address(&listeners),
            listeners,
            routes: control.registry.routes(&snapshot.rules),
            rules: snapshot.rules.clone(),
            backends: control.registry.backends(snapshot),
            api_keys: control.registry.api_keys(&snapshot.api_keys),
            jwt: control.registry.jwt(&snapshot.jwt),
            rate_limiters: control.registry.rate_limiters(&snapshot.rate_limits),
        };
        let change = control.groups.open(groups);
        control.handover.update(&active_config, &sockets);
        self.activate(&self.shared.config.load(), active_config, sockets, change);
        self.shared.health_waker.wake();
        errors
    }

    /// Publishes the configuration, then opens and closes sockets: no connection arrives at an unknown listener.
    fn activate(
        &self,
        old: &ActiveConfig,
        active_config: ActiveConfig,
        sockets: Vec<(Arc<BoundListener>, TcpOrUdpSocket)>,
        change: SocketGroupChange,
    ) {
        let active_config = Arc::new(active_config);
        let is_gone = |place: usize| active_config.listeners.get(place).is_none_or(Option::is_none);
        let gone: Vec<usize> = old
            .listeners
            .iter()
            .flatten()
            .map(|listener| listener.bound.listener_index)
            .filter(|&place| is_gone(place))
            .collect();
        self.shared.config.store(Arc::clone(&active_config));
        if let Some(leases) = &self.shared.leases {
            leases.record_change();
        }
        for (bound, socket) in sockets {
            self.accepting_worker(bound.listener_index).send(WorkerCommand::Listen(bound, socket));
        }
        for &place in &gone {
            self.accepting_worker(place).send(WorkerCommand::Unlisten { place });
        }
        for (place, group) in change.opened {
            let Some(listener) = &active_config.listeners[place] else { continue };
            let bound = &listener.bound;
            self.broadcast(|| WorkerCommand::ListenQuic(Arc::clone(bound), Arc::clone(&group)));
        }
        for &place in &change.closed {
            self.broadcast(|| WorkerCommand::UnlistenQuic { place });
        }
        let has_closed = !gone.is_empty() || !change.closed.is_empty();
        if has_closed {
            self.broadcast(|| WorkerCommand::WakeConnections);
        }
    }

    fn broadcast(&self, command: impl Fn() -> WorkerCommand) {
        self.shared.workers.iter().for_each(|handle| handle.send(command()));
    }

    /// Returns the worker that accepts for a listener index.
    fn accepting_worker(&self, place: usize) -> &worker::WorkerHandle {
        &self.shared.workers[place % self.shared.workers.len()]
    }

    /// Waits until clients have sent tokens of keys that are in none of these key sets, and returns those. Cancel-safe.
    pub async fn stale_key_sets(&self) -> BTreeSet<Arc<JwksSubscription>> {
        self.shared.key_set_refresh.asked().await
    }

    /// Replaces the endpoints of one backend, without a new Snapshot. Returns false if no rule refers to this backend.
    pub fn set_endpoints(&self, key: &BackendKey, endpoints: &[EndpointSpec]) -> bool {
        let known = lock(&self.control).registry.set_endpoints(key, endpoints);
        self.shared.health_waker.wake();
        known
    }

    pub(crate) fn shared(&self) -> &Arc<ProxyState> {
        &self.shared
    }

    /// Divides fixed caps among replicas from the next request on. Until the first call this replica has all slots, or
    /// none if it leases slots ([`ProxySettings::leases_slots`]).
    pub fn set_slot_assignment(&self, assignment: SlotAssignment) {
        self.shared.replicas.store(assignment.members(), Ordering::Relaxed);
        lock(&self.control).registry.set_slot_assignment(assignment);
        self.shared.health_waker.wake();
    }

    /// Sets this replica's part of every bucket of a rate limit. Until the first call it is the whole.
    pub fn set_rate_limit_part(&self, part: ReplicaPart) {
        lock(&self.control).registry.set_rate_limit_part(part);
    }

    pub fn listeners(&self) -> Vec<ListenerView> {
        let active_config = self.shared.config.load();
        let view = |listener: &ActiveListener| ListenerView {
            name: Arc::clone(&listener.name),
            address: listener.bound.address,
            http3: listener.http3.is_some(),
            connections: u64::from(listener.bound.open()),
        };
        active_config.listeners.iter().flatten().map(view).collect()
    }

    pub fn backends(&self) -> Vec<BackendView> {
        self.shared.config.load().backends.iter().map(|backend| view_backend(backend)).collect()
    }

    pub fn routes(&self) -> Vec<RouteView> {
        let active_config = self.shared.config.load();
        let is_averaged = self.shared.averages_routes.load(Ordering::Relaxed);
        let backend = |weighted: &WeightedTarget| match weighted.target {
            RuleTarget::Backend(index) => Some(active_config.backends[index].key.clone()),
            RuleTarget::Unresolved => None,
        };
        let view = |(rule, route): (&Arc<Rule>, &Arc<Route>)| RouteView {
            name: Arc::clone(&rule.name),
            backends: rule.targets.iter().filter_map(backend).collect(),
            rates_of_all_replicas: is_averaged.then(|| route.rates.of_all(&route.counters)),
        };
        active_config.rules.iter().zip(&active_config.routes).map(view).collect()
    }

    /// Returns the requests in flight at each address of endpoints, all of its ports together.
    #[must_use]
    pub fn in_flight_by_address(&self) -> BTreeMap<IpAddr, u32> {
        let (mut loads, mut seen) = (BTreeMap::<_, u32>::new(), HashSet::new());
        for backend in &self.shared.config.load().backends {
            let current = backend.current();
            for member in current.set.members() {
                // Backends share endpoints.
                if seen.insert(Arc::as_ptr(&member.endpoint)) {
                    let load = loads.entry(member.endpoint.address.ip()).or_default();
                    *load = load.saturating_add(member.endpoint.in_flight());
                }
            }
        }
        loads
    }

    /// Returns the keys of all backends.
    #[must_use]
    pub fn backend_keys(&self) -> Vec<BackendKey> {
        self.shared.config.load().backends.iter().map(|backend| backend.key.clone()).collect()
    }

    /// Returns the demand for a backend; `None`: there is no such backend.
    #[must_use]
    pub fn demand(&self, key: &BackendKey) -> Option<BackendDemand> {
        let active_config = self.shared.config.load();
        let backends = &active_config.backends;
        let found = backends.binary_search_by(|backend| backend.key.cmp(key)).ok()?;
        Some(BackendDemand::of(&backends[found]))
    }

    /// Returns the demand for each backend of a Service.
    pub fn demands_of(&self, namespace: &str, service: &str) -> Vec<(BackendKey, BackendDemand)> {
        let active_config = self.shared.config.load();
        // They are sorted by key: a metrics API asks for one Service among thousands many times a second.
        let backends = &active_config.backends;
        let order =
            |key: &BackendKey| (*key.namespace).cmp(namespace).then((*key.service).cmp(service));
        let start = backends.partition_point(|backend| order(&backend.key).is_lt());
        let of_service = backends[start..].iter().take_while(|backend| order(&backend.key).is_eq());
        of_service.map(|backend| (backend.key.clone(), BackendDemand::of(backend))).collect()
    }

    /// Takes the requests that clients report: they send them to endpoints themselves. They count as demand of this
    /// replica, until others are reported for the backend.
    pub fn record_proxyless(&self, requests: &BTreeMap<BackendKey, ProxylessRequests>) {
        for backend in &self.shared.config.load().backends {
            if let Some(requests) = requests.get(&backend.key) {
                backend.demand.record_proxyless(*requests);
            }
        }
    }

    /// Averages the rates of routes from now on, for [`rates_of_routes`](Self::rates_of_routes), and reports them to
    /// other replicas. No request does anything for it.
    pub fn average_routes(&self) {
        self.shared.averages_routes.store(true, Ordering::Relaxed);
        if let Some(leases) = &self.shared.leases {
            leases.record_change();
        }
    }

    /// Returns the rates over the last [`WINDOW`], at all replicas that report to this one, of each rule whose name
    /// `is_selected` selects.
    pub fn rates_of_routes(
        &self,
        is_selected: impl Fn(&str) -> bool,
    ) -> Vec<(Arc<str>, RequestRates)> {
        let active_config = self.shared.config.load();
        let selected = active_config.routes.iter().filter(|route| is_selected(&route.name));
        let rates =
            |route: &Arc<Route>| (Arc::clone(&route.name), route.rates.of_all(&route.counters));
        selected.map(rates).collect()
    }

    /// Calls `sink` with every value of every metric, those of one metric together.
    pub fn collect(&self, sink: &mut dyn FnMut(observe::MetricSample<'_>)) {
        observe::collect(&self.shared, sink);
    }

    /// Announces with each answer that the connection will be closed, and still accepts new connections. The caller
    /// calls `drain` later, once no load balancer sends clients to this replica any more.
    pub fn announce_shutdown(&self) {
        self.shared.enter_stage(DrainStage::Announcing);
    }

    /// Stops listening, lets running requests finish and announces to clients that their connections will be closed.
    /// Returns true if all connections closed within the timeout.
    pub fn drain(&self, timeout: Duration) -> bool {
        let started = clock::now();
        let active_config = self.shared.config.load();
        // Clients must not wait in the accept queue of a socket that is kept for a successor.
        lock(&self.control).handover.close();
        self.shared.enter_stage(DrainStage::Draining);
        self.stop_intercepted();
        for listener in active_config.listeners.iter().flatten() {
            let place = listener.bound.listener_index;
            self.accepting_worker(place).send(WorkerCommand::Unlisten { place });
            self.broadcast(|| WorkerCommand::UnlistenQuic { place });
        }
        while self.shared.connections() > 0 {
            let passed = clock::now().saturating_since(started);
            if passed >= timeout {
                return false;
            }
            if passed >= DRAIN_GRACE.min(timeout / 3) && self.shared.stage() == DrainStage::Draining
            {
                self.shared.enter_stage(DrainStage::Closing);
            }
            std::thread::sleep(DRAIN_POLL_INTERVAL);
        }
        true
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.workers.iter().for_each(|handle| handle.send(WorkerCommand::Stop));
        self.shared.health_waker.stop();
        for thread in lock(&self.control).threads.drain(..).rev() {
            // A panic has already been reported by the thread itself.
            drop(thread.join());
        }
    }
}

fn view_backend(backend: &Backend) -> BackendView {
    let current = backend.current();
    let members = current.set.members().iter();
    let limits = backend.limits(&current);
    let statuses = backend.health.status_labels(&current.settings.health);
    let (demand, service_time) =
        backend.demand.read(|averager| (averager.average(WINDOW), averager.service_time()));
    BackendView {
        demand,
        demand_of_all_replicas: backend.demand.average_of_all(WINDOW),
        rates_of_all_replicas: backend.demand.rates_of_all(),
        service_time,
        panicking: backend.health.is_panicking(),
        key: backend.key.clone(),
        settings: current.settings.clone(),
        waiting: backend.waiting(),
        retries: backend.counters.iter().map(|shard| shard.retries.value()).sum(),
        endpoints: members
            .map(|member| {
                let status = statuses.get(&member.endpoint.address).copied();
                let health = match member.endpoint.is_reachable() {
                    true => status.unwrap_or("serving"),
                    false => "unreachable",
                };
                let protocol = current.settings.protocol;
                let limit = limits.get(&member.endpoint.address).copied();
                EndpointView {
                    limit,
                    ..view_endpoint(&member.endpoint, member.weight, health, protocol)
                }
            })
            .collect(),
    }
}

fn view_endpoint(
    endpoint: &Endpoint,
    weight: u32,
    health: &'static str,
    protocol: EndpointProtocol,
) -> EndpointView {
    let http3 = if endpoint.data.http3_reachability.is_available() { "open" } else { "avoided" };
    let shards = endpoint.data.counters.iter();
    EndpointView {
        address: endpoint.address,
        weight,
        health,
        in_flight: endpoint.in_flight(),
        idle_connections: endpoint.data.idle_connections(),
        requests: shards.clone().map(|shard| shard.attempts.value()).sum(),
        failures: shards.map(|shard| shard.failures.value()).sum(),
        latency: endpoint.latency(clock::now()),
        limit: None,
        http3: (protocol == EndpointProtocol::Http3).then_some(http3),
    }
}
