//! Keys of several replicas: who has which, and for how long.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const HOUR: u64 = 60 * 60 * 1000;

fn milli(millis: u64) -> Time {
    Time::from_nanos(millis * 1_000_000)
}

fn secret(number: u64) -> KeySecret {
    let mut bytes = [1; SECRET_BYTES];
    bytes[..8].copy_from_slice(&number.to_be_bytes());
    KeySecret::new(bytes)
}

fn number(secret: &KeySecret) -> u64 {
    u64::from_be_bytes(*secret.bytes().first_chunk().expect("a key has eight bytes or more"))
}

fn offer(number: u64, age: Duration) -> KeyOffer {
    KeyOffer { secret: Arc::new(secret(number)), age }
}

/// Replicas and the messages between them, in virtual time.
struct Replicas {
    sets: Vec<SharedKeySet>,
    /// True for a replica that hears of no other one.
    cut_off: Vec<bool>,
    now: u64,
    /// Creation of each key, by its number.
    created: BTreeMap<u64, u64>,
}

impl Replicas {
    fn new(count: usize) -> Self {
        let (sets, cut_off) = (Vec::new(), vec![false; count]);
        let mut replicas = Self { sets, cut_off, now: 0, created: BTreeMap::new() };
        for _ in 0..count {
            let set = replicas.new_set();
            replicas.sets.push(set);
        }
        replicas
    }

    fn new_set(&mut self) -> SharedKeySet {
        let number = self.created.len() as u64;
        self.created.insert(number, self.now);
        SharedKeySet::new(secret(number), milli(self.now))
    }

    fn restart(&mut self, replica: usize) {
        self.sets[replica] = self.new_set();
    }

    /// Lets time pass; each replica sends a message at each step of `interval`.
    fn run(&mut self, millis: u64, interval: u64) {
        let end = self.now + millis;
        while self.now < end {
            self.now += interval;
            let now = milli(self.now);
            for turn in 0..self.sets.len() {
                let next = self.created.len() as u64;
                let mut is_created = false;
                let create = || {
                    is_created = true;
                    Some(secret(next))
                };
                self.sets[turn].step(turn, create, now);
                if is_created {
                    self.created.insert(next, self.now);
                }
                self.exchange(turn);
            }
        }
    }

    fn exchange(&mut self, from: usize) {
        let Some(message) = self.sets[from].message(milli(self.now)) else { return };
        for to in 0..self.sets.len() {
            if to != from && !self.cut_off[from] && !self.cut_off[to] {
                self.sets[to]
                    .receive(&message, milli(self.now))
                    .expect("a message of a set is accepted");
            }
        }
    }

    /// Returns the number of the key with which a replica seals now.
    fn sealing(&self, replica: usize) -> Option<u64> {
        let key = self.sets[replica].keys().iter().find(|key| key.seals(milli(self.now)))?;
        Some(number(key.secret()))
    }

    fn opens(&self, replica: usize, key: u64) -> bool {
        let mut keys = self.sets[replica].keys().iter();
        keys.any(|it| number(it.secret()) == key && it.opens(milli(self.now)))
    }

    fn shared(&self, replica: usize) -> Vec<u64> {
        let keys = self.sets[replica].keys().iter().filter(|key| key.is_shared);
        let mut keys: Vec<_> = keys.map(|key| number(key.secret())).collect();
        keys.sort_unstable();
        keys
    }
}

#[test]
fn replicas_that_start_together_seal_with_one_key() {
    let mut replicas = Replicas::new(40);
    replicas.run(10_000, 100);
    for replica in 0..40 {
        assert_eq!(replicas.shared(replica), [0], "{replica}");
        assert_eq!(replicas.sealing(replica), Some(0), "{replica}");
    }
}

#[test]
fn replica_that_joins_takes_the_key_in_force() {
    let mut replicas = Replicas::new(2);
    replicas.cut_off[0] = true;
    replicas.run(HOUR, 1_000);
    // The first one starts anew: it seals with a key of its own until it knows that of the other.
    replicas.restart(0);
    assert_eq!(replicas.sealing(0), Some(2));
    replicas.cut_off[0] = false;
    replicas.run(LEARNING_TIME.as_millis() as u64 + 500, 100);
    assert_eq!(replicas.sealing(0), replicas.sealing(1));
    assert_eq!(replicas.shared(0), [1]);
    assert!(replicas.opens(0, 2), "sessions of the first seconds resume here");
}

