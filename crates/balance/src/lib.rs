//! Decides which endpoint takes a request, which request waits and which is rejected.
//!
//! Pure: no I/O, no clock, no threads, no locks. Time is an argument, randomness is seeded, and
//! state that workers share is in the documented atomics of [`Endpoint`], [`Admission`] and
//! [`Ticket`]. It must not know what a request, a connection or a protocol is.
#![warn(missing_docs, clippy::wildcard_enum_match_arm)]

/// Atomics: loom's or std's.
mod atomic;
/// Points in time, passed in by the caller.
pub mod time;
/// Seeded random numbers.
pub mod rng;
/// Hashes that are the same everywhere.
pub mod hash;
/// Latency estimates and blame of endpoints.
mod latency;
/// Counters of requests in flight, packed.
mod load;
/// Outcome of one attempt.
pub mod outcome;
/// Schedule of connection attempts to an unreachable endpoint.
pub mod reachability;
/// Addresses that can serve, their load, and sets of them.
pub mod endpoint;
/// Assignment of an endpoint's slots to several balancers.
pub mod slot_assignment;
/// Leases of slots: replicas move slots to where requests wait.
pub mod leases;
/// Observations of how long endpoints keep idle connections.
pub mod reuse;
/// Adaptive concurrency limits of endpoints.
pub mod limit;
/// Picking one endpoint of a set.
pub mod pick;
/// Health of endpoints: outlier detection, probes, slow start.
pub mod health;
/// Retries and their budget.
pub mod retry;
/// Queue of requests that wait for a slot.
pub mod queue;
/// Admission: acquires and releases slots.
pub mod slots;
/// Demand for a backend, for autoscalers.
pub mod demand;
/// Reports of other replicas: the rules by which they count.
pub mod peer_reports;
/// Keys that replicas share.
pub mod shared_keys;
/// Rate limits, which replicas keep together.
pub mod rate_limit;

pub use demand::RequestDemand;
pub use endpoint::{Endpoint, EndpointRegistry, EndpointSet, SetMember};
pub use health::{HealthCounters, HealthEvaluator};
pub use limit::{ConcurrencyLimiter, LimitSettings};
pub use load::{ConcurrencyCap, LeaseValidity};
pub use outcome::{AttemptResult, Outcome};
pub use pick::{Algorithm, MaglevTable, PickRequest, Picker};
pub use queue::{
    FirstWaiting, PriorityLevel, Queue, QueueParameters, SharedBacklog, Ticket, WakeList,
};
pub use retry::RetryBudget;
pub use reuse::IdleHistory;
pub use rng::Rng;
pub use slot_assignment::{SlotAssigner, SlotAssignment};
pub use slots::{
    Admission, AdmissionConfig, AdmissionDecision, AdmissionLimits, AdmissionRejection,
    ControlledDelay,
};
pub use time::Time;
