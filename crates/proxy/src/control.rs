//! The handle on the control side: starts the workers, applies configuration, reads state and metrics.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use balance::demand::WINDOW;
use balance::{RequestDemand, SlotAssignment};
use gateway::Snapshot;
use gateway::snapshot::{
    BackendKey, BackendSettings, EndpointProtocol, EndpointSpec, Listener, TransportProtocol,
};
use quic::{SocketGroupChange, SocketGroups};
use thiserror::Error;
use tls::ServerTlsConfigs;
use tokio::sync::{mpsc, watch};

use crate::accept::bind::{BindAddress, TcpOrUdpSocket, udp_socket};
use crate::active_config::{
    ActiveConfig, ActiveListener, BoundListener, ListenerHttp3, StateRegistry,
};
use crate::affinity::AffinityKey;
use crate::alt_svc;
use crate::backend::Backend;
use crate::clock;
use crate::dial::pool::Endpoint;
use crate::health;
use crate::mutex::lock;
use crate::observe::{self, log_buffer};
use crate::worker::{self, DrainStage, ProxyState, Worker, WorkerCommand};

/// Interval at which a drain checks if the last connection has closed.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum time for which idle clients may still send a request during a drain; at most a third of the drain timeout.
const DRAIN_GRACE: Duration = Duration::from_secs(5);

/// Maximum number of ephemeral ports that are tried to find one that is free for UDP as well.
const PORT_ATTEMPTS: usize = 16;

/// Process-level settings of the data plane, as opposed to its configuration.
pub struct ProxySettings {
    pub workers: NonZeroUsize,
    pub access_log: Option<AccessLog>,
    /// True if histograms keep the trace IDs that clients send as exemplars.
    pub exemplars: bool,
    /// Key of session affinity, a secret of all replicas. `None`: the UID of each Service, or a random key.
    pub affinity_key: Option<Vec<u8>>,
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
    /// Mean number of concurrent requests demanded over the [`WINDOW`].
    pub demand: RequestDemand,
    /// Mean time for which a request holds a slot; `None`: no request has finished yet.
    pub service_time: Option<Duration>,
    pub endpoints: Vec<EndpointView>,
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

/// The demand for one backend, for autoscaling.
pub struct BackendDemand {
    backend: Arc<Backend>,
    rises: watch::Receiver<()>,
}

impl BackendDemand {
    /// Returns the mean over the last `window`, a minute at most.
    #[must_use]
    pub fn average(&self, window: Duration) -> RequestDemand {
        self.backend.demand.read(|averager| averager.average(window))
    }

    /// True if the mean over the last `window` exceeded `threshold`. With a threshold of 0: true if there is or was any
    /// demand at all.
    #[must_use]
    pub fn is_active(&self, window: Duration, threshold: f64) -> bool {
        self.backend.demand.read(|averager| averager.is_active(window, threshold))
    }