#[test]
fn key_is_known_everywhere_before_it_seals() {
    let mut replicas = Replicas::new(3);
    replicas.run(10_000, 1_000);
    let mut sealed = Vec::new();
    for _ in 0..4 * 24 * 60 {
        replicas.run(60_000, 20_000);
        for replica in 0..3 {
            let key = replicas.sealing(replica).expect("there is always a key");
            assert!((0..3).all(|other| replicas.opens(other, key)), "{key}");
            sealed.push(key);
            let age = replicas.now - replicas.created[&key];
            assert!(age <= SEALING_TIME.as_millis() as u64, "{key} seals for {age} ms");
        }
        assert!(replicas.sets.iter().all(|set| set.keys().len() <= 6));
    }
    sealed.sort_unstable();
    sealed.dedup();
    // The first replica alone creates successors.
    assert_eq!(sealed.len(), 4 * 24 * 60 / (5 * 60 + 30) + 1);
    assert_eq!(replicas.created.len(), sealed.len() + 2, "and the first keys of the others");
}

#[test]
fn another_replica_creates_the_key_if_the_first_one_is_gone() {
    let mut replicas = Replicas::new(3);
    replicas.run(10_000, 1_000);
    replicas.cut_off[0] = true;
    replicas.run(8 * HOUR, 1_000);
    let key = replicas.sealing(1).unwrap();
    assert!(key > 2 && replicas.sealing(2) == Some(key));
    assert!(replicas.sealing(0).is_some_and(|own| own != key), "cut off, it has its own");
    // Each opens what the others have sealed meanwhile, as soon as they hear of one another.
    let own = replicas.sealing(0).unwrap();
    replicas.cut_off[0] = false;
    replicas.run(1_000, 1_000);
    assert!(replicas.opens(0, key) && replicas.opens(1, own) && replicas.opens(2, own));
}

#[test]
fn offer_prolongs_no_life() {
    let mut set = SharedKeySet::new(secret(0), milli(0));
    let message = |age| KeyMessage { keys: vec![offer(9, age)] };
    let eleven_hours = Duration::from_secs(11 * 60 * 60);
    set.receive(&message(eleven_hours), milli(0)).unwrap();
    for minute in 0..60 {
        // A replica that lies about the age.
        set.receive(&message(Duration::ZERO), milli(minute * 60_000)).unwrap();
        let key = set.keys().iter().find(|key| number(key.secret()) == 9).unwrap();
        assert!(key.opens(milli(minute * 60_000)) && !key.seals(milli(minute * 60_000)));
        assert!(!key.opens(milli(HOUR)));
        let offered = set.message(milli(minute * 60_000));
        assert_eq!(offered.is_some(), minute < 50, "{minute}");
    }
}

#[test]
fn impossible_messages_are_refused_whole() {
    let mut set = SharedKeySet::new(secret(0), milli(0));
    let good = offer(1, Duration::ZERO);
    let empty = KeyOffer { secret: Arc::new(KeySecret::new([0; 32])), age: Duration::ZERO };
    let absurd = [
        vec![good.clone(), offer(2, OFFER_TIME)],
        vec![good.clone(), offer(2, Duration::MAX)],
        vec![good.clone(), empty],
        vec![good; MAX_SHARED_KEYS + 1],
    ];
    for keys in absurd {
        assert_eq!(set.receive(&KeyMessage { keys }, milli(0)), Err(KeyRefusal::Absurd));
        assert_eq!((set.keys().len(), set.generation()), (1, 0));
    }
}

