//! Learns from idle connections how long an endpoint keeps them, and says which of them may carry a request.
//!
//! A server may close an idle connection at any moment, and its FIN is on the way for a while. A request sent into that
//! gap is lost: repaired by a retry if it is *replayable*, else a 502 for the client. So a replayable request may take
//! any connection that is probably open, and another (a POST) only one that is *certainly far* from being closed.
//!
//! Two figures are learned. `proven`: the longest idleness after which a connection was found open; it falls to what
//! a closed one says. `closes_after`: the shortest idleness after which one was found closed; it is forgotten when one
//! is found open at a greater age, so a restart that closes everything once disables nothing for good.
//!
//! A replayable request may use what is younger than `closes_after`. In case the caller looks at no other connections,
//! and so would never find an older one open, one refusal in sixteen is turned into a yes: at worst it costs a retry.
//!
//! Any other may use what is at most half as old as both figures, and only if the endpoint *keeps connections*: one has
//! served a second response since the last was found closed, or one was found open at the age of a second.
//!
//! - **A server that closes after each response without saying so** never serves a second one on a connection, and none
//!   of its connections is open for a second, only until a FIN that may be some milliseconds late. So a POST always
//!   goes on a fresh connection, and there is no learning phase in which it does not.
//! - **A server that closes after 50 ms** is found open at 50 ms at most, so a connection is at most 25 ms old when it
//!   carries a POST. Half, not all, because our clocks start a round trip apart and because of jitter.
//! - **A restart** closes young connections too: both figures fall to almost nothing and the proof is gone. They rise
//!   with the next connection that is found open, and the proof comes back as it came at first.
//! - **An ordinary server** (5 to 75 s) is believed after the first reuse by a replayable request. With nothing but
//!   POSTs, after a second: the caller then goes on reporting connections that it may *not* use yet, the oldest too.

use std::time::Duration;

use crate::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::time::nanos;

/// An idleness that no server reaches by being slow to close: who is open after it keeps connections.
const KEEPS_CONNECTIONS_AGE: Duration = Duration::from_secs(1);

/// One in so many refused replayable requests goes ahead all the same.
const TRIAL_INTERVAL: u32 = 16;

/// What an endpoint has taught us about idle connections, over all workers.
///
/// Each figure is an atomic of its own: they are evidence, not a balance, so that a report may fall between two others.
#[derive(Debug)]
pub struct IdleHistory {
    proven_nanos: AtomicU64,
    /// `u64::MAX`: never seen to close.
    closes_after_nanos: AtomicU64,
    /// A connection has served a second response since the last one was found closed.
    serves_again: AtomicBool,
    refused: AtomicU32,
}

impl IdleHistory {
    /// A connection that had been idle for `age` was found open. To be reported also of one that is not used then.
    pub fn found_open(&self, age: Duration) {
        let age = nanos(age);
        // Reads first, here and below: every request comes by, and hardly one has news.
        if age > self.proven_nanos.load(Ordering::Relaxed) {
            self.proven_nanos.fetch_max(age, Ordering::Relaxed);
        }
        if age > self.closes_after_nanos.load(Ordering::Relaxed) {
            self.closes_after_nanos.store(u64::MAX, Ordering::Relaxed);
        }
    }

    /// A connection was found closed, or was reset when used, after at most `age` of idleness.
    pub fn found_closed(&self, age: Duration) {
        let age = nanos(age);
        self.serves_again.store(false, Ordering::Relaxed);
        self.proven_nanos.fetch_min(age, Ordering::Relaxed);
        self.closes_after_nanos.fetch_min(age, Ordering::Relaxed);
    }

    /// A connection has served a second response: the endpoint keeps connections.
    pub fn served_again(&self) {
        if !self.serves_again.load(Ordering::Relaxed) {
            self.serves_again.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a connection idle for `age` may carry this request. `replayable`: a retry can repair a lost race with
    /// the endpoint's close.
    pub fn may_reuse(&self, age: Duration, replayable: bool) -> bool {
        let age = nanos(age);
        let closes_after = self.closes_after_nanos.load(Ordering::Relaxed);
        if replayable {
            return age < closes_after || self.is_trial();
        }
        let proven = self.proven_nanos.load(Ordering::Relaxed);
        let keeps =
            self.serves_again.load(Ordering::Relaxed) || proven >= nanos(KEEPS_CONNECTIONS_AGE);
        keeps && age <= nanos(self.safe_age())
    }

    /// How old a connection may be that carries a request which cannot be sent again.
    ///
    /// Where this is short, the caller had better know ages exactly: what it reads late it takes for younger than it is.
    pub fn safe_age(&self) -> Duration {
        let proven = self.proven_nanos.load(Ordering::Relaxed);
        Duration::from_nanos(proven.min(self.closes_after_nanos.load(Ordering::Relaxed)) / 2)
    }

    fn is_trial(&self) -> bool {
        self.refused.fetch_add(1, Ordering::Relaxed) % TRIAL_INTERVAL == TRIAL_INTERVAL - 1
    }
}

impl Default for IdleHistory {
    /// Nothing is known: replayable requests may reuse, others may not.
    fn default() -> Self {
        Self {
            proven_nanos: AtomicU64::new(0),
            closes_after_nanos: AtomicU64::new(u64::MAX),
            serves_again: AtomicBool::new(false),
            refused: AtomicU32::new(0),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
