//! `BackendPolicy` (sheave.dev/v1alpha1): load balancing, queueing, health checks and connections of a Service's
//! endpoints.
//!
//! The doc comments become the reference page and the descriptions of the CRD. Each one states the unit, default and
//! limit if the schema does not.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::backend_health::{BackendHealthPolicy, BackendRetry, SlowStart};
use super::duration::Duration;
use super::in_flight::MaxInFlight;
use super::xds_servers::XdsServers;

/// Load balancing, queueing, health checks and connections of the endpoints of a Service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackendPolicySpec {
    /// The Services to which the policy applies, in the policy's namespace. If two policies have the same target, the
    /// older one applies. A policy for a port takes precedence over one for the whole Service.
    #[schemars(length(min = 1, max = 16))]
    pub target_refs: Vec<ServiceTarget>,
    /// The load-balancing algorithm.
    #[serde(default)]
    pub algorithm: Algorithm,
    /// The part of a request that `ConsistentHash` and `Maglev` hash. Default: the client's address.
    pub hash_on: Option<HashOn>,
    /// Session affinity: keeps a client at the same endpoint while that endpoint can serve. Default: no affinity.
    pub affinity: Option<BackendAffinity>,
    /// If true, endpoints in Sheave's own zone (`--zone`) are preferred while they have free capacity. Default: true if
    /// the Service's `trafficDistribution` is `PreferSameZone` or `PreferClose`.
    pub prefer_same_zone: Option<bool>,
    /// Maximum number of requests in flight at one endpoint, over all workers. Either a number, or `auto` for adaptive
    /// concurrency: Sheave learns the limit of each endpoint beyond which its throughput no longer grows. Default: no
    /// limit.
    pub max_in_flight_per_endpoint: Option<MaxInFlight>,
    /// Bounds of the limits that `maxInFlightPerEndpoint: auto` learns.
    #[serde(default)]
    pub auto_limit: AutoLimit,
    /// The responses that count as a refusal: the endpoint rejects a request because it is full. For the time in
    /// `Retry-After` or `grpc-retry-pushback-ms` (one second if there is none, at most 60 seconds), the endpoint gets
    /// one request in flight fewer than it had, but always at least one. This holds for all clients.
    #[serde(default)]
    pub heed_refusals: HeededRefusals,
    /// The queue in which requests wait if every endpoint is at its limit.
    #[serde(default)]
    pub queue: BackendQueue,
    /// Limits of the slots and queue places of one client, if the requests in flight are limited.
    #[serde(default)]
    pub clients: BackendClients,
    /// The response to a rejected request: every endpoint is at its limit and the queue is full, or the request would
    /// wait or has waited too long.
    #[serde(default)]
    pub overload: BackendOverload,
    /// Timeouts.
    #[serde(default)]
    pub timeouts: BackendTimeouts,
    /// Limits of connections to endpoints.
    #[serde(default)]
    pub connections: BackendConnections,
    /// Retries. The `retry` of a route takes precedence.
    #[serde(default)]
    pub retry: BackendRetry,
    /// Active health checks and outlier detection.
    #[serde(default)]
    pub health: BackendHealthPolicy,
    /// Slow start: ramps up the share of an endpoint that is new or returns. Default: the endpoint gets its full share
    /// at once.
    pub slow_start: Option<SlowStart>,
    /// The protocol of connections to endpoints. Default: the one in the port's `appProtocol`; without it HTTP/2 if a
    /// GRPCRoute refers to the Service, else HTTP/1.1. A BackendTLSPolicy determines if connections are encrypted.
    pub protocol: Option<BackendProtocol>,
    /// TLS to endpoints that have no BackendTLSPolicy.
    #[serde(default)]
    pub tls: BackendSecurity,
    /// If set, each connection to an endpoint begins with a PROXY protocol header of this version, which carries the
    /// client's address. A connection then serves one client only. HTTP/3 has no such header, so HTTP/3 endpoints are
    /// then reached over TCP. Default: no header.
    pub proxy_protocol: Option<BackendProxyProtocol>,
    /// Clients of gRPC servers that get their listener from Sheave by xDS.
    #[serde(default)]
    pub xds_servers: XdsServers,
}

/// Responses that count as a refusal of a full endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HeededRefusals {
    /// Responses in which the endpoint speaks of itself: 503 with `Retry-After`, gRPC `RESOURCE_EXHAUSTED` with
    /// `grpc-retry-pushback-ms`, and a stream that is refused unprocessed.
    #[default]
    Overload,
    /// Also those that may concern the quota of one client: 429, and gRPC `RESOURCE_EXHAUSTED` without
    /// `grpc-retry-pushback-ms`. Only for endpoints that keep no quotas: otherwise one client that exceeds its quota
    /// lowers the limit for all clients.
    All,
    /// None.
    None,
}

