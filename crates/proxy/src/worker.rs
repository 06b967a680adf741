//! A worker: one thread with its own runtime and connections, and the handle through which other threads reach it.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::Waker;

use balance::{Rng, Time};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use crate::accept::accepted_connection::ConnectionHandover;
use crate::accept::bind::TcpOrUdpSocket;
use crate::accept::handshake_limiter::HandshakeLimiter;
use crate::active_config::{ActiveConfig, BoundListener, WorkerConfig};
use crate::clock;
use crate::compression::encoder::EncoderLimiter;
use crate::config_cell::{CachedConfig, ConfigCell};
use crate::credentials::jwt::refresh::KeySetRefresh;
use crate::credentials::verifier::PasswordVerifier;
use crate::descriptors::IdleShedding;
use crate::dial::h3::pools::H3WorkerPools;
use crate::exchange::Exchange;
use crate::health::HealthWaker;
use crate::interception::{ClientNamespaces, InterceptionState};
use crate::lease_signal::LeaseSignal;
use crate::memory::stalled::StalledTransfers;
use crate::mirror::limiter::MirrorLimiter;
use crate::observe::WorkerCounters;
use crate::observe::log_buffer::AccessLogBuffer;
use crate::reachability::outages::OutageList;
use crate::resources::ResourceBudgets;
use crate::scratch::{ReplayBudget, ScratchMemory};
use crate::trace::{SpanBuffer, TraceExportCounts, TraceSettings};

/// The loop of a worker.
pub(crate) mod run;

/// Maximum number of unused exchanges that a worker keeps.
const EXCHANGES: usize = 256;

/// The state that all workers share.
pub(crate) struct ProxyState {
    pub(crate) config: ConfigCell<ActiveConfig>,
    pub(crate) workers: Box<[WorkerHandle]>,
    /// True if histograms keep trace IDs as exemplars.
    pub(crate) exemplars: bool,
    /// Counts of the exporter of traces; `None`: requests are not traced.
    pub(crate) trace_counts: Option<Arc<TraceExportCounts>>,
    /// True if the rates of routes are averaged, and reported to other replicas.
    pub(crate) averages_routes: AtomicBool,
    /// Number of replicas over which caps are divided.
    pub(crate) replicas: AtomicUsize,
    /// Wakes the health thread.
    pub(crate) health_waker: HealthWaker,
    /// Endpoints that are marked unreachable.
    pub(crate) outages: OutageList,
    pub(crate) quic_keys: LazyLock<quic::QuicTokenKeys>,
    /// True if another process has the same listening sockets, and this one is to drain.
    pub(crate) has_successor: AtomicBool,
    pub(crate) budgets: Arc<ResourceBudgets>,
    pub(crate) interception: InterceptionState,
    /// Verification of passwords.
    pub(crate) password_verifier: PasswordVerifier,
    /// Key sets that should be fetched again.
    pub(crate) key_set_refresh: KeySetRefresh,
    /// Leases of slots among replicas; `None`: there are none.
    pub(crate) leases: Option<Arc<LeaseSignal>>,
    stage: AtomicU8,
}

/// The handle through which other threads send commands to a worker and read its load.
pub(crate) struct WorkerHandle {
    pub(crate) counters: WorkerCounters,
    /// Client connections that it has or is about to adopt.
    pub(crate) connections: AtomicU32,
    /// Datagrams that are on their way to it from other workers.
    pub(crate) pending_datagrams: AtomicU32,
    /// Requests served in its last tick.
    requests_in_tick: AtomicU32,
    commands: UnboundedSender<WorkerCommand>,
}

