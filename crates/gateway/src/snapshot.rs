//! The configuration of the data plane: complete, valid, immutable, replaced as a whole.
//!
//! Only [`translate`](mod@crate::translate) creates one, so a Snapshot that exists is valid. It holds plain data: no
//! API object, no socket, no state.

/// Changes to requests and responses.
mod filter;
/// Settings of policies, with every default filled in.
mod settings;
/// Limits of the rate of requests.
mod rate_limit;
/// Keys of clients.
mod api_keys;
/// Tokens of issuers.
mod jwt;
/// Hashes of passwords.
mod password_hash;
/// Users and the hashes of their passwords.
mod basic_auth;
/// Clients that may send requests.
mod security;
/// Rewrites, redirects and responses on conditions.
mod request_rule;
/// Handling of requests.
mod traffic;
/// Authorization of requests by another server.
mod external_auth;
/// TLS termination at listeners, and TLS to endpoints.
mod tls;
/// Settings of gRPC servers that get their listener from Sheave.
mod xds_server;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub use api_keys::{ApiKeySettings, CredentialSource, SecretKey};
pub use basic_auth::BasicAuthSettings;
pub use external_auth::{
    AuthorizerProtocol, AuthorizerTarget, CookieScope, ExternalAuthSettings, FieldSelection,
    HttpQuestion, OriginalRequest, SignInRedirect, UrlTemplate, escape_query,
};
pub use filter::{
    AllowList, CorsPolicy, HeaderEdits, HeaderField, MirrorFraction, MirrorPolicy, OriginPattern,
    PathRewrite, RedirectAction, RequestUrl, RewriteAction, RouteFilters, UrlScheme,
};
pub use jwt::{ClaimField, JwtIssuer, JwtSettings};
pub use password_hash::PasswordHash;
pub use rate_limit::{KeyedRateLimit, RateLimitKey, RateLimitSettings};
pub use request_rule::{
    ConditionOperator, RequestRules, RequestTemplate, RewriteContinuation, RuleAction,
    RuleCondition, RuleDecision, RuleRequest, RuleSettings, RuleTextLimit, TemplateError,
};
pub use security::{ClientAddressRules, SecuritySettings};
pub use settings::{
    AffinityCookie, AffinitySettings, BackendSettings, ClientSettings, CongestionControl,
    EndpointLocation, EndpointProtocol, HashKey, Http3Settings, PathSettings, PriorityHeader,
    PriorityRules, ProbeSettings, ProxyProtocol, ProxyVersion, RuleRetry,
};
pub use tls::{
    ClientCertificates, EndpointTls, ListenerTls, PrivateKey, RevocationCheck, SniRule,
    SubjectName, TlsCertificate, TlsPayload, TlsTermination, TrustAnchors,
};
pub use traffic::{
    CompressionSettings, ContentCoding, DirectResponseSettings, ErrorPageSettings, ErrorPageSource,
    ResponseContent, TrafficSettings,
};
pub use xds_server::{XdsServerAccess, XdsServerClients, XdsServerSettings, XdsServerTls};

use ipnet::IpNet;

use crate::matching::RouteTable;
pub use crate::objects::{
    ClientCertificateAccess, ClientCertificateDetail, ClientCertificateMode, ForwardedCertificate,
    ForwardedCertificateMode, HeededRefusals, SameSite, SslClientFields,
};

/// The configuration of the data plane.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// One listener per address to accept on. No two listeners of one transport have the same address.
    pub listeners: Vec<Listener>,
    /// All rules of the routes of all listeners, each once. The `index` of a rule is its position here.
    pub rules: Vec<Arc<Rule>>,
    /// All backends that rules name, sorted by key.
    pub backends: Vec<Backend>,
    /// The limits of all targets of RateLimitPolicies.
    pub rate_limits: Vec<Arc<RateLimitSettings>>,
    /// The keys of clients of all SecurityPolicies that have any.
    pub api_keys: Vec<Arc<ApiKeySettings>>,
    /// The issuers of tokens of all SecurityPolicies that have any.
    pub jwt: Vec<Arc<JwtSettings>>,
    /// The ports of Services whose clients balance each call themselves, sorted by name and port. Empty unless the
    /// settings of the translation ask for them.
    pub service_ports: Vec<ServicePortRoutes>,
}

