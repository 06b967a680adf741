//! A worker: one thread with its own runtime and connections, and the handle through which other threads reach it.

use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::Waker;
use std::time::Duration;

use balance::Rng;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;

use crate::accept::accepted_connection::{self, ConnectionHandover};
use crate::accept::handshake::HandshakeLimiter;
use crate::accept::listen::{self, TcpOrUdpSocket};
use crate::accept::quic_host::ListenerQuicHost;
use crate::active_config::{ActiveConfig, ListenerSocket, WorkerConfig};
use crate::clock;
use crate::config_cell::ConfigCell;
use crate::dial::h3::pools::H3WorkerPools;
use crate::dial::{h2, pool};
use crate::exchange::Exchange;
use crate::health::HealthWaker;
use crate::mirror::MirrorLimiter;
use crate::observe::WorkerCounters;
use crate::observe::access::AccessLogBuffer;
use crate::reachability::outages::OutageList;
use crate::scratch::{ReplayBudget, ScratchMemory};
use crate::udp;

/// Maximum number of unused exchanges that a worker keeps.
const EXCHANGES: usize = 256;
/// Interval at which a worker updates its load and flushes its log.
const TICK: Duration = Duration::from_millis(100);
/// Ticks between two sweeps of idle connections to endpoints.
const SWEEP_TICKS: u32 = 10;
/// Number of times that the worker yields to other tasks after the last command.
const CLOSE_YIELDS: u32 = 16;
/// Excess requests in a tick below which no connection is moved to another worker.
const SMALL_RATE: u32 = 10;

