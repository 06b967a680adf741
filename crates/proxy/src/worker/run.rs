//! The loop of a worker: executes commands, balances its load with the other workers, and sweeps its connections.

use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;

use super::{Worker, WorkerCommand};
use crate::accept::bind::TcpOrUdpSocket;
use crate::accept::dispatch;
use crate::accept::listen::{self, ListenerLookup};
use crate::accept::quic_host::ListenerConnectionOwner;
use crate::clock;
use crate::dial::{h2, pool};
use crate::memory::MemoryPressure;
use crate::udp;

/// Interval at which a worker updates its load and flushes its log.
const TICK: Duration = Duration::from_millis(100);
/// Ticks between two sweeps of idle connections to endpoints.
const SWEEP_TICKS: u32 = 10;
/// Number of times that the worker yields to other tasks after the last command.
const CLOSE_YIELDS: u32 = 16;
/// Excess requests in a tick below which no connection is moved to another worker.
const SMALL_RATE: u32 = 10;

impl Worker {
    /// Executes a command. Returns false if the worker is to stop.
    fn execute(self: &Rc<Self>, command: WorkerCommand) -> bool {
        match command {
            WorkerCommand::Listen(bound, socket) => {
                let (open, closed) = oneshot::channel();
                self.listeners.borrow_mut().push((bound.listener_index, open));
                let worker = Rc::clone(self);
                match socket {
                    TcpOrUdpSocket::Tcp(socket) => {
                        let lookup = ListenerLookup::Bound(bound);
                        tokio::task::spawn_local(listen::accept(worker, lookup, socket, closed))
                    }
                    TcpOrUdpSocket::Udp(socket) => {
                        tokio::task::spawn_local(udp::serve(worker, bound, socket, closed))
                    }
                };
            }
            WorkerCommand::Unlisten { place } => {
                self.listeners.borrow_mut().retain(|(listening, _)| *listening != place);
            }
            WorkerCommand::Intercept(address, socket) => {
                let (open, closed) = oneshot::channel();
                self.intercepting.borrow_mut().push(open);
                let lookup = ListenerLookup::ByDestination(address);
                let accepting = listen::accept(Rc::clone(self), lookup, socket, closed);
                tokio::task::spawn_local(accepting);
            }
            WorkerCommand::StopIntercepting => self.intercepting.borrow_mut().clear(),
            WorkerCommand::ListenQuic(bound, group) => {
                let host = ListenerConnectionOwner::new(self, &bound);
                self.ports.open(bound.listener_index, &group, &self.shared.quic_keys, host);
            }
            WorkerCommand::UnlistenQuic { place } => self.ports.close(place),
            WorkerCommand::Datagram(group, datagram) => {
                self.handle().pending_datagrams.fetch_sub(1, Ordering::Relaxed);
                self.ports.deliver(&group, datagram);
            }
            WorkerCommand::Adopt(handover) => dispatch::adopt(self, handover),
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

    /// Ends transfers that hold much memory while it is scarce. One worker measures it for all.
    fn relieve_memory(&self) {
        let memory = &self.shared.budgets.memory;
        if self.index == 0 && memory.update() {
            // Connections announce other windows.
            let all = self.shared.workers.iter();
            all.for_each(|handle| handle.send(WorkerCommand::WakeConnections));
        }
        self.scratch.buffer_pool.set_tight(memory.pressure() > MemoryPressure::Normal);
        let excess = memory.excess();
        if excess > 0 {
            let is_exhausted = memory.pressure() == MemoryPressure::NoConnections;
            self.stalled.end_largest(excess, is_exhausted);
        }
    }

    /// Closes connections that have been idle for long while descriptors are scarce.
    fn shed_idle_connections(&self) {
        let excess = self.shared.budgets.descriptors.excess_clients();
        let workers = u32::try_from(self.shared.workers.len()).unwrap_or(u32::MAX);
        if self.idle_shedding.tick(excess.div_ceil(workers)) {
            self.wake_all();
        }
    }

    /// Closes idle endpoint connections that are expired or closed by the peer, and grants free slots to waiting
    /// requests.
    fn sweep(&self) {
        let now = clock::now();
        let active_config = self.config();
        for (index, backend) in active_config.backends.iter().enumerate() {
            backend.dispatch();
            active_config.drop_outdated(index);
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
        worker.flush_records();
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
        worker.counters().ticks.add(1);
        worker.update_load();
        worker.flush_records();
        worker.counters().replay_refused.add(worker.replay_budget.refused.take());
        worker.relieve_memory();
        worker.shed_idle_connections();
        until_sweep -= 1;
        if until_sweep == 0 {
            until_sweep = SWEEP_TICKS;
            worker.sweep();
        }
    }
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