/// Routing at a port of a Service, for clients that choose an endpoint for each call themselves.
#[derive(Clone, Debug)]
pub struct ServicePortRoutes {
    /// The namespace of the Service.
    pub namespace: Arc<str>,
    /// The name of the Service.
    pub service: Arc<str>,
    /// The port of the Service.
    pub port: u16,
    /// Routing of all clients, except those in the next field. All rules are for any host.
    pub routes: RouteTable,
    /// Routing of clients of a namespace that has routes of its own for the Service.
    pub consumer_routes: BTreeMap<Arc<str>, RouteTable>,
    /// The listener of the Service's own gRPC servers.
    pub server: XdsServerSettings,
}

/// An address to accept on. Listeners of a Gateway that differ only in hostname share one.
#[derive(Clone, Debug)]
pub struct Listener {
    /// The address to bind. Port 0 takes any free port (files and flags only).
    pub address: SocketAddr,
    /// The port that clients connect to, if it is another one because a Service is in front.
    pub public_port: Option<u16>,
    /// True if the address may arrive at this machine later, or never. It belongs to a pool of the cluster and is bound
    /// nevertheless (IP_FREEBIND), so that the replica that gets the address serves at once.
    pub free_bind: bool,
    /// `namespace/gateway/listener` of the first listener on this address: the label in metrics and logs.
    pub name: Arc<str>,
    /// Limits and timeouts of clients.
    pub client: Arc<ClientSettings>,
    /// The protocol, within TLS if there is TLS, and its routing.
    pub protocol: ListenerProtocol,
    /// TLS settings. If set, all connections are TLS connections; `None` means no TLS.
    pub tls: Option<Arc<ListenerTls>>,
    /// HTTP/3 settings, on the UDP port of the same number. `None`: no HTTP/3.
    pub http3: Option<Http3Settings>,
    /// Interception by rules of the node, if the address is a Service's: nothing is bound. `None`: the address is bound.
    pub interception: Option<InterceptionSettings>,
    /// Routing of requests from clients of a namespace that has routes of its own for the Service, in place of that in
    /// `protocol`. Empty unless the address is intercepted.
    pub consumer_routes: BTreeMap<Arc<str>, RouteTable>,
    /// Networks of the clients that may connect; `None`: all.
    pub sources: Option<Arc<[IpNet]>>,
}

/// Settings of an address whose connections are intercepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterceptionSettings {
    /// True if connections to endpoints have the client's address.
    pub keep_client_address: bool,
}

impl Listener {
    /// Returns every rule of the listener, once for each way to reach it.
    pub fn rules(&self) -> impl Iterator<Item = &Arc<Rule>> {
        let (routes, only) = match &self.protocol {
            ListenerProtocol::Http(routes) => (Some(routes), None),
            ListenerProtocol::Tcp(only) | ListenerProtocol::Udp(only) => (None, only.as_ref()),
            ListenerProtocol::Detected { requests, connections } => {
                (Some(requests), connections.as_ref())
            }
        };
        let routes = routes.into_iter().chain(self.consumer_routes.values());
        let sites = self.tls.iter().flat_map(|tls| &tls.sni_rules);
        let of_connections = sites.filter_map(|site| match &site.payload {
            TlsPayload::Connections(rule) => rule.as_ref(),
            TlsPayload::Requests => None,
        });
        routes.flat_map(RouteTable::rules).chain(only).chain(of_connections)
    }
}

/// The protocol of a listener, and its routing.
#[derive(Clone, Debug)]
pub enum ListenerProtocol {
    /// HTTP requests, routed one by one.
    Http(RouteTable),
    /// TCP connections. All use one rule; without a rule they are closed.
    Tcp(Option<Arc<Rule>>),
    /// UDP flows. All use one rule; without a rule their datagrams are dropped.
    Udp(Option<Arc<Rule>>),
    /// The first bytes of a connection determine the protocol. HTTP/1.x, and HTTP/2 with prior knowledge, are routed
    /// request by request; everything else is forwarded as a connection.
    Detected {
        /// Routing of requests.
        requests: RouteTable,
        /// The rule of all other connections; without a rule they are closed.
        connections: Option<Arc<Rule>>,
    },
}

impl ListenerProtocol {
    /// Returns the transport protocol.
    pub const fn transport(&self) -> TransportProtocol {
        match self {
            Self::Http(_) | Self::Tcp(_) | Self::Detected { .. } => TransportProtocol::Tcp,
            Self::Udp(_) => TransportProtocol::Udp,
        }
    }
}

