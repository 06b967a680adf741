//! Outcome of one attempt: the only input of pickers, health and budgets.

use std::time::Duration;

use crate::time::Time;

/// Outcome of one attempt at one endpoint. Each attempt has exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Time at which the endpoint was picked.
    pub started: Time,
    /// Time until the head of the response; `None` if none came. Also `None` for streams and
    /// upgrades, whose head says nothing about how busy the endpoint is.
    pub head_after: Option<Duration>,
    /// Result of the attempt.
    pub result: AttemptResult,
}

/// Result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptResult {
    /// A response, whatever it says, that is not one of those below.
    Success,
    /// A response that indicates a fault of the endpoint: 5xx, or the equivalent of a protocol.
    ServerError,
    /// A response that indicates overload of the endpoint: 503 with `Retry-After`, or the equivalent
    /// of a protocol.
    Refused {
        /// Backoff that the endpoint asks for.
        retry_after: Option<Duration>,
    },
    /// A response that rejects a request and may concern its client alone: 429 (RFC 6585 §4: "the
    /// user has sent too many requests"), or the equivalent of a protocol. It says nothing about
    /// the endpoint.
    RateLimited {
        /// Backoff that the endpoint asks for.
        retry_after: Option<Duration>,
    },
    /// No connection could be made.
    ConnectFailed,
    /// No response came in time.
    TimedOut,
    /// The connection broke, or what came was not a response.
    ConnectionBroken,
    /// The attempt was abandoned for a reason that is not the endpoint's: the client left, or
    /// Sheave shuts down.
    Cancelled,
}

/// Meaning of a result for the endpoint's health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthSignal {
    /// The endpoint serves.
    Positive,
    /// The endpoint fails.
    Negative,
    /// No information: the endpoint is busy, or the fault is elsewhere.
    Neutral,
}

impl AttemptResult {
    /// Returns the meaning for the endpoint's health. A refusal is neutral: ejecting a busy
    /// endpoint makes the others busier.
    pub fn health_signal(self) -> HealthSignal {
        match self {
            Self::Success => HealthSignal::Positive,
            Self::ServerError | Self::ConnectFailed | Self::TimedOut | Self::ConnectionBroken => {
                HealthSignal::Negative
            }
            Self::Refused { .. } | Self::RateLimited { .. } | Self::Cancelled => {
                HealthSignal::Neutral
            }
        }
    }
}
