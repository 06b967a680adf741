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
/// Numbers that may be left to be learned.
mod in_flight;
/// What every object has.
mod metadata;
/// `Namespace`, and labels.
mod namespace;
/// `GatewayClass` and `Gateway`.
mod gateway;
/// `ListenerSet`.
mod listener_set;
/// What a Gateway says of TLS.
mod gateway_tls;
/// What routes of every kind have.
mod route;
/// `HTTPRoute`.
mod http_route;
/// What an HTTPRoute asks of requests.
mod http_match;
/// What an HTTPRoute changes on the way.
mod http_filter;
/// `GRPCRoute`.
mod grpc_route;
/// `TCPRoute` and `UDPRoute`.
mod stream_route;
/// `TLSRoute`.
mod tls_route;
/// `Ingress` and `IngressClass`.
mod ingress;
/// `ReferenceGrant`.
mod reference_grant;
/// `Service` and `EndpointSlice`.
mod service;
/// `Secret` and `ConfigMap`.
mod secret;
/// `BackendTLSPolicy`.
mod backend_tls_policy;
/// `BackendPolicy`.
mod backend_policy;
/// What a BackendPolicy says of health and retries.
mod backend_health;
/// `ClientPolicy`.
mod client_policy;
/// Objects of a cluster that cannot be read.
mod invalid_object;
/// Objects from a few flags.
mod shorthand;

pub use backend_health::{
    ActiveHealth, BackendHealthPolicy, BackendRetry, EjectOn, GrpcStatus, PassiveHealth, ProbeType,
    SlowStart,
};
pub use backend_policy::{
    AffinityType, Algorithm, AutoLimit, BackendAffinity, BackendConnections, BackendOverload,
    BackendPolicySpec, BackendProtocol, BackendProxyProtocol, BackendQueue, BackendSecurity,
    BackendTimeouts, HashOn, HashOnType, PriorityValue, QueueFairness, QueuePriority,
    RoutePriority, ServiceKind, ServiceTarget,
};
pub use backend_tls_policy::{
    BackendTlsPolicySpec, BackendTlsTarget, BackendValidation, LocalRef, SubjectAltName,
    SubjectAltNameType,
};
pub use client_policy::{
    ClientCongestionControl, ClientConnections, ClientHttp2, ClientHttp3, ClientLimits,
    ClientPolicySpec, ClientProxyProtocol, ClientTimeouts, GatewayKind, GatewayTarget,
};
pub use duration::Duration;
pub use gateway::{
    AllowedNamespaces, AllowedRoutes, FromNamespaces, GatewayAddress, GatewayClassSpec,
    GatewayInfrastructure, GatewaySpec, ListenerSpec, RouteKind,
};
pub use gateway_tls::{
    BackendTls, FrontendTls, FrontendTlsConfig, FrontendTlsPort, FrontendValidation,
    FrontendValidationMode, GatewayTls, ListenerTlsConfig, ObjectRef, TlsModeType,
};
pub use grpc_route::{GrpcMethodMatch, GrpcRouteMatch, GrpcRouteRule, GrpcRouteSpec};
pub use http_filter::{
    CorsFilter, Fraction, HeaderModifier, HttpFilter, HttpFilterType, HttpHeader, MirrorRef,
    PathModifier, PathModifierType, RedirectScheme, RequestMirror, RequestRedirect, UrlRewrite,
};
pub use http_match::{
    HeaderMatch, HttpMethod, HttpRouteMatch, PathMatch, PathMatchType, QueryParamMatch,
    ValueMatchType,
};
pub use http_route::{BackendRef, HttpRouteRetry, HttpRouteRule, HttpRouteSpec, HttpRouteTimeouts};
pub use in_flight::MaxInFlight;
pub use ingress::{
    IngressBackend, IngressClassSpec, IngressPath, IngressPathType, IngressPaths, IngressPort,
    IngressRule, IngressService, IngressSpec, IngressTls,
};
pub use invalid_object::{InvalidObject, InvalidObjectTarget, PartialPolicy};
pub use listener_set::{AllowedListeners, ListenerSetSpec, ParentGatewayRef};
pub use metadata::{ObjectMeta, SharedObject, TypedObject};
pub use namespace::{
    LabelExpression, LabelSelector, NAMESPACE_NAME_LABEL, NamespaceSpec, namespace_labels,
};
pub use read::{parse, read};
pub use reference_grant::{GrantFrom, GrantTo, ReferenceGrantSpec};
pub use route::{ParentRef, ServiceRef};
pub use scalar::{
    CidrBlock, CorsOrigin, FieldName, Hostname, IgnoredField, TargetPort, UnsupportedField,
};
pub use schema::schema;
pub use secret::{ConfigMapSpec, SecretBytes, SecretSpec, SecretText};
pub use service::{
    AddressType, EndpointConditions, EndpointSliceSpec, ServicePort, ServiceSpec, ServiceType,
    SliceEndpoint, SlicePort,
};
pub use shorthand::{ListenFlag, ListenFlagProtocol, ShorthandFlags, certificate, shorthand};
pub use stream_route::{StreamBackendRef, StreamRouteRule, StreamRouteSpec};
pub use tls_route::TlsRouteSpec;

/// An object that we understand. Who keeps it shares it: there may be thousands.
#[derive(Clone, Debug, PartialEq)]
pub enum ApiObject {
    /// Whose labels others select by.
    Namespace(SharedObject<NamespaceSpec>),
    /// Who serves the Gateways of a class.
    GatewayClass(SharedObject<GatewayClassSpec>),
    /// Where to accept.
    Gateway(SharedObject<GatewaySpec>),
    /// Where a Gateway accepts besides.
    ListenerSet(SharedObject<ListenerSetSpec>),
    /// Which requests go to which Services.
    HttpRoute(SharedObject<HttpRouteSpec>),
    /// Which calls of gRPC go to which Services.
    GrpcRoute(SharedObject<GrpcRouteSpec>),
    /// Where TLS connections go, by name.
    TlsRoute(SharedObject<TlsRouteSpec>),
    /// Where connections go.
    TcpRoute(SharedObject<StreamRouteSpec>),
    /// Where flows of datagrams go.
    UdpRoute(SharedObject<StreamRouteSpec>),
    /// Who serves the Ingresses of a class.
    IngressClass(SharedObject<IngressClassSpec>),
    /// Which requests go to which Services, as it was said before Gateway API.
    Ingress(SharedObject<IngressSpec>),
    /// Who may refer to objects of another namespace.
    ReferenceGrant(SharedObject<ReferenceGrantSpec>),
    /// A name for endpoints, and their ports.
    Service(SharedObject<ServiceSpec>),
    /// Some endpoints of a Service.
    EndpointSlice(SharedObject<EndpointSliceSpec>),
    /// Certificates and keys.
    Secret(SharedObject<SecretSpec>),
    /// Certificates of authorities.
    ConfigMap(SharedObject<ConfigMapSpec>),
    /// How connections to the endpoints of a Service are encrypted.
    BackendTlsPolicy(SharedObject<BackendTlsPolicySpec>),
    /// How the endpoints of a Service are used.
    BackendPolicy(SharedObject<BackendPolicySpec>),
    /// What clients of a Gateway may do.
    ClientPolicy(SharedObject<ClientPolicySpec>),
    /// One that cannot be read; of clusters only, for a file with such an object is refused.
    Invalid(SharedObject<InvalidObject>),
}