/// A transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TransportProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// Handling of a request that matched, or of a connection or flow of a TCP or UDP listener.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Its position in [`Snapshot::rules`].
    pub index: usize,
    /// `namespace/route/rule`: the label in metrics and logs.
    pub name: Arc<str>,
    /// The backends of the rule, with positive weights. Empty only if `filters` redirect.
    pub targets: Vec<WeightedTarget>,
    /// Changes to requests and responses; `None`: no changes. This field and those below have no effect on a connection
    /// or flow.
    pub filters: Option<Box<RouteFilters>>,
    /// Maximum time from the head of the request to the last byte of the response. `None`: the backend's policy
    /// determines it; [`Duration::MAX`]: no limit.
    pub request_timeout: Option<Duration>,
    /// Maximum time from the start of an attempt to the last byte of its response. `None` and [`Duration::MAX`]: no
    /// limit.
    pub attempt_timeout: Option<Duration>,
    /// Retries. `None`: the backend's policy determines them.
    pub retry: Option<RuleRetry>,
    /// Session affinity. `None`: the backend's policy determines it.
    pub affinity: Option<AffinitySettings>,
}

/// A target of a rule, and its share of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightedTarget {
    /// The target.
    pub target: RuleTarget,
    /// The weight, relative to the rule's other targets.
    pub weight: u32,
    /// Changes to requests to this target alone, after those of the rule; `None`: no changes.
    pub filters: Option<Box<RouteFilters>>,
}

/// A target of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleTarget {
    /// An index into [`Snapshot::backends`].
    Backend(usize),
    /// A reference that cannot be resolved: its requests are answered with 500, as Gateway API requires.
    Unresolved,
}

/// A named set of endpoints, and the policy for load balancing among them.
#[derive(Clone, Debug, PartialEq)]
pub struct Backend {
    /// The Service and port of the backend.
    pub key: BackendKey,
    /// The source of the endpoints.
    pub source: EndpointSource,
    /// The endpoints that may get new requests. Empty if they come from DNS: the DNS resolver fills them in.
    pub endpoints: Vec<EndpointSpec>,
    /// The endpoints on other nodes, if the key names a node. They get no requests, and are counted to determine which
    /// node should carry an address.
    pub elsewhere: Vec<EndpointSpec>,
    /// The policy settings.
    pub settings: BackendSettings,
}

/// The source of the endpoints of a backend.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EndpointSource {
    /// The EndpointSlices of the Service.
    Slices,
    /// DNS, because the Service is an ExternalName: the addresses of a DNS name (A and AAAA), and a port.
    Dns {
        /// The DNS name, without a trailing dot.
        host: Arc<str>,
        /// The port of all addresses.
        port: u16,
        /// True if the addresses must pass the [`AddressFilter`](crate::AddressFilter), because an object of a cluster
        /// names them.
        is_filtered: bool,
    },
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackendKey {
    /// The namespace of the Service.
    pub namespace: Arc<str>,
    /// The name of the Service.
    pub service: Arc<str>,
    /// The port of the Service (not of the endpoints).
    pub port: u16,
    /// The transport protocol: a Service may have the same port number for TCP and for UDP.
    pub transport: TransportProtocol,
    /// The node whose endpoints alone are used; `None`: all endpoints of the Service.
    pub node: Option<Arc<str>>,
}

/// `namespace/service:port`, with `/udp` appended for UDP, and `@node` for the endpoints of one node.
impl fmt::Display for BackendKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}:{}", self.namespace, self.service, self.port)?;
        match self.transport {
            TransportProtocol::Tcp => {}
            TransportProtocol::Udp => f.write_str("/udp")?,
        }
        self.node.iter().try_for_each(|node| write!(f, "@{node}"))
    }
}

/// An endpoint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EndpointSpec {
    /// The address and port by which it is known.
    pub address: SocketAddr,
    /// Its address and port in the other IP version, if it has one.
    pub other_address: Option<SocketAddr>,
    /// The weight, relative to the other endpoints.
    pub weight: u32,
    /// The zone that it runs in, if known.
    pub zone: Option<Arc<str>>,
    /// The node that it runs on, if known.
    pub node: Option<Arc<str>>,
}

impl EndpointSpec {
    /// Creates an endpoint of which only the address is known.
    pub fn new(address: SocketAddr) -> Self {
        Self { address, other_address: None, weight: 1, zone: None, node: None }
    }
}
