//! The objects of the configuration: Gateway API, Services, EndpointSlices and Sheave's own policies, as read from a
//! cluster or a file.
//!
//! The types are the single source of what is allowed. The schema of each field (type, limits, format) is derived from
//! them, objects are checked against it before they are deserialized, and the CRDs and the reference page of Sheave's
//! policies are generated from it. The meaning of a field is decided in [`translate`](mod@crate::translate).

/// Parsing of documents into objects: lists, kinds, errors.
mod read;
/// The documents of a YAML stream.
mod document;
/// JSON Schemas of types, and all violations of a schema by a value.
mod schema;
/// Values with a format of their own: networks, hostnames, names.
mod scalar;
/// Durations in the format of Gateway API.
mod duration;
/// A limit that is a number or learned.
mod in_flight;
/// Metadata of every object.
mod metadata;
/// `Namespace`, and label selectors.
mod namespace;
/// `GatewayClass` and `Gateway`.
mod gateway;
/// `ListenerSet`.
mod listener_set;
/// TLS settings of a Gateway.
mod gateway_tls;
/// Types that all kinds of route share.
mod route;
/// `HTTPRoute`.
mod http_route;
/// Matches of an HTTPRoute.
mod http_match;
/// Filters of an HTTPRoute.
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
/// `Node`.
mod node;
/// `NetworkPolicy`.
mod network_policy;
/// `Secret` and `ConfigMap`.
mod secret;
/// `BackendTLSPolicy`.
mod backend_tls_policy;
/// `BackendPolicy`.
mod backend_policy;
/// Health checks, outlier detection and retries of a BackendPolicy.
mod backend_health;
/// `sessionPersistence` of Gateway API.
mod session_persistence;
/// `XBackendTrafficPolicy`.
mod backend_traffic_policy;
/// `ClientPolicy`.
mod client_policy;
/// Targets of policies of requests.
mod route_target;
/// `RateLimitPolicy`.
mod rate_limit_policy;
/// `apiKeys` of a SecurityPolicy.
mod api_keys;
/// `basicAuth` of a SecurityPolicy.
mod basic_auth;
/// `jwt` of a SecurityPolicy.
mod jwt;
/// External authorization.
mod external_auth;
/// `SecurityPolicy`.
mod security_policy;
/// Request rules of `TrafficPolicy`.
mod request_rule;
/// `TrafficPolicy`.
mod traffic_policy;
/// `xdsServers` of a BackendPolicy.
mod xds_servers;
/// `AddressPool`.
mod address_pool;
/// `BgpPeer`.
mod bgp_peer;
/// Objects of a cluster that are invalid.
mod invalid_object;
/// Objects from the flags of `sheave serve`.
mod shorthand;

