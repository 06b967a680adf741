//! The handle on the control side: starts the workers, tells them what is in force, asks them what they do.

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
use thiserror::Error;
use tokio::sync::{mpsc, watch};

use crate::accept::h3;
use crate::accept::listen::{BindAddress, TcpOrUdpSocket};
use crate::active_config::{
    ActiveConfig, ActiveListener, ListenerHttp3, ListenerSocket, StateRegistry,
};
use crate::alt_svc;
use crate::backend::Backend;
use crate::clock;
use crate::dial::pool::{Endpoint, lock};
use crate::health;
use crate::observe::{self, access};
use crate::quic::{self, SocketGroups};
use crate::tls::ServerTlsConfigs;
use crate::worker::{self, DrainStage, ProxyState, Worker, WorkerCommand};

/// How often a drain looks whether the last connection has gone.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Idle clients may still send a request for a third of the time for draining, and for no longer than this.
const DRAIN_GRACE: Duration = Duration::from_secs(5);

/// Ports that are tried where any will do, until one is free for UDP as well.
const PORT_ATTEMPTS: usize = 16;

/// How the data plane runs; not what it does.
pub struct ProxySettings {
    pub workers: NonZeroUsize,
    pub access_log: Option<AccessLog>,
    /// Whether histograms keep the ids of traces that clients send.
    pub exemplars: bool,
}

/// Where and how much is logged of requests.
pub struct AccessLog {
    /// The share of requests that are logged: more than 0, at most 1.
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

/// An address that cannot be listened on.
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
        asked: &Listener,
        transport: TransportProtocol,
        address: SocketAddr,
        source: io::Error,
    ) -> Self {
        Self { name: Arc::clone(&asked.name), transport, address, source }
    }
}

/// A listener as an operator sees it.
#[derive(Clone, Debug)]
pub struct ListenerView {
    pub name: Arc<str>,
    /// With the port that the kernel gave.
    pub address: SocketAddr,
    /// HTTP/3 is served at the UDP port of the same number.
    pub http3: bool,
    pub connections: u64,
}

/// A backend as an operator sees it.
#[derive(Clone, Debug)]
pub struct BackendView {
    pub key: BackendKey,
    pub settings: BackendSettings,
    /// Requests that wait for a slot.
    pub waiting: u32,
    /// Too few endpoints are usable, so that health is ignored.
    pub panicking: bool,
    /// Attempts beyond a request's first, so far.
    pub retries: u64,
    /// Requests that it was asked for at a time, on average over the [`WINDOW`].
    pub demand: RequestDemand,
    /// How long a request holds a slot, on average; `None`: none has yet.
    pub service_time: Option<Duration>,
    pub endpoints: Vec<EndpointView>,
}

/// An endpoint as an operator sees it.
#[derive(Clone, Debug)]
pub struct EndpointView {
    pub address: SocketAddr,
    /// In force now: 0 for one that is out, less than all for one that starts.
    pub weight: u32,
    /// How it stands, in a word.
    pub health: &'static str,
    pub in_flight: u32,
    /// How many requests it may have at once, and in a word where that comes from; `None`: any number.
    pub limit: Option<(u32, &'static str)>,
    pub idle_connections: usize,
    /// Attempts so far, over all backends that name it.
    pub requests: u64,
    /// Of these, those that failed by its fault.
    pub failures: u64,
    /// To the head of the response, where PeakEwma learns it; `None`: not known yet, or no longer.
    pub latency: Option<Duration>,
    /// Whether HTTP/3 works, in a word; `None`: it is not what the backend speaks.
    pub http3: Option<&'static str>,
}

/// The demand for one backend, for who scales it.
pub struct BackendDemand {
    backend: Arc<Backend>,
    rises: watch::Receiver<()>,
}

impl BackendDemand {
    /// The mean over the last `window`, a minute at most.
    #[must_use]
    pub fn average(&self, window: Duration) -> RequestDemand {
        self.backend.demand.read(|meter| meter.average(window))
    }

    /// Whether there was more than `threshold` on average over the last `window`; with a threshold of 0, whether there
    /// is or was any at all.
    #[must_use]
    pub fn is_active(&self, window: Duration, threshold: f64) -> bool {
        self.backend.demand.read(|meter| meter.is_active(window, threshold))
    }

