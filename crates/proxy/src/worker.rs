//! One thread with its own runtime and connections, and the seat through which others reach it.

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
use crate::active_config::{ActiveConfig, ListenerSocket, WorkerConfig};
use crate::clock;
use crate::config_cell::ConfigCell;
use crate::dial::{h2, h3, pool};
use crate::exchange::Exchange;
use crate::health::HealthWaker;
use crate::mirror::MirrorLimiter;
use crate::observe::WorkerCounters;
use crate::observe::access::AccessLogBuffer;
use crate::quic;
use crate::reachability::OutageList;
use crate::scratch::{ReplayBudget, ScratchMemory};
use crate::udp;

/// Exchanges that a worker keeps when nobody uses them.
const EXCHANGES: usize = 256;
/// How often a worker looks at its load and its log.
const TICK: Duration = Duration::from_millis(100);
/// Idle connections to endpoints are looked over once in so many ticks.
const SWEEP_TICKS: u32 = 10;
/// How often other tasks have a turn after the last command.
const CLOSE_YIELDS: u32 = 16;
/// Requests in a tick below which a worker's surplus is not worth a move.
const SMALL_RATE: u32 = 10;

/// What all workers share.
pub(crate) struct ProxyState {
    pub(crate) config: ConfigCell<ActiveConfig>,
    pub(crate) workers: Box<[WorkerHandle]>,
    /// Whether histograms keep the ids of traces.
    pub(crate) exemplars: bool,
    /// Over how many Sheaves caps are dealt.
    pub(crate) replicas: AtomicUsize,
    /// Calls the thread that watches health.
    pub(crate) health_waker: HealthWaker,
    /// Endpoints that are marked unreachable.
    pub(crate) outages: OutageList,
    pub(crate) quic_keys: LazyLock<quic::QuicTokenKeys>,
    stage: AtomicU8,
}

/// Where others reach a worker and see its load.
pub(crate) struct WorkerHandle {
    pub(crate) counters: WorkerCounters,
    /// Client connections that it has or is about to get.
    pub(crate) connections: AtomicU32,
    /// Datagrams that are on their way to it from other workers.
    pub(crate) pending_datagrams: AtomicU32,
    /// Requests that it served in its last tick.
    requests_in_tick: AtomicU32,
    commands: UnboundedSender<WorkerCommand>,
}

/// What a worker is told.
pub(crate) enum WorkerCommand {
    Listen(Arc<ListenerSocket>, TcpOrUdpSocket),
    Unlisten {
        place: usize,
    },
    /// Takes in connections over QUIC.
    ListenQuic(Arc<ListenerSocket>, Arc<quic::SocketGroup>, quic::ServeConnection),
    /// Takes in no more of them.
    UnlistenQuic {
        place: usize,
    },
    /// Has come to another worker.
    Datagram(Arc<quic::SocketGroup>, quic::ReceivedDatagram),
    Adopt(ConnectionHandover),
    /// The stage has changed, or a listener has gone: every connection looks.
    WakeConnections,
    /// The process ends.
    Stop,
}

/// How far the process is on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DrainStage {
    Serving,
    /// Answers say that the connection will be closed; who comes is still taken in, as not everybody knows yet.
    Announcing,
    /// Nobody is taken in any more.
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
    pub(crate) h3_pools: h3::H3WorkerPools,
    config: RefCell<Rc<WorkerConfig>>,
    #[allow(clippy::vec_box, reason = "a request takes an exchange by its box, without moving it")]
    exchanges: RefCell<Vec<Box<Exchange>>>,
    waker_registry: RefCell<WakerRegistry>,
    /// Places it accepts for; letting go of the sender ends that.
    listeners: RefCell<Vec<(usize, oneshot::Sender<()>)>>,
    tick: Cell<u32>,
    /// Connections that served a request in this tick.
    active: Cell<u32>,
    /// Connections that it had better give to a worker with less to do.
    surplus: Cell<u32>,
    requests_at_tick: Cell<u64>,
    date: Cell<(u64, [u8; 29])>,
}

/// The connections' tasks, to be woken when all must look up.
#[derive(Default)]
struct WakerRegistry {
    wakers: Vec<Option<Waker>>,
    free: Vec<usize>,
}

