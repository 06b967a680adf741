//! Keys of session tickets that replicas share: the link between the TLS configurations and the thread that has the
//! channel to the other replicas. The rules are in [`balance::shared_keys`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use balance::Time;
use balance::shared_keys::{KeyMessage, KeyRefusal, SharedKeySet};
use tls::TicketKeyRing;

use crate::clock;
use crate::control::Proxy;

/// Interval at which keys are offered again, to replicas that have missed a message or are new.
const OFFER_INTERVAL: Duration = Duration::from_secs(1);

/// The exchange of keys with other replicas. The times of keys are those of `clock::since_boot`; the time that is
/// handed in is for messages.
pub struct TicketKeyExchange {
    ring: Arc<TicketKeyRing>,
    keys: SharedKeySet,
    me: SocketAddr,
    /// Number of replicas that come before this one in the order of their addresses.
    turn: usize,
    /// Generation of the keys that are in force here.
    generation: u64,
    next_offer: Time,
    refused: [u64; KeyRefusal::ALL.len()],
}

/// State of the exchange, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TicketKeyStatus {
    /// Keys that open tickets here.
    pub keys: usize,
    /// Messages and keys refused for each reason, in the order of [`KeyRefusal::ALL`].
    pub refused: [u64; KeyRefusal::ALL.len()],
}

impl TicketKeyExchange {
    /// Begins to issue tickets with a key of this process; `None` unless the data plane was started with
    /// [`ProxySettings::leases_slots`](crate::ProxySettings::leases_slots), or if the system has no randomness.
    #[must_use]
    pub fn new(proxy: &Proxy, me: SocketAddr) -> Option<Self> {
        let ring = proxy.shared_ticket_keys()?;
        let keys = SharedKeySet::new(tls::new_secret()?, clock::since_boot());
        ring.set(keys.keys());
        let (generation, refused) = (keys.generation(), [0; KeyRefusal::ALL.len()]);
        Some(Self { ring, keys, me, turn: 0, generation, next_offer: Time::ZERO, refused })
    }

    /// Sets the replicas that serve now, this one included.
    pub fn update_members(&mut self, members: impl IntoIterator<Item = SocketAddr>) {
        self.turn = members.into_iter().filter(|&member| member < self.me).count();
    }

    /// Forgets and creates keys, puts them in force, and returns the message that is due for all other replicas.
    pub fn step(&mut self, now: Time) -> Option<KeyMessage> {
        let before = self.keys.generation();
        let time = clock::since_boot();
        self.keys.step(self.turn, tls::new_secret, time);
        let generation = self.keys.generation();
        if std::mem::replace(&mut self.generation, generation) != generation {
            self.ring.set(self.keys.keys());
        }
        // What was learned from others goes out with the next message: usually all know it.
        let has_own_news = generation != before;
        if !has_own_news && now < self.next_offer {
            return None;
        }
        self.next_offer = now + OFFER_INTERVAL;
        self.keys.message(time)
    }

    /// Returns the time of the next [`step`](Self::step), if no message comes before.
    #[must_use]
    pub fn next_step(&self) -> Time {
        self.next_offer
    }

    /// Takes the keys of another replica; they are in force with the next [`step`](Self::step).
    ///
    /// # Errors
    ///
    /// Returns the reason if the message is refused, or keys of it are.
    pub fn receive(&mut self, message: &KeyMessage) -> Result<(), KeyRefusal> {
        let result = self.keys.receive(message, clock::since_boot());
        result.inspect_err(|refusal| self.refused[*refusal as usize] += 1)
    }

    /// Returns the state of the exchange.
    #[must_use]
    pub fn status(&self) -> TicketKeyStatus {
        let now = clock::since_boot();
        let keys = self.keys.keys().iter().filter(|key| key.opens(now)).count();
        TicketKeyStatus { keys, refused: self.refused }
    }
}