    /// From now on the next request that does not get its slot at once ends the wait of [`rise`](Self::rise). Who looks
    /// after that, and waits if there is nothing, misses none.
    pub fn expect_rise(&mut self) {
        self.rises.mark_unchanged();
        self.backend.demand.expect_rise();
    }

    /// Waits for that request.
    pub async fn wait_for_rise(&mut self) {
        // Its sender is the backend's, which is here.
        drop(self.rises.changed().await);
    }

    /// Requests that one endpoint may have in flight, the mean in whole numbers where it is learned of each; `None`: as
    /// many as may come, or nothing has been learned.
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
    /// Starts the workers; nothing is listened on yet.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(settings: ProxySettings) -> io::Result<Self> {
        let count = settings.workers.get();
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..count).map(|_| mpsc::unbounded_channel()).unzip();
        let shared = Arc::new(ProxyState::new(senders, settings.exemplars));
        let mut threads = Vec::new();
        let (mut sample, mut writer) = (0.0, None);
        if let Some(log) = settings.access_log {
            let (sender, thread) = access::start_writer(log.output)?;
            (sample, writer) = (log.sample, Some(sender));
            threads.push(thread);
        }
        for (index, commands) in receivers.into_iter().enumerate() {
            let (shared, writer) = (Arc::clone(&shared), writer.clone());
            let work = move || {
                let log = access::AccessLogBuffer::new(sample, writer);
                if let Err(error) = worker::run(Worker::new(index, shared, log), commands) {
                    tracing::error!(worker = index, %error, "the worker cannot run");
                }
            };
            let thread = std::thread::Builder::new().name(format!("worker-{index}"));
            threads.push(thread.spawn(work)?);
        }
        let watched = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("health".to_owned());
        threads.push(thread.spawn(move || {
            if let Err(error) = health::run(&watched) {
                tracing::error!(%error, "nobody watches the health of endpoints");
            }
        })?);
        let (estate, servers, groups) =
            (StateRegistry::new(count), ServerTlsConfigs::new(), SocketGroups::default());
        let control =
            Mutex::new(ControlState { registry: estate, server_tls: servers, groups, threads });
        Ok(Self { shared, control })
    }

    /// Puts the Snapshot in force. What cannot be listened on is returned; all else is in force.
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
        let sites =
            control.server_tls.sni_tables(snapshot.listeners.iter().map(|it| it.tls.as_deref()));
        let is_ending = self.shared.stage() >= DrainStage::Draining;
        for (asked, tls) in snapshot.listeners.iter().zip(sites) {
            let mut known = old.listeners.iter().flatten();
            let bound = match known.find(|known| known.bound.matches_listener(asked)) {
                Some(known) => Arc::clone(&known.bound),
                // Nobody is taken in any more.
                None if is_ending => continue,
                None => match self.bind(&mut control.groups, &mut live, asked) {
                    Ok((bound, socket)) => {
                        sockets.push((Arc::clone(&bound), socket));
                        bound
                    }
                    Err(source) => {
                        let transport = asked.protocol.transport();
                        errors.push(ListenError::of(asked, transport, asked.address, source));
                        continue;
                    }
                },
            };
            let place = bound.listener_index;
            let mut http3 = None;
            if let Some(settings) = asked.http3 {
                let address = bound.address;
                let spot = BindAddress { address, free_bind: asked.free_bind };
                match control.groups.bind(spot, self.shared.workers.len()) {
                    Ok(group) => {
                        groups.insert(place, group);
                        let port = asked.public_port.unwrap_or_else(|| address.port());
                        let alt_svc = alt_svc::value(&settings, port);
                        http3 = Some(ListenerHttp3 { settings, alt_svc });
                    }
                    Err(source) => {
                        errors.push(ListenError::of(
                            asked,
                            TransportProtocol::Udp,
                            address,
                            source,
                        ));
                    }
                }
            }
            live.listeners[place] = Some(ActiveListener {
                name: Arc::clone(&asked.name),
                public_port: asked.public_port.unwrap_or_else(|| bound.address.port()),
                bound,
                client: Arc::clone(&asked.client),
                protocol: asked.protocol.clone(),
                sni_table: tls,
                http3,
            });
        }
        let change = control.groups.open(groups);
        self.activate(&old, live, sockets, change);
        self.shared.health_waker.wake();
        errors
    }

    /// Takes a free place for a new address.
    fn bind(
        &self,
        groups: &mut SocketGroups,
        live: &mut ActiveConfig,
        asked: &Listener,
    ) -> io::Result<(Arc<ListenerSocket>, TcpOrUdpSocket)> {
        let workers = self.shared.workers.len();
        let (socket, bound_to) = listen(groups, workers, asked)?;
        live.listeners.push(None);
        let place = live.listeners.len() - 1;
        let transport = asked.protocol.transport();
        let bound = ListenerSocket::new(place, transport, asked.address, bound_to, workers);
        Ok((Arc::new(bound), socket))
    }

    /// First the Snapshot, then the sockets: no connection comes by a listener that is not known.
    fn activate(
        &self,
        old: &ActiveConfig,
        live: ActiveConfig,
        sockets: Vec<(Arc<ListenerSocket>, TcpOrUdpSocket)>,
        change: quic::SocketGroupChange,
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
            let (bound, serve): (_, quic::ServeConnection) = (&listener.bound, h3::begin);
            self.broadcast(|| {
                WorkerCommand::ListenQuic(Arc::clone(bound), Arc::clone(&group), serve)
            });
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
        self.shared.workers.iter().for_each(|seat| seat.send(command()));
    }

    /// The worker that accepts for a place.
    fn accepting_worker(&self, place: usize) -> &worker::WorkerHandle {
        &self.shared.workers[place % self.shared.workers.len()]
    }

    /// The short way: new endpoints for one backend. False if no rule names such a backend.
    pub fn set_endpoints(&self, key: &BackendKey, endpoints: &[EndpointSpec]) -> bool {
        let known = lock(&self.control).registry.set_endpoints(key, endpoints);
        self.shared.health_waker.wake();
        known
    }

    /// From the next request on fixed caps are shared with other Sheaves so. Until the first call each is ours alone.
    pub fn set_slot_assignment(&self, deal: SlotAssignment) {
        self.shared.replicas.store(deal.members(), Ordering::Relaxed);
        lock(&self.control).registry.set_slot_assignment(deal);
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

    /// The backends that there are.
    #[must_use]
    pub fn backend_keys(&self) -> Vec<BackendKey> {
        self.shared.config.load().backends.iter().map(|backend| backend.key.clone()).collect()
    }

    /// How much a backend is asked for; `None`: there is no such backend, or no longer.
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

    /// Says to clients with each answer that their connections will be closed, and still takes in who comes: what `drain`
    /// is to come after, once nobody sends clients here any more.
    pub fn announce_shutdown(&self) {
        self.shared.enter_stage(DrainStage::Announcing);
    }

    /// Stops listening, lets running requests end and says to clients that their connections will be closed. True: all
    /// connections had gone in time.
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
        self.shared.workers.iter().for_each(|seat| seat.send(WorkerCommand::Stop));
        self.shared.health_waker.stop();
        for thread in lock(&self.control).threads.drain(..).rev() {
            // A worker that panicked has said so.
            drop(thread.join());
        }
    }
}