/// A command to a worker.
pub(crate) enum WorkerCommand {
    Listen(Arc<BoundListener>, TcpOrUdpSocket),
    Unlisten {
        place: usize,
    },
    /// Accepts intercepted connections from a socket with this address.
    Intercept(SocketAddr, TcpListener),
    /// Accepts what has arrived at these sockets, then closes them.
    StopIntercepting,
    /// Starts to accept connections over QUIC.
    ListenQuic(Arc<BoundListener>, Arc<quic::SocketGroup>),
    /// Stops accepting connections over QUIC.
    UnlistenQuic {
        place: usize,
    },
    /// A datagram of one of its connections that another worker received.
    Datagram(Arc<quic::SocketGroup>, quic::ReceivedDatagram),
    Adopt(ConnectionHandover),
    /// Wakes every connection's task: the stage has changed, or a listener has been removed.
    WakeConnections,
    /// Ends the worker.
    Stop,
}

/// The stage of a graceful shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DrainStage {
    Serving,
    /// Answers announce that the connection will be closed. New connections are still accepted, because load balancers
    /// and clients learn of the shutdown with a delay.
    Announcing,
    /// No new connections are accepted.
    Draining,
    /// Idle connections are closed.
    Closing,
}

pub(crate) struct Worker {
    pub(crate) index: usize,
    pub(crate) shared: Arc<ProxyState>,
    pub(crate) scratch: ScratchMemory,
    pub(crate) rng: RefCell<Rng>,
    pub(crate) access_log: AccessLogBuffer,
    /// `None`: requests are not traced.
    pub(crate) traces: Option<SpanBuffer>,
    /// True if requests are logged or traced.
    pub(crate) records_requests: bool,
    pub(crate) replay_budget: Rc<ReplayBudget>,
    pub(crate) mirrors: MirrorLimiter,
    pub(crate) encoders: EncoderLimiter,
    pub(crate) handshake_limiter: HandshakeLimiter,
    /// Transfers that wait for a slow peer.
    pub(crate) stalled: Rc<StalledTransfers>,
    /// Closing of idle client connections when descriptors run out.
    pub(crate) idle_shedding: IdleShedding,
    /// Connections to endpoints over QUIC.
    pub(crate) quic: quic::QuicDialer,
    /// Connections of clients over QUIC.
    pub(crate) ports: quic::ServerDrivers,
    /// The HTTP/3 connections among them.
    pub(crate) h3_pools: H3WorkerPools,
    config: RefCell<Rc<WorkerConfig>>,
    client_namespaces: RefCell<CachedConfig<ClientNamespaces>>,
    #[expect(
        clippy::vec_box,
        reason = "a request takes an exchange by its box, without moving it"
    )]
    exchanges: RefCell<Vec<Box<Exchange>>>,
    waker_registry: RefCell<WakerRegistry>,
    /// Indices of the listeners it accepts for; dropping the sender ends the accept loop.
    listeners: RefCell<Vec<(usize, oneshot::Sender<()>)>>,
    /// The sockets of intercepted connections that it accepts from; dropping the sender ends the accept loop.
    intercepting: RefCell<Vec<oneshot::Sender<()>>>,
    tick: Cell<u32>,
    /// Connections that served a request in this tick.
    active: Cell<u32>,
    /// Connections that it should move to a less busy worker.
    surplus: Cell<u32>,
    requests_at_tick: Cell<u64>,
    date: Cell<(u64, [u8; 29])>,
}

/// Wakers of the connections' tasks, for events that concern all connections.
#[derive(Default)]
struct WakerRegistry {
    wakers: Vec<Option<Waker>>,
    free: Vec<usize>,
}

