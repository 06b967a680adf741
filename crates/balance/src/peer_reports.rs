//! Reports of other replicas: the rules by which they count here.
//!
//! A report is the sender's own observation, never one that it has from a report: nothing goes in
//! circles. A receiver checks a message as a whole before any of it takes effect. What it takes is
//! bounded in number and in time, by its own clock from the receipt on.

/// Demand that other replicas report.
mod demand;
/// Newest report of each other replica.
mod newest;
/// Rates of requests that other replicas report.
mod rates;
/// Refusals of endpoints at other replicas.
mod refusal;
/// Endpoints that other replicas cannot reach.
mod outage;
/// Endpoints that other replicas have ejected.
mod suspicion;

pub use demand::{
    BackendHash, DemandMessage, DemandReport, MAX_DEMAND_REPORTS, MAX_REPORTED_DEMAND_MILLI,
    PeerDemand, REPORTED_WINDOWS, ReportedDemand,
};
pub use newest::DEMAND_LIFETIME;
pub use outage::{MAX_OUTAGE_REPORTS, OutageHints, OutageMessage};
pub use rates::{
    MAX_REPORTED_RATE_MILLI, MAX_ROUTE_REPORTS, PeerRates, ReportedRates, RouteHash, RouteReport,
};
pub use refusal::{MAX_REFUSAL_REPORTS, RefusalHints, RefusalMessage, RefusalReport};
pub use suspicion::SuspicionHints;

/// Reason for which a report is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportRefusal {
    /// A number is impossible, or there are too many reports. The whole message is refused.
    Absurd,
    /// This replica has no such backend. Other reports of the message count.
    UnknownBackend,
    /// This replica has no such route. Other reports of the message count.
    UnknownRoute,
    /// This replica has no such endpoint. Other reports of the message count.
    UnknownEndpoint,
    /// Peers have reduced the limit of the endpoint for as long as a refusal can, or have had it
    /// suspected for long enough. Other reports of the message count.
    Exhausted,
}

impl ReportRefusal {
    /// All reasons.
    pub const ALL: [Self; 5] = [
        Self::Absurd,
        Self::UnknownBackend,
        Self::UnknownRoute,
        Self::UnknownEndpoint,
        Self::Exhausted,
    ];

    /// Returns the name, as metrics have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Absurd => "absurd",
            Self::UnknownBackend => "unknown_backend",
            Self::UnknownRoute => "unknown_route",
            Self::UnknownEndpoint => "unknown_endpoint",
            Self::Exhausted => "exhausted",
        }
    }
}