    /// Arms [`wait_for_rise`](Self::wait_for_rise): the next request that does not get its slot at once ends that wait.
    /// A caller that arms first, then checks the demand, then waits, misses no request.
    pub fn expect_rise(&mut self) {
        self.rises.mark_unchanged();
        self.backend.demand.expect_rise();
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
        let shared = Arc::new(ProxyState::new(senders, settings.exemplars));
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
            let work = move || {
                let log = log_buffer::AccessLogBuffer::new(sample, writer);
                if let Err(error) = worker::run::run(Worker::new(index, shared, log), commands) {
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
        let registry = StateRegistry::new(count, affinity_key);
        let (server_tls, groups) = (ServerTlsConfigs::default(), SocketGroups::default());
        let control = Mutex::new(ControlState { registry, server_tls, groups, threads });
        Ok(Self { shared, control })
    }

    /// Puts the Snapshot in force. Returns the listeners that could not be bound; everything else is in force.
    pub fn apply(&self, snapshot: &Snapshot) -> Vec<ListenError> {
        let mut control = lock(&self.control);
        let old = self.shared.config.load();
        let mut errors = Vec::new();
        let mut live = ActiveConfig {
            listeners: (0..old.listeners.len()).map(|_| None).collect(),
            routes: control.registry.routes(&snapshot.rules),
            backends: control.registry.backends(snapshot),
        };
        let (mut sockets, mut groups) = (Vec::new(), BTreeMap::new());
        let sni_tables =
            control.server_tls.sni_tables(snapshot.listeners.iter().map(|it| it.tls.as_deref()));
        let is_ending = self.shared.stage() >= DrainStage::Draining;
        for (requested, tls) in snapshot.listeners.iter().zip(sni_tables) {
            let mut known = old.listeners.iter().flatten();
            let bound = match known.find(|known| known.bound.matches_listener(requested)) {
                Some(known) => Arc::clone(&known.bound),
                // During a drain no new listener is opened.
                None if is_ending => continue,
                None => match self.bind(&mut control.groups, &mut live, requested) {
                    Ok((bound, socket)) => {
                        sockets.push((Arc::clone(&bound), socket));
                        bound
                    }
                    Err(source) => {
                        let transport = requested.protocol.transport();
                        errors.push(ListenError::of(
                            requested,
                            transport,
                            requested.address,
                            source,
                        ));
                        continue;
                    }
                },
            };
            let place = bound.listener_index;
            let mut http3 = None;
            if let Some(settings) = requested.http3 {
                let address = bound.address;
                let bind_address = BindAddress { address, free_bind: requested.free_bind };
                let new_socket = || udp_socket(bind_address);
                match control.groups.bind(address, self.shared.workers.len(), new_socket) {
                    Ok(group) => {
                        groups.insert(place, group);
                        let port = requested.public_port.unwrap_or_else(|| address.port());
                        let alt_svc = alt_svc::value(&settings, port);
                        http3 = Some(ListenerHttp3 { settings, alt_svc });
                    }
                    Err(source) => {
                        errors.push(ListenError::of(
                            requested,
                            TransportProtocol::Udp,
                            address,
                            source,
                        ));
                    }
                }
            }
            live.listeners[place] = Some(ActiveListener {
                name: Arc::clone(&requested.name),
                public_port: requested.public_port.unwrap_or_else(|| bound.address.port()),
                bound,
                client: Arc::clone(&requested.client),
                protocol: requested.protocol.clone(),
                sni_table: tls,
                http3,
            });
        }
        let change = control.groups.open(groups);
        self.activate(&old, live, sockets, change);
        self.shared.health_waker.wake();
        errors
    }

    /// Binds a new address and appends an entry for its listener.
    fn bind(
        &self,
        groups: &mut SocketGroups,
        live: &mut ActiveConfig,
        requested: &Listener,
    ) -> io::Result<(Arc<BoundListener>, TcpOrUdpSocket)> {
        let workers = self.shared.workers.len();
        let (socket, bound_to) = listen(groups, workers, requested)?;
        live.listeners.push(None);
        let place = live.listeners.len() - 1;
        let transport = requested.protocol.transport();
        let bound = BoundListener::new(place, transport, requested.address, bound_to, workers);
        Ok((Arc::new(bound), socket))
    }

    /// Publishes the configuration, then opens and closes sockets: no connection arrives at an unknown listener.
    fn activate(
        &self,
        old: &ActiveConfig,
        live: ActiveConfig,
        sockets: Vec<(Arc<BoundListener>, TcpOrUdpSocket)>,
        change: SocketGroupChange,
    ) {
        let live = Arc::new(live);
        let is_gone = |place: usize| live.listeners.get(place).is_none_or(Option::is_none);
        let gone: Vec<usize> = old
            .listeners
            .iter()
            .flatten()
            .map(|listener| listener.bound.listener_index)
            .filter(|&place| is_gone(place))
            .collect();
        self.shared.config.store(Arc::clone(&live));
        for (bound, socket) in sockets {
            self.accepting_worker(bound.listener_index).send(WorkerCommand::Listen(bound, socket));
        }
        for &place in &gone {
            self.accepting_worker(place).send(WorkerCommand::Unlisten { place });
        }
        for (place, group) in change.opened {
            let Some(listener) = &live.listeners[place] else { continue };
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

    /// Replaces the endpoints of one backend, without a new Snapshot. Returns false if no rule refers to this backend.
    pub fn set_endpoints(&self, key: &BackendKey, endpoints: &[EndpointSpec]) -> bool {
        let known = lock(&self.control).registry.set_endpoints(key, endpoints);
        self.shared.health_waker.wake();
        known
    }

    /// Divides fixed caps among replicas from the next request on. Until the first call this replica has all slots.
    pub fn set_slot_assignment(&self, assignment: SlotAssignment) {
        self.shared.replicas.store(assignment.members(), Ordering::Relaxed);
        lock(&self.control).registry.set_slot_assignment(assignment);
        self.shared.health_waker.wake();
    }

    pub fn listeners(&self) -> Vec<ListenerView> {
        let live = self.shared.config.load();
        let view = |listener: &ActiveListener| ListenerView {
            name: Arc::clone(&listener.name),
            address: listener.bound.address,
            http3: listener.http3.is_some(),
            connections: u64::from(listener.bound.open()),
        };
        live.listeners.iter().flatten().map(view).collect()
    }

    pub fn backends(&self) -> Vec<BackendView> {
        self.shared.config.load().backends.iter().map(|backend| view_backend(backend)).collect()
    }

    /// Returns the keys of all backends.
    #[must_use]
    pub fn backend_keys(&self) -> Vec<BackendKey> {
        self.shared.config.load().backends.iter().map(|backend| backend.key.clone()).collect()
    }

    /// Returns the demand for a backend; `None`: there is no such backend.
    #[must_use]
    pub fn demand(&self, key: &BackendKey) -> Option<BackendDemand> {
        let live = self.shared.config.load();
        let backend = live.backends.iter().find(|backend| backend.key == *key)?;
        let rises = backend.demand.subscribe_rises();
        Some(BackendDemand { backend: Arc::clone(backend), rises })
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
        let live = self.shared.config.load();
        self.shared.enter_stage(DrainStage::Draining);
        for listener in live.listeners.iter().flatten() {
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

/// Opens a socket for a new listener and returns it with its address. If any port will do and the listener serves
/// HTTP/3, the port is one that is free for UDP too.
fn listen(
    groups: &mut SocketGroups,
    workers: usize,
    requested: &Listener,
) -> io::Result<(TcpOrUdpSocket, SocketAddr)> {
    // Ports that did not fit stay bound during the search, so that the kernel does not assign them again.
    let mut held = Vec::new();
    loop {
        let bind_address =
            BindAddress { address: requested.address, free_bind: requested.free_bind };
        let socket = TcpOrUdpSocket::bind(requested.protocol.transport(), bind_address)?;
        let address = socket.address()?;
        let needs_udp_port = requested.http3.is_some()
            && requested.address.port() == 0
            && held.len() < PORT_ATTEMPTS;
        let new_socket = || udp_socket(address.into());
        if !needs_udp_port || groups.bind(address, workers, new_socket).is_ok() {
            return Ok((socket, address));
        }
        held.push(socket);
    }
}

fn view_backend(backend: &Backend) -> BackendView {
    let current = backend.current();
    let members = current.set.members().iter();
    let limits = backend.limits(&current);
    let statuses = backend.health.status_words(&current.settings.health);
    let (demand, service_time) =
        backend.demand.read(|averager| (averager.average(WINDOW), averager.service_time()));
    BackendView {
        demand,
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
