//! Everything the data plane is asked to do: complete, checked, immutable, replaced whole.
//!
//! Only [`translate`](mod@crate::translate) makes one, so a Snapshot that exists is valid. It holds plain data: no object
//! of the API, no socket, no state.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use balance::Algorithm;
use ipnet::IpNet;

use crate::matching::RouteTable;

/// Everything the data plane is asked to do.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// One per address to accept on; no two have the same address.
    pub listeners: Vec<Listener>,
    /// Every rule of every listener's routes, each once; a rule's `index` is its place here.
    pub rules: Vec<Arc<Rule>>,
    /// Every backend that some rule names, sorted by key.
    pub backends: Vec<Backend>,
}

/// An address to accept on. Listeners of a Gateway that differ in hostname alone share one.
#[derive(Clone, Debug)]
pub struct Listener {
    /// Where to accept; port 0 takes any free port (files and flags only).
    pub address: SocketAddr,
    /// `namespace/gateway/listener` of the first listener on this address: the label in metrics and logs.
    pub name: Arc<str>,
    /// What clients may do.
    pub client: Arc<ClientSettings>,
    /// What becomes of their requests.
    pub routes: RouteTable,
}

/// What becomes of a request that matched.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Its place in [`Snapshot::rules`].
    pub index: usize,
    /// `namespace/route/rule`: the label in metrics and logs.
    pub name: Arc<str>,
    /// Where the rule sends requests, with weights; the sum of the weights is positive.
    pub targets: Vec<WeightedTarget>,
}

/// One share of a rule's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightedTarget {
    /// Who gets the share.
    pub target: Target,
    /// How large the share is, relative to the rule's other targets.
    pub weight: u32,
}

/// Who gets a share of a rule's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// An index into [`Snapshot::backends`].
    Backend(usize),
    /// The reference cannot be resolved: 500, as Gateway API asks.
    Unresolved,
}

/// A named set of endpoints and the policy for choosing among them.
#[derive(Clone, Debug, PartialEq)]
pub struct Backend {
    /// The Service and port it stands for.
    pub key: BackendKey,
    /// Who may get new requests.
    pub endpoints: Vec<EndpointSpec>,
    /// How they are used.
    pub settings: BackendSettings,
}

/// A Service's port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackendKey {
    /// The Service's namespace.
    pub namespace: Arc<str>,
    /// The Service's name.
    pub service: Arc<str>,
    /// The Service's port (not the endpoints').
    pub port: u16,
}

impl fmt::Display for BackendKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}:{}", self.namespace, self.service, self.port)
    }
}

/// One address that can serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EndpointSpec {
    /// Where it serves.
    pub address: SocketAddr,
    /// Its share relative to the others.
    pub weight: u32,
}

/// BackendPolicy, with every default filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct BackendSettings {
    /// How an endpoint is chosen.
    pub algorithm: Algorithm,
    /// Requests in flight at one endpoint, at most; `None`: no limit.
    pub max_in_flight_per_endpoint: Option<NonZeroU32>,
    /// Requests that may wait for a slot; 0: none.
    pub queue_max_requests: u32,
    /// How long one may wait.
    pub queue_timeout: Duration,
    /// What a refused request is answered with: 429 or 503.
    pub overload_status: u16,
    /// `Retry-After` of that answer, whole seconds.
    pub overload_retry_after: Duration,
    /// From the first SYN to the established connection.
    pub connect_timeout: Duration,
    /// From the request's head to the last byte of the response; `None`: no limit.
    pub request_timeout: Option<Duration>,
    /// From the start of an attempt to its response head; `None`: no limit.
    pub per_attempt_timeout: Option<Duration>,
    /// No byte moved between us and the endpoint while a request runs.
    pub idle_timeout: Duration,
    /// How long the slot of a request whose client has gone is kept while the endpoint works on.
    pub abandoned_timeout: Duration,
    /// A connection is not reused when older than this; `None`: no limit.
    pub connection_max_age: Option<Duration>,
    /// A connection is not reused after so many requests; `None`: no limit.
    pub connection_max_requests: Option<NonZeroU32>,
    /// An idle connection is closed after this.
    pub connection_idle_timeout: Duration,
    /// Connections to one endpoint, at most, idle ones included; `None`: no limit.
    pub connection_max: Option<NonZeroU32>,
}

/// ClientPolicy, with every default filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientSettings {
    /// Connections on the listener, at most.
    pub max_connections: u32,
    /// A connection is closed after the response that finds it older than this; `None`: no limit.
    pub connection_max_age: Option<Duration>,
    /// Between two requests.
    pub connection_idle_timeout: Duration,
    /// Bytes of a request's head, at most: beyond it 431 (414 for the request line).
    pub max_head_bytes: u32,
    /// Header fields, at most: beyond it 431.
    pub max_header_fields: u16,
    /// Bytes of the request target, at most: beyond it 414.
    pub max_target_bytes: u32,
    /// Bytes of a request's body, at most: beyond it 413; `None`: no limit.
    pub max_body_bytes: Option<u64>,
    /// From the first byte of a head to its last: beyond it 408.
    pub head_timeout: Duration,
    /// No byte of a body moved between us and the client: beyond it 408, or the connection is cut.
    pub body_timeout: Duration,
    /// Whose `X-Forwarded-*`, `Forwarded` and `X-Request-Id` are believed.
    pub trusted_proxies: Vec<IpNet>,
}