impl ProxyState {
    pub(crate) fn new(
        commands: Vec<UnboundedSender<WorkerCommand>>,
        exemplars: bool,
        trace_counts: Option<Arc<TraceExportCounts>>,
        budgets: Arc<ResourceBudgets>,
        interception: InterceptionState,
        leases: Option<Arc<LeaseSignal>>,
    ) -> Self {
        let handle = |commands| WorkerHandle {
            counters: WorkerCounters::new(),
            connections: AtomicU32::new(0),
            pending_datagrams: AtomicU32::new(0),
            requests_in_tick: AtomicU32::new(0),
            commands,
        };
        let password_verifier = PasswordVerifier::new(commands.len());
        Self {
            config: ConfigCell::new(ActiveConfig::default()),
            workers: commands.into_iter().map(handle).collect(),
            exemplars,
            trace_counts,
            averages_routes: AtomicBool::new(false),
            replicas: AtomicUsize::new(1),
            health_waker: HealthWaker::default(),
            outages: OutageList::default(),
            quic_keys: LazyLock::new(quic::QuicTokenKeys::generate),
            has_successor: AtomicBool::new(false),
            budgets,
            interception,
            password_verifier,
            key_set_refresh: KeySetRefresh::default(),
            leases,
            stage: AtomicU8::new(DrainStage::Serving as u8),
        }
    }

    pub(crate) fn stage(&self) -> DrainStage {
        match self.stage.load(Ordering::Acquire) {
            0 => DrainStage::Serving,
            1 => DrainStage::Announcing,
            2 => DrainStage::Draining,
            _ => DrainStage::Closing,
        }
    }

    pub(crate) fn enter_stage(&self, stage: DrainStage) {
        self.stage.store(stage as u8, Ordering::Release);
        for handle in &self.workers {
            handle.send(WorkerCommand::WakeConnections);
        }
    }

    pub(crate) fn connections(&self) -> u32 {
        self.workers.iter().map(|handle| handle.connections.load(Ordering::Acquire)).sum()
    }

    /// Returns the worker with the fewest connections; on a tie, `own` if it is one of them.
    pub(crate) fn least_connected(&self, own: usize) -> usize {
        let connections = |index: usize| self.workers[index].connections.load(Ordering::Relaxed);
        (0..self.workers.len())
            .min_by_key(|&index| (connections(index), index != own))
            .unwrap_or(own)
    }
}

impl WorkerHandle {
    /// Sends a command; a worker that has ended ignores it.
    pub(crate) fn send(&self, command: WorkerCommand) {
        drop(self.commands.send(command));
    }
}

impl Worker {
    pub(crate) fn new(
        index: usize,
        shared: Arc<ProxyState>,
        access_log: AccessLogBuffer,
        traces: Option<TraceSettings>,
    ) -> Self {
        let traces = traces.map(|settings| SpanBuffer::new(settings, shared.workers.len()));
        let config = RefCell::new(Rc::new(WorkerConfig::new(&shared.config)));
        let quic = quic::QuicDialer::new(clock::quic_now);
        Self {
            index,
            scratch: ScratchMemory::new(&shared.budgets),
            rng: RefCell::new(Rng::new(seed(index))),
            records_requests: access_log.is_active() || traces.is_some(),
            access_log,
            traces,
            replay_budget: ReplayBudget::of_requests(),
            mirrors: MirrorLimiter::default(),
            encoders: EncoderLimiter::default(),
            handshake_limiter: HandshakeLimiter::new(),
            stalled: Rc::default(),
            idle_shedding: IdleShedding::default(),
            ports: quic::ServerDrivers::new(index, &quic),
            quic,
            h3_pools: H3WorkerPools::default(),
            config,
            exchanges: RefCell::default(),
            waker_registry: RefCell::default(),
            client_namespaces: RefCell::new(shared.interception.namespaces.load_versioned()),
            listeners: RefCell::default(),
            intercepting: RefCell::default(),
            tick: Cell::new(0),
            active: Cell::new(0),
            surplus: Cell::new(0),
            requests_at_tick: Cell::new(0),
            date: Cell::new((0, [0; 29])),
            shared,
        }
    }

    /// Returns the configuration in force.
    pub(crate) fn config(&self) -> Rc<WorkerConfig> {
        let mut cached = self.config.borrow_mut();
        if !cached.is_current(&self.shared.config) {
            *cached = Rc::new(WorkerConfig::new(&self.shared.config));
        }
        Rc::clone(&cached)
    }

