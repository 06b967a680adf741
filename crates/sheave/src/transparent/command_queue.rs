//! Work for the thread of the rules: the newest list of addresses, clients that wait for a mark, a withdrawal, and the
//! stage of the process. Callers never wait for the kernel, except to see addresses given up.

use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proxy::{ClientMark, Time, clock};
use tokio::sync::oneshot;

/// Clients that may wait for a mark at once.
const MAX_WAITING_CLIENTS: usize = 1024;

/// The addresses of Services whose connections are taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TakenServices {
    /// ClusterIP and port of each.
    pub(crate) addresses: BTreeSet<SocketAddr>,
    /// Those of Services whose older connections are reset.
    pub(crate) resets: BTreeSet<SocketAddr>,
}

/// A client that waits for a mark.
pub(super) struct ClientRequest {
    pub(super) client: IpAddr,
    pub(super) reply: oneshot::Sender<Option<Arc<ClientMark>>>,
}

/// Stage of the agent's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AgentStage {
    /// Connections are taken.
    #[default]
    Serving,
    /// The rules are withdrawn; connections that were taken go on.
    Withdrawn,
    /// The rules are removed.
    Ended,
}

/// The queue.
#[derive(Default)]
pub(super) struct CommandQueue {
    state: Mutex<QueueState>,
    /// Wakes the threads.
    wake: Condvar,
    /// Wakes callers that wait for the kernel.
    done: Condvar,
    /// Held while the lease is renewed.
    renewal: Mutex<()>,
}

#[derive(Default)]
struct QueueState {
    services: Arc<TakenServices>,
    /// Number of the list of addresses, and of the last one that the kernel has.
    generation: u64,
    applied: u64,
    clients: VecDeque<ClientRequest>,
    stage: AgentStage,
    /// True from the request of a withdrawal until it is done.
    is_withdrawal_requested: bool,
    /// True when the lease was ended for the shutdown.
    has_left: bool,
    /// True when the thread of the rules has ended.
    has_ended: bool,
}

/// Work that is due.
pub(super) struct PendingCommands {
    /// The list of addresses with its number, if the kernel has an older one.
    pub(super) services: Option<(u64, Arc<TakenServices>)>,
    pub(super) clients: VecDeque<ClientRequest>,
    pub(super) is_withdrawal_requested: bool,
    pub(super) stage: AgentStage,
}

impl CommandQueue {
    /// Sets the addresses to take; returns the number of this list.
    pub(super) fn set_services(&self, services: TakenServices) -> u64 {
        let mut state = self.lock();
        if *state.services != services {
            state.services = Arc::new(services);
            state.generation += 1;
            self.wake.notify_all();
        }
        state.generation
    }

    /// Returns the addresses to take.
    pub(super) fn services(&self) -> Arc<TakenServices> {
        Arc::clone(&self.lock().services)
    }

    /// True if this is the ClusterIP of a Service whose connections are taken.
    pub(super) fn has_service_at(&self, address: IpAddr) -> bool {
        let ports = SocketAddr::new(address, 0)..=SocketAddr::new(address, u16::MAX);
        self.lock().services.addresses.range(ports).next().is_some()
    }

    /// Waits until the kernel has the list with this number; returns false if it does not in this time.
    pub(super) fn wait_until_applied(&self, generation: u64, limit: Duration) -> bool {
        self.wait_until(limit, |state| state.applied >= generation || state.has_ended)
    }

    /// Records that the kernel has the list with this number.
    pub(super) fn record_applied(&self, generation: u64) {
        self.lock().applied = generation;
        self.done.notify_all();
    }

    /// Asks for the mark of a client; returns false if too many wait.
    pub(super) fn ask(&self, request: ClientRequest) -> bool {
        let mut state = self.lock();
        let may_wait = state.clients.len() < MAX_WAITING_CLIENTS && !state.has_ended;
        if may_wait {
            state.clients.push_back(request);
            self.wake.notify_all();
        }
        may_wait
    }

    /// Enters a later stage.
    pub(super) fn enter(&self, stage: AgentStage) {
        let mut state = self.lock();
        state.stage = state.stage.max(stage);
        self.wake.notify_all();
    }

    /// Returns the stage.
    pub(super) fn stage(&self) -> AgentStage {
        self.lock().stage
    }

    /// Asks for a withdrawal. Until it is done, no lease is renewed.
    pub(super) fn request_withdrawal(&self) {
        self.lock().is_withdrawal_requested = true;
        self.wake.notify_all();
    }

    /// Renews the lease, unless the rules are being withdrawn or the agent leaves: then it returns `None`.
    pub(super) fn renew_unless_withdrawn<T>(&self, renew: impl FnOnce() -> T) -> Option<T> {
        let _renewal = self.renewal.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.lock();
        let may_renew = state.stage == AgentStage::Serving && !state.is_withdrawal_requested;
        // Workers need the state, and the kernel takes its time.
        drop(state);
        may_renew.then(renew)
    }

