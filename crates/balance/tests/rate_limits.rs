//! Properties of rate limits that replicas keep together: replicas with messages that are lost, late, repeated and
//! out of order, and that crash, against one bucket for all.
#![cfg(not(loom))]

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use balance::leases::ReplicaIdentity;
use balance::rate_limit::{
    BucketTable, LimitId, MAX_TOKEN_ENTRIES, RateLimit, ReplicaPart, TOKENS_VERSION, TokenAmount,
    TokenExchange, TokenMessage, TokenRefusal, by_bucket, divide,
};
use balance::{Rng, Time};
use proptest::prelude::*;

const LIMIT: LimitId = LimitId(9);
const KEY: u128 = 0x1234;

fn member(number: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 1, number as u8], 0))
}

fn identity(number: usize, incarnation: u64) -> ReplicaIdentity {
    ReplicaIdentity { member: member(number), incarnation }
}

/// Requests of a limit and their period, and the burst.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    requests: u32,
    period: Duration,
    burst: u32,
}

impl Numbers {
    fn limit(self) -> RateLimit {
        let number = |it| NonZeroU32::new(it).expect("a limit is positive");
        RateLimit {
            requests: number(self.requests),
            period: self.period,
            burst: number(self.burst),
        }
    }
}

/// One bucket for all replicas, in which each request that a replica has admitted must find a token.
struct CentralBucket {
    numbers: Numbers,
    /// Tokens that it holds beyond the burst, because a crash may add them.
    slack: u32,
    level: u128,
    at: Time,
}

impl CentralBucket {
    fn new(numbers: Numbers, slack: u32) -> Self {
        let level = Self::most(numbers, slack);
        Self { numbers, slack, level, at: Time::ZERO }
    }

    fn most(numbers: Numbers, slack: u32) -> u128 {
        u128::from(numbers.burst + slack) * numbers.period.as_nanos()
    }

    fn admit(&mut self, now: Time) {
        let elapsed = now.saturating_since(self.at).as_nanos();
        let grown = self.level + elapsed * u128::from(self.numbers.requests);
        self.level = grown.min(Self::most(self.numbers, self.slack));
        self.at = now;
        let left = self.level.checked_sub(self.numbers.period.as_nanos());
        self.level = left.expect("no request is admitted beyond the limit");
    }
}

struct Replica {
    number: usize,
    table: BucketTable,
    exchange: TokenExchange,
    part: ReplicaPart,
}

impl Replica {
    fn new(number: usize, incarnation: u64) -> Self {
        let exchange = TokenExchange::new(identity(number, incarnation));
        Self { number, table: BucketTable::new(4), exchange, part: ReplicaPart::WHOLE }
    }

    fn update_members(&mut self, members: &[usize], now: Time) {
        self.exchange.update_members(members.iter().map(|&it| member(it)), now);
        self.part = self.exchange.part(now);
    }

    fn receive(&mut self, limit: &RateLimit, message: &TokenMessage, now: Time) {
        for tokens in self.exchange.receive(message, now).unwrap_or_default() {
            self.table.add(limit, self.part, tokens.key, tokens.micros, now);
        }
    }

    fn tick(&mut self, limit: &RateLimit, now: Time) -> Vec<TokenMessage> {
        self.part = self.exchange.part(now);
        let mut gifts = Vec::new();
        let wishes = self.exchange.wishes(now);
        for wishes in by_bucket(&wishes) {
            let total = wishes.iter().map(|wish| wish.tokens.micros).sum();
            let key = wishes[0].tokens.key;
            let released = self.table.release(limit, self.part, key, total, now);
            gifts.extend(divide(released, wishes));
        }
        self.exchange.give(gifts, now);
        let mut wanted = Vec::new();
        self.table.wanted(limit, self.part, now, |key, micros| {
            wanted.push(TokenAmount { limit: LIMIT, key, micros });
        });
        self.exchange.messages(&wanted, now)
    }
}

/// Faults of messages.
#[derive(Clone, Copy)]
struct Network {
    loss_percent: usize,
    repeat_percent: usize,
    max_delay: Duration,
}

const FAST: Network =
    Network { loss_percent: 0, repeat_percent: 0, max_delay: Duration::from_millis(2) };

struct Simulation {
    limit: RateLimit,
    central: CentralBucket,
    replicas: Vec<Option<Replica>>,
    network: Network,
    in_flight: Vec<(Time, TokenMessage)>,
    dice: Rng,
    now: Time,
    admitted: u64,
    offered: u64,
}

