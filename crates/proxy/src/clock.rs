//! The only caller of the system clock.
#![expect(clippy::disallowed_methods, reason = "this is where time comes from")]

use std::time::{Duration, Instant, SystemTime};

use balance::Time;
use rustix::time::{ClockId, clock_gettime};

/// Maximum time ahead for which a timer is set.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Returns the monotonic time; the kernel defines the origin, [`Time::ZERO`].
#[must_use]
pub fn now() -> Time {
    let now = clock_gettime(ClockId::Monotonic);
    // Seconds and nanoseconds of a monotonic clock are not negative.
    Time::from_nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// Returns the time since the start of the machine. Unlike [`now`], it goes on while the machine is suspended: for
/// secrets, which must end in time.
pub(crate) fn since_boot() -> Time {
    let now = clock_gettime(ClockId::Boottime);
    Time::from_nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// Returns the wall-clock time, for logs and `Date`.
#[must_use]
pub fn wall() -> SystemTime {
    SystemTime::now()
}

/// Returns the monotonic time in the type that the QUIC library takes.
pub(crate) fn quic_now() -> Instant {
    Instant::now()
}

/// Converts `time` to the type that tokio's timers take. The result is never earlier than `time`.
pub(crate) fn instant(time: Time) -> tokio::time::Instant {
    // The rest is computed first: a thread that is suspended between the two readings then wakes up late, not early.
    let rest = time.saturating_since(now());
    let base = tokio::time::Instant::now();
    // If the time is out of range, it is so far ahead that the timer never fires in practice.
    base.checked_add(rest).unwrap_or(base + FAR)
}
