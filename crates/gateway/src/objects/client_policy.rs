//! `ClientPolicy` (sheave.dev/v1alpha1): limits, timeouts and protocols of client connections.
//!
//! The doc comments become the reference page and the descriptions of the CRD. Each one states the unit, default and
//! limit if the schema does not.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::duration::Duration;
use super::scalar::CidrBlock;

/// Limits, timeouts and protocols of the client connections of a Gateway.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClientPolicySpec {
    /// The Gateways to which the policy applies, in the policy's namespace. If two policies have the same target, the
    /// older one applies. A policy for a listener takes precedence over one for the whole Gateway. Listeners that share
    /// an address and port share the policy of the first of them.
    #[schemars(length(min = 1, max = 16))]
    pub target_refs: Vec<GatewayTarget>,
    /// Limits of client connections.
    #[serde(default)]
    pub connections: ClientConnections,
    /// Limits of the size of requests.
    #[serde(default)]
    pub limits: ClientLimits,
    /// Header fields that are removed from requests.
    #[serde(default)]
    pub headers: ClientHeaders,
    /// Normalisation of the paths of requests.
    #[serde(default)]
    pub path: ClientPath,
    /// Timeouts.
    #[serde(default)]
    pub timeouts: ClientTimeouts,
    /// HTTP/2.
    #[serde(default)]
    pub http2: ClientHttp2,
    /// HTTP/3 on listeners of protocol HTTPS, on the UDP port of the same number.
    #[serde(default)]
    pub http3: ClientHttp3,
    /// Addresses and CIDR blocks of trusted proxies in front of Sheave. `X-Forwarded-*`, `Forwarded`, `X-Request-Id`
    /// and the fields of `headers` from these proxies are kept; those from all other clients are removed or replaced.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub trusted_proxies: Vec<CidrBlock>,
    /// Selects the connections that begin with a PROXY protocol header, version 1 or 2, which carries the client's
    /// address. The address of the peer determines if a header is read, never the bytes that it sends. Not for UDP.
    #[serde(default)]
    pub proxy_protocol: ClientProxyProtocol,
    /// Certificate revocation lists that client certificates are checked against, for each listener that requires valid
    /// ones (`spec.tls.frontend` of the Gateway, `AllowValidOnly`). Unlike the rest of the policy, it applies to each
    /// listener even if others share its port. If a list cannot be read, these listeners are not served. Default:
    /// certificates are not checked for revocation.
    pub revocation: Option<ClientRevocation>,
}

/// Certificate revocation lists (CRLs) for client certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClientRevocation {
    /// ConfigMaps and Secrets in the policy's namespace whose value `ca.crl` has revocation lists in PEM. A change takes
    /// effect for new connections, and for resumed sessions; open connections last until `connections.maxAge`.
    #[schemars(length(min = 1, max = 16))]
    pub crl_refs: Vec<RevocationListRef>,
    /// The certificates of a chain that are checked.
    #[serde(default)]
    pub depth: RevocationDepth,
    /// Certificates whose issuer has no list here.
    #[serde(default)]
    pub unknown_status: RevocationFallback,
    /// Certificates whose list has expired: the time of its next update has passed.
    #[serde(default)]
    pub expired_lists: RevocationFallback,
}

/// A reference to an object with certificate revocation lists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RevocationListRef {
    /// The kind of the object.
    pub kind: RevocationListKind,
    /// The name of the object.
    #[schemars(extend("format" = "name"))]
    pub name: String,
}

/// A kind of object that can hold certificate revocation lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RevocationListKind {
    /// A ConfigMap.
    ConfigMap,
    /// A Secret.
    Secret,
}

/// The certificates of a chain that are checked for revocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RevocationDepth {
    /// All certificates except that of the root authority.
    #[default]
    Chain,
    /// The client's own certificate.
    EndEntity,
}

/// Handling of certificates whose revocation status is not known for certain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RevocationFallback {
    /// They are rejected.
    #[default]
    Reject,
    /// They are accepted, unless they are on a list.
    Accept,
}

/// Connections that begin with a PROXY protocol header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ClientProxyProtocol {
    /// No connection has a header.
    #[default]
    Off,
    /// Connections from `trustedProxies` have a header. All others come directly from clients and have none.
    FromTrusted,
    /// Connections from `trustedProxies` have a header. All others are closed.
    Required,
}