impl Simulation {
    fn new(numbers: Numbers, replicas: usize, network: Network, seed: u64, slack: u32) -> Self {
        let all: Vec<_> = (0..replicas).collect();
        let mut made: Vec<_> = all.iter().map(|&it| Replica::new(it, 1)).collect();
        made.iter_mut().for_each(|it| it.update_members(&all, Time::ZERO));
        Self {
            limit: numbers.limit(),
            central: CentralBucket::new(numbers, slack),
            replicas: made.into_iter().map(Some).collect(),
            network,
            in_flight: Vec::new(),
            dice: Rng::new(seed),
            now: Time::ZERO,
            admitted: 0,
            offered: 0,
        }
    }

    /// Serves requests for a time: each millisecond, each replica gets one with its probability in millionths.
    fn run(&mut self, duration: Duration, micros: &[usize]) {
        let end = self.now + duration;
        while self.now < end {
            self.now = self.now + Duration::from_millis(1);
            self.deliver();
            for (number, &chance) in micros.iter().enumerate() {
                let mut expected = chance;
                while expected > 0 {
                    if self.dice.below(1_000_000) < expected {
                        self.request(number);
                    }
                    expected = expected.saturating_sub(1_000_000);
                }
            }
            self.tick();
        }
    }

    fn request(&mut self, number: usize) {
        let Some(replica) = &mut self.replicas[number] else { return };
        self.offered += 1;
        if replica.table.take(&self.limit, replica.part, KEY, self.now).is_ok() {
            self.admitted += 1;
            self.central.admit(self.now);
        }
    }

    fn deliver(&mut self) {
        let now = self.now;
        let (due, later): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.in_flight).into_iter().partition(|(at, _)| *at <= now);
        self.in_flight = later;
        for (_, message) in due {
            let found = self.replicas.iter_mut().flatten();
            let mut found = found.filter(|it| member(it.number) == message.to.member);
            if let Some(replica) = found.next() {
                replica.receive(&self.limit, &message, now);
            }
        }
    }

    fn tick(&mut self) {
        let (now, limit) = (self.now, self.limit);
        let millis = now.as_nanos() / 1_000_000;
        // Replicas do not tick together.
        let is_due = |it: &&mut Replica| (millis + 17 * it.number as u64).is_multiple_of(50);
        let due = self.replicas.iter_mut().flatten().filter(is_due);
        let sent: Vec<_> = due.flat_map(|it| it.tick(&limit, now)).collect();
        for message in sent {
            self.send(message);
        }
    }

    fn send(&mut self, message: TokenMessage) {
        if self.dice.below(100) < self.network.loss_percent {
            return;
        }
        let copies = 1 + usize::from(self.dice.below(100) < self.network.repeat_percent);
        for _ in 0..copies {
            let micros = self.dice.below(self.network.max_delay.as_micros() as usize) as u64;
            let at = self.now + Duration::from_micros(micros);
            self.in_flight.push((at, message.clone()));
        }
    }
}

const SECOND: Numbers = Numbers { requests: 100, period: Duration::from_secs(1), burst: 100 };
const MINUTE: Numbers = Numbers { requests: 6, period: Duration::from_secs(60), burst: 6 };

/// Serves the demand (requests each second in thousandths, for each replica) and returns the admitted part of what one
/// bucket for all would have admitted, in thousandths.
fn admitted_milli(numbers: Numbers, seconds: u64, demand_milli: [usize; 3], seed: u64) -> u64 {
    let mut simulation = Simulation::new(numbers, 3, FAST, seed, 0);
    simulation.run(Duration::from_secs(seconds), &demand_milli);
    let rate = u64::from(numbers.requests) * seconds * 1000 / numbers.period.as_millis() as u64;
    let possible = simulation.offered.min(rate + u64::from(numbers.burst));
    simulation.admitted * 1000 / possible
}

#[test]
fn uneven_load_above_the_limit_is_admitted_within_two_percent() {
    for (seed, split) in
        [[70, 20, 10], [100, 0, 0], [0, 50, 50], [34, 33, 33]].into_iter().enumerate()
    {
        // One and a half times the limit, and five times.
        for load in [1_500, 5_000] {
            let demand = split.map(|part| part * load);
            let milli = admitted_milli(SECOND, 60, demand, seed as u64);
            assert!((980..=1000).contains(&milli), "{split:?} {load}: {milli}");
        }
    }
}

