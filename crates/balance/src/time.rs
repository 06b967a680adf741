//! Points in time as the caller gives them: nanoseconds since an origin of the caller's choice.
//!
//! This crate never asks what time it is, so tests and the simulator move time as they like.

use std::ops::Add;
use std::time::Duration;

/// A point in time: nanoseconds since an arbitrary origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The origin.
    pub const ZERO: Self = Self(0);

    /// The end of time: what is due then never is.
    pub const MAX: Self = Self(u64::MAX);

    /// The point this many nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; zero if it is not after it.
    pub fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Self;

    /// Saturates at the end of time, about 584 years after the origin.
    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanos(duration)))
    }
}

/// The nanoseconds of a duration, saturating: 584 years are as good as for ever.
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
