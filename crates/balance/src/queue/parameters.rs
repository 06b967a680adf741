//! Where a request stands among those who wait.

use std::fmt;

use crate::time::Time;

/// Who goes first: 0 before 1, and so on to 7. As urgency in RFC 9218 §4.1, whose default of 3 this one has too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PriorityLevel(u8);

impl PriorityLevel {
    /// How many there are.
    pub const COUNT: usize = 8;

    /// All, the first to go first.
    pub const ALL: [Self; Self::COUNT] =
        [Self(0), Self(1), Self(2), Self(3), Self(4), Self(5), Self(6), Self(7)];

    /// The priority of this number; `None`: there is none.
    pub const fn new(number: u8) -> Option<Self> {
        if number < Self::COUNT as u8 { Some(Self(number)) } else { None }
    }

    /// Its number.
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

/// Where a request stands among those who wait, and how long it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueParameters {
    /// Who goes first.
    pub priority: PriorityLevel,
    /// Requests with the same number share one share of the queue; see [`AdmissionLimits::fair`](crate::AdmissionLimits::fair).
    pub route: u64,
    /// It cannot wait longer than until then.
    pub deadline: Time,
}

impl Default for QueueParameters {
    fn default() -> Self {
        Self { priority: PriorityLevel::default(), route: 0, deadline: Time::MAX }
    }
}
