//! What came of one attempt: all that pickers, health and budgets ever learn from.

use std::time::Duration;

use crate::time::Time;

/// What came of one try at one endpoint. Each attempt has exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// When the endpoint was picked.
    pub started: Time,
    /// How long until the head of the response; none came where this is `None`. Left out for streams and upgrades
    /// whose head says nothing about how busy the endpoint is.
    pub head_after: Option<Duration>,
    /// How it ended.
    pub result: AttemptResult,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptResult {
    /// With a response, whatever it says, that is not one of those below.
    Success,
    /// With a response that says the endpoint is at fault: 5xx, or what a protocol has in its place.
    ServerError,
    /// With a response that says the endpoint has too much to do: 429, or 503 with `Retry-After`.
    Refused {
        /// How long it asks to be left alone.
        retry_after: Option<Duration>,
    },
    /// No connection could be made.
    ConnectFailed,
    /// No response came in time.
    TimedOut,
    /// The connection broke, or what came was not a response.
    ConnectionBroken,
    /// It was given up for a reason that is not the endpoint's: the client left, or Sheave ends.
    Cancelled,
}

/// What an end says of the endpoint's health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthSignal {
    /// It serves.
    Positive,
    /// It fails.
    Negative,
    /// Nothing: it is busy, or the fault is another's.
    Neutral,
}

impl AttemptResult {
    /// What this says of the endpoint's health. A refusal says nothing: to eject who is busy makes the others busier.
    pub fn health_signal(self) -> HealthSignal {
        match self {
            Self::Success => HealthSignal::Positive,
            Self::ServerError | Self::ConnectFailed | Self::TimedOut | Self::ConnectionBroken => {
                HealthSignal::Negative
            }
            Self::Refused { .. } | Self::Cancelled => HealthSignal::Neutral,
        }
    }
}