/// The state that all workers share.
pub(crate) struct ProxyState {
    pub(crate) config: ConfigCell<ActiveConfig>,
    pub(crate) workers: Box<[WorkerHandle]>,
    /// True if histograms keep trace IDs as exemplars.
    pub(crate) exemplars: bool,
    /// Number of replicas over which caps are divided.
    pub(crate) replicas: AtomicUsize,
    /// Wakes the health thread.
    pub(crate) health_waker: HealthWaker,
    /// Endpoints that are marked unreachable.
    pub(crate) outages: OutageList,
    pub(crate) quic_keys: LazyLock<quic::QuicTokenKeys>,
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
    Listen(Arc<ListenerSocket>, TcpOrUdpSocket),
    Unlisten {
        place: usize,
    },
    /// Starts to accept connections over QUIC.
    ListenQuic(Arc<ListenerSocket>, Arc<quic::SocketGroup>),
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
    pub(crate) replay_budget: Rc<ReplayBudget>,
    pub(crate) mirrors: MirrorLimiter,
    pub(crate) handshake_limiter: HandshakeLimiter,
    /// Connections to endpoints over QUIC.
    pub(crate) quic: quic::QuicDialer,
    /// Connections of clients over QUIC.
    pub(crate) ports: quic::ServerDrivers,
    /// The HTTP/3 connections among them.
    pub(crate) h3_pools: H3WorkerPools,
    config: RefCell<Rc<WorkerConfig>>,
    #[allow(clippy::vec_box, reason = "a request takes an exchange by its box, without moving it")]
    exchanges: RefCell<Vec<Box<Exchange>>>,
    waker_registry: RefCell<WakerRegistry>,
    /// Indices of the listeners it accepts for; dropping the sender ends the accept loop.
    listeners: RefCell<Vec<(usize, oneshot::Sender<()>)>>,
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
    pub(crate) fn new(commands: Vec<UnboundedSender<WorkerCommand>>, exemplars: bool) -> Self {
        let handle = |commands| WorkerHandle {
            counters: WorkerCounters::new(),
            connections: AtomicU32::new(0),
            pending_datagrams: AtomicU32::new(0),
            requests_in_tick: AtomicU32::new(0),
            commands,
        };
        Self {
            config: ConfigCell::new(ActiveConfig::default()),
            workers: commands.into_iter().map(handle).collect(),
            exemplars,
            replicas: AtomicUsize::new(1),
            health_waker: HealthWaker::default(),
            outages: OutageList::default(),
            quic_keys: LazyLock::new(quic::QuicTokenKeys::generate),
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
    pub(crate) fn new(index: usize, shared: Arc<ProxyState>, access_log: AccessLogBuffer) -> Self {
        let config = RefCell::new(Rc::new(WorkerConfig::new(&shared.config)));
        let quic = quic::QuicDialer::new(clock::quic_now);
        Self {
            index,
            scratch: ScratchMemory::default(),
            rng: RefCell::new(Rng::new(seed(index))),
            access_log,
            replay_budget: ReplayBudget::new(),
            mirrors: MirrorLimiter::default(),
            handshake_limiter: HandshakeLimiter::new(),
            ports: quic::ServerDrivers::new(index, &quic),
            quic,
            h3_pools: H3WorkerPools::default(),
            config,
            exchanges: RefCell::default(),
            waker_registry: RefCell::default(),
            listeners: RefCell::default(),
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

    fn wake_all(&self) {
        self.waker_registry.borrow().wakers.iter().flatten().for_each(Waker::wake_by_ref);
    }

    /// Executes a command. Returns false if the worker is to stop.
    fn execute(self: &Rc<Self>, command: WorkerCommand) -> bool {
        match command {
            WorkerCommand::Listen(bound, socket) => {
                let (open, closed) = oneshot::channel();
                self.listeners.borrow_mut().push((bound.listener_index, open));
                let worker = Rc::clone(self);
                match socket {
                    TcpOrUdpSocket::Tcp(socket) => {
                        tokio::task::spawn_local(listen::accept(worker, bound, socket, closed))
                    }
                    TcpOrUdpSocket::Udp(socket) => {
                        tokio::task::spawn_local(udp::serve(worker, bound, socket, closed))
                    }
                };
            }
            WorkerCommand::Unlisten { place } => {
                self.listeners.borrow_mut().retain(|(listening, _)| *listening != place);
            }
            WorkerCommand::ListenQuic(bound, group) => {
                let host = ListenerQuicHost::new(self, &bound);
                self.ports.open(bound.listener_index, &group, &self.shared.quic_keys, host);
            }
            WorkerCommand::UnlistenQuic { place } => self.ports.close(place),
            WorkerCommand::Datagram(group, datagram) => {
                self.handle().pending_datagrams.fetch_sub(1, Ordering::Relaxed);
                self.ports.deliver(&group, datagram);
            }
            WorkerCommand::Adopt(handover) => accepted_connection::adopt(self, handover),
            WorkerCommand::WakeConnections => self.wake_all(),
            WorkerCommand::Stop => return false,
        }
        true
    }

    /// Closes all connections over QUIC with a CONNECTION_CLOSE: closing the socket alone does not notify the peers.
    async fn close_quic_connections(&self) {
        self.ports.close_all();
        self.quic.close_all();
        for _ in 0..CLOSE_YIELDS {
            tokio::task::yield_now().await;
        }
    }

    /// Measures the load of the last tick and computes how many connections to move to other workers.
    fn update_load(&self) {
        let total = self.counters().requests.value();
        let served = total - self.requests_at_tick.replace(total);
        let served = u32::try_from(served).unwrap_or(u32::MAX);
        self.handle().requests_in_tick.store(served, Ordering::Relaxed);
        let rates = self
            .shared
            .workers
            .iter()
            .map(|handle| handle.requests_in_tick.load(Ordering::Relaxed));
        let all: u64 = rates.map(u64::from).sum();
        let fair = u32::try_from(all / self.shared.workers.len() as u64).unwrap_or(u32::MAX);
        self.surplus.set(surplus(served, fair, self.active.replace(0)));
        self.tick.set(self.tick.get().wrapping_add(1));
    }

    /// Closes idle endpoint connections that are expired or closed by the peer, and grants free slots to waiting
    /// requests.
    fn sweep(&self) {
        let now = clock::now();
        let live = self.config();
        for (index, backend) in live.backends.iter().enumerate() {
            backend.dispatch();
            live.drop_outdated(index);
            let current = backend.current();
            for member in current.set.members() {
                pool::sweep(&member.endpoint, self.index, &current.settings, now);
                pool::trim(member, current.limits.cap);
                h2::sweep(&member.endpoint, self.index, &current.settings, now);
                self.h3_pools.sweep(&member.endpoint, self.index, &current.settings, now);
            }
        }
        self.h3_pools.remove_dropped_endpoints();
    }
}

/// Returns how many of its `active` connections a worker that served `served` requests moves away, if `fair` is the
/// mean.
///
/// A worker with a single busy connection keeps it: a move would only shift the load.
fn surplus(served: u32, fair: u32, active: u32) -> u32 {
    let excess = served.saturating_sub(fair);
    if active < 2 || excess < SMALL_RATE || excess < fair / 5 {
        return 0;
    }
    let share = u64::from(active) * u64::from(excess) / u64::from(served);
    u32::try_from(share).unwrap_or(u32::MAX).clamp(1, active / 2)
}

/// Runs the worker on this thread until it is stopped or all senders of commands are dropped.
pub(crate) fn run(
    worker: Worker,
    mut commands: UnboundedReceiver<WorkerCommand>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build_local(tokio::runtime::LocalOptions::default())?;
    runtime.block_on(async move {
        let worker = Rc::new(worker);
        tokio::task::spawn_local(tick(Rc::clone(&worker)));
        while let Some(command) = commands.recv().await {
            if !worker.execute(command) {
                break;
            }
        }
        worker.access_log.flush(worker.counters());
        worker.close_quic_connections().await;
    });
    Ok(())
}

async fn tick(worker: Rc<Worker>) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut until_sweep = SWEEP_TICKS;
    loop {
        ticks.tick().await;
        worker.update_load();
        worker.access_log.flush(worker.counters());
        worker.counters().replay_refused.add(worker.replay_budget.refused.take());
        until_sweep -= 1;
        if until_sweep == 0 {
            until_sweep = SWEEP_TICKS;
            worker.sweep();
        }
    }
}

/// Returns a seed that differs between workers and between starts. It is not used for anything that must be
/// unpredictable.
fn seed(index: usize) -> u64 {
    let wall = clock::wall().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(wall.as_nanos()).unwrap_or_default() ^ ((index as u64) << 56)
}

#[cfg(test)]
mod tests {
    use super::surplus;

    #[test]
    fn single_busy_connection_is_not_moved() {
        assert_eq!(surplus(1000, 500, 1), 0);
    }

    #[test]
    fn one_of_two_busy_connections_is_moved() {
        assert_eq!(surplus(1000, 500, 2), 1);
    }

    #[test]
    fn small_differences_are_left_alone() {
        assert_eq!(surplus(110, 100, 50), 0);
        assert_eq!(surplus(9, 4, 9), 0);
    }

    #[test]
    fn at_most_half_the_connections_are_moved() {
        assert_eq!(surplus(1000, 500, 64), 32);
        assert_eq!(surplus(1000, 125, 64), 32);
    }
}