#[test]
fn uneven_load_below_the_limit_is_admitted() {
    for split in [[70, 20, 10], [100, 0, 0], [34, 33, 33]] {
        let milli = admitted_milli(SECOND, 60, split.map(|part| part * 800), 3);
        assert!(milli >= 985, "{split:?}: {milli}");
    }
}

#[test]
fn small_burst_and_many_replicas_are_admitted_within_two_percent() {
    for (replicas, burst) in [(3, 45), (10, 150)] {
        let numbers = Numbers { burst, ..SECOND };
        let mut simulation = Simulation::new(numbers, replicas, FAST, 6, 0);
        let mut demand = vec![0; replicas];
        demand[0] = 200_000;
        simulation.run(Duration::from_secs(60), &demand);
        let possible = 100 * 60 + u64::from(burst);
        let milli = simulation.admitted * 1000 / possible;
        assert!((980..=1000).contains(&milli), "{replicas} replicas: {milli}");
    }
}

#[test]
fn slow_client_of_one_replica_gets_its_whole_limit() {
    // Twelve requests a minute at a limit of six, for an hour.
    let milli = admitted_milli(MINUTE, 3600, [200, 0, 0], 5);
    assert!((980..=1000).contains(&milli), "{milli}");
}

#[test]
fn burst_at_one_replica_is_admitted_within_half_a_second() {
    let mut simulation = Simulation::new(SECOND, 3, FAST, 1, 0);
    simulation.run(Duration::from_millis(500), &[2_000_000, 0, 0]);
    assert!(simulation.admitted >= 120, "{}", simulation.admitted);
}

#[test]
fn dead_replica_takes_only_what_it_held_and_the_others_get_its_part() {
    // A bucket of a third of the burst, when the replica starts anew.
    let mut simulation = Simulation::new(SECOND, 3, FAST, 2, 100 / 3 + 1);
    simulation.run(Duration::from_secs(10), &[70_000, 60_000, 60_000]);
    simulation.replicas[2] = None;
    simulation.run(Duration::from_millis(500), &[70_000, 60_000, 0]);
    let now = simulation.now;
    simulation.replicas.iter_mut().flatten().for_each(|it| it.update_members(&[0, 1], now));
    simulation.run(Duration::from_secs(5), &[70_000, 60_000, 0]);
    let before = simulation.admitted;
    simulation.run(Duration::from_secs(20), &[70_000, 60_000, 0]);
    let after = simulation.admitted - before;
    assert!((1960..=2100).contains(&after), "{after}");
    let mut anew = Replica::new(2, 2);
    let now = simulation.now;
    anew.update_members(&[0, 1, 2], now);
    simulation.replicas[2] = Some(anew);
    simulation.replicas.iter_mut().flatten().for_each(|it| it.update_members(&[0, 1, 2], now));
    simulation.run(Duration::from_secs(5), &[0, 0, 200_000]);
    let before = simulation.admitted;
    simulation.run(Duration::from_secs(20), &[0, 0, 200_000]);
    let after = simulation.admitted - before;
    assert!((1960..=2100).contains(&after), "{after}");
}

#[test]
fn message_from_a_stranger_or_with_impossible_numbers_is_refused() {
    let mut exchange = TokenExchange::new(identity(0, 7));
    exchange.update_members([member(0), member(1)], Time::ZERO);
    let tokens = TokenAmount { limit: LIMIT, key: KEY, micros: 5 };
    let good = TokenMessage {
        version: TOKENS_VERSION,
        from: identity(1, 3),
        to: identity(0, 7),
        sent: Time::from_nanos(9),
        gift: 4,
        gift_seen: 0,
        gifts: vec![tokens],
        wishes: vec![tokens],
    };
    let mut refuse = |message: &TokenMessage, refusal| {
        assert_eq!(exchange.receive(message, Time::ZERO), Err(refusal), "{message:?}");
    };
    let many = vec![tokens; MAX_TOKEN_ENTRIES + 1];
    let huge = TokenAmount { micros: u64::MAX, ..tokens };
    refuse(&TokenMessage { version: 2, ..good.clone() }, TokenRefusal::Version);
    refuse(&TokenMessage { from: identity(2, 3), ..good.clone() }, TokenRefusal::UnknownMember);
    refuse(&TokenMessage { from: identity(0, 3), ..good.clone() }, TokenRefusal::UnknownMember);
    refuse(&TokenMessage { to: identity(2, 7), ..good.clone() }, TokenRefusal::Misaddressed);
    refuse(&TokenMessage { to: identity(0, 6), ..good.clone() }, TokenRefusal::Misaddressed);
    refuse(&TokenMessage { to: identity(0, 0), ..good.clone() }, TokenRefusal::Misaddressed);
    refuse(&TokenMessage { gifts: many, ..good.clone() }, TokenRefusal::Absurd);
    refuse(&TokenMessage { wishes: vec![huge], ..good.clone() }, TokenRefusal::Absurd);
    refuse(&TokenMessage { from: identity(1, 0), ..good.clone() }, TokenRefusal::Absurd);
    assert_eq!(exchange.receive(&good, Time::ZERO), Ok(vec![tokens]));
    assert_eq!(exchange.receive(&good, Time::ZERO), Err(TokenRefusal::StaleSequence));
    // The gift is repeated until it is acknowledged, and counts once.
    let again = TokenMessage { sent: Time::from_nanos(10), ..good.clone() };
    assert_eq!(exchange.receive(&again, Time::ZERO), Ok(Vec::new()));
    let old = TokenMessage { from: identity(1, 2), sent: Time::from_nanos(11), ..good };
    assert_eq!(exchange.receive(&old, Time::ZERO), Err(TokenRefusal::StaleIncarnation));
    assert_eq!(exchange.refused().iter().sum::<u64>(), 11);
}

