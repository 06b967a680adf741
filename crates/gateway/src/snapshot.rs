//! Everything the data plane is asked to do: complete, checked, immutable, replaced whole.
//!
//! Only [`translate`](mod@crate::translate) makes one, so a Snapshot that exists is valid. It holds plain data: no object
//! of the API, no socket, no state.

/// What is changed in requests and responses on their way.
mod filter;
/// Policies, with every default filled in.
mod settings;
/// With what we decrypt, and how we encrypt.
mod tls;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub use filter::{
    AllowList, CorsPolicy, HeaderEdits, HeaderField, MirrorFraction, MirrorPolicy, OriginPattern,
    PathRewrite, RedirectAction, RequestUrl, RewriteAction, RouteFilters, UrlScheme,
};
pub use settings::{
    AffinitySettings, BackendSettings, ClientSettings, CongestionControl, EndpointProtocol,
    HashKey, Http3Settings, PriorityHeader, PriorityRules, ProbeSettings, ProxyProtocol,
    ProxyVersion, RuleRetry,
};
pub use tls::{
    ClientCertificates, EndpointTls, ListenerTls, PrivateKey, SniRule, SubjectName, TlsCertificate,
    TlsPayload, TlsTermination, TrustAnchors,
};

use crate::matching::RouteTable;

/// Everything the data plane is asked to do.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// One per address to accept on; no two of one transport have the same address.
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
    /// The port that clients ask for, where that is another one: a Service leads here.
    pub public_port: Option<u16>,
    /// Whether the address may come to this machine later, or never: it is of a cluster's pool, and is to be bound
    /// nevertheless (IP_FREEBIND), so that who gets it serves at once.
    pub free_bind: bool,
    /// `namespace/gateway/listener` of the first listener on this address: the label in metrics and logs.
    pub name: Arc<str>,
    /// What clients may do.
    pub client: Arc<ClientSettings>,
    /// What is spoken there, inside of TLS where there is TLS, and what becomes of it.
    pub protocol: ListenerProtocol,
    /// What becomes of TLS connections, which all are then; `None`: there is no TLS.
    pub tls: Option<Arc<ListenerTls>>,
    /// How requests come by HTTP/3 too, at the UDP port of the same number; `None`: they do not.
    pub http3: Option<Http3Settings>,
}

impl Listener {
    /// Every rule of what comes in here, once for each way to it.
    pub fn rules(&self) -> impl Iterator<Item = &Arc<Rule>> {
        let (routes, only) = match &self.protocol {
            ListenerProtocol::Http(routes) => (Some(routes), None),
            ListenerProtocol::Tcp(only) | ListenerProtocol::Udp(only) => (None, only.as_ref()),
        };
        let sites = self.tls.iter().flat_map(|tls| &tls.sni_rules);
        let of_connections = sites.filter_map(|site| match &site.payload {
            TlsPayload::Connections(rule) => rule.as_ref(),
            TlsPayload::Requests => None,
        });
        routes.into_iter().flat_map(RouteTable::rules).chain(only).chain(of_connections)
    }
}

/// What is spoken at a listener, and what becomes of it.
#[derive(Clone, Debug)]
pub enum ListenerProtocol {
    /// Requests, each by a rule of its own.
    Http(RouteTable),
    /// Connections, all by one rule; without one they are closed.
    Tcp(Option<Arc<Rule>>),
    /// Flows of datagrams, all by one rule; without one they are dropped.
    Udp(Option<Arc<Rule>>),
}

impl ListenerProtocol {
    /// What carries it.
    pub const fn transport(&self) -> TransportProtocol {
        match self {
            Self::Http(_) | Self::Tcp(_) => TransportProtocol::Tcp,
            Self::Udp(_) => TransportProtocol::Udp,
        }
    }
}

/// What carries a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TransportProtocol {
    /// Connections.
    Tcp,
    /// Datagrams.
    Udp,
}

/// What becomes of a request that matched, or of a connection or flow of a listener that has no requests.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Its place in [`Snapshot::rules`].
    pub index: usize,
    /// `namespace/route/rule`: the label in metrics and logs.
    pub name: Arc<str>,
    /// Where the rule sends requests, with positive weights. None only where `filters` redirect.
    pub targets: Vec<WeightedTarget>,
    /// What is changed on the way; `None`: nothing. This and all below is of no meaning for a connection or flow.
    pub filters: Option<Box<RouteFilters>>,
    /// From the request's head to the last byte of the response. `None`: what the backend's policy says;
    /// [`Duration::MAX`]: no limit.
    pub request_timeout: Option<Duration>,
    /// From the start of an attempt to the last byte of its response. `None` and [`Duration::MAX`]: no limit.
    pub attempt_timeout: Option<Duration>,
    /// When a request is tried again; `None`: when the backend's policy says.
    pub retry: Option<RuleRetry>,
}

/// One share of a rule's requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightedTarget {
    /// Who gets the share.
    pub target: RuleTarget,
    /// How large the share is, relative to the rule's other targets.
    pub weight: u32,
    /// What is changed on the way to this target alone, after the rule's own changes; `None`: nothing.
    pub filters: Option<Box<RouteFilters>>,
}

/// Who gets a share of a rule's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleTarget {
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
    /// Where its endpoints come from.
    pub source: EndpointSource,
    /// Who may get new requests. Empty if they come from DNS: whoever asks DNS fills them in.
    pub endpoints: Vec<EndpointSpec>,
    /// How they are used.
    pub settings: BackendSettings,
}

/// Where the endpoints of a backend come from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EndpointSource {
    /// The EndpointSlices of the Service.
    Slices,
    /// The Service is an ExternalName: the addresses of a name in DNS (A and AAAA), and a port.
    Dns {
        /// The name, without a dot at its end.
        host: Arc<str>,
        /// The port of all its addresses.
        port: u16,
    },
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
    /// What is spoken there: a Service may have the same port for both.
    pub transport: TransportProtocol,
}

/// `namespace/service:port`, and `/udp` where it is.
impl fmt::Display for BackendKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}:{}", self.namespace, self.service, self.port)?;
        match self.transport {
            TransportProtocol::Tcp => Ok(()),
            TransportProtocol::Udp => f.write_str("/udp"),
        }
    }
}

/// One address that can serve.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EndpointSpec {
    /// Where it serves.
    pub address: SocketAddr,
    /// Its share relative to the others.
    pub weight: u32,
    /// The zone it runs in, where that is known.
    pub zone: Option<Arc<str>>,
    /// The node it runs on, where that is known.
    pub node: Option<Arc<str>>,
}
