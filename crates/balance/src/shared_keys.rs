//! Keys that replicas share, so that what one of them has sealed can be opened by all of them.
//!
//! A replica offers all shared keys that it knows, its own and those of others, so replicas that
//! hear of one another have the same keys. Each of them seals with the oldest key that still seals,
//! and opens with all. So a key of a replica that has just started displaces none, and a successor
//! is known everywhere long before it seals.
//!
//! An offer has the age of the key, and counts from its receipt on: no clocks are compared. No
//! offer prolongs the life of a key that is known.

/// The secret of a key, and offers of keys.
mod offer;
#[cfg(all(test, not(loom)))]
mod tests;

use std::sync::Arc;
use std::time::Duration;

pub use offer::{KeyMessage, KeyOffer, KeyRefusal, KeySecret, SECRET_BYTES};

use crate::time::Time;

/// Time for which a key opens, from its creation.
pub const OPENING_TIME: Duration = Duration::from_secs(12 * 60 * 60);

/// Time for which a key seals, from its creation.
pub const SEALING_TIME: Duration = Duration::from_secs(6 * 60 * 60);

/// Time for which a key is offered and may be learned, from its creation. It ends before the key
/// does: a key that one replica has forgotten comes back from no other one, although an age that
/// was on its way is a little too low.
pub const OFFER_TIME: Duration = Duration::from_secs(12 * 60 * 60 - 10 * 60);

/// Maximum number of shared keys. There are three at most, unless replicas were cut off from one
/// another: then each group of them has its own.
pub const MAX_SHARED_KEYS: usize = 32;

/// Time before the end of sealing at which a key gets a successor.
const SUCCESSOR_LEAD: Duration = Duration::from_secs(30 * 60);

/// Time after the start in which a replica only listens: it needs no key of its own if others have
/// one.
const LISTENING_TIME: Duration = Duration::from_secs(2);

/// Time after which the next replica creates a key, if the one before it has not done so.
const TURN_TIME: Duration = Duration::from_secs(1);

/// Number of turns. All other replicas have the last one.
const MAX_TURNS: u32 = 60;

/// Time after its receipt at which a learned key may seal: by then the other replicas know it too.
const LEARNING_TIME: Duration = Duration::from_secs(2);

/// A key with the times of its use.
#[derive(Clone, Debug)]
pub struct SharedKey {
    secret: Arc<KeySecret>,
    seals_from: Time,
    seals_until: Time,
    opens_until: Time,
    /// False for the key of a replica that has just started: no other one knows it.
    is_shared: bool,
}

impl SharedKey {
    /// Returns the key of a replica that has created it now.
    fn new(secret: KeySecret, is_shared: bool, now: Time) -> Self {
        Self {
            secret: Arc::new(secret),
            seals_from: now,
            seals_until: now + SEALING_TIME,
            opens_until: now + OPENING_TIME,
            is_shared,
        }
    }

    /// Returns a key that is offered now.
    fn learned(offer: &KeyOffer, now: Time) -> Self {
        Self {
            secret: Arc::clone(&offer.secret),
            seals_from: now + LEARNING_TIME,
            seals_until: now + SEALING_TIME.saturating_sub(offer.age),
            opens_until: now + OPENING_TIME.saturating_sub(offer.age),
            is_shared: true,
        }
    }

    /// Returns the secret from which the key is derived.
    pub const fn secret(&self) -> &Arc<KeySecret> {
        &self.secret
    }

    /// True if the key may seal now. Of several keys, the first one in the order of
    /// [`SharedKeySet::keys`] does.
    pub fn seals(&self, now: Time) -> bool {
        self.seals_from <= now && now < self.seals_until
    }

    /// True if the key may open now.
    pub fn opens(&self, now: Time) -> bool {
        now < self.opens_until
    }

    /// Returns the offer of the key to other replicas; `None` if it is not shared any more, or not
    /// yet.
    fn offer(&self, now: Time) -> Option<KeyOffer> {
        let age = OPENING_TIME.saturating_sub(self.opens_until.saturating_since(now));
        let is_offered = self.is_shared && age < OFFER_TIME;
        is_offered.then(|| KeyOffer { secret: Arc::clone(&self.secret), age })
    }
}

/// The keys that one replica knows.
#[derive(Debug)]
pub struct SharedKeySet {
    /// Shared keys, oldest first, then the one that is not shared.
    keys: Vec<SharedKey>,
    started: Time,
    /// Number of changes of the keys so far.
    generation: u64,
}

