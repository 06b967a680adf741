//! Cost of the lease table: processor time of a replica, idle and with load.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use balance::Time;
use balance::leases::{
    CutOffPolicy, LeaseMessage, LeaseTable, LeasedEndpoint, PoolKey, QueueState, ReplicaIdentity,
};
use balance::slot_assignment::HANDOVER_TIME;

use super::lease_replica::{endpoint, member, member_number};
use crate::random::RandomSource;

const REPLICAS: usize = 10;
const ENDPOINTS: usize = 1_000;
const CAP: u32 = 20;

/// Time of the simulation for which the cost is measured.
const LASTS: Duration = Duration::from_secs(10);

/// Interval at which the thread of the table takes what has happened meanwhile.
const STEP: Duration = Duration::from_millis(1);

/// Prints the table, a row for each combination.
#[expect(clippy::print_stdout, reason = "the table is the output")]
pub(super) fn print() -> Result<(), String> {
    println!(
        "endpoints,replicas,pools,reports_per_second,driven_by,polls_per_second,\
         messages_per_second,core_percent"
    );
    for pools in [1, 30, 1_000] {
        for (reports, batched) in [(0, true), (1_000, false), (10_000, false), (10_000, true)] {
            let mut group = CostGroup::new(pools);
            group.run(HANDOVER_TIME * 2, 0, true)?;
            group.run(Duration::from_secs(1), reports, batched)?;
            let (polls, messages, processor_time) = group.run(LASTS, reports, batched)?;
            let each = REPLICAS as f64 * LASTS.as_secs_f64();
            println!(
                "{ENDPOINTS},{REPLICAS},{pools},{reports},{},{:.0},{:.0},{:.2}",
                if batched { "step" } else { "report" },
                polls as f64 / each,
                messages as f64 / each,
                processor_time.as_secs_f64() / each * 100.0,
            );
        }
    }
    Ok(())
}

/// Replicas in front of the same endpoints. A message arrives a step after it was sent.
struct CostGroup {
    tables: Vec<LeaseTable>,
    in_flight: Vec<Vec<u32>>,
    next_polls: Vec<Time>,
    pools: usize,
    now: Time,
    sent: Vec<LeaseMessage>,
    polls: u64,
    dice: RandomSource,
}

impl CostGroup {
    fn new(pools: usize) -> Self {
        let now = Time::from_nanos(1);
        let endpoints: Vec<_> = (0..ENDPOINTS)
            .map(|number| LeasedEndpoint {
                address: endpoint(number),
                cap: CAP,
                pool: PoolKey((number % pools) as u64),
            })
            .collect();
        let table = |number| {
            let identity = ReplicaIdentity { member: member(number), incarnation: 1 };
            let mut table = LeaseTable::new(identity, CutOffPolicy::Strict);
            table.update_members((0..REPLICAS).map(member), now);
            table.update_endpoints(&endpoints);
            table
        };
        Self {
            tables: (0..REPLICAS).map(table).collect(),
            in_flight: vec![vec![0; ENDPOINTS]; REPLICAS],
            next_polls: vec![now; REPLICAS],
            pools,
            now,
            sent: Vec::new(),
            polls: 0,
            dice: RandomSource::new(42),
        }
    }

    /// Lets time pass. Returns the numbers of polls and messages, and the time on the processor.
    fn run(
        &mut self,
        lasts: Duration,
        reports_per_second: u32,
        batched: bool,
    ) -> Result<(u64, u64, Duration), String> {
        let began = processor_time()?;
        let mut messages = 0;
        self.polls = 0;
        let end = self.now + lasts;
        let reports = reports_per_second / 1_000;
        while self.now < end {
            self.now = self.now + STEP;
            let mut has_received = [false; REPLICAS];
            for message in std::mem::take(&mut self.sent) {
                let to = member_number(message.to.member);
                has_received[to] = self.tables[to].receive(&message, self.now).is_ok();
                messages += 1;
            }
            for (number, &has_received) in has_received.iter().enumerate() {
                let is_due = self.now >= self.next_polls[number];
                for report in 1..=reports {
                    self.report(number);
                    if !batched || report == reports {
                        self.poll(number);
                    }
                }
                if reports == 0 && (is_due || has_received) {
                    self.poll(number);
                }
            }
        }
        Ok((self.polls, messages, processor_time()? - began))
    }

    fn poll(&mut self, number: usize) {
        let in_flight = &self.in_flight[number];
        let put_in_force = |address: SocketAddr, _| in_flight[usize::from(address.port()) - 1];
        let table = &mut self.tables[number];
        self.sent.extend(table.poll(self.now, put_in_force));
        self.next_polls[number] = table.next_poll(self.now);
        self.polls += 1;
    }

    /// Lets a request begin or end at a random endpoint, about as many of both. If all slots there
    /// are in use, it waits instead, or no longer does.
    fn report(&mut self, number: usize) {
        let at = self.dice.below(ENDPOINTS);
        let share = self.tables[number].share(endpoint(at)).slots;
        let in_flight = &mut self.in_flight[number][at];
        let begins = self.dice.percent(52);
        if begins && *in_flight < share {
            *in_flight += 1;
            self.tables[number].record_requests(1);
        } else if begins {
            let pool = PoolKey((at % self.pools) as u64);
            self.tables[number].report_queue(pool, QueueState::of_one_priority(1, Some(self.now)));
            return;
        } else {
            *in_flight = in_flight.saturating_sub(1);
            let pool = PoolKey((at % self.pools) as u64);
            self.tables[number].report_queue(pool, QueueState::default());
        }
        let in_flight = *in_flight;
        self.tables[number].report_in_flight(endpoint(at), in_flight);
    }
}

/// Returns the time for which this thread has been on a processor.
fn processor_time() -> Result<Duration, String> {
    let path = "/proc/thread-self/schedstat";
    let text = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let nanos = text.split_whitespace().next().and_then(|it| it.parse().ok());
    nanos.map(Duration::from_nanos).ok_or_else(|| format!("{path}: {text:?} is not understood"))
}
