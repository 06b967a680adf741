//! Points in time as the caller passes them: nanoseconds since an origin of the caller's choice.
//!
//! This crate never reads a clock, so tests and the simulator control time.

use std::ops::Add;
use std::time::Duration;

/// A point in time: nanoseconds since an arbitrary origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// Origin.
    pub const ZERO: Self = Self(0);

    /// End of time: a deadline that is never reached.
    pub const MAX: Self = Self(u64::MAX);

    /// Returns the point this many nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the time that is this much earlier; the origin if there is none.
    pub(crate) const fn saturating_sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(duration.as_nanos() as u64))
    }

    /// Returns the nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time since `earlier`; zero if that is later.
    pub fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    /// Adds a duration; saturates at the end of time, about 584 years after the origin.
    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanos(duration)))
    }
}

/// Returns the nanoseconds of a duration, saturating at 584 years.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_differences_and_sums_saturate() {
        let (early, late) = (Time::from_nanos(5), Time::from_nanos(9));
        assert_eq!(late.saturating_since(early), Duration::from_nanos(4));
        assert_eq!(early.saturating_since(late), Duration::ZERO);
        assert_eq!(early + Duration::from_nanos(4), late);
        assert_eq!(late + Duration::MAX, Time::from_nanos(u64::MAX));
    }
}