/// A reference to a Service, or to one of its ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceTarget {
    /// The API group of Services, which is the empty string.
    #[serde(default)]
    #[schemars(length(max = 0))]
    pub group: String,
    /// The kind of the target.
    pub kind: ServiceKind,
    /// The name of the Service.
    #[schemars(extend("format" = "name"))]
    pub name: String,
    /// The name of a port of the Service. Default: all ports.
    #[schemars(extend("format" = "name"))]
    pub section_name: Option<String>,
}

/// The only kind that a BackendPolicy attaches to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ServiceKind {
    /// A Service.
    #[default]
    Service,
}

/// A load-balancing algorithm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Algorithm {
    /// Least requests: the endpoint with the fewest requests in flight, relative to its weight.
    #[default]
    LeastLoad,
    /// Weighted round robin.
    RoundRobin,
    /// A random endpoint, by weight.
    Random,
    /// Peak EWMA: the endpoint with the lowest expected latency, from measured latency and load. Failures count as
    /// slowness.
    PeakEwma,
    /// Consistent hashing with bounded loads: the endpoint that owns the hashed value, unless its load is more than 25
    /// % above its share.
    ConsistentHash,
    /// Maglev hashing: the endpoint that owns the hashed value, whatever its load.
    Maglev,
}

/// The part of a request that is hashed. If a request does not have that part, the client's address is hashed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HashOn {
    /// The type of the hashed part.
    #[serde(rename = "type")]
    pub kind: HashOnType,
    /// The name of the header field, cookie or query parameter.
    #[schemars(extend("format" = "field-name"))]
    pub name: Option<String>,
}

/// The part of a request that is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HashOnType {
    /// The client's IP address.
    Source,
    /// The first value of a header field.
    Header,
    /// The value of a cookie.
    Cookie,
    /// The first value of a query parameter.
    QueryParam,
    /// The path, without the query.
    Path,
    /// The host, without the port.
    Host,
}

/// Session affinity. Health takes precedence: if the endpoint cannot serve, the client gets another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackendAffinity {
    /// The mechanism of session affinity.
    #[serde(rename = "type")]
    pub kind: AffinityType,
    /// The name of the cookie or header field. Default: `sheave-endpoint`.
    #[schemars(extend("format" = "field-name"))]
    pub name: Option<String>,
    /// The lifetime of the cookie (`Max-Age`). Default: a session cookie.
    pub max_age: Option<Duration>,
    /// Further attributes of the cookie.
    pub cookie: Option<AffinityCookieAttributes>,
}

/// Attributes of a cookie of session affinity. It always has `HttpOnly`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AffinityCookieAttributes {
    /// The beginning of the paths of the requests that carry the cookie (`Path`). Default: `/`.
    #[schemars(length(max = 1024), extend("format" = "cookie-path"))]
    pub path: Option<String>,
    /// The domain whose hosts get the cookie (`Domain`). Default: only the host of the request gets it.
    #[schemars(extend("format" = "host"))]
    pub domain: Option<String>,
    /// The requests of other sites that carry the cookie (`SameSite`).
    pub same_site: SameSite,
    /// The responses in which the cookie has `Secure`.
    pub secure: CookieSecurity,
}

/// The requests of other sites that carry a cookie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SameSite {
    /// Only those by which a user comes from another site.
    #[default]
    Lax,
    /// None.
    Strict,
    /// All. Browsers accept this only together with `Secure`.
    None,
}

impl SameSite {
    /// Returns the value of the attribute.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Lax => "Lax",
            Self::Strict => "Strict",
            Self::None => "None",
        }
    }
}

/// The responses in which a cookie has `Secure`, so that requests without TLS do not carry it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CookieSecurity {
    /// Those to clients with TLS.
    #[default]
    WithTls,
    /// All: another proxy in front of Sheave has terminated TLS.
    Always,
}

/// A mechanism of session affinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AffinityType {
    /// A cookie that Sheave sets; with `Secure` if the client's connection has TLS. It names the endpoint by a keyed
    /// hash: see `--affinity-key-file`.
    Cookie,
    /// A header field that Sheave sets in responses and the client repeats in requests.
    Header,
    /// The client's IP address.
    Source,
}

/// A protocol of connections to endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BackendProtocol {
    /// HTTP/1.1.
    #[serde(rename = "HTTP1")]
    Http1,
    /// HTTP/2 without TLS.
    #[serde(rename = "H2C")]
    H2c,
    /// HTTP/2 with TLS. Requires a BackendTLSPolicy.
    H2,
    /// HTTP/3. Requires a BackendTLSPolicy, because QUIC is always encrypted. If an endpoint cannot be reached over
    /// QUIC, Sheave uses HTTP/2 or HTTP/1.1, whichever the endpoint supports, over TLS and TCP, and tries HTTP/3 again
    /// from time to time.
    H3,
}

