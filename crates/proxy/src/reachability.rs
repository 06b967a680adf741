//! Detects unreachable endpoints, and their return.
//!
//! The rules are those of [`balance::reachability`]. If a connection attempt fails, the worker marks the endpoint
//! unreachable. From then on the health thread makes background attempts, one at a time for each endpoint, until one
//! succeeds. It also checks endpoints that owe answers and are silent: if packets are lost silently, no connection
//! breaks. No request waits for any of this.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use balance::reachability::SilenceDetector;

/// Endpoints that are marked unreachable.
pub(crate) mod outages;
/// Background attempts to connect.
pub(crate) mod attempts;

/// Time after which the request goes to another endpoint if the connection is not established, unless connections to
/// this endpoint are known to take longer: the connection attempt delay of RFC 8305 (happy eyeballs), section 5.
const CONNECTION_ATTEMPT_DELAY: Duration = Duration::from_millis(250);
/// Factor by which an attempt may take longer than the usual connect time.
const CONNECT_TIME_MULTIPLE: u32 = 3;
/// Maximum timeout of a background attempt: the kernel sends its second SYN after a second.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(1);

/// Reachability data of one endpoint, beside the unreachable mark. Each figure is independent of the others.
#[derive(Default)]
pub(crate) struct ReachabilityState {
    /// Connect time in nanoseconds, TLS included; 0: no connection has been made.
    connect_nanos: AtomicU64,
    /// Number of times that the endpoint has been marked unreachable.
    pub(crate) outages: AtomicU64,
    /// Background attempts that have failed since the mark was set.
    failed_attempts: AtomicU32,
    /// Used by the health thread only.
    silence: Mutex<SilenceDetector>,
}

impl ReachabilityState {
    /// Records the time that a successful connection attempt took.
    pub(crate) fn record_connect_time(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let before = self.connect_nanos.load(Ordering::Relaxed);
        // The peak counts, and decays with each further connection.
        let after = took.max(before - before / 8);
        self.connect_nanos.store(after, Ordering::Relaxed);
    }

    /// Returns the time after which a connection attempt is abandoned in favor of another endpoint.
    pub(crate) fn connect_timeout(&self) -> Duration {
        let usual = Duration::from_nanos(self.connect_nanos.load(Ordering::Relaxed));
        CONNECTION_ATTEMPT_DELAY.max(usual.saturating_mul(CONNECT_TIME_MULTIPLE))
    }

    /// Returns the timeout of the next background attempt. It grows with each failure, because the network path may be
    /// slow.
    fn background_timeout(&self) -> Duration {
        let failed = self.failed_attempts.load(Ordering::Relaxed).min(8);
        let longer = CONNECTION_ATTEMPT_DELAY.saturating_mul(1 << failed).min(LONGEST_ATTEMPT);
        self.connect_timeout().max(longer)
    }
}
