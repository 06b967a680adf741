//! Decides which endpoint takes a request, who waits and who is refused.
//!
//! Pure: no I/O, no clock, no threads, no locks. Time is an argument, randomness is seeded, and what is shared
//! between workers is shared through the documented atomics of [`Endpoint`], [`Admission`] and [`Ticket`].
//! It must not know what a request, a connection or a protocol is.
#![warn(missing_docs, clippy::wildcard_enum_match_arm)]

/// The atomics: loom's or std's.
mod atomic;
/// Points in time, given by the caller.
pub mod time;
/// Seeded random numbers.
pub mod rng;
/// Hashes that are the same everywhere.
pub mod hash;
/// How long endpoints take, and what they are blamed for.
mod latency;
/// Counts of requests in flight, packed.
mod load;
/// What came of one attempt.
pub mod outcome;
/// When an endpoint that cannot be reached is tried again.
pub mod reachability;
/// One address that can serve, its load, and sets of them.
pub mod endpoint;
/// Which of several balancers uses which slots of an endpoint.
pub mod slot_assignment;
/// What an endpoint has taught us about idle connections.
pub mod reuse;
/// How many requests an endpoint can bear.
pub mod limit;
/// Choosing one endpoint of a set.
pub mod pick;
/// Which endpoints are fit to serve.
pub mod health;
/// Whether and when a request is tried again.
pub mod retry;
/// Who waits when every slot is taken.
pub mod queue;
/// How a request gets a slot, and how a slot comes back.
pub mod slots;
/// How much is asked for, as autoscalers want to know it.
pub mod demand;

pub use demand::RequestDemand;
pub use endpoint::{Endpoint, EndpointRegistry, EndpointSet, SetMember};
pub use health::{HealthCounters, HealthEvaluator};
pub use limit::{ConcurrencyLimiter, LimitSettings};
pub use load::ConcurrencyCap;
pub use outcome::{AttemptResult, Outcome};
pub use pick::{Algorithm, MaglevTable, PickRequest, Picker};
pub use queue::{PriorityLevel, Queue, QueueParameters, Ticket, WakeList};
pub use retry::RetryBudget;
pub use reuse::IdleHistory;
pub use rng::Rng;
pub use slot_assignment::{SlotAssigner, SlotAssignment};
pub use slots::{
    Admission, AdmissionDecision, AdmissionLimits, AdmissionRejection, ControlledDelay,
};
pub use time::Time;
