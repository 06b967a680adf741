//! The only caller of the system clock.
#![allow(clippy::disallowed_methods, reason = "this is where time comes from")]

use std::time::{Duration, Instant, SystemTime};

use balance::Time;
use rustix::time::{ClockId, clock_gettime};

/// Timers are never set further ahead.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Monotonic time; what [`Time::ZERO`] stands for is the kernel's affair.
#[must_use]
pub fn now() -> Time {
    let now = clock_gettime(ClockId::Monotonic);
    // Seconds and nanoseconds of a monotonic clock are not negative.
    Time::from_nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// Wall-clock time, for logs and `Date`.
#[must_use]
pub fn wall() -> SystemTime {
    SystemTime::now()
}

/// Monotonic time as the library of QUIC takes it.
pub(crate) fn quic_now() -> Instant {
    Instant::now()
}

/// `time` as tokio's timers want it.
pub(crate) fn instant(time: Time) -> tokio::time::Instant {
    let now = tokio::time::Instant::now();
    // So far away that nobody waits for it.
    now.checked_add(time.saturating_since(self::now())).unwrap_or(now + FAR)
}