pub use address_pool::{AddressPoolSpec, AnnouncementMethod};
pub use api_keys::{ApiKeyAuthentication, ApiKeySecret, ApiKeySources};
pub use backend_health::{
    ActiveHealth, BackendHealthPolicy, BackendRetry, EjectOn, GrpcStatus, PassiveHealth, ProbeType,
    SlowStart,
};
pub use backend_policy::{
    AffinityCookieAttributes, AffinityType, Algorithm, AutoLimit, BackendAffinity, BackendClients,
    BackendConnections, BackendOverload, BackendPolicySpec, BackendProtocol, BackendProxyProtocol,
    BackendQueue, BackendSecurity, BackendTimeouts, CookieSecurity, HashOn, HashOnType,
    HeededRefusals, PriorityValue, QueueFairness, QueuePriority, RoutePriority, SameSite,
    ServiceKind, ServiceTarget,
};
pub use backend_tls_policy::{
    BackendTlsPolicySpec, BackendTlsTarget, BackendValidation, LocalRef, SubjectAltName,
    SubjectAltNameType,
};
pub use backend_traffic_policy::{
    BackendTrafficPolicySpec, BackendTrafficTarget, MinRetryRate, RetryBudgetDetails,
    RetryConstraint,
};
pub use basic_auth::{BasicAuthUsers, BasicAuthUsersFormat, BasicAuthentication};
pub use bgp_peer::BgpPeerSpec;
pub use client_policy::{
    ClientCongestionControl, ClientConnections, ClientHeaders, ClientHttp2, ClientHttp3,
    ClientLimits, ClientPath, ClientPolicySpec, ClientProxyProtocol, ClientRevocation,
    ClientTimeouts, EscapedSlashes, GatewayKind, GatewayTarget, RevocationDepth,
    RevocationFallback, RevocationListKind, RevocationListRef, UntrustedFields,
};
pub use duration::Duration;
pub(crate) use external_auth::DEFAULT_TIMEOUT as DEFAULT_AUTHORIZER_TIMEOUT;
pub(crate) use external_auth::REDIRECT_PARAMETER;
pub use external_auth::{
    AuthorizerCookies, AuthorizerMethod, ExternalAuth, ExternalAuthProtocol, ForwardedBody,
    GrpcAuthorizer, HttpAuthorizer, HttpExternalAuth, SignInPage,
};
pub use gateway::{
    AllowedNamespaces, AllowedRoutes, FromNamespaces, GATEWAY_CONTROLLER, GatewayAddress,
    GatewayClassSpec, GatewayInfrastructure, GatewaySpec, ListenerSpec, RouteKind,
};
pub use gateway_tls::{
    BackendTls, FrontendTlsConfig, FrontendTlsPort, FrontendValidation, FrontendValidationMode,
    GatewayTls, ListenerTlsConfig, ObjectRef, TlsModeType, TlsValidationConfig,
};
pub use grpc_route::{GrpcMethodMatch, GrpcRouteMatch, GrpcRouteRule, GrpcRouteSpec};
pub use http_filter::{
    CorsFilter, Fraction, HeaderModifier, HttpFilter, HttpFilterType, HttpHeader, PathModifier,
    PathModifierType, RedirectScheme, RequestMirror, RequestRedirect, UrlRewrite,
};
pub use http_match::{
    HeaderMatch, HttpMethod, HttpRouteMatch, PathMatch, PathMatchType, QueryParamMatch,
    ValueMatchType,
};
pub use http_route::{BackendRef, HttpRouteRetry, HttpRouteRule, HttpRouteSpec, HttpRouteTimeouts};
pub use in_flight::MaxInFlight;
pub use ingress::{
    INGRESS_CONTROLLER, IngressBackend, IngressClassSpec, IngressPath, IngressPathType,
    IngressPaths, IngressPort, IngressRule, IngressService, IngressSpec, IngressTls,
};
pub use invalid_object::{InvalidObject, InvalidObjectTarget, PartialPolicy};
pub use jwt::{
    ClaimToHeader, JwksConfigMap, JwksSource, JwtAuthentication, JwtProvider, JwtSources,
};
pub use listener_set::{AllowedListeners, ListenerSetSpec, ParentGatewayRef};
pub use metadata::{GatewayName, ObjectMeta, SharedObject, TypedObject};
pub use namespace::{
    LabelExpression, LabelSelector, NAMESPACE_NAME_LABEL, NamespaceSpec, namespace_labels,
};
pub use network_policy::NetworkPolicySpec;
pub use node::{NodeAddress, NodeFields, NodeStatus};
pub use rate_limit_policy::{
    RateLimitKeySpec, RateLimitKeyType, RateLimitPolicySpec, RequestRateLimit,
};
pub(crate) use read::SECURITY_POLICY;
pub use read::{parse, read};
pub use reference_grant::{GrantFrom, GrantTo, ReferenceGrantSpec};
pub use request_rule::{
    ConditionalRedirect, PathReplacement, RequestCondition, RequestRule, RewriteContinuation,
    VariableAssignment,
};
pub use route::{BackendObjectRef, ParentRef, ServiceRef};
pub use route_target::{RouteTarget, RouteTargetKind};
pub(crate) use scalar::is_cookie_path;
pub use scalar::{
    CidrBlock, CorsOrigin, FieldName, Hostname, IgnoredField, RouteCommunity, TargetPort,
    UnsupportedField,
};
pub use schema::schema;
pub use secret::{ConfigMapSpec, SecretBytes, SecretSpec, SecretText};
pub use security_policy::{
    ClientAddressAccess, ClientCertificateAccess, ClientCertificateDetail, ClientCertificateMode,
    ForwardedCertificate, ForwardedCertificateMode, SecurityPolicySpec, SslClientFields,
};
pub use service::{
    AddressType, ClientIpAffinity, EndpointConditions, EndpointHint, EndpointHints,
    EndpointSliceSpec, EndpointTargetRef, SERVICE_NAME_LABEL, ServicePort, ServiceSpec,
    ServiceType, SessionAffinityConfig, SliceEndpoint, SlicePort,
};
pub use session_persistence::{
    CookieLifetimeType, SessionCookie, SessionCookieConfig, SessionHeader, SessionPersistence,
    SessionPersistenceType,
};
pub use shorthand::{
    ListenFlag, ListenFlagProtocol, ShorthandFlags, add_default_class, certificate, shorthand,
};
pub use stream_route::{StreamBackendRef, StreamRouteRule, StreamRouteSpec};
pub use tls_route::TlsRouteSpec;
pub use traffic_policy::{
    CompressionAlgorithm, CompressionSpec, ConfigMapValueRef, DirectResponse, ErrorPage,
    MediaRange, StatusRange, TrafficLimits, TrafficPolicySpec,
};
pub use xds_servers::XdsServers;