/// A reference to a Gateway, or to one of its listeners.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GatewayTarget {
    /// The API group of Gateways.
    #[serde(default = "gateway_group")]
    #[schemars(extend("enum" = ["gateway.networking.k8s.io"]))]
    pub group: String,
    /// The kind of the target.
    pub kind: GatewayKind,
    /// The name of the Gateway.
    #[schemars(extend("format" = "name"))]
    pub name: String,
    /// The name of a listener of the Gateway. Default: all listeners.
    #[schemars(extend("format" = "name"))]
    pub section_name: Option<String>,
}

/// The only kind that a ClientPolicy attaches to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum GatewayKind {
    /// A Gateway.
    #[default]
    Gateway,
}

/// Limits of client connections.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ClientConnections {
    /// Maximum number of connections to one address and port. If it is reached, a new connection is closed at once. On
    /// a UDP listener it is the maximum number of flows, and the datagrams of a new flow are dropped. File descriptors
    /// may set a lower limit for all listeners together.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub max: u32,
    /// Maximum age of a connection. An older connection is closed after its next response. Default: no limit.
    pub max_age: Option<Duration>,
    /// Idle timeout: a connection without a request for this time is closed.
    pub idle_timeout: Duration,
}

/// Limits of the size of requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ClientLimits {
    /// Maximum size of the head of a request, in bytes. A larger head is rejected with 431.
    #[schemars(range(min = 1024, max = 1_048_576))]
    pub head_bytes: u32,
    /// Maximum number of header fields in a request. A request with more is rejected with 431.
    #[schemars(range(min = 1, max = 1000))]
    pub header_fields: u16,
    /// Maximum size of the target of a request, in bytes. A longer target is rejected with 414.
    #[schemars(range(min = 64, max = 1_048_576))]
    pub target_bytes: u32,
    /// Maximum size of the body of a request, in bytes. A larger body is rejected with 413. Default: no limit.
    #[schemars(range(min = 0, max = 1_125_899_906_842_624_u64))]
    pub body_bytes: Option<u64>,
    /// Minimum rate of the body of a request at a backend with a limit of requests in flight, in bytes per second,
    /// averaged over `timeouts.body`. A slower request is rejected with 408. Only time for which Sheave waits for the
    /// client counts. Bodies on one HTTP/2 or HTTP/3 connection share its rate. It ends with the head of the response;
    /// gRPC calls and upgrades are exempt. 0: no minimum.
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub min_body_rate: u32,
}

/// Header fields that are removed from requests, before routing. Fields from `trustedProxies` are never removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ClientHeaders {
    /// Fields whose name has an underscore. Many application servers (CGI, WSGI, PHP, Rack) take `X_User` and `X-User`
    /// for the same name, so that a client could write a field that only a proxy may write.
    pub with_underscore: UntrustedFields,
    /// Fields in which proxies tell applications about the client or the original request: all names that begin with
    /// `X-Forwarded-`, `X-Original-`, `SSL-Client-`, `X-SSL-Client-` or `X-Amzn-Mtls-`, and `X-Client-IP`,
    /// `X-Cluster-Client-IP`, `X-Azure-ClientIP`, `X-Envoy-External-Address`, `X-Scheme`, `X-URL-Scheme`,
    /// `X-Rewrite-URL`, `True-Client-IP`, `Fastly-Client-IP`, `Front-End-Https`, `CF-Connecting-IP`,
    /// `CF-Connecting-IPv6`, `Client-IP`, `Client-Cert`, `Client-Cert-Chain` and `Proxy`. The same names with
    /// underscores belong to them. Not `X-Forwarded-For`, `-Proto`, `-Host` and `-Port`, `Forwarded` and
    /// `X-Request-Id`, which are always replaced, and not `X-Real-IP`, which is always set to the client's address.
    pub proxy_fields: UntrustedFields,
}

/// Handling of fields from clients that are no trusted proxies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UntrustedFields {
    /// Remove the fields.
    #[default]
    Remove,
    /// Forward the fields as the client wrote them.
    Keep,
}

/// Normalisation of the paths of requests. Routes match on the normalised path, and it is forwarded to endpoints, so
/// that both mean the same path. The query is not changed. A path is rejected with 400 if it leads above the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ClientPath {
    /// If true, escapes of letters, digits, `-`, `.`, `_` and `~` are decoded, and the segments `.` and `..` are
    /// removed (RFC 3986): `/%61/x/../b` becomes `/a/b`. In the matches of routes, such escapes are decoded in any case.
    pub normalize: bool,
    /// If true, adjacent slashes become one: `//a` becomes `/a`. Set it to false for object stores, where keys may have
    /// empty segments.
    pub merge_slashes: bool,
    /// Handling of paths with an escaped slash or backslash (`%2F`, `%5C`).
    pub escaped_slashes: EscapedSlashes,
}