    /// Waits for the end of a renewal that has begun: a withdrawal must come after it.
    pub(super) fn await_renewal(&self) {
        drop(self.renewal.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Records a withdrawal that the kernel has done, or has refused.
    pub(super) fn record_withdrawal(&self, is_done: bool) {
        let mut state = self.lock();
        state.is_withdrawal_requested = false;
        state.has_left = is_done && state.stage > AgentStage::Serving;
        self.done.notify_all();
    }

    /// Waits until the lease was ended for the shutdown; returns false if it was not in this time.
    pub(super) fn wait_until_left(&self, limit: Duration) -> bool {
        self.wait_until(limit, |state| state.has_left || state.has_ended)
    }

    /// Records that the thread of the rules has ended; clients that wait get no mark.
    pub(super) fn record_end(&self) {
        let mut state = self.lock();
        state.has_ended = true;
        state.clients.clear();
        self.done.notify_all();
    }

    /// Waits until the thread of the rules has ended; returns false if it does not in this time.
    pub(super) fn wait_until_ended(&self, limit: Duration) -> bool {
        self.wait_until(limit, |state| state.has_ended)
    }

    /// Takes what is to be done, after a wait of up to `limit` for something new. A list of addresses is returned until
    /// it is recorded as applied, and ends no wait if it is not newer than `seen`.
    pub(super) fn take(&self, seen: u64, limit: Duration) -> PendingCommands {
        let stage = self.stage();
        let is_quiet = |state: &mut QueueState| {
            state.generation <= seen
                && state.clients.is_empty()
                && !state.is_withdrawal_requested
                && state.stage == stage
        };
        let waited = self.wake.wait_timeout_while(self.lock(), limit, is_quiet);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let is_pending = state.applied < state.generation;
        let services = is_pending.then(|| (state.generation, Arc::clone(&state.services)));
        PendingCommands {
            services,
            clients: std::mem::take(&mut state.clients),
            is_withdrawal_requested: state.is_withdrawal_requested,
            stage: state.stage,
        }
    }

    /// Waits for the end of the agent; returns false if it does not come in this time.
    pub(super) fn is_ended_within(&self, limit: Duration) -> bool {
        let waited =
            self.wake.wait_timeout_while(self.lock(), limit, |it| it.stage < AgentStage::Ended);
        waited.unwrap_or_else(PoisonError::into_inner).0.stage == AgentStage::Ended
    }

    fn wait_until(&self, limit: Duration, is_done: impl Fn(&QueueState) -> bool) -> bool {
        let waited = self.done.wait_timeout_while(self.lock(), limit, |state| !is_done(state));
        is_done(&waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Delay of what failed: it doubles with each failure in a row.
#[derive(Debug)]
pub(super) struct RetryDelay {
    first: Duration,
    longest: Duration,
    current: Duration,
    retry_at: Time,
}

impl RetryDelay {
    pub(super) fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, current: first, retry_at: Time::ZERO }
    }

    pub(super) fn is_due(&self) -> bool {
        clock::now() >= self.retry_at
    }

    pub(super) fn record_failure(&mut self) {
        self.retry_at = clock::now() + self.current;
        self.current = (self.current * 2).min(self.longest);
    }

    pub(super) fn record_success(&mut self) {
        (self.current, self.retry_at) = (self.first, Time::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    fn services(ports: &[u16]) -> TakenServices {
        let address = |port: &u16| SocketAddr::from(([10, 96, 0, 1], *port));
        TakenServices { addresses: ports.iter().map(address).collect(), ..TakenServices::default() }
    }

    #[test]
    fn only_the_newest_addresses_are_applied() {
        let queue = CommandQueue::default();
        assert!(queue.take(0, Duration::ZERO).services.is_none());
        queue.set_services(services(&[1]));
        let newest = queue.set_services(services(&[1, 2]));
        assert_eq!(queue.set_services(services(&[1, 2])), newest, "no change");
        let (generation, pending) = queue.take(0, LONG).services.unwrap();
        assert_eq!((generation, &*pending), (newest, &services(&[1, 2])));
        // The kernel refused it: it is pending, and ends no wait.
        assert!(queue.take(generation, Duration::ZERO).services.is_some());
        assert!(!queue.wait_until_applied(newest, Duration::ZERO));
        queue.record_applied(generation);
        assert!(queue.wait_until_applied(newest, Duration::ZERO));
        assert!(queue.take(generation, Duration::ZERO).services.is_none());
    }

    #[test]
    fn waiting_clients_are_bounded_and_let_go_at_the_end() {
        let queue = CommandQueue::default();
        let mut replies = Vec::new();
        let ask = |replies: &mut Vec<_>| {
            let (reply, answer) = oneshot::channel();
            replies.push(answer);
            queue.ask(ClientRequest { client: [10, 0, 0, 1].into(), reply })
        };
        for _ in 0..MAX_WAITING_CLIENTS {
            assert!(ask(&mut replies));
        }
        assert!(!ask(&mut replies));
        queue.record_end();
        assert!(replies.iter_mut().all(|it| it.try_recv().is_err()));
        assert!(!ask(&mut replies));
    }

    #[test]
    fn stage_wakes_the_threads_and_never_goes_back() {
        let queue = Arc::new(CommandQueue::default());
        let waiting = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.is_ended_within(LONG))
        };
        queue.enter(AgentStage::Ended);
        queue.enter(AgentStage::Withdrawn);
        assert!(waiting.join().unwrap());
        assert_eq!(queue.take(0, Duration::ZERO).stage, AgentStage::Ended);
    }
}