/// An object of a supported kind. Objects are shared, not copied, because there may be thousands.
#[derive(Clone, Debug, PartialEq)]
pub enum ApiObject {
    /// Labels of a namespace, for selectors.
    Namespace(SharedObject<NamespaceSpec>),
    /// The controller of the Gateways of a class.
    GatewayClass(SharedObject<GatewayClassSpec>),
    /// Addresses and listeners to accept on.
    Gateway(SharedObject<GatewaySpec>),
    /// Additional listeners of a Gateway.
    ListenerSet(SharedObject<ListenerSetSpec>),
    /// Routing of HTTP requests to Services.
    HttpRoute(SharedObject<HttpRouteSpec>),
    /// Routing of gRPC calls to Services.
    GrpcRoute(SharedObject<GrpcRouteSpec>),
    /// Routing of TLS connections by server name (SNI).
    TlsRoute(SharedObject<TlsRouteSpec>),
    /// Routing of TCP connections.
    TcpRoute(SharedObject<StreamRouteSpec>),
    /// Routing of UDP flows.
    UdpRoute(SharedObject<StreamRouteSpec>),
    /// The controller of the Ingresses of a class.
    IngressClass(SharedObject<IngressClassSpec>),
    /// Routing of HTTP requests to Services: the predecessor of Gateway API.
    Ingress(SharedObject<IngressSpec>),
    /// Permission to refer to objects of another namespace.
    ReferenceGrant(SharedObject<ReferenceGrantSpec>),
    /// A name for a set of endpoints, and their ports.
    Service(SharedObject<ServiceSpec>),
    /// Some of the endpoints of a Service.
    EndpointSlice(SharedObject<EndpointSliceSpec>),
    /// The addresses of a machine of the cluster.
    Node(SharedObject<NodeFields>),
    /// A restriction of connections to pods.
    NetworkPolicy(SharedObject<NetworkPolicySpec>),
    /// Certificates and keys.
    Secret(SharedObject<SecretSpec>),
    /// CA certificates.
    ConfigMap(SharedObject<ConfigMapSpec>),
    /// TLS of connections to the endpoints of a Service.
    BackendTlsPolicy(SharedObject<BackendTlsPolicySpec>),
    /// Retries and session persistence of a Service.
    BackendTrafficPolicy(SharedObject<BackendTrafficPolicySpec>),
    /// Load balancing, queueing, health checks and connections of a Service's endpoints.
    BackendPolicy(SharedObject<BackendPolicySpec>),
    /// Limits, timeouts and protocols of the clients of a Gateway.
    ClientPolicy(SharedObject<ClientPolicySpec>),
    /// Request rates of Gateways and routes.
    RateLimitPolicy(SharedObject<RateLimitPolicySpec>),
    /// A SecurityPolicy.
    SecurityPolicy(SharedObject<SecurityPolicySpec>),
    /// A TrafficPolicy.
    TrafficPolicy(SharedObject<TrafficPolicySpec>),
    /// Addresses for Services of type LoadBalancer.
    AddressPool(SharedObject<AddressPoolSpec>),
    /// A router to which addresses are announced.
    BgpPeer(SharedObject<BgpPeerSpec>),
    /// An invalid object. Occurs only in clusters: a file with an invalid object is rejected.
    Invalid(SharedObject<InvalidObject>),
}
