//! `BackendPolicy` (sheave.dev/v1alpha1): how the endpoints of a Service are used.
//!
//! The doc comments are the reference page and the descriptions of the CRD; each says unit, default and limit where the
//! schema does not.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::backend_health::{BackendHealthPolicy, BackendRetry, SlowStart};
use super::duration::Duration;
use super::in_flight::MaxInFlight;

/// How the endpoints of a Service are used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackendPolicySpec {
    /// The Services, in the policy's namespace. Of two policies for one target the older one applies, and a policy for
    /// a port goes before one for the whole Service.
    #[schemars(length(min = 1, max = 16))]
    pub target_refs: Vec<ServiceTarget>,
    /// How an endpoint is chosen.
    #[serde(default)]
    pub algorithm: Algorithm,
    /// What of a request `ConsistentHash` and `Maglev` hash; not given: the client's address.
    pub hash_on: Option<HashOn>,
    /// What keeps a client at its endpoint, as long as that can serve; not given: nothing does.
    pub affinity: Option<BackendAffinity>,
    /// Whether endpoints of Sheave's own zone (`--zone`) go first, as long as they have room. Not given: if the
    /// Service's `trafficDistribution` is `PreferSameZone` or `PreferClose`.
    pub prefer_same_zone: Option<bool>,
    /// Requests in flight at one endpoint, at most, over all workers: a number, or `auto` for as many as each endpoint is
    /// found to bear, beyond which its throughput grows no more. Not given: no limit.
    pub max_in_flight_per_endpoint: Option<MaxInFlight>,
    /// Between which bounds `maxInFlightPerEndpoint: auto` learns.
    #[serde(default)]
    pub auto_limit: AutoLimit,
    /// Whether an endpoint that refuses a request because it has too much to do (429, 503 with `Retry-After`, gRPC's
    /// RESOURCE_EXHAUSTED) is given less until it wants to be asked again, at most for 60 seconds: one request less than
    /// it had, and never less than one. Turn it off where endpoints refuse for reasons of the client, such as a quota.
    #[serde(default = "yes")]
    pub heed_refusals: bool,
    /// Where requests wait when every endpoint is at its limit.
    #[serde(default)]
    pub queue: BackendQueue,
    /// How a request is refused that finds every endpoint at its limit and no place in the queue, or that waits too long.
    #[serde(default)]
    pub overload: BackendOverload,
    /// How long things may take.
    #[serde(default)]
    pub timeouts: BackendTimeouts,
    /// Connections to endpoints.
    #[serde(default)]
    pub connections: BackendConnections,
    /// When a request is tried again. A route's own `retry` goes before it.
    #[serde(default)]
    pub retry: BackendRetry,
    /// Which endpoints are fit to serve.
    #[serde(default)]
    pub health: BackendHealthPolicy,
    /// An endpoint that starts or returns comes to its full share slowly; not given: at once.
    pub slow_start: Option<SlowStart>,
    /// What is spoken to endpoints; not given: what the port's `appProtocol` says, else HTTP/2 where a GRPCRoute leads to
    /// them, else HTTP/1.1. Whether it is encrypted, a BackendTLSPolicy says.
    pub protocol: Option<BackendProtocol>,
    /// How connections to endpoints are secured where there is no BackendTLSPolicy.
    #[serde(default)]
    pub tls: BackendSecurity,
    /// Each connection to an endpoint begins with a PROXY protocol header of this version, which says the client's
    /// address; not given: with none. A connection then serves one client only. HTTP/3 has no such header: its endpoints
    /// are then reached over TCP.
    pub proxy_protocol: Option<BackendProxyProtocol>,
}

/// A Service, or one port of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceTarget {
    /// The API group of Services, which is empty.
    #[serde(default)]
    #[schemars(length(max = 0))]
    pub group: String,
    /// What is meant.
    pub kind: ServiceKind,
    /// The Service's name.
    #[schemars(extend("format" = "name"))]
    pub name: String,
    /// The name of one of its ports; not given: all of them.
    #[schemars(extend("format" = "name"))]
    pub section_name: Option<String>,
}

/// The one kind that a BackendPolicy attaches to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ServiceKind {
    /// A Service.
    #[default]
    Service,
}

