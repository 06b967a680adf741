//! What was asked for: Gateway API objects become a checked [`Snapshot`] and statuses.
//!
//! Pure: objects in, Snapshot and statuses out. It reads no file and no clock and opens no socket; it must not know
//! where objects come from, nor how a request is carried.
#![warn(missing_docs, clippy::wildcard_enum_match_arm)]

/// The objects that ask: YAML in, typed objects and every structural error out.
pub mod objects;
/// Which addresses Gateways are served on.
pub mod addresses;
/// Services in front of Gateways.
pub mod managed_services;
/// From objects to a Snapshot and statuses.
pub mod translate;
/// Everything the data plane is asked to do.
pub mod snapshot;
/// From a request's host and path to the rule that serves it.
pub mod matching;
/// What became of each object.
pub mod status;
/// What is wrong with an object, and where.
pub mod problem;

pub use addresses::AddressAssignment;
pub use objects::{ApiObject, parse};
pub use problem::{ObjectOrigin, ObjectProblem};
pub use snapshot::Snapshot;
pub use translate::{EndpointIndex, TranslationResult, ingress, translate};