/// TLS to endpoints that have no BackendTLSPolicy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BackendSecurity {
    /// If true, connections are encrypted but no certificate is verified: neither its issuer nor its name. An attacker
    /// between Sheave and an endpoint can then read and change all traffic. Use this only in a lab with self-signed
    /// certificates. Status and log report that it is on.
    pub insecure_skip_verify: bool,
}

/// A version of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BackendProxyProtocol {
    /// The text format.
    V1,
    /// The binary format.
    V2,
}

/// The queue in which requests wait if every endpoint is at its limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BackendQueue {
    /// Maximum number of requests in the queue. Default: 1024 if `maxInFlightPerEndpoint` is set, else 0.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub max_requests: Option<u32>,
    /// Maximum time in the queue. A request is rejected at once if, by the current rate of the queue, it will not get a
    /// slot within this time or before its own deadline.
    pub timeout: Duration,
    /// Maximum time in the queue in a sustained overload, that is, when the queue has not been empty for all of
    /// `timeout` (load shedding as in CoDel). A request that would wait longer is rejected at once. A request that has
    /// waited longer is shed as soon as another request can use the slot. Default: `timeout` always applies.
    #[schemars(extend("format" = "positive-duration"))]
    pub target: Option<Duration>,
    /// Fair queueing.
    pub fairness: QueueFairness,
    /// Priorities of requests. A request of a higher priority goes first. To prevent starvation, a request that seven
    /// younger requests of a higher priority have overtaken goes next.
    pub priority: QueuePriority,
}

/// Limits of the slots and queue places of one client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BackendClients {
    /// Maximum number of slots and queue places of one HTTP/2 or HTTP/3 connection for requests whose body has not
    /// arrived completely, such as long uploads and gRPC streams that the client has not ended, and for WebSockets. A
    /// further one waits for `queue.timeout` and is then rejected with 429. Default: half of the slots of all
    /// endpoints, at least 1.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_incomplete: Option<u32>,
    /// Maximum number of slots and queue places of one client address, for requests of all kinds. A further request is
    /// rejected with 429. Trusted proxies of the ClientPolicy report the address. An IPv6 client is its /64 network.
    /// Clients behind one NAT share an address. Default: no limit.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_per_address: Option<u32>,
}

/// Fair queueing of the requests of a Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum QueueFairness {
    /// Each rule of a route gets a fair share: the rules of one priority take turns. If the queue is full, a request of
    /// a rule with less than its share of the places evicts one of the rule with the most.
    #[default]
    PerRoute,
    /// No fair queueing: first come, first served.
    None,
}

/// Priority of requests in the queue. The header field determines it, else the route, else the default. Priorities are
/// those of RFC 9218: 0 is the highest, 7 the lowest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct QueuePriority {
    /// The name of a request header field that carries the priority. It is read after the filters of the route. Its
    /// value is one of `values`; if `values` is empty, it is a number from 0 to 7, or a `Priority` field value of RFC
    /// 9218 (`u=1, i`). Any other value is counted in a metric and ignored. Clients can set any header field, so choose
    /// a field that clients cannot send, or may set. Default: no header field is read.
    #[schemars(extend("format" = "field-name"))]
    pub header: Option<String>,
    /// The values of that header field, and their priorities.
    #[schemars(length(max = 16))]
    pub values: Vec<PriorityValue>,
    /// Priorities of routes, or of rules of routes. If two entries apply to the same rule, the one with a `sectionName`
    /// takes precedence, else the first.
    #[schemars(length(max = 64))]
    pub routes: Vec<RoutePriority>,
    /// The priority of all other requests.
    #[schemars(range(min = 0, max = 7))]
    pub default: u8,
}

/// A value of a header field, and its priority.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PriorityValue {
    /// The value, which must match exactly.
    #[schemars(length(min = 1, max = 256), extend("format" = "field-value"))]
    pub value: String,
    /// The priority: 0 is the highest, 7 the lowest.
    #[schemars(range(min = 0, max = 7))]
    pub priority: u8,
}

/// A route, or one of its rules, and the priority of its requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RoutePriority {
    /// The namespace of the route. Default: the namespace of the policy.
    #[schemars(extend("format" = "label"))]
    pub namespace: Option<String>,
    /// The name of the route, which is an HTTPRoute or a GRPCRoute.
    #[schemars(extend("format" = "name"))]
    pub name: String,
    /// The name of a rule of the route, or its index, from 0. Default: all rules.
    #[schemars(extend("format" = "name"))]
    pub section_name: Option<String>,
    /// The priority: 0 is the highest, 7 the lowest.
    #[schemars(range(min = 0, max = 7))]
    pub priority: u8,
}

