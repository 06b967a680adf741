//! Learns from idle connections how long an endpoint keeps them, and decides which of them may
//! carry a request.
//!
//! A server may close an idle connection at any moment, and its FIN is in transit for a while. A
//! request sent into that gap is lost. If it is *replayable*, a retry repairs this; otherwise the
//! client gets a 502. So a replayable request may use any connection that is probably open, and
//! another (a POST) only one that is *certainly far* from being closed.
//!
//! Two figures are learned. `proven` is the longest idle time after which a connection was found
//! open; a connection found closed lowers it to its own idle time. `closes_after` is the shortest
//! idle time after which a connection was found closed; it is reset when one is found open at a
//! greater age, so a restart that closes all connections once disables nothing permanently.
//!
//! A replayable request may use a connection that is younger than `closes_after`. If the caller
//! reports no other connections, an older one would never be found open. So one refusal in sixteen
//! is turned into a permission: at worst it costs a retry.
//!
//! Any other request may use a connection that is at most half as old as both figures, and only if
//! the endpoint *keeps connections*: one has served a second response since the last was found
//! closed, or one was found open at the age of a second.
//!
//! - **A server that closes after each response without saying so** never serves a second one on a
//!   connection. None of its connections is open for a second, only until a FIN that may be some
//!   milliseconds late. So a POST always uses a fresh connection, and there is no learning phase in
//!   which it does not.
//! - **A server that closes after 50 ms** is found open at 50 ms at most, so a connection is at
//!   most 25 ms old when it carries a POST. The factor is a half because our clocks start a round
//!   trip apart and because of jitter.
//! - **A restart** closes young connections too: both figures fall to almost nothing, and the
//!   endpoint no longer counts as keeping connections. The figures rise with the next connection
//!   that is found open, and the endpoint has to prove again that it keeps connections.
//! - **An ordinary server** (5 to 75 s) is trusted after the first reuse by a replayable request.
//!   If there are only POSTs, it is trusted after a second: the caller goes on reporting
//!   connections that it may *not* use yet, the oldest too.

use std::time::Duration;

use crate::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::time::nanos;

/// Idle time that a server does not reach by closing late: an endpoint with a connection open after
/// it keeps connections.
const KEEPS_CONNECTIONS_AGE: Duration = Duration::from_secs(1);

/// Number of refused replayable requests for each one that is permitted as a trial.
const TRIAL_INTERVAL: u32 = 16;

/// Observations of idle connections of an endpoint, over all workers.
///
/// Each figure is an atomic of its own: they are evidence and need not be consistent with each
/// other, so a report may fall between two others.
#[derive(Debug)]
pub struct IdleHistory {
    proven_nanos: AtomicU64,
    /// `u64::MAX` if no connection was found closed.
    closes_after_nanos: AtomicU64,
    /// True if a connection has served a second response since the last one was found closed.
    serves_again: AtomicBool,
    refused: AtomicU32,
}

impl IdleHistory {
    /// Records that a connection that had been idle for `age` was found open. To be reported also
    /// if the connection is not used then.
    pub fn found_open(&self, age: Duration) {
        let age = nanos(age);
        // Reads first, here and below: every request gets here, and hardly any changes a figure.
        if age > self.proven_nanos.load(Ordering::Relaxed) {
            self.proven_nanos.fetch_max(age, Ordering::Relaxed);
        }
        if age > self.closes_after_nanos.load(Ordering::Relaxed) {
            self.closes_after_nanos.store(u64::MAX, Ordering::Relaxed);
        }
    }

    /// Records that a connection was found closed, or was reset when used, after at most `age` of
    /// idle time.
    pub fn found_closed(&self, age: Duration) {
        let age = nanos(age);
        self.serves_again.store(false, Ordering::Relaxed);
        self.proven_nanos.fetch_min(age, Ordering::Relaxed);
        self.closes_after_nanos.fetch_min(age, Ordering::Relaxed);
    }

    /// Records that a connection has served a second response: the endpoint keeps connections.
    pub fn served_again(&self) {
        if !self.serves_again.load(Ordering::Relaxed) {
            self.serves_again.store(true, Ordering::Relaxed);
        }
    }

    /// True if a connection idle for `age` may carry this request. `replayable` means that a retry
    /// can repair a lost race with the endpoint's close.
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

    /// Returns the maximum age of a connection that carries a request which cannot be sent again.
    ///
    /// If this is short, the caller should know ages exactly: a connection whose response it reads
    /// late seems younger than it is.
    pub fn safe_age(&self) -> Duration {
        let proven = self.proven_nanos.load(Ordering::Relaxed);
        Duration::from_nanos(proven.min(self.closes_after_nanos.load(Ordering::Relaxed)) / 2)
    }

    fn is_trial(&self) -> bool {
        self.refused.fetch_add(1, Ordering::Relaxed) % TRIAL_INTERVAL == TRIAL_INTERVAL - 1
    }
}

impl Default for IdleHistory {
    /// Returns a history without observations: replayable requests may reuse connections, others
    /// may not.
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