#[test]
fn number_of_keys_is_bounded_and_keys_that_seal_stay() {
    let mut set = SharedKeySet::new(secret(0), milli(0));
    let seven_hours = Duration::from_secs(7 * 60 * 60);
    let offers = |numbers: std::ops::Range<u64>, age| KeyMessage {
        keys: numbers.map(|number| offer(number, age)).collect(),
    };
    set.receive(&offers(100..132, seven_hours), milli(0)).unwrap();
    // Keys that only open displace none.
    let refused = set.receive(&offers(200..210, seven_hours), milli(1));
    assert_eq!(refused, Err(KeyRefusal::Full));
    // Keys that seal displace those, and are displaced by none.
    set.receive(&offers(300..332, Duration::ZERO), milli(2)).unwrap();
    assert_eq!(set.receive(&offers(400..432, Duration::ZERO), milli(3)), Err(KeyRefusal::Full));
    assert_eq!(set.keys().len(), MAX_SHARED_KEYS + 1);
    let numbers: Vec<_> = set.keys().iter().map(|key| number(key.secret())).collect();
    assert_eq!(numbers[..32], (300..332).collect::<Vec<_>>());
    assert_eq!(set.message(milli(4)).unwrap().check(), Ok(()));
}

#[test]
fn secrets_are_not_shown() {
    let set = SharedKeySet::new(KeySecret::new([0xab; 32]), milli(0));
    let message = KeyMessage { keys: vec![offer(u64::MAX, Duration::ZERO)] };
    let shown = format!("{set:?} {message:?}");
    assert!(!shown.contains("171") && !shown.contains("255") && !shown.contains("ab, "), "{shown}");
}

/// An event in a group of replicas.
#[derive(Clone, Debug)]
enum Event {
    CutOff(usize),
    Reconnect(usize),
    Restart(usize),
    Wait(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (0..4_usize).prop_map(Event::CutOff),
        (0..4_usize).prop_map(Event::Reconnect),
        (0..4_usize).prop_map(Event::Restart),
        (0..10 * 60_u64).prop_map(|minutes| Event::Wait(minutes * 60_000)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever happens, no key is older than it may be, and replicas that hear of one another soon
    /// have the same keys.
    #[test]
    fn replicas_agree_after_any_schedule(events in vec(event(), 0..12)) {
        let mut replicas = Replicas::new(4);
        for event in events {
            match event {
                Event::CutOff(replica) => replicas.cut_off[replica] = true,
                Event::Reconnect(replica) => replicas.cut_off[replica] = false,
                Event::Restart(replica) => replicas.restart(replica),
                Event::Wait(millis) => replicas.run(millis, 30_000),
            }
            for replica in 0..4 {
                for key in replicas.sets[replica].keys() {
                    let age = replicas.now - replicas.created[&number(key.secret())];
                    prop_assert!(age <= OPENING_TIME.as_millis() as u64, "{age} ms");
                }
                // A replica always has a key to seal with, whatever it hears.
                prop_assert!(replicas.sealing(replica).is_some());
            }
        }
        replicas.cut_off.fill(false);
        replicas.run(10_000, 500);
        let sealing = replicas.sealing(0);
        prop_assert!(sealing.is_some());
        for replica in 1..4 {
            prop_assert_eq!(replicas.sealing(replica), sealing);
            let (here, there) = (replicas.shared(0), replicas.shared(replica));
            let too_old = |key: &u64| {
                replicas.now - replicas.created[key] >= OFFER_TIME.as_millis() as u64
            };
            let offered = |keys: Vec<u64>| -> Vec<u64> {
                keys.into_iter().filter(|key| !too_old(key)).collect()
            };
            prop_assert_eq!(offered(here), offered(there));
        }
    }

    #[test]
    fn any_message_leaves_the_keys_within_their_bounds(
        offers in vec((0..40_u64, 0..14 * HOUR), 0..40),
        times in vec(0..13 * HOUR, 1..20),
    ) {
        let mut set = SharedKeySet::new(secret(99), milli(0));
        let mut now = 0;
        for step in times {
            now += step;
            let keys = offers.iter().map(|&(number, age)| {
                offer(number, Duration::from_millis(age))
            });
            let _judged = set.receive(&KeyMessage { keys: keys.collect() }, milli(now));
            set.step(0, || Some(secret(1_000 + now)), milli(now));
            prop_assert!(set.keys().len() <= MAX_SHARED_KEYS + 1);
            let own = set.message(milli(now));
            prop_assert!(own.is_none_or(|message| message.check().is_ok()));
        }
    }
}
