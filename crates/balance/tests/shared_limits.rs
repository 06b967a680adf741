//! Properties of limits that replicas learn together, over random schedules of messages, and over
//! random messages.
#![cfg(not(loom))]

use std::net::SocketAddr;
use std::time::Duration;

use balance::leases::{PoolKey, ReplicaIdentity};
use balance::limit::{
    LIMITS_VERSION, LimitEntry, LimitMessage, LimitReason, LimitRefusal, LimitSample, LimitSharing,
    ObservationSums, SharedLimit,
};
use balance::{
    AttemptResult, ConcurrencyCap, ConcurrencyLimiter, EndpointRegistry, EndpointSet,
    LimitSettings, SetMember, Time,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

const REPLICAS: usize = 3;
const ENDPOINTS: usize = 2;
const POOL: PoolKey = PoolKey(7);
const SETTINGS: LimitSettings = LimitSettings { min: 2, max: 40, start: 8 };
const TICK: Duration = Duration::from_millis(100);

fn member(number: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 1, number as u8], 0))
}

fn endpoint(number: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, number as u8], 80))
}

fn identity(number: usize) -> ReplicaIdentity {
    ReplicaIdentity { member: member(number), incarnation: 1 + number as u64 }
}

/// One replica, whose requests the test begins.
struct Replica {
    set: EndpointSet<()>,
    limiter: ConcurrencyLimiter,
    sharing: LimitSharing,
    waiting: u32,
    rounds: u64,
}

impl Replica {
    fn new(number: usize) -> Self {
        let mut registry = EndpointRegistry::new();
        let member_of = |it| SetMember::new(registry.endpoint(endpoint(it), || ()), 1);
        let mut sharing = LimitSharing::new(identity(number));
        sharing.update_members((0..REPLICAS).map(member));
        let set = EndpointSet::new((0..ENDPOINTS).map(member_of).collect());
        Self { set, limiter: ConcurrencyLimiter::new(), sharing, waiting: 0, rounds: 0 }
    }

    fn update(&mut self, now: Time) {
        self.rounds += 1;
        let shared = (POOL, &mut self.sharing);
        self.limiter.update_shared(&self.set, &SETTINGS, self.waiting, self.rounds, shared, now);
    }

    /// Begins requests up to the limit, and records the end of some.
    fn load(&self, requests: u32, now: Time) {
        for each in self.set.members() {
            for _ in each.endpoint.in_flight()..requests {
                each.endpoint.take(ConcurrencyCap::Learned, now);
            }
            let (level, slot_time) = (each.endpoint.in_flight().max(1), TICK);
            let sample = LimitSample { level, slot_time };
            (0..level).for_each(|_| {
                each.endpoint.limit_counters.learn(sample, AttemptResult::Success);
            });
        }
    }

    fn limit(&self, number: usize) -> u32 {
        self.set.members()[number]
            .endpoint
            .limit(ConcurrencyCap::Learned)
            .expect("the limit is learned")
    }

    fn total(&self, number: usize) -> u32 {
        self.limiter.totals().nth(number).expect("each endpoint has a total").1
    }

    fn check_bounds(&self) -> Result<(), TestCaseError> {
        for number in 0..ENDPOINTS {
            let (limit, total) = (self.limit(number), self.total(number));
            prop_assert!((1..=SETTINGS.max).contains(&limit), "limit {limit}");
            prop_assert!((SETTINGS.min..=SETTINGS.max).contains(&total), "total {total}");
            prop_assert!(limit <= total, "{limit} of {total}");
        }
        Ok(())
    }
}

/// Exchanges all messages, without loss, for some time.
fn run_undisturbed(replicas: &mut [Replica], now: &mut Time, rounds: usize) {
    for _ in 0..rounds {
        *now = *now + TICK;
        replicas.iter_mut().for_each(|it| it.update(*now));
        let messages: Vec<_> = replicas.iter_mut().map(|it| it.sharing.message(*now)).collect();
        for (from, message) in messages.into_iter().enumerate() {
            for to in (0..REPLICAS).filter(|&to| to != from) {
                let message = message.as_ref().expect("a message");
                replicas[to].sharing.receive(message, *now).expect("a message of a peer");
            }
        }
    }
}

/// Runs until no trial has begun or ended for some rounds.
fn run_until_totals_are_settled(replicas: &mut [Replica], now: &mut Time) {
    let totals = |replicas: &[Replica]| -> Vec<u32> {
        replicas.iter().flat_map(|it| it.limiter.totals().map(|(_, total)| total)).collect()
    };
    let (mut settled, mut before) = (0, totals(replicas));
    for _ in 0..100 {
        run_undisturbed(replicas, now, 1);
        let newest = totals(replicas);
        let is_settled =
            newest == before && newest[..ENDPOINTS] == newest[ENDPOINTS..][..ENDPOINTS];
        settled = if is_settled { settled + 1 } else { 0 };
        before = newest;
        if settled == 5 {
            return;
        }
    }
    panic!("totals differ or change: {before:?}");
}

