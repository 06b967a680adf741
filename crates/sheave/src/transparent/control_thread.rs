//! The thread of the rules: it alone changes them. It hands changes of addresses to the kernel, marks of clients, and
//! withdrawals. Its calls may wait for other programs' changes of rules; the lease does not wait for it.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use intercept::RuleTable;
use kube::EventRecorder;
use proxy::{ClientMark, Time, clock};

use super::agent_status::{AgentStatus, KernelOperation, set_time};
use super::client_marks::ClientMarks;
use super::command_queue::{AgentStage, ClientRequest, CommandQueue, RetryDelay, TakenServices};
use super::interceptor::lock;
use super::kernel_failures::{ConditionReporter, KernelFailures};
use super::local_clients::LocalClients;

/// Longest time between two passes.
const PASS_INTERVAL: Duration = Duration::from_millis(50);
/// Interval at which the marks in use are counted.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);

/// The thread's state.
pub(super) struct ControlThread {
    table: RuleTable,
    queue: Arc<CommandQueue>,
    clients: Arc<Mutex<ClientMarks>>,
    local: Arc<LocalClients>,
    status: Arc<AgentStatus>,
    addresses: AddressUpdates,
    failures: KernelFailures,
    /// True once the lease was ended for the shutdown.
    has_left: bool,
    count_due: Time,
}

/// Lists of addresses that the kernel gets.
struct AddressUpdates {
    /// The newest list that was seen.
    seen: u64,
    retry: RetryDelay,
}

/// The parts that the threads of an agent share.
#[derive(Clone)]
pub(super) struct AgentParts {
    pub(super) queue: Arc<CommandQueue>,
    pub(super) clients: Arc<Mutex<ClientMarks>>,
    pub(super) local: Arc<LocalClients>,
    pub(super) status: Arc<AgentStatus>,
    pub(super) node: String,
    pub(super) events: EventRecorder,
}

impl AgentParts {
    pub(super) fn reporter(&self) -> ConditionReporter {
        ConditionReporter {
            status: Arc::clone(&self.status),
            node: self.node.clone(),
            events: self.events.clone(),
        }
    }
}

impl ControlThread {
    pub(super) fn new(table: RuleTable, parts: AgentParts) -> Self {
        let failures = KernelFailures::new(parts.reporter());
        let AgentParts { queue, clients, local, status, .. } = parts;
        let retry = RetryDelay::new(Duration::from_millis(100), Duration::from_secs(5));
        Self {
            table,
            queue,
            clients,
            local,
            status,
            addresses: AddressUpdates { seen: 0, retry },
            failures,
            has_left: false,
            count_due: Time::ZERO,
        }
    }

    /// Runs until the agent ends. Then the kernel removes the table.
    pub(super) fn run(mut self) {
        while self.pass(PASS_INTERVAL) < AgentStage::Ended {}
        let queue = Arc::clone(&self.queue);
        drop(self);
        queue.record_end();
    }

    /// Does what is to be done, after a wait of up to `limit` for something new; returns the stage.
    fn pass(&mut self, limit: Duration) -> AgentStage {
        let commands = self.queue.take(self.addresses.seen, limit);
        if let Some((generation, services)) = commands.services {
            self.update_addresses(generation, &services);
        }
        if commands.stage == AgentStage::Withdrawn && !self.has_left {
            self.has_left = self.withdraw();
        } else if commands.is_withdrawal_requested {
            // If it fails, the lease has ended by itself before it is renewed again.
            self.withdraw();
        }
        self.assign_marks(commands.clients);
        self.count_marks();
        set_time(&self.status.rules_passed_at, clock::now());
        commands.stage
    }

    fn update_addresses(&mut self, generation: u64, services: &TakenServices) {
        if generation > self.addresses.seen {
            self.addresses.seen = generation;
            self.addresses.retry.record_success();
        }
        if !self.addresses.retry.is_due() {
            return;
        }
        let result = self.table.set_addresses(services.addresses.iter().copied());
        match result.is_ok() {
            true => {
                let addresses = self.table.addresses().len();
                tracing::info!(addresses, "connections to these addresses are taken");
                self.status.addresses.store(addresses as u64, Ordering::Relaxed);
                self.addresses.retry.record_success();
                self.queue.record_applied(generation);
            }
            false => self.addresses.retry.record_failure(),
        }
        self.failures.judge(KernelOperation::Addresses, result);
    }

    /// Ends the lease; returns false if the kernel refuses. No renewal comes after it, see
    /// [`CommandQueue::renew_unless_withdrawn`].
    fn withdraw(&mut self) -> bool {
        self.queue.await_renewal();
        let withdrawn = self.table.withdraw();
        let is_done = self.failures.judge(KernelOperation::Withdrawal, withdrawn).is_some();
        self.queue.record_withdrawal(is_done);
        is_done
    }

    fn assign_marks(&mut self, requests: VecDeque<ClientRequest>) {
        for ClientRequest { client, reply } in requests {
            let known = lock(&self.clients).find(client);
            let mark = known.or_else(|| self.new_mark(client));
            // A connection that no longer waits needs none.
            drop(reply.send(mark));
        }
    }

    /// Returns a mark for a client that has none; `None` if the client is not on this node, if connections use all
    /// marks, or if the kernel refuses.
    fn new_mark(&mut self, client: IpAddr) -> Option<Arc<ClientMark>> {
        let is_local = self.local.contains(client);
        if !self.failures.judge(KernelOperation::ClientRoute, is_local)? {
            self.status.remote_clients.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let reservation = lock(&self.clients).reserve(client)?;
        let added = self.table.add_client(reservation.mark, client);
        match self.failures.judge(KernelOperation::ClientMark, added) {
            Some(()) => Some(lock(&self.clients).confirm(&reservation)),
            None => {
                lock(&self.clients).give_back(&reservation);
                None
            }
        }
    }

    fn count_marks(&mut self) {
        let now = clock::now();
        if now >= self.count_due {
            self.count_due = now + COUNT_INTERVAL;
            let in_use = lock(&self.clients).in_use();
            self.status.marks_in_use.store(in_use as u64, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