/// Bounds of learned limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AutoLimit {
    /// The lowest limit.
    #[schemars(range(min = 1, max = 1000))]
    pub min: u32,
    /// The highest limit.
    #[schemars(range(min = 1, max = 1000))]
    pub max: u32,
    /// The initial limit of an endpoint, before any measurement. It is kept within the bounds.
    #[schemars(range(min = 1, max = 1000))]
    pub start: u32,
}

/// The response to a request that is rejected because of overload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BackendOverload {
    /// The status code: 429 asks the client to slow down, 503 reports that the service is at fault.
    #[schemars(extend("enum" = [429, 503]))]
    pub status: u16,
    /// Minimum value of `Retry-After` in the response, rounded up to whole seconds. If the expected wait of a new
    /// request is longer, `Retry-After` is that wait, up to 5 minutes.
    #[schemars(extend("format" = "duration"))]
    pub retry_after: Duration,
}

/// Timeouts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BackendTimeouts {
    /// Maximum time to establish a connection to an endpoint.
    pub connect: Duration,
    /// Maximum time from the head of a request to the last byte of its response. Default: no limit.
    pub request: Option<Duration>,
    /// Maximum time from the start of an attempt to the head of its response. Default: no limit.
    pub per_attempt: Option<Duration>,
    /// Idle timeout of a request: maximum time without a byte between Sheave and the endpoint.
    pub idle: Duration,
    /// Maximum time without an acknowledgement from the endpoint, for sent data or, on an idle connection, for
    /// keep-alive probes (TCP_USER_TIMEOUT and TCP keep-alive, the idle timeout of QUIC). After it the connection
    /// counts as broken.
    #[schemars(extend("format" = "positive-duration"))]
    pub unacknowledged: Duration,
    /// Maximum time for an endpoint to finish a request after the client has disconnected. The request keeps its slot
    /// for that time.
    pub abandoned: Duration,
}

/// Limits of connections to endpoints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BackendConnections {
    /// Maximum age of a connection. An older connection is not reused. Default: no limit.
    pub max_age: Option<Duration>,
    /// Maximum number of requests on a connection. After them the connection is not reused. Default: no limit.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub max_requests: Option<u32>,
    /// Idle timeout: a connection without a request for this time is closed.
    pub idle_timeout: Duration,
    /// Maximum number of connections to one endpoint, including idle ones. Default: no limit.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max: Option<u32>,
}

impl Default for BackendQueue {
    fn default() -> Self {
        Self {
            max_requests: None,
            timeout: Duration::from_secs(5),
            target: None,
            fairness: QueueFairness::default(),
            priority: QueuePriority::default(),
        }
    }
}

impl Default for QueuePriority {
    fn default() -> Self {
        let (values, routes) = (Vec::new(), Vec::new());
        Self { header: None, values, routes, default: 3 }
    }
}

impl Default for AutoLimit {
    fn default() -> Self {
        Self { min: 1, max: 1000, start: 8 }
    }
}

impl Default for BackendOverload {
    fn default() -> Self {
        Self { status: 429, retry_after: Duration::from_secs(1) }
    }
}

impl Default for BackendTimeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            request: None,
            per_attempt: None,
            idle: Duration::from_secs(60),
            unacknowledged: Duration::from_secs(3),
            abandoned: Duration::from_secs(10),
        }
    }
}

impl Default for BackendConnections {
    fn default() -> Self {
        Self { max_age: None, max_requests: None, idle_timeout: Duration::from_secs(60), max: None }
    }
}

impl BackendPolicySpec {
    /// Returns a spec with these targets and every default.
    pub fn for_targets(target_refs: Vec<ServiceTarget>) -> Self {
        Self {
            target_refs,
            algorithm: Algorithm::default(),
            hash_on: None,
            affinity: None,
            prefer_same_zone: None,
            max_in_flight_per_endpoint: None,
            auto_limit: AutoLimit::default(),
            heed_refusals: HeededRefusals::default(),
            queue: BackendQueue::default(),
            clients: BackendClients::default(),
            overload: BackendOverload::default(),
            timeouts: BackendTimeouts::default(),
            connections: BackendConnections::default(),
            retry: BackendRetry::default(),
            health: BackendHealthPolicy::default(),
            slow_start: None,
            protocol: None,
            tls: BackendSecurity::default(),
            proxy_protocol: None,
            xds_servers: XdsServers::default(),
        }
    }
}