#[derive(Clone, Copy, Debug)]
enum ScheduleStep {
    Update(usize),
    Load(usize, u32, u32),
    /// A message is sent, and each peer may get it.
    Send(usize, bool, bool),
    /// An earlier message arrives again.
    Replay(usize),
    Pass(u64),
}

fn step() -> impl Strategy<Value = ScheduleStep> {
    prop_oneof![
        6 => (0..REPLICAS).prop_map(ScheduleStep::Update),
        3 => (0..REPLICAS, 0_u32..60, 0_u32..60)
            .prop_map(|(it, requests, waiting)| ScheduleStep::Load(it, requests, waiting)),
        6 => (0..REPLICAS, any::<bool>(), any::<bool>())
            .prop_map(|(it, one, other)| ScheduleStep::Send(it, one, other)),
        1 => any::<usize>().prop_map(ScheduleStep::Replay),
        3 => prop_oneof![1_u64..200, 1_u64..40_000].prop_map(ScheduleStep::Pass),
    ]
}

fn entry() -> impl Strategy<Value = LimitEntry> {
    let number = || prop_oneof![0_u64..5000, any::<u64>()];
    let limit = || prop_oneof![0_u32..50, any::<u32>()];
    let state = (number(), number(), limit(), limit(), limit(), any::<bool>());
    let sums = (number(), number(), number(), number(), any::<[u64; 2]>());
    (0..=ENDPOINTS, state, sums).prop_map(|(at, state, sums)| {
        let (in_flight_milli, demand_milli, total, claim, reported, preferred) = state;
        let (observed_nanos, in_flight_nanos, limited_nanos, finished, rest) = sums;
        let reason = if preferred { LimitReason::Probing } else { LimitReason::Reported };
        let [held_nanos, squares] = rest;
        LimitEntry {
            pool: POOL,
            endpoint: endpoint(at),
            state: SharedLimit {
                in_flight_milli,
                demand_milli,
                total,
                claim,
                reason,
                preferred,
                reported,
            },
            sums: ObservationSums {
                begun_nanos: 0,
                observed_nanos,
                in_flight_nanos,
                limited_nanos,
                finished,
                held_nanos,
                squares,
            },
        }
    })
}