    /// Returns the namespace of the client with this address, if it is known.
    pub(crate) fn client_namespace(&self, client: IpAddr) -> Option<Arc<str>> {
        let published = &self.shared.interception.namespaces;
        let mut cached = self.client_namespaces.borrow_mut();
        if !cached.is_current(published) {
            *cached = published.load_versioned();
        }
        cached.get(&client).cloned()
    }

    pub(crate) fn handle(&self) -> &WorkerHandle {
        &self.shared.workers[self.index]
    }

    pub(crate) fn counters(&self) -> &WorkerCounters {
        &self.handle().counters
    }

    pub(crate) fn stage(&self) -> DrainStage {
        self.shared.stage()
    }

    pub(crate) fn take_exchange(&self) -> Box<Exchange> {
        self.exchanges.borrow_mut().pop().unwrap_or_default()
    }

    pub(crate) fn give_back_exchange(&self, mut exchange: Box<Exchange>) {
        let mut exchanges = self.exchanges.borrow_mut();
        if exchanges.len() < EXCHANGES {
            exchange.clear();
            exchanges.push(exchange);
        }
    }

    /// Returns the current time in the format of the `Date` field (RFC 9110 §5.6.7).
    pub(crate) fn date(&self) -> [u8; 29] {
        let now = clock::wall();
        let since = now.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let (mut second, mut text) = self.date.get();
        if second != since.as_secs() {
            second = since.as_secs();
            text.copy_from_slice(httpdate::fmt_http_date(now).as_bytes());
            self.date.set((second, text));
        }
        text
    }

    /// Hands the lines of the access log and the spans on.
    pub(crate) fn flush_records(&self) {
        self.access_log.flush(self.counters());
        if let Some(traces) = &self.traces {
            traces.flush(self.counters());
        }
    }

    /// Counts a request that a connection has served; `seen` is the tick of the connection's previous request.
    pub(crate) fn count_request(&self, seen: &mut u32) {
        self.counters().requests.add(1);
        if *seen != self.tick.get() {
            *seen = self.tick.get();
            self.active.set(self.active.get() + 1);
        }
    }

    /// Returns the worker to which an idle connection should move, if this worker is busier than the others.
    pub(crate) fn rebalance_target(&self) -> Option<usize> {
        let surplus = self.surplus.get().checked_sub(1)?;
        self.surplus.set(surplus);
        let handles = &self.shared.workers;
        let rate = |index: usize| handles[index].requests_in_tick.load(Ordering::Relaxed);
        (0..handles.len()).filter(|&index| index != self.index).min_by_key(|&index| rate(index))
    }

    /// True if a client connection that has been idle since this time is closed, to free its descriptor for others.
    pub(crate) fn sheds_idle_connection(&self, idle_since: Time) -> bool {
        let is_shed = self.idle_shedding.must_close(idle_since);
        if is_shed {
            self.counters().idle_connections_shed.add(1);
        }
        is_shed
    }

    /// Registers the calling task to be woken whenever the stage changes, until the returned index is unregistered.
    pub(crate) fn register_waker(&self, waker: Waker) -> usize {
        let mut registry = self.waker_registry.borrow_mut();
        let Some(place) = registry.free.pop() else {
            registry.wakers.push(Some(waker));
            return registry.wakers.len() - 1;
        };
        registry.wakers[place] = Some(waker);
        place
    }

    pub(crate) fn unregister_waker(&self, place: usize) {
        let mut registry = self.waker_registry.borrow_mut();
        registry.wakers[place] = None;
        registry.free.push(place);
    }

    pub(crate) fn wake_all(&self) {
        self.waker_registry.borrow().wakers.iter().flatten().for_each(Waker::wake_by_ref);
    }
}

/// Returns a seed that differs between workers and between starts. It is not used for anything that must be
/// unpredictable.
fn seed(index: usize) -> u64 {
    let wall = clock::wall().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(wall.as_nanos()).unwrap_or_default() ^ ((index as u64) << 56)
}