fn numbers() -> impl Strategy<Value = Numbers> {
    let periods = prop_oneof![Just(1), Just(7), Just(60)];
    (1_u32..200, periods, 3_u32..200).prop_map(|(requests, seconds, burst)| Numbers {
        requests,
        period: Duration::from_secs(seconds),
        burst,
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: 64,
        ..ProptestConfig::default()
    })]

    /// Messages are lost, late by up to two seconds, repeated, and out of order. Requests move between replicas.
    #[test]
    fn replicas_never_admit_more_than_one_bucket(
        numbers in numbers(),
        seed in any::<u64>(),
        loss_percent in 0_usize..60,
        millis in 1_u64..2000,
    ) {
        let max_delay = Duration::from_millis(millis);
        let network = Network { loss_percent, repeat_percent: 30, max_delay };
        let mut simulation = Simulation::new(numbers, 3, network, seed, 0);
        for round in 0..4 {
            let mut demand = [0; 3];
            demand[round % 3] = 300_000;
            demand[(round + 1) % 3] = 20_000 * round;
            simulation.run(Duration::from_secs(2), &demand);
        }
        prop_assert!(simulation.admitted > 0);
    }

    /// A replica crashes and starts anew, each time at the cost of its part of the burst at most.
    #[test]
    fn crash_adds_the_part_of_a_burst_at_most(
        numbers in numbers(),
        seed in any::<u64>(),
        loss_percent in 0_usize..30,
    ) {
        let network =
            Network { loss_percent, repeat_percent: 10, max_delay: Duration::from_millis(300) };
        let crashes = 3;
        let slack = crashes * (numbers.burst / 3 + 1);
        let mut simulation = Simulation::new(numbers, 3, network, seed, slack);
        for crash in 0..crashes {
            simulation.run(Duration::from_secs(2), &[50_000, 100_000, 200_000]);
            let mut anew = Replica::new(2, 2 + u64::from(crash));
            anew.update_members(&[0, 1, 2], simulation.now);
            simulation.replicas[2] = Some(anew);
        }
        simulation.run(Duration::from_secs(2), &[50_000, 100_000, 200_000]);
    }

    #[test]
    fn one_replica_admits_what_one_bucket_admits(numbers in numbers(), seed in any::<u64>()) {
        let mut central = CentralBucket::new(numbers, 0);
        let (mut table, limit) = (BucketTable::new(2), numbers.limit());
        let mut dice = Rng::new(seed);
        let mut now = Time::ZERO;
        for _ in 0..2000 {
            now = now + Duration::from_nanos(dice.below(40_000_000) as u64);
            match table.take(&limit, ReplicaPart::WHOLE, KEY, now) {
                Ok(()) => central.admit(now),
                Err(wait) => {
                    // Not a nanosecond too late: there is a token then, and none before.
                    let mut at = |time| table.take(&limit, ReplicaPart::WHOLE, KEY, time);
                    prop_assert!(at(now + wait.saturating_sub(Duration::from_nanos(1))).is_err());
                    now = now + wait;
                    prop_assert!(at(now).is_ok());
                    central.admit(now);
                }
            }
        }
    }
}
