//! Priority, flow and deadline of a request in a queue.

use std::fmt;

use crate::time::Time;

/// Priority of a request: 0 is served before 1, and so on to 7. Like the urgency of RFC 9218 §4.1,
/// including the default of 3.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PriorityLevel(u8);

impl PriorityLevel {
    /// Number of priorities.
    pub const COUNT: usize = 8;

    /// All priorities, the highest first.
    pub const ALL: [Self; Self::COUNT] =
        [Self(0), Self(1), Self(2), Self(3), Self(4), Self(5), Self(6), Self(7)];

    /// Returns the priority of this number; `None` if there is none.
    pub const fn new(number: u8) -> Option<Self> {
        if number < Self::COUNT as u8 { Some(Self(number)) } else { None }
    }

    /// Returns its number.
    pub const fn number(self) -> u8 {
        self.0
    }
}

impl Default for PriorityLevel {
    fn default() -> Self {
        Self(3)
    }
}

impl fmt::Debug for PriorityLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Priority, flow and deadline of a request in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueParameters {
    /// Priority; lower numbers are served first.
    pub priority: PriorityLevel,
    /// Fair-queueing flow: requests with the same number share one share of the queue; see
    /// [`AdmissionLimits::fair`](crate::AdmissionLimits::fair).
    pub route: u64,
    /// Time until which the request can wait at most.
    pub deadline: Time,
}

impl Default for QueueParameters {
    fn default() -> Self {
        Self { priority: PriorityLevel::default(), route: 0, deadline: Time::MAX }
    }
}