impl SharedKeySet {
    /// Returns the keys of a replica that starts: one of its own, which it shares unless it hears
    /// of others.
    pub fn new(secret: KeySecret, now: Time) -> Self {
        Self { keys: vec![SharedKey::new(secret, false, now)], started: now, generation: 0 }
    }

    /// Returns the keys, in the order in which they are preferred for sealing.
    pub fn keys(&self) -> &[SharedKey] {
        &self.keys
    }

    /// Returns a number that increases whenever the keys change.
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// Forgets keys at their end, and creates a successor in time. `turn` is the number of replicas
    /// that come before this one: so usually one alone creates a key.
    pub fn step(&mut self, turn: usize, create: impl FnOnce() -> Option<KeySecret>, now: Time) {
        let known = self.keys.len();
        self.keys.retain(|key| key.opens(now));
        self.generation += u64::from(self.keys.len() < known);
        let turn = u32::try_from(turn).unwrap_or(MAX_TURNS).min(MAX_TURNS);
        if now >= self.successor_due() + TURN_TIME * turn {
            self.share_own(create, now);
        }
    }

    /// Returns the time at which a new key is to be shared by the first replica.
    fn successor_due(&self) -> Time {
        let shared = self.keys.iter().filter(|key| key.is_shared);
        match shared.map(|key| key.seals_until).max() {
            Some(last) => last.saturating_sub(SUCCESSOR_LEAD),
            None => self.started + LISTENING_TIME,
        }
    }

    /// Shares a key of this replica: the one that it has sealed with so far, else a new one.
    fn share_own(&mut self, create: impl FnOnce() -> Option<KeySecret>, now: Time) {
        if !self.make_room(now) {
            return;
        }
        let lasts = |key: &&mut SharedKey| now + SUCCESSOR_LEAD < key.seals_until;
        if let Some(own) = self.keys.iter_mut().filter(|key| !key.is_shared).find(lasts) {
            own.is_shared = true;
            self.sort();
        } else if let Some(secret) = create() {
            self.insert(SharedKey::new(secret, true, now));
        }
    }

    /// Returns the message for all other replicas; `None` if there is nothing to offer.
    pub fn message(&self, now: Time) -> Option<KeyMessage> {
        let keys: Vec<_> = self.keys.iter().filter_map(|key| key.offer(now)).collect();
        (!keys.is_empty()).then_some(KeyMessage { keys })
    }

    /// Takes the keys that another replica offers.
    ///
    /// # Errors
    ///
    /// Returns the reason if the message is refused, or keys of it are.
    pub fn receive(&mut self, message: &KeyMessage, now: Time) -> Result<(), KeyRefusal> {
        message.check()?;
        let mut result = Ok(());
        for offer in &message.keys {
            result = self.learn(offer, now).and(result);
        }
        result
    }

    fn learn(&mut self, offer: &KeyOffer, now: Time) -> Result<(), KeyRefusal> {
        // No other replica can know the key that is not shared, so it is compared with none.
        let mut shared = self.keys.iter().filter(|key| key.is_shared);
        if shared.any(|key| key.secret == offer.secret) {
            return Ok(());
        }
        let key = SharedKey::learned(offer, now);
        let seals_later = key.seals_until > now;
        if !(if seals_later { self.make_room(now) } else { self.has_room() }) {
            return Err(KeyRefusal::Full);
        }
        self.insert(key);
        Ok(())
    }

    fn has_room(&self) -> bool {
        self.keys.iter().filter(|key| key.is_shared).count() < MAX_SHARED_KEYS
    }

    /// Makes room for a key that seals: if there is none, the oldest key that only opens is
    /// forgotten. Keys that only open displace none, so no two of them take turns.
    fn make_room(&mut self, now: Time) -> bool {
        if self.has_room() {
            return true;
        }
        let only_opens = |key: &SharedKey| key.is_shared && key.seals_until <= now;
        let oldest = self.keys.iter().position(only_opens);
        oldest.map(|oldest| self.keys.remove(oldest)).is_some()
    }

    fn insert(&mut self, key: SharedKey) {
        self.keys.push(key);
        self.sort();
    }

    fn sort(&mut self) {
        // Keys of the same age have the same order everywhere.
        self.keys.sort_by(|one, other| {
            let order = |key: &SharedKey| (!key.is_shared, key.opens_until);
            let by_secret = || one.secret.bytes().cmp(other.secret.bytes());
            order(one).cmp(&order(other)).then_with(by_secret)
        });
        self.generation += 1;
    }
}
