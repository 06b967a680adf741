//! `ClientPolicy` (sheave.dev/v1alpha1): what clients of a Gateway may do.
//!
//! The doc comments are the reference page and the descriptions of the CRD; each says unit, default and limit where the
//! schema does not.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::duration::Duration;
use super::scalar::CidrBlock;

/// What clients of a Gateway may do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClientPolicySpec {
    /// The Gateways, in the policy's namespace. Of two policies for one target the older one applies, and a policy for
    /// a listener goes before one for the whole Gateway. Listeners that share an address and port share the policy of
    /// the first of them.
    #[schemars(length(min = 1, max = 16))]
    pub target_refs: Vec<GatewayTarget>,
    /// Connections of clients.
    #[serde(default)]
    pub connections: ClientConnections,
    /// How large requests may be.
    #[serde(default)]
    pub limits: ClientLimits,
    /// How long a client may take.
    #[serde(default)]
    pub timeouts: ClientTimeouts,
    /// Connections that speak HTTP/2.
    #[serde(default)]
    pub http2: ClientHttp2,
    /// HTTP/3 at listeners of protocol HTTPS, on the UDP port of the same number.
    #[serde(default)]
    pub http3: ClientHttp3,
    /// Addresses and CIDR blocks of the proxies in front, whose `X-Forwarded-*`, `Forwarded` and `X-Request-Id` are
    /// believed; from others they are replaced.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub trusted_proxies: Vec<CidrBlock>,
    /// Whether connections begin with a PROXY protocol header, version 1 or 2, which says the client's address. Who
    /// connects decides, never what was sent. Not for UDP.
    #[serde(default)]
    pub proxy_protocol: ClientProxyProtocol,
}

/// Whether connections begin with a PROXY protocol header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ClientProxyProtocol {
    /// None does.
    #[default]
    Off,
    /// Those of `trustedProxies` do; all others are of clients that connect directly, and do not.
    FromTrusted,
    /// Those of `trustedProxies` do; all others are closed.
    Required,
}

/// A Gateway, or one listener of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GatewayTarget {
    /// The API group of Gateways.
    #[serde(default = "gateway_group")]
    #[schemars(extend("enum" = ["gateway.networking.k8s.io"]))]
    pub group: String,
    /// What is meant.
    pub kind: GatewayKind,
    /// The Gateway's name.
    #[schemars(extend("format" = "name"))]
    pub name: String,
    /// The name of one of its listeners; not given: all of them.
    #[schemars(extend("format" = "name"))]
    pub section_name: Option<String>,
}

/// The one kind that a ClientPolicy attaches to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum GatewayKind {
    /// A Gateway.
    #[default]
    Gateway,
}

/// Connections of clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ClientConnections {
    /// Connections to one address and port, at most; beyond it a new one is closed at once. At a UDP listener: flows,
    /// and the datagrams of a new one are dropped.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub max: u32,
    /// A connection older than this is closed after its next response; not given: no limit.
    pub max_age: Option<Duration>,
    /// A connection is closed after so long without a request.
    pub idle_timeout: Duration,
}

/// How large requests may be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ClientLimits {
    /// Bytes of a request's head, at most; beyond it 431.
    #[schemars(range(min = 1024, max = 1_048_576))]
    pub head_bytes: u32,
    /// Header fields of a request, at most; beyond it 431.
    #[schemars(range(min = 1, max = 1000))]
    pub header_fields: u16,
    /// Bytes of a request's target, at most; beyond it 414.
    #[schemars(range(min = 64, max = 1_048_576))]
    pub target_bytes: u32,
    /// Bytes of a request's body, at most; beyond it 413. Not given: no limit.
    #[schemars(range(min = 0, max = 1_125_899_906_842_624_u64))]
    pub body_bytes: Option<u64>,
}

/// How long a client may take.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ClientTimeouts {
    /// From the first byte of a request's head to its last; beyond it 408.
    pub head: Duration,
    /// While no byte of a body moves between Sheave and the client; beyond it 408, or the connection is cut.
    pub body: Duration,
    /// While no byte moves in a connection of a TCP listener, or in one that has left HTTP (a WebSocket); beyond it the
    /// connection is closed.
    pub stream: Duration,
    /// While no datagram passes between a client and its endpoint at a UDP listener; beyond it the flow ends.
    pub flow: Duration,
}

/// Connections that speak HTTP/2.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ClientHttp2 {
    /// Requests at a time on one connection, at most. Clients are told, and keep to it.
    #[schemars(range(min = 1, max = 10_000))]
    pub max_concurrent_streams: u32,
}

/// HTTP/3 at listeners of protocol HTTPS, on the UDP port of the same number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ClientHttp3 {
    /// Whether it is served. Answers over TCP tell clients then where (`Alt-Svc`). `sheave serve --listen https://` does
    /// without being asked.
    pub enabled: bool,
    /// Requests at a time on one connection, at most. Clients are told, and keep to it.
    #[schemars(range(min = 1, max = 10_000))]
    pub max_concurrent_streams: u32,
    /// Whether clients that come back may send requests before the handshake is over. Whoever has seen such a request
    /// can send it again: so those with safe methods are served, and endpoints told (`Early-Data: 1`); others are
    /// answered with 425.
    pub zero_rtt: bool,
    /// How fast answers are sent, going by what the path to the client shows.
    pub congestion_control: ClientCongestionControl,
    /// The UDP port that clients are told, where it is not that of the listener: a Service in front may map ports.
    #[schemars(range(min = 1, max = 65_535))]
    pub advertised_port: Option<u16>,
}

/// How fast a connection of QUIC sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ClientCongestionControl {
    /// Slower whenever a packet is lost (RFC 9438).
    #[default]
    Cubic,
    /// By the bandwidth and the round trip that were measured: for paths that lose packets without being full. It is
    /// experimental.
    Bbr,
}

impl Default for ClientHttp2 {
    fn default() -> Self {
        Self { max_concurrent_streams: 128 }
    }
}

impl Default for ClientHttp3 {
    fn default() -> Self {
        Self {
            enabled: false,
            max_concurrent_streams: 128,
            zero_rtt: false,
            congestion_control: ClientCongestionControl::default(),
            advertised_port: None,
        }
    }
}

impl Default for ClientConnections {
    fn default() -> Self {
        Self { max: 100_000, max_age: None, idle_timeout: Duration::from_secs(60) }
    }
}

impl Default for ClientLimits {
    fn default() -> Self {
        Self { head_bytes: 32_768, header_fields: 100, target_bytes: 8192, body_bytes: None }
    }
}

impl Default for ClientTimeouts {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(10),
            body: Duration::from_secs(30),
            stream: Duration::from_secs(3600),
            flow: Duration::from_secs(30),
        }
    }
}

impl ClientPolicySpec {
    /// Every default, for these targets.
    pub fn for_targets(target_refs: Vec<GatewayTarget>) -> Self {
        Self {
            target_refs,
            connections: ClientConnections::default(),
            limits: ClientLimits::default(),
            timeouts: ClientTimeouts::default(),
            http2: ClientHttp2::default(),
            http3: ClientHttp3::default(),
            trusted_proxies: Vec::new(),
            proxy_protocol: ClientProxyProtocol::Off,
        }
    }
}

fn gateway_group() -> String {
    "gateway.networking.k8s.io".to_owned()
}