/// How an endpoint is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Algorithm {
    /// The endpoint with the fewest requests in flight, relative to its weight.
    #[default]
    LeastLoad,
    /// One after the other, by weight.
    RoundRobin,
    /// Any endpoint, by weight.
    Random,
    /// The endpoint that is likely to answer first, by latency and load; failures count as slowness.
    PeakEwma,
    /// The endpoint that belongs to what is hashed, unless it has a quarter more to do than its share.
    ConsistentHash,
    /// The endpoint that belongs to what is hashed by Maglev's table, however busy it is.
    Maglev,
}

/// What of a request is hashed. A request that has none of it is placed by its client's address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HashOn {
    /// What it is.
    #[serde(rename = "type")]
    pub kind: HashOnType,
    /// The name of the header field, cookie or parameter.
    #[schemars(extend("format" = "field-name"))]
    pub name: Option<String>,
}

/// What of a request is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HashOnType {
    /// The client's IP address.
    Source,
    /// The first value of a header field.
    Header,
    /// The value of a cookie.
    Cookie,
    /// The first value of a parameter of the query.
    QueryParam,
    /// The path, without the query.
    Path,
    /// The host, without the port.
    Host,
}

/// What keeps a client at its endpoint. It yields to health: a client whose endpoint cannot serve gets another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackendAffinity {
    /// What it is.
    #[serde(rename = "type")]
    pub kind: AffinityType,
    /// The name of the cookie or header field; not given: `sheave-endpoint`.
    #[schemars(extend("format" = "field-name"))]
    pub name: Option<String>,
    /// How long a client keeps the cookie; not given: as long as its session.
    pub max_age: Option<Duration>,
}

/// What keeps a client at its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AffinityType {
    /// A cookie that Sheave sets.
    Cookie,
    /// A header field that Sheave sets in responses, and that the client repeats in requests.
    Header,
    /// The client's IP address.
    Source,
}

/// What is spoken to endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BackendProtocol {
    /// HTTP/1.1.
    #[serde(rename = "HTTP1")]
    Http1,
    /// HTTP/2 without TLS.
    #[serde(rename = "H2C")]
    H2c,
    /// HTTP/2 with TLS, for which there must be a BackendTLSPolicy.
    H2,
    /// HTTP/3, for which there must be a BackendTLSPolicy: QUIC is always encrypted. An endpoint that cannot be reached so
    /// is reached over TCP, with TLS, by HTTP/2 or HTTP/1.1, whichever it speaks; HTTP/3 is tried again from time to time.
    H3,
}

/// How connections to endpoints are secured where there is no BackendTLSPolicy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BackendSecurity {
    /// Connections are encrypted, and every certificate is believed, whoever issued it and whomever it names. Whoever gets
    /// between Sheave and an endpoint then reads and changes what he likes: this is for a lab with self-signed
    /// certificates, and status and log say that it is on.
    pub insecure_skip_verify: bool,
}

/// A version of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum BackendProxyProtocol {
    /// A line of text.
    V1,
    /// Binary.
    V2,
}

/// Where requests wait when every endpoint is at its limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BackendQueue {
    /// Requests that may wait, at most. Not given: 1024 when `maxInFlightPerEndpoint` is, else none.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub max_requests: Option<u32>,
    /// How long one may wait. A request that will not get a slot by then, or by its own deadline, is refused at once, as
    /// far as the pace of the queue tells.
    pub timeout: Duration,
    /// How long one may wait in a long overload, that is, once somebody has been waiting for all of `timeout`: who would
    /// wait longer is refused at once, and who has waited longer is let go as soon as there is somebody else for a slot.
    /// Not given: as long as before.
    #[schemars(extend("format" = "positive-duration"))]
    pub target: Option<Duration>,
    /// Who shares the queue.
    pub fairness: QueueFairness,
    /// Who goes first. Whoever has let seven younger ones of a higher priority pass goes next, so nobody starves.
    pub priority: QueuePriority,
}

/// Who shares the queue of a Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum QueueFairness {
    /// The rules of routes: those of one priority take turns, and in a full queue one that has less than its share of the
    /// places gets one of who has most.
    #[default]
    PerRoute,
    /// Nobody: first come, first served.
    None,
}

