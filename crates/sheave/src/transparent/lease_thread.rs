//! The thread of the lease: it renews the lease of the rules while the workers work. It never waits for the kernel's
//! lock for changes, so connections are taken while a change of the rules waits for other programs.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use intercept::{LeaseAction, LeaseKeeper, NodeObservation, TableLease, WithdrawalCause};
use proxy::{InterceptionCounts, Time, clock};

use super::agent_status::{AgentStatus, KernelOperation, set_time};
use super::command_queue::{AgentStage, CommandQueue};
use super::control_thread::AgentParts;
use super::events;
use super::kernel_failures::{ConditionReporter, KernelFailures};
use super::worker_watch::WorkerWatch;

/// Longest time between two passes: a few in each interval of renewals.
const PASS_INTERVAL: Duration = Duration::from_millis(50);
/// Interval at which the counter of refused packets is read.
const COUNTER_INTERVAL: Duration = Duration::from_secs(1);
/// Time without a pass of the thread of the rules after which it is an Event.
const LONG_CHANGE: Duration = Duration::from_secs(5);

/// Reads the counts of the data plane.
pub(super) type CountReader = Box<dyn Fn() -> InterceptionCounts + Send>;

/// The thread's state.
pub(super) struct LeaseThread {
    lease: TableLease,
    queue: Arc<CommandQueue>,
    status: Arc<AgentStatus>,
    counts: CountReader,
    keeper: LeaseKeeper,
    workers: WorkerWatch,
    failures: KernelFailures,
    reporter: ConditionReporter,
    counters_due: Time,
}

impl LeaseThread {
    pub(super) fn new(lease: TableLease, parts: AgentParts, counts: CountReader) -> Self {
        let reporter = parts.reporter();
        Self {
            lease,
            queue: parts.queue,
            status: parts.status,
            counts,
            keeper: LeaseKeeper::default(),
            workers: WorkerWatch::default(),
            failures: KernelFailures::new(reporter.clone()),
            reporter,
            counters_due: Time::ZERO,
        }
    }

    /// Runs until the agent ends.
    pub(super) fn run(mut self) {
        self.pass();
        while !self.queue.is_ended_within(PASS_INTERVAL) {
            self.pass();
        }
    }

    /// Does what is due.
    pub(super) fn pass(&mut self) {
        if self.queue.stage() == AgentStage::Serving {
            self.keep_lease();
            self.watch_changes();
        }
        self.read_counters();
        set_time(&self.status.lease_passed_at, clock::now());
    }

    fn keep_lease(&mut self) {
        let counts = (self.counts)();
        let now = clock::now();
        let ticked = self.workers.observe(now, &counts.worker_ticks);
        set_time(&self.status.workers_ticked_at, ticked);
        let taken = self.lease.taken();
        let taken = self.failures.judge(KernelOperation::Counters, taken);
        // Without the counter, the comparison with it can wait.
        let taken = taken.unwrap_or_else(|| self.status.taken.load(Ordering::Relaxed));
        self.status.taken.store(taken, Ordering::Relaxed);
        let observation = NodeObservation {
            worker_ticks: &counts.worker_ticks,
            taken,
            accepted: counts.accepted,
        };
        match self.keeper.next_action(now.saturating_since(Time::ZERO), &observation) {
            LeaseAction::Wait => {}
            LeaseAction::Renew => self.renew(now),
            LeaseAction::Withdraw(cause) => self.withdraw(cause, taken, counts.accepted),
        }
    }

    fn renew(&mut self, now: Time) {
        let lease = &mut self.lease;
        // `None`: the rules are being withdrawn, and the lease ends by itself until that is done.
        let Some(renewed) = self.queue.renew_unless_withdrawn(|| lease.renew()) else { return };
        if self.failures.judge(KernelOperation::Lease, renewed).is_none() {
            return;
        }
        set_time(&self.status.renewed_at, now);
        if self.status.is_withdrawn.swap(false, Ordering::Relaxed) {
            tracing::info!("the rules are tried again");
            self.reporter.report(events::RULES_WITHDRAWN, None);
        }
    }

    /// Hands a withdrawal to the thread of the rules, which owns them.
    fn withdraw(&self, cause: WithdrawalCause, taken: u64, accepted: u64) {
        tracing::error!(taken, accepted, "the rules are withdrawn: {cause}");
        self.status.withdrawals.fetch_add(1, Ordering::Relaxed);
        self.status.is_withdrawn.store(true, Ordering::Relaxed);
        self.queue.request_withdrawal();
        self.reporter.report(events::RULES_WITHDRAWN, Some(cause.to_string()));
    }

    /// Reports changes of the rules that wait for a long time.
    fn watch_changes(&self) {
        let is_late = self.status.rules_delay(clock::now()) >= LONG_CHANGE;
        let message = "changes of the kernel's rules wait: another program holds the lock for them. Connections are \
                       taken as before, and new clients' addresses are not kept";
        self.reporter.report(events::CHANGES_DELAYED, is_late.then(|| message.to_owned()));
    }

    fn read_counters(&mut self) {
        let now = clock::now();
        if now < self.counters_due {
            return;
        }
        self.counters_due = now + COUNTER_INTERVAL;
        let refused = self.lease.refused();
        if let Some(refused) = self.failures.judge(KernelOperation::Counters, refused) {
            self.status.refused.store(refused, Ordering::Relaxed);
        }
    }
}
