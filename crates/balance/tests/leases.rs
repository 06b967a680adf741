//! Properties of slot leases, over random schedules of messages, and over random messages.
#![cfg(not(loom))]

use std::net::SocketAddr;
use std::time::Duration;

use balance::leases::{
    CutOffPolicy, EndpointShare, LEASE_VERSION, LeaseMessage, LeaseRefusal, LeaseTable,
    LeasedEndpoint, LentEntry, PoolEntry, PoolKey, PoolState, QueueState, ReplicaIdentity,
    ReturnedEntry, TICK,
};
use balance::slot_assignment::HANDOVER_TIME;
use balance::{PriorityLevel, Time};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

const REPLICAS: usize = 3;
const CAPS: [u32; 2] = [1, 4];

fn member(number: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 1, number as u8], 0))
}

fn endpoint(number: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, number as u8], 80))
}

#[derive(Clone, Copy, Debug)]
enum ScheduleStep {
    /// A request arrives at a replica.
    Arrive(usize),
    /// The oldest request at a replica and endpoint ends.
    Finish(usize, usize),
    /// A message that is on its way arrives, and may arrive again.
    Deliver(usize, bool),
    Lose(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = ScheduleStep> {
    prop_oneof![
        4 => (0..REPLICAS).prop_map(ScheduleStep::Arrive),
        4 => (0..REPLICAS, 0..CAPS.len()).prop_map(|(it, at)| ScheduleStep::Finish(it, at)),
        8 => (any::<usize>(), prop::bool::weighted(0.2))
            .prop_map(|(it, again)| ScheduleStep::Deliver(it, again)),
        1 => any::<usize>().prop_map(ScheduleStep::Lose),
        2 => prop_oneof![1_u64..30, 1_u64..300].prop_map(ScheduleStep::Pass),
    ]
}

#[derive(Default)]
struct EndpointUse {
    share: EndpointShare,
    in_flight: u32,
}

/// Replicas with data planes, and the messages between them.
struct Schedule {
    now: Time,
    tables: Vec<LeaseTable>,
    uses: Vec<[EndpointUse; CAPS.len()]>,
    queued: [u32; REPLICAS],
    on_the_way: Vec<LeaseMessage>,
}

impl Schedule {
    fn new() -> Self {
        let mut schedule = Self {
            now: Time::from_nanos(1),
            tables: Vec::new(),
            uses: (0..REPLICAS).map(|_| Default::default()).collect(),
            queued: [0; REPLICAS],
            on_the_way: Vec::new(),
        };
        for number in 0..REPLICAS {
            let identity = ReplicaIdentity { member: member(number), incarnation: 1 };
            let mut table = LeaseTable::new(identity, CutOffPolicy::Strict);
            table.update_members((0..REPLICAS).map(member), schedule.now);
            table.update_endpoints(&endpoints());
            schedule.tables.push(table);
        }
        schedule.settle(HANDOVER_TIME);
        schedule
    }

    /// Delivers everything, for a time.
    fn settle(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.now < end {
            self.now = self.now + TICK;
            (0..REPLICAS).for_each(|it| self.poll(it));
            while !self.on_the_way.is_empty() {
                self.deliver(0, false);
            }
        }
    }

    fn usable(&self, replica: usize, at: usize) -> u32 {
        let share = self.uses[replica][at].share;
        let is_valid = self.now < self.tables[replica].valid_until();
        if is_valid { share.slots } else { share.without_leases }
    }

    fn run(&mut self, step: ScheduleStep) {
        match step {
            ScheduleStep::Arrive(replica) => {
                self.queued[replica] += 1;
                self.poll(replica);
            }
            ScheduleStep::Finish(replica, at) => {
                let used = &mut self.uses[replica][at];
                used.in_flight = used.in_flight.saturating_sub(1);
                self.poll(replica);
            }
            ScheduleStep::Deliver(..) | ScheduleStep::Lose(_) if self.on_the_way.is_empty() => {}
            ScheduleStep::Deliver(which, again) => {
                self.deliver(which % self.on_the_way.len(), again);
            }
            ScheduleStep::Lose(which) => {
                self.on_the_way.swap_remove(which % self.on_the_way.len());
            }
            ScheduleStep::Pass(millis) => {
                self.now = self.now + Duration::from_millis(millis);
                (0..REPLICAS).for_each(|it| self.poll(it));
            }
        }
        self.check();
    }

    fn deliver(&mut self, which: usize, again: bool) {
        let message = self.on_the_way[which].clone();
        if !again {
            self.on_the_way.remove(which);
        }
        let to = (0..REPLICAS).find(|&it| member(it) == message.to.member).expect("a member");
        if let Err(refusal) = self.tables[to].receive(&message, self.now) {
            assert_eq!(refusal, LeaseRefusal::StaleSequence, "it was overtaken or came before");
        }
        self.poll(to);
    }

    fn poll(&mut self, replica: usize) {
        self.begin_requests(replica);
        let (table, uses) = (&mut self.tables[replica], &mut self.uses[replica]);
        for (number, used) in uses.iter().enumerate() {
            table.report_in_flight(endpoint(number), used.in_flight);
        }
        let queued = self.queued[replica];
        let since = (queued > 0).then_some(Time::ZERO);
        table.report_queue(PoolKey(0), QueueState::of_one_priority(queued, since));
        let messages = table.poll(self.now, |address, share| {
            let number = (0..CAPS.len()).find(|&it| endpoint(it) == address).expect("known");
            uses[number].share = share;
            uses[number].in_flight
        });
        self.on_the_way.extend(messages);
        self.begin_requests(replica);
    }

    fn begin_requests(&mut self, replica: usize) {
        for at in 0..CAPS.len() {
            let usable = self.usable(replica, at);
            let used = &mut self.uses[replica][at];
            let begun = usable.saturating_sub(used.in_flight).min(self.queued[replica]);
            used.in_flight += begun;
            self.queued[replica] -= begun;
        }
    }

    fn check(&self) {
        let taken_back: u64 = self.tables.iter().map(|table| table.counts().taken_back).sum();
        for (at, cap) in CAPS.into_iter().enumerate() {
            let usable: u32 = (0..REPLICAS).map(|it| self.usable(it, at)).sum();
            assert!(usable <= cap, "{usable} slots of {cap} are in use");
            let in_flight: u32 = self.uses.iter().map(|uses| uses[at].in_flight).sum();
            assert!(in_flight <= cap || taken_back > 0, "{in_flight} in flight, the cap is {cap}");
        }
    }
}

fn endpoints() -> Vec<LeasedEndpoint> {
    let of = |(number, cap)| LeasedEndpoint { address: endpoint(number), cap, pool: PoolKey(0) };
    CAPS.into_iter().enumerate().map(of).collect()
}

/// Numbers that are likely to be accepted, and ones that are not.
fn count() -> impl Strategy<Value = u64> {
    prop_oneof![0_u64..6, Just(u64::MAX), any::<u64>()]
}

fn time() -> impl Strategy<Value = Time> {
    count().prop_map(|it| Time::from_nanos(it.saturating_mul(1_000_000_000)))
}

fn identity() -> impl Strategy<Value = ReplicaIdentity> {
    (0..4_usize, 0_u64..4)
        .prop_map(|(it, incarnation)| ReplicaIdentity { member: member(it), incarnation })
}

fn message() -> impl Strategy<Value = LeaseMessage> {
    let address = || (0..4_usize).prop_map(endpoint);
    let lent = (address(), count(), any::<u32>(), any::<bool>()).prop_map(
        |(endpoint, granted, keep, closed)| LentEntry { endpoint, granted, keep, closed },
    );
    let returned =
        (address(), count()).prop_map(|(endpoint, returned)| ReturnedEntry { endpoint, returned });
    let pool = (count(), any::<[u32; 3]>(), count()).prop_map(|(pool, numbers, demand_milli)| {
        let [free, queued, wanted] = numbers;
        let (priority, first_queued) = (PriorityLevel::default(), queued);
        let oldest_wait = Duration::MAX;
        let state = PoolState { free, queued, priority, first_queued, oldest_wait, demand_milli };
        PoolEntry { pool: PoolKey(pool), state, wanted }
    });
    let header = (
        prop_oneof![9 => Just(LEASE_VERSION), 1 => any::<u16>()],
        identity(),
        identity(),
        time(),
        time(),
        count(),
        count(),
    );
    (header, vec(lent, 0..4), vec(returned, 0..3), vec(pool, 0..3)).prop_map(
        |(
            (version, from, to, sent, echo, lending_epoch, borrowing_epoch),
            lent,
            returned,
            pools,
        )| {
            LeaseMessage {
                version,
                from,
                to,
                sent,
                echo,
                lending_epoch,
                borrowing_epoch,
                lent,
                returned,
                pools,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn leases_keep_the_cap_in_any_schedule_and_no_slot_is_lost(steps in vec(step(), 1..200)) {
        let mut schedule = Schedule::new();
        steps.into_iter().for_each(|step| schedule.run(step));
        // Then all requests end, and everything arrives.
        schedule.on_the_way.clear();
        for _ in 0..400 {
            schedule.uses.iter_mut().flatten().for_each(|used| used.in_flight = 0);
            schedule.settle(TICK);
        }
        prop_assert_eq!(schedule.queued, [0; REPLICAS], "no request is starved");
        for (at, cap) in CAPS.into_iter().enumerate() {
            let usable: u32 = (0..REPLICAS).map(|it| schedule.usable(it, at)).sum();
            prop_assert_eq!(usable, cap);
        }
    }

    #[test]
    fn no_message_lifts_a_replica_over_the_cap(messages in vec(message(), 1..60)) {
        let mut schedule = Schedule::new();
        for message in messages {
            let before = schedule.tables[0].counts();
            let result = schedule.tables[0].receive(&message, schedule.now);
            let after = schedule.tables[0].counts();
            prop_assert_eq!(after.received - before.received, u64::from(result.is_ok()));
            schedule.poll(0);
            schedule.now = schedule.now + TICK;
            for (at, cap) in CAPS.into_iter().enumerate() {
                prop_assert!(schedule.uses[0][at].share.slots <= cap);
            }
        }
    }
}