/// Handling of paths with an escaped slash or backslash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EscapedSlashes {
    /// Keep the escapes: `/a%2Fb` has one segment. Servers that decode a path before they split it see two.
    #[default]
    Keep,
    /// Reject the request with 400. Use it if routes guard paths and an endpoint decodes escaped slashes.
    Reject,
}

/// Timeouts of clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ClientTimeouts {
    /// Maximum time from the first to the last byte of the head of a request. After it the request is rejected with
    /// 408.
    pub head: Duration,
    /// Idle timeout of a body: maximum time without a byte between Sheave and the client. After it the request is
    /// rejected with 408, or the connection is cut.
    pub body: Duration,
    /// Maximum time in which the body of a request arrives before the request asks for a slot of a backend with a limit
    /// of requests in flight. It asks when the body is complete, or when 64 KiB have arrived; until then it holds no
    /// slot. After this time the request is rejected with 408. The default is more than 64 KiB take at
    /// `limits.minBodyRate`. 0: requests ask for a slot before their bodies arrive.
    #[schemars(extend("format" = "duration"))]
    pub body_buffering: Duration,
    /// Idle timeout of a connection of a TCP listener, or of one that was upgraded from HTTP (a WebSocket): maximum
    /// time without a byte. After it the connection is closed.
    pub stream: Duration,
    /// Idle timeout of a flow of a UDP listener: maximum time without a datagram between the client and its endpoint.
    /// After it the flow ends.
    pub flow: Duration,
}

/// HTTP/2.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ClientHttp2 {
    /// Maximum number of concurrent requests on one connection. It is announced to clients, which must keep to it.
    #[schemars(range(min = 1, max = 10_000))]
    pub max_concurrent_streams: u32,
}

/// HTTP/3 on listeners of protocol HTTPS, on the UDP port of the same number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ClientHttp3 {
    /// If true, HTTP/3 is served, and responses over TCP advertise it (`Alt-Svc`). `sheave serve --listen https://`
    /// enables it by default.
    pub enabled: bool,
    /// Maximum number of concurrent requests on one connection. It is announced to clients, which must keep to it.
    #[schemars(range(min = 1, max = 10_000))]
    pub max_concurrent_streams: u32,
    /// If true, returning clients may send requests before the handshake completes (0-RTT). An attacker that has
    /// recorded such a request can replay it. Only requests with safe methods are therefore served, and endpoints are
    /// told (`Early-Data: 1`); others are answered with 425.
    pub zero_rtt: bool,
    /// The congestion control algorithm for responses.
    pub congestion_control: ClientCongestionControl,
    /// The UDP port to advertise if it is not the listener's: a Service in front may map ports. Default: the listener's
    /// port.
    #[schemars(range(min = 1, max = 65_535))]
    pub advertised_port: Option<u16>,
}

/// A congestion control algorithm of QUIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ClientCongestionControl {
    /// CUBIC, which slows down on packet loss (RFC 9438).
    #[default]
    Cubic,
    /// BBR, which follows the measured bandwidth and round-trip time: for paths that lose packets without congestion.
    /// It is experimental.
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
        Self {
            head_bytes: 32_768,
            header_fields: 100,
            target_bytes: 8192,
            body_bytes: None,
            min_body_rate: 240,
        }
    }
}

impl Default for ClientPath {
    fn default() -> Self {
        Self { normalize: true, merge_slashes: true, escaped_slashes: EscapedSlashes::Keep }
    }
}

impl Default for ClientTimeouts {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(10),
            body: Duration::from_secs(30),
            body_buffering: Duration::from_secs(300),
            stream: Duration::from_secs(3600),
            flow: Duration::from_secs(30),
        }
    }
}

impl ClientPolicySpec {
    /// Returns a spec with these targets and every default.
    pub fn for_targets(target_refs: Vec<GatewayTarget>) -> Self {
        Self {
            target_refs,
            connections: ClientConnections::default(),
            limits: ClientLimits::default(),
            headers: ClientHeaders::default(),
            path: ClientPath::default(),
            timeouts: ClientTimeouts::default(),
            http2: ClientHttp2::default(),
            http3: ClientHttp3::default(),
            trusted_proxies: Vec::new(),
            proxy_protocol: ClientProxyProtocol::Off,
            revocation: None,
        }
    }
}

fn gateway_group() -> String {
    "gateway.networking.k8s.io".to_owned()
}