impl ProxyState {
    pub(crate) fn new(commands: Vec<UnboundedSender<WorkerCommand>>, exemplars: bool) -> Self {
        let seat = |commands| WorkerHandle {
            counters: WorkerCounters::new(),
            connections: AtomicU32::new(0),
            pending_datagrams: AtomicU32::new(0),
            requests_in_tick: AtomicU32::new(0),
            commands,
        };
        Self {
            config: ConfigCell::new(ActiveConfig::default()),
            workers: commands.into_iter().map(seat).collect(),
            exemplars,
            replicas: AtomicUsize::new(1),
            health_waker: HealthWaker::default(),
            outages: OutageList::default(),
            quic_keys: LazyLock::new(quic::QuicTokenKeys::new),
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
        for seat in &self.workers {
            seat.send(WorkerCommand::WakeConnections);
        }
    }

    pub(crate) fn connections(&self) -> u32 {
        self.workers.iter().map(|seat| seat.connections.load(Ordering::Acquire)).sum()
    }

    /// The worker with the fewest connections, `own` among equals.
    pub(crate) fn least_connected(&self, own: usize) -> usize {
        let connections = |index: usize| self.workers[index].connections.load(Ordering::Relaxed);
        (0..self.workers.len())
            .min_by_key(|&index| (connections(index), index != own))
            .unwrap_or(own)
    }
}

impl WorkerHandle {
    /// A worker that has ended hears nothing more.
    pub(crate) fn send(&self, command: WorkerCommand) {
        drop(self.commands.send(command));
    }
}

impl Worker {
    pub(crate) fn new(index: usize, shared: Arc<ProxyState>, access_log: AccessLogBuffer) -> Self {
        let config = RefCell::new(Rc::new(WorkerConfig::new(&shared.config)));
        Self {
            index,
            scratch: ScratchMemory::default(),
            rng: RefCell::new(Rng::new(seed(index))),
            access_log,
            replay_budget: ReplayBudget::new(),
            mirrors: MirrorLimiter::default(),
            handshake_limiter: HandshakeLimiter::new(),
            quic: quic::QuicDialer::new(),
            ports: quic::ServerDrivers::default(),
            h3_pools: h3::H3WorkerPools::default(),
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

    /// What is in force now.
    pub(crate) fn config(&self) -> Rc<WorkerConfig> {
        let mut ours = self.config.borrow_mut();
        if !ours.is_current(&self.shared.config) {
            *ours = Rc::new(WorkerConfig::new(&self.shared.config));
        }
        Rc::clone(&ours)
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

    /// Now, as the Date field writes it (RFC 9110 §5.6.7).
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

    /// A connection has served a request; `seen` is the tick in which it did so before.
    pub(crate) fn count_request(&self, seen: &mut u32) {
        self.counters().requests.add(1);
        if *seen != self.tick.get() {
            *seen = self.tick.get();
            self.active.set(self.active.get() + 1);
        }
    }

    /// Where an idle connection had better go on, if this worker has more to do than others.
    pub(crate) fn rebalance_target(&self) -> Option<usize> {
        let surplus = self.surplus.get().checked_sub(1)?;
        self.surplus.set(surplus);
        let seats = &self.shared.workers;
        let rate = |index: usize| seats[index].requests_in_tick.load(Ordering::Relaxed);
        (0..seats.len()).filter(|&index| index != self.index).min_by_key(|&index| rate(index))
    }

    /// The calling task is woken whenever the stage changes, until the returned place is left.
    pub(crate) fn register_waker(&self, waker: Waker) -> usize {
        let mut sleepers = self.waker_registry.borrow_mut();
        let Some(place) = sleepers.free.pop() else {
            sleepers.wakers.push(Some(waker));
            return sleepers.wakers.len() - 1;
        };
        sleepers.wakers[place] = Some(waker);
        place
    }

    pub(crate) fn unregister_waker(&self, place: usize) {
        let mut sleepers = self.waker_registry.borrow_mut();
        sleepers.wakers[place] = None;
        sleepers.free.push(place);
    }

    fn wake_all(&self) {
        self.waker_registry.borrow().wakers.iter().flatten().for_each(Waker::wake_by_ref);
    }

    /// Does what it is told; false: it is to stop.
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
            WorkerCommand::ListenQuic(bound, group, serve) => {
                self.ports.open(self, &bound, &group, serve)
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

    /// Ends connections over QUIC: a socket that closes tells nobody.
    async fn close_quic_connections(&self) {
        self.ports.close_all();
        self.quic.close_all();
        for _ in 0..CLOSE_YIELDS {
            tokio::task::yield_now().await;
        }
    }

    /// Looks at the load of the last tick and says how many connections to give away.
    fn update_load(&self) {
        let total = self.counters().requests.value();
        let served = total - self.requests_at_tick.replace(total);
        let served = u32::try_from(served).unwrap_or(u32::MAX);
        self.handle().requests_in_tick.store(served, Ordering::Relaxed);
        let rates =
            self.shared.workers.iter().map(|seat| seat.requests_in_tick.load(Ordering::Relaxed));
        let all: u64 = rates.map(u64::from).sum();
        let fair = u32::try_from(all / self.shared.workers.len() as u64).unwrap_or(u32::MAX);
        self.surplus.set(surplus(served, fair, self.active.replace(0)));
        self.tick.set(self.tick.get().wrapping_add(1));
    }

    /// Closes idle connections to endpoints that are spent or closed, and looks for slots that nobody uses.
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

/// How many of `active` connections a worker that served `served` requests gives away, when `fair` is the mean.
///
/// One that has a single busy connection keeps it: moving it would only move the load.
fn surplus(served: u32, fair: u32, active: u32) -> u32 {
    let excess = served.saturating_sub(fair);
    if active < 2 || excess < SMALL_RATE || excess < fair / 5 {
        return 0;
    }
    let share = u64::from(active) * u64::from(excess) / u64::from(served);
    u32::try_from(share).unwrap_or(u32::MAX).clamp(1, active / 2)
}

/// Runs the worker on this thread until nobody can tell it anything any more.
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

/// Differs between workers and between starts; nothing that must be unguessable rests on it.
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
