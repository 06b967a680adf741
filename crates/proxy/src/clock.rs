//! The only caller of the system clock.
#![allow(clippy::disallowed_methods, reason = "this is where time comes from")]

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime};

use balance::Time;

/// What [`Time::ZERO`] stands for in this process.
static ORIGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Monotonic time since the first call in this process.
#[must_use]
pub fn now() -> Time {
    let elapsed = ORIGIN.elapsed();
    Time::ZERO + elapsed
}

/// Wall-clock time, for logs and `Date`.
#[must_use]
pub fn wall() -> SystemTime {
    SystemTime::now()
}

/// `time` as tokio's timers want it.
pub(crate) fn instant(time: Time) -> tokio::time::Instant {
    tokio::time::Instant::from_std(*ORIGIN + Duration::from_nanos(time.as_nanos()))
}