/// A socket for a new listener, and its address. Where any port will do, it is one that HTTP/3 can have too.
fn listen(
    groups: &mut SocketGroups,
    workers: usize,
    asked: &Listener,
) -> io::Result<(TcpOrUdpSocket, SocketAddr)> {
    // Those that are held are not given again.
    let mut held = Vec::new();
    loop {
        let spot = BindAddress { address: asked.address, free_bind: asked.free_bind };
        let socket = TcpOrUdpSocket::bind(asked.protocol.transport(), spot)?;
        let address = socket.address()?;
        let is_choosy =
            asked.http3.is_some() && asked.address.port() == 0 && held.len() < PORT_ATTEMPTS;
        if !is_choosy || groups.bind(address, workers).is_ok() {
            return Ok((socket, address));
        }
        held.push(socket);
    }
}

fn view_backend(backend: &Backend) -> BackendView {
    let current = backend.current();
    let members = current.set.members().iter();
    let limits = backend.limits(&current);
    let standings = backend.health.status_words(&current.settings.health);
    let (demand, service_time) =
        backend.demand.read(|meter| (meter.average(WINDOW), meter.service_time()));
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
                let standing = standings.get(&member.endpoint.address).copied();
                let health = match member.endpoint.is_reachable() {
                    true => standing.unwrap_or("serving"),
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
