//! Messages of xDS v3, as far as they are used: hand-written, because the whole of it is 90,000 lines of generated code.
//!
//! Fields have the names and numbers of the `.proto` files of Envoy's API, and the types have those of their messages,
//! with a second word where they have but one. Members of a oneof are optional fields. That the encoding is right is
//! shown by clients of gRPC's Go library, which has the generated code (tests/conformance/proxyless).

/// Well-known types of Protocol Buffers.
mod well_known;
/// `envoy.service.discovery.v3`: requests and responses.
mod discovery;
/// `envoy.config.listener.v3`, and the filter chain of its HTTP connections.
mod listener;
/// `envoy.config.route.v3`.
mod route;
/// `envoy.config.cluster.v3`, and policies of load balancing.
mod cluster;
/// `envoy.config.endpoint.v3`.
mod endpoint;
/// Reports of load.
mod load;
/// TLS.
mod tls;
/// Access control of servers.
mod rbac;

pub(crate) use cluster::{
    CircuitBreakers, ClusterResource, CommonLbConfig, EdsClusterConfig, HttpProtocolOptions,
    HttpVersions, LeastRequest, LoadBalancingPolicy, MaglevHash, OutlierDetection, PercentValue,
    RandomChoice, RequestThresholds, RetryShare, RingHash, RoundRobin, SlowStartConfig,
    WeightedRoundRobin, WrrLocality,
};
pub(crate) use discovery::{
    ClientLocality, ClientNode, ConfigSource, ControlPlane, DeltaDiscoveryRequest,
    DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, NamedResource, RpcStatus,
};
pub(crate) use endpoint::{
    ClusterLoadAssignment, HostAddress, HostEndpoint, LbEndpoint, LocalityLbEndpoints,
};
pub(crate) use listener::{
    ApiListener, FilterChain, HttpConnectionManager, HttpFilter, ListenerResource, NetworkFilter,
    RouteSource,
};
pub(crate) use load::{ClusterStats, LoadStatsRequest, LoadStatsResponse, LocalityStats};
pub(crate) use rbac::{
    AuthenticatedPrincipal, CidrRange, PrincipalSet, RbacFilter, RbacPermission, RbacPolicy,
    RbacPrincipal, RbacRules,
};
pub(crate) use route::{
    ClusterWeight, ConnectionProperties, CookieSource, DirectResponse, FilterState,
    FractionalPercent, HashPolicy, HeaderMatcher, HeaderValue, HeaderValueOption,
    HeaderValueSource, MaxStreamDuration, PreviousHosts, QueryParameterMatcher,
    QueryParameterSource, RedirectResponse, RegexMatcher, RegexSubstitution, RequestMirror,
    RetryBackOff, RetryHostPredicate, RetryPolicy, RouteAction, RouteConfiguration, RouteEntry,
    RouteMatcher, RuntimeFraction, StringMatcher, VirtualHost, WeightedClusters,
};
pub(crate) use tls::{
    CertificateProvider, CertificateValidation, CommonTlsContext, DataSource, EndpointTlsContext,
    ServerTlsContext, SubjectAltNameMatcher, TransportSocket,
};
pub(crate) use well_known::{AnyMessage, BoolValue, EmptyMessage, UInt64Value};

#[cfg(test)]
pub(crate) use cluster::TypedExtensionConfig;
#[cfg(test)]
pub(crate) use well_known::TimeSpan;

/// A type of resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceType {
    /// Clusters: the policy of load balancing of a backend.
    Cluster,
    /// The endpoints of a cluster.
    ClusterLoadAssignment,
    /// Listeners: the name that a client dials.
    Listener,
    /// Routes of a listener.
    RouteConfiguration,
}

impl ResourceType {
    /// All types, in the order in which changes of several of them are sent: a route never names a cluster that comes
    /// later.
    pub const ALL: [Self; 4] =
        [Self::Cluster, Self::ClusterLoadAssignment, Self::Listener, Self::RouteConfiguration];

    /// True if routes refer to resources of this type, or to those that do.
    pub(crate) const fn is_named_by_routes(self) -> bool {
        match self {
            Self::Cluster | Self::ClusterLoadAssignment => true,
            Self::Listener | Self::RouteConfiguration => false,
        }
    }

    /// Returns the name of the type in messages.
    pub const fn type_url(self) -> &'static str {
        match self {
            Self::Cluster => "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            Self::ClusterLoadAssignment => {
                "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
            }
            Self::Listener => "type.googleapis.com/envoy.config.listener.v3.Listener",
            Self::RouteConfiguration => {
                "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
            }
        }
    }

    /// Returns the name of the type in metrics and logs.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::ClusterLoadAssignment => "cluster_load_assignment",
            Self::Listener => "listener",
            Self::RouteConfiguration => "route_configuration",
        }
    }

    /// Returns the type with this name in messages.
    pub fn of_type_url(type_url: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.type_url() == type_url)
    }

    /// True if a response of the state of the world has all resources that the client has asked for, so that one that is
    /// missing does not exist, and if clients can ask for all resources there are. Responses of the other types have
    /// those that have changed.
    pub(crate) const fn is_complete(self) -> bool {
        match self {
            Self::Cluster | Self::Listener => true,
            Self::ClusterLoadAssignment | Self::RouteConfiguration => false,
        }
    }
}
