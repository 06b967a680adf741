//! Translation of Gateway API objects into a validated [`Snapshot`] and statuses.
//!
//! Pure: objects in, Snapshot and statuses out. This crate reads no file and no clock and opens no socket. It does not
//! know where objects come from, nor how a request is forwarded.
#![warn(missing_docs, clippy::wildcard_enum_match_arm)]

/// The objects of the configuration: YAML in, typed objects and every structural error out.
pub mod objects;
/// Addresses of Gateways.
pub mod addresses;
/// The filter of addresses that a cluster names as endpoints.
pub mod address_filter;
/// Assignment of an address pool to Gateways.
pub mod address_pool;
/// Services of type LoadBalancer that Sheave serves.
pub mod load_balancer;
/// Services in front of Gateways.
pub mod managed_services;
/// Names of the objects that can hold certificates.
pub mod certificate_object;
/// Key sets with which tokens are verified.
pub mod jwks;
/// Settings of a translation.
pub mod translation_settings;
/// Services whose addresses are taken in transparent mode.
pub mod transparent;
/// Translation of objects into a Snapshot and statuses.
pub mod translate;
/// Migration of Ingresses to Gateway API.
pub mod migrate;
/// The configuration of the data plane.
pub mod snapshot;
/// Matching of a request's host and path to the rule that serves it.
pub mod matching;
/// Statuses of objects.
pub mod status;
/// Problems with objects.
pub mod problem;

pub use address_filter::{AddressFilter, AddressRejection};
pub use addresses::AddressAssignment;
pub use certificate_object::{CertificateObject, CertificateObjectKind};
pub use load_balancer::LoadBalancerSettings;
pub use objects::{ApiObject, parse};
pub use problem::{ObjectOrigin, ObjectProblem};
pub use snapshot::Snapshot;
pub use translate::{EndpointIndex, TranslationResult, certificate_objects, ingress, translate};
pub use translation_settings::{
    ClusterDomain, ControllerNames, TranslationSettings, TransparentSettings,
};