/// Which priority a request has: what its header field says, else that of its route, else the default. Priorities are
/// those of RFC 9218: 0 goes first, 7 last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct QueuePriority {
    /// The name of a header field of the request, as filters of the route leave it; not given: none is looked at. Its
    /// value is one of `values`; without those it is a number from 0 to 7, or as `Priority` has it in RFC 9218 (`u=1, i`).
    /// Another value is counted, and as if there were none. Clients may say what they like: name a field that they
    /// cannot send, or may.
    #[schemars(extend("format" = "field-name"))]
    pub header: Option<String>,
    /// Values of that field, and what they mean.
    #[schemars(length(max = 16))]
    pub values: Vec<PriorityValue>,
    /// Routes, or rules of routes. Of two that name the same, that with a `sectionName` counts, else the first.
    #[schemars(length(max = 64))]
    pub routes: Vec<RoutePriority>,
    /// The priority of all other requests.
    #[schemars(range(min = 0, max = 7))]
    pub default: u8,
}

/// A value of a header field, and the priority that it means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PriorityValue {
    /// The whole value.
    #[schemars(length(min = 1, max = 256), extend("format" = "field-value"))]
    pub value: String,
    /// 0 goes first, 7 last.
    #[schemars(range(min = 0, max = 7))]
    pub priority: u8,
}

/// A route, or one of its rules, and the priority of its requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RoutePriority {
    /// The namespace of the route; not given: the policy's.
    #[schemars(extend("format" = "label"))]
    pub namespace: Option<String>,
    /// The name of the route: an HTTPRoute or a GRPCRoute.
    #[schemars(extend("format" = "name"))]
    pub name: String,
    /// The name of one of its rules, or its number, from 0; not given: all of them.
    #[schemars(extend("format" = "name"))]
    pub section_name: Option<String>,
    /// 0 goes first, 7 last.
    #[schemars(range(min = 0, max = 7))]
    pub priority: u8,
}

/// Between which bounds limits are learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AutoLimit {
    /// A limit is never below this.
    #[schemars(range(min = 1, max = 1000))]
    pub min: u32,
    /// A limit is never above this.
    #[schemars(range(min = 1, max = 1000))]
    pub max: u32,
    /// The limit of an endpoint of which nothing is known, within the bounds.
    #[schemars(range(min = 1, max = 1000))]
    pub start: u32,
}

/// How a request is refused when there is too much to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BackendOverload {
    /// The status code: 429 asks the client to slow down, 503 tells it that the service is at fault.
    #[schemars(extend("enum" = [429, 503]))]
    pub status: u16,
    /// `Retry-After` of the answer, in whole seconds, rounded up, at least: where a newcomer is expected to wait longer,
    /// that wait, up to 5 minutes.
    #[schemars(extend("format" = "duration"))]
    pub retry_after: Duration,
}

/// How long things may take.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BackendTimeouts {
    /// To establish a connection to an endpoint.
    pub connect: Duration,
    /// From a request's head to the last byte of its response; not given: no limit.
    pub request: Option<Duration>,
    /// From the start of an attempt to the head of its response; not given: no limit.
    pub per_attempt: Option<Duration>,
    /// While no byte moves between Sheave and the endpoint during a request.
    pub idle: Duration,
    /// While the endpoint acknowledges nothing, neither what was sent nor, on a connection that is quiet, that it is still
    /// there (TCP_USER_TIMEOUT and keep-alive, and QUIC's idle timeout). Then the connection has broken.
    #[schemars(extend("format" = "positive-duration"))]
    pub unacknowledged: Duration,
    /// For an endpoint to finish a request whose client has gone; its slot is taken for as long.
    pub abandoned: Duration,
}

/// Connections to endpoints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BackendConnections {
    /// A connection older than this is not used again; not given: no limit.
    pub max_age: Option<Duration>,
    /// A connection that has carried so many requests is not used again; not given: no limit.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub max_requests: Option<u32>,
    /// A connection is closed after so long without a request.
    pub idle_timeout: Duration,
    /// Connections to one endpoint, at most, idle ones included; not given: no limit.
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

fn yes() -> bool {
    true
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
    /// Every default, for these targets.
    pub fn for_targets(target_refs: Vec<ServiceTarget>) -> Self {
        Self {
            target_refs,
            algorithm: Algorithm::default(),
            hash_on: None,
            affinity: None,
            prefer_same_zone: None,
            max_in_flight_per_endpoint: None,
            auto_limit: AutoLimit::default(),
            heed_refusals: true,
            queue: BackendQueue::default(),
            overload: BackendOverload::default(),
            timeouts: BackendTimeouts::default(),
            connections: BackendConnections::default(),
            retry: BackendRetry::default(),
            health: BackendHealthPolicy::default(),
            slow_start: None,
            protocol: None,
            tls: BackendSecurity::default(),
            proxy_protocol: None,
        }
    }
}