fn config() -> ProptestConfig {
    let file = Box::new(FileFailurePersistence::Direct("tests/shared_limits.regressions"));
    ProptestConfig { cases: 128, failure_persistence: Some(file), ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    /// Whatever happens, each limit is within its bounds. When messages pass again, parts add up to
    /// the total, and one more for each replica without a part.
    #[test]
    fn parts_add_up_to_the_total_after_any_schedule(steps in vec(step(), 1..200)) {
        let mut replicas: Vec<_> = (0..REPLICAS).map(Replica::new).collect();
        let mut now = Time::ZERO;
        let mut sent: Vec<(usize, LimitMessage)> = Vec::new();
        replicas.iter_mut().for_each(|it| it.update(now));
        for step in steps {
            match step {
                ScheduleStep::Update(it) => {
                    replicas[it].update(now);
                    replicas[it].check_bounds()?;
                }
                ScheduleStep::Load(it, requests, waiting) => {
                    replicas[it].waiting = waiting;
                    replicas[it].load(requests, now);
                }
                ScheduleStep::Send(from, one, other) => {
                    let Some(message) = replicas[from].sharing.message(now) else { continue };
                    for (to, arrives) in [(from + 1, one), (from + 2, other)] {
                        if arrives {
                            let to = &mut replicas[to % REPLICAS].sharing;
                            prop_assert_eq!(to.receive(&message, now), Ok(()));
                        }
                    }
                    sent.push((from, message));
                }
                ScheduleStep::Replay(which) => {
                    if !sent.is_empty() {
                        let (from, message) = &sent[which % sent.len()];
                        let to = &mut replicas[(from + 1) % REPLICAS].sharing;
                        // It has not arrived before, or is refused.
                        let result = to.receive(message, now);
                        prop_assert!(matches!(result, Ok(()) | Err(LimitRefusal::StaleSequence)));
                    }
                }
                ScheduleStep::Pass(milliseconds) => {
                    now = now + Duration::from_millis(milliseconds);
                }
            }
        }
        run_undisturbed(&mut replicas, &mut now, 60);
        run_until_totals_are_settled(&mut replicas, &mut now);
        for number in 0..ENDPOINTS {
            let total = replicas[0].total(number);
            let limits: Vec<_> = replicas.iter().map(|it| it.limit(number)).collect();
            let sum: u32 = limits.iter().sum();
            let most = total.max(REPLICAS as u32) + REPLICAS as u32 - 1;
            prop_assert!((total..=most).contains(&sum), "{limits:?} of {total}");
        }
    }

    /// A peer with a valid identity cannot move a limit out of its bounds, whatever it sends.
    #[test]
    fn no_message_moves_a_limit_out_of_its_bounds(
        messages in vec((vec(entry(), 0..6), 1_u64..2000), 1..20),
    ) {
        let mut replica = Replica::new(2);
        let mut now = Time::ZERO;
        replica.update(now);
        for (endpoints, passed) in messages {
            now = now + Duration::from_millis(passed);
            let (version, from) = (LIMITS_VERSION, identity(0));
            let message = LimitMessage { version, from, sent: now, endpoints };
            let before = replica.sharing.refused();
            let result = replica.sharing.receive(&message, now);
            let refused: u64 = replica.sharing.refused().iter().sum();
            prop_assert_eq!(refused, before.iter().sum::<u64>() + u64::from(result.is_err()));
            replica.load(10, now);
            replica.update(now);
            replica.check_bounds()?;
        }
    }
}

#[test]
fn requests_move_and_parts_follow() {
    let mut replicas: Vec<_> = (0..REPLICAS).map(Replica::new).collect();
    let mut now = Time::ZERO;
    for (busy, other) in [(0, 1), (1, 0)] {
        replicas[busy].waiting = 50;
        replicas[other].waiting = 0;
        run_undisturbed(&mut replicas, &mut now, 100);
        for number in 0..ENDPOINTS {
            let total = replicas[busy].total(number);
            assert_eq!(replicas[busy].limit(number), total);
            assert_eq!(replicas[other].limit(number), 1);
        }
    }
}

#[test]
fn silent_peer_keeps_its_part_and_is_forgotten_at_last() {
    let mut replicas: Vec<_> = (0..REPLICAS).map(Replica::new).collect();
    let mut now = Time::ZERO;
    replicas.iter_mut().for_each(|it| it.waiting = 50);
    run_undisturbed(&mut replicas, &mut now, 100);
    let (total, part) = (replicas[0].total(0), replicas[0].limit(0));
    assert!(part < total, "{part} of {total}");
    // No message arrives any more: the part stays.
    for _ in 0..290 {
        now = now + TICK;
        replicas[0].update(now);
        assert_eq!((replicas[0].limit(0), replicas[0].total(0)), (part, total));
    }
    // The replica goes on alone, from its part.
    now = now + 10 * TICK;
    for _ in 0..20 {
        now = now + TICK;
        replicas[0].update(now);
        assert_eq!((replicas[0].limit(0), replicas[0].total(0)), (part, part));
    }
    // With the peers gone from the list it is the same; a peer that comes back is heard.
    run_undisturbed(&mut replicas, &mut now, 100);
    assert!(replicas[0].limit(0) < replicas[0].total(0));
}

#[test]
fn messages_that_cannot_be_right_are_refused_and_counted() {
    let mut replicas: Vec<_> = (0..REPLICAS).map(Replica::new).collect();
    let mut now = Time::ZERO;
    run_undisturbed(&mut replicas, &mut now, 3);
    let later = now + TICK;
    let message = replicas[0].sharing.message(later).expect("a message");
    let mut check = |change: &dyn Fn(&mut LimitMessage), refusal| {
        let mut changed = message.clone();
        change(&mut changed);
        let sharing = &mut replicas[1].sharing;
        let before = sharing.refused()[refusal as usize];
        assert_eq!(sharing.receive(&changed, later), Err(refusal), "{changed:?}");
        assert_eq!(sharing.refused()[refusal as usize], before + 1);
    };
    let millions = |it: &mut LimitMessage| it.endpoints[0].state.demand_milli = u64::MAX;
    check(&|it| it.version += 1, LimitRefusal::Version);
    check(&|it| it.from.member = member(9), LimitRefusal::UnknownMember);
    check(&|it| it.from.incarnation -= 1, LimitRefusal::StaleIncarnation);
    check(&|it| it.sent = now, LimitRefusal::StaleSequence);
    check(&millions, LimitRefusal::Absurd);
    check(&|it| it.endpoints[0].state.total = 0, LimitRefusal::Absurd);
    check(&|it| it.endpoints[0].state.total = u32::MAX, LimitRefusal::Absurd);
    check(&|it| it.endpoints[0].state.claim = u32::MAX, LimitRefusal::Absurd);
    check(&|it| it.endpoints[0].sums.in_flight_nanos = u64::MAX, LimitRefusal::Absurd);
    check(&|it| it.endpoints[0].sums.finished = u64::MAX, LimitRefusal::Absurd);
    check(&|it| it.endpoints = vec![it.endpoints[0].clone(); 257], LimitRefusal::Absurd);
    assert_eq!(replicas[1].sharing.receive(&message, later), Ok(()));
}

#[test]
fn replica_without_peers_sends_nothing_and_learns_as_before() {
    let mut shared = Replica::new(0);
    shared.sharing.update_members([member(0)]);
    let alone = Replica::new(0);
    let mut limiter = ConcurrencyLimiter::new();
    let mut now = Time::ZERO;
    for round in 1..500 {
        now = now + TICK;
        shared.load(6, now);
        alone.load(6, now);
        shared.update(now);
        limiter.update(&alone.set, &SETTINGS, 0, round, now);
        assert_eq!(shared.sharing.message(now), None);
        assert!(shared.limiter.limits().eq(limiter.limits()));
    }
}
