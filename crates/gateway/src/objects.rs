//! The objects that ask: Gateway API, Services, EndpointSlices and our own policies, as a cluster or a file holds them.
//!
//! The types are the one source of what is allowed: each field's schema (type, limits, format) is derived from them,
//! objects are checked against it before they are read, and the CRDs and the reference page of our policies are made
//! from it. What a field means is for [`translate`](mod@crate::translate) to know.

/// From documents to objects: lists, kinds, faults.
mod read;
/// The documents of a YAML stream.
mod document;
/// What a schema allows, and every fault of a value.
mod schema;
/// Values with a form of their own: networks, hostnames, names.
mod scalar;
/// Lengths of time as Gateway API writes them.
mod duration;
/// What every object has.
mod metadata;
/// `GatewayClass` and `Gateway`.
mod gateway;
/// `HTTPRoute`.
mod http_route;
/// `Service` and `EndpointSlice`.
mod service;
/// `BackendPolicy`.
mod backend_policy;
/// `ClientPolicy`.
mod client_policy;
/// Objects from a few flags.
mod shorthand;

pub use backend_policy::{
    Algorithm, BackendConnections, BackendPolicySpec, BackendTimeouts, Overload, Queue,
    ServiceKind, ServiceTarget,
};
pub use client_policy::{
    ClientConnections, ClientLimits, ClientPolicySpec, ClientTimeouts, GatewayKind, GatewayTarget,
};
pub use duration::Duration;
pub use gateway::{
    AllowedNamespaces, AllowedRoutes, FromNamespaces, GatewayAddress, GatewayClassSpec,
    GatewaySpec, Listener, RouteKind,
};
pub use http_route::{
    BackendRef, HttpRouteMatch, HttpRouteRule, HttpRouteSpec, ParentRef, PathMatch, PathMatchType,
};
pub use metadata::{Metadata, Resource};
pub use read::parse;
pub use scalar::{Hostname, Ignored, Network, Unserved};
pub use schema::schema;
pub use service::{
    AddressType, Conditions, EndpointSliceSpec, ServicePort, ServiceSpec, ServiceType,
    SliceEndpoint, SlicePort,
};
pub use shorthand::{Shorthand, shorthand};

/// An object that we understand.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    /// Who serves the Gateways of a class.
    GatewayClass(Resource<GatewayClassSpec>),
    /// Where to accept.
    Gateway(Resource<GatewaySpec>),
    /// Which requests go to which Services.
    HttpRoute(Resource<HttpRouteSpec>),
    /// A name for endpoints, and their ports.
    Service(Resource<ServiceSpec>),
    /// Some endpoints of a Service.
    EndpointSlice(Resource<EndpointSliceSpec>),
    /// How the endpoints of a Service are used.
    BackendPolicy(Resource<BackendPolicySpec>),
    /// What clients of a Gateway may do.
    ClientPolicy(Resource<ClientPolicySpec>),
}
