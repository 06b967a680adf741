//! Settings of policies for a listener and for a backend, with every default filled in.

use std::num::{NonZeroU16, NonZeroU32};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use balance::health::HealthSettings;
use balance::retry::RetrySettings;
use balance::{Algorithm, LimitSettings, PriorityLevel};
use ipnet::IpNet;

use super::{EndpointSpec, EndpointTls};
use crate::objects::{HeededRefusals, SameSite};

/// BackendPolicy, with every default filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct BackendSettings {
    /// The load-balancing algorithm.
    pub algorithm: Algorithm,
    /// The part of a request that the algorithm hashes, if it does.
    pub hash_key: HashKey,
    /// Session affinity; `None`: no affinity.
    pub affinity: Option<AffinitySettings>,
    /// True if a rule with a session affinity of its own sends requests here.
    pub has_rule_affinity: bool,
    /// The UID of the Service, if it has one: all replicas know it and clients do not, so it keys session affinity.
    pub service_uid: Option<Arc<str>>,
    /// True if endpoints in Sheave's own zone are preferred while they have free capacity.
    pub prefers_same_zone: bool,
    /// The place whose endpoints are used first, until they are busy; `None`: no preference, or Sheave's own place is
    /// not known.
    pub preferred_location: Option<EndpointLocation>,
    /// Maximum number of requests in flight at one endpoint; `None`: no limit.
    pub max_in_flight_per_endpoint: Option<NonZeroU32>,
    /// Bounds of the learned limit of each endpoint; `None`: limits are not learned.
    pub auto_limit: Option<LimitSettings>,
    /// The responses after which an endpoint gets less for a while.
    pub heed_refusals: HeededRefusals,
    /// Maximum number of requests in the queue; 0: no queue.
    pub queue_max_requests: u32,
    /// Maximum time in the queue.
    pub queue_timeout: Duration,
    /// Maximum time in the queue in a sustained overload; `None`: `queue_timeout`.
    pub queue_target: Option<Duration>,
    /// True if the rules of routes get fair shares of the queue.
    pub queue_fair: bool,
    /// Priorities in the queue; `None`: first come, first served.
    pub queue_priority: Option<Arc<PriorityRules>>,
    /// Maximum number of slots and queue places of one connection for incomplete requests; `None`: half of the slots.
    pub max_incomplete_per_connection: Option<NonZeroU32>,
    /// Maximum number of slots and queue places of one client address; `None`: no limit.
    pub max_requests_per_address: Option<NonZeroU32>,
    /// The status code of a rejected request: 429 or 503.
    pub overload_status: u16,
    /// Minimum value of `Retry-After` in that response, in whole seconds.
    pub overload_retry_after: Duration,
    /// Maximum time from the first SYN to the established connection.
    pub connect_timeout: Duration,
    /// Maximum time from the head of a request to the last byte of its response; `None`: no limit.
    pub request_timeout: Option<Duration>,
    /// Maximum time from the start of an attempt to the head of its response; `None`: no limit.
    pub per_attempt_timeout: Option<Duration>,
    /// Maximum time without a byte between Sheave and the endpoint during a request.
    pub idle_timeout: Duration,
    /// Maximum time without an acknowledgement from the endpoint. After it the connection counts as broken.
    pub unacknowledged_timeout: Duration,
    /// Maximum time for which a request whose client has disconnected keeps its slot while the endpoint works on it.
    pub abandoned_timeout: Duration,
    /// Maximum age at which a connection is reused; `None`: no limit.
    pub connection_max_age: Option<Duration>,
    /// Maximum number of requests on a connection; `None`: no limit.
    pub connection_max_requests: Option<NonZeroU32>,
    /// Idle timeout of a connection.
    pub connection_idle_timeout: Duration,
    /// Maximum number of connections to one endpoint, including idle ones; `None`: no limit.
    pub connection_max: Option<NonZeroU32>,
    /// Retry budget, attempts and backoff. A rule may have its own attempts and backoff.
    pub retry: RetrySettings,
    /// Response statuses that are retried, sorted. A rule may have its own.
    pub retry_statuses: Box<[u16]>,
    /// Active health checks and outlier detection.
    pub health: HealthSettings,
    /// The request and port of a probe. Set if and only if `health` has active health checks.
    pub probe: Option<ProbeSettings>,
    /// The version of the PROXY protocol header at the start of each new connection; `None`: no header.
    pub proxy_protocol: Option<ProxyVersion>,
    /// The protocol of connections to endpoints.
    pub protocol: EndpointProtocol,
    /// True if nothing says what the endpoints speak, so that `protocol` is assumed. A request that was intercepted
    /// then goes in the protocol of its client: the endpoint would have got it in that one.
    pub protocol_is_assumed: bool,
    /// TLS to endpoints; `None`: no TLS.
    pub tls: Option<Arc<EndpointTls>>,
    /// gRPC status codes that are retried, sorted. A rule may have its own.
    pub retry_grpc_statuses: Box<[u8]>,
}

/// A place in a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointLocation {
    /// A node, by name.
    Node(Arc<str>),
    /// A zone, by name.
    Zone(Arc<str>),
}

impl EndpointLocation {
    /// True if an endpoint is in this place.
    pub fn contains(&self, endpoint: &EndpointSpec) -> bool {
        match self {
            Self::Node(node) => endpoint.node.as_ref() == Some(node),
            Self::Zone(zone) => endpoint.zone.as_ref() == Some(zone),
        }
    }
}

/// Priorities of requests. The header field determines the priority, else the route, else the default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriorityRules {
    /// The header field that carries the priority; `None`: no header field is read.
    pub header: Option<PriorityHeader>,
    /// Priorities by name of a rule (`namespace/route/rule`) or of a route (`namespace/route/`); rules first.
    pub routes: Box<[(Box<str>, PriorityLevel)]>,
    /// The priority of all other requests.
    pub default: PriorityLevel,
}

/// A header field that carries the priority of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriorityHeader {
    /// The name, in lower case.
    pub name: Box<str>,
    /// The priorities of its values. Empty: the value is a number, or a `Priority` field value of RFC 9218.
    pub values: Box<[(Box<str>, PriorityLevel)]>,
}

impl PriorityRules {
    /// Returns the priority of a rule's requests, by the name of the rule.
    pub fn of_rule(&self, name: &str) -> PriorityLevel {
        let is_named =
            |part: &str| if part.ends_with('/') { name.starts_with(part) } else { name == part };
        let named = self.routes.iter().find(|(part, _)| is_named(part));
        named.map_or(self.default, |(_, priority)| *priority)
    }
}

impl PriorityHeader {
    /// Returns the priority that a value stands for, `None` if it stands for none.
    pub fn read(&self, value: &[u8]) -> Option<PriorityLevel> {
        if self.values.is_empty() {
            return urgency(value).and_then(PriorityLevel::new);
        }
        let meant = self.values.iter().find(|(known, _)| known.as_bytes() == value);
        meant.map(|(_, priority)| *priority)
    }
}

/// Parses a number, or the member `u` of a dictionary (RFC 9218 §4.1, RFC 9651 §3.2), of which the last one counts.
fn urgency(value: &[u8]) -> Option<u8> {
    let text = std::str::from_utf8(value).ok()?.trim();
    let digit = |text: &str| match text.as_bytes() {
        [digit @ b'0'..=b'9'] => Some(digit - b'0'),
        _ => None,
    };
    if let Some(number) = digit(text) {
        return Some(number);
    }
    let mut members = text.split(',').map(str::trim).rev();
    let member = members.find_map(|member| member.strip_prefix("u="))?;
    digit(member.split(';').next().unwrap_or(member))
}

/// The protocol of connections to endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EndpointProtocol {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/2: with prior knowledge if there is no TLS, by ALPN if there is.
    Http2,
    /// HTTP/3, always encrypted. If it is not available, the protocol that TLS over TCP negotiates: HTTP/2 or HTTP/1.1.
    Http3,
}

impl EndpointProtocol {
    /// True if each request has a stream of its own, with its own trailers.
    pub const fn has_streams(self) -> bool {
        match self {
            Self::Http1 => false,
            Self::Http2 | Self::Http3 => true,
        }
    }
}

/// The part of a request that is hashed. If a request does not have that part, the client's address is hashed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HashKey {
    /// The client's IP address.
    #[default]
    Source,
    /// The first value of a header field. The name is in lower case.
    Header(Box<str>),
    /// The value of a cookie of the request.
    Cookie(Box<str>),
    /// The first value of a query parameter.
    QueryParam(Box<str>),
    /// The path, without the query.
    Path,
    /// The host, without the port.
    Host,
}

/// Session affinity. Health takes precedence: if the endpoint cannot serve, the client gets another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AffinitySettings {
    /// A cookie that Sheave sets and that identifies the endpoint.
    Cookie(AffinityCookie),
    /// A header field that Sheave sets in responses and the client repeats in requests.
    Header {
        /// The name, in lower case.
        name: Box<str>,
        /// Maximum time from the first request of a session to its last; `None`: no limit.
        session_timeout: Option<Duration>,
    },
    /// The client's IP address.
    Source,
}

impl AffinitySettings {
    /// Returns the maximum time from the first request of a session to its last; `None`: no limit.
    pub const fn session_timeout(&self) -> Option<Duration> {
        match self {
            Self::Cookie(AffinityCookie { session_timeout, .. })
            | Self::Header { session_timeout, .. } => *session_timeout,
            Self::Source => None,
        }
    }

    /// True if clients repeat a token that names their endpoint.
    pub const fn has_tokens(&self) -> bool {
        match self {
            Self::Cookie(_) | Self::Header { .. } => true,
            Self::Source => false,
        }
    }
}

/// A cookie of session affinity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AffinityCookie {
    /// The name.
    pub name: Box<str>,
    /// The beginning of the paths of the requests that carry it.
    pub path: Box<str>,
    /// The lifetime that the client is told; `None`: a session cookie.
    pub max_age: Option<Duration>,
    /// The domain whose hosts get it; `None`: only the host of the request does.
    pub domain: Option<Box<str>>,
    /// True if it has `Secure` without TLS too.
    pub is_always_secure: bool,
    /// The requests of other sites that carry it.
    pub same_site: SameSite,
    /// Maximum time from the first request of a session to its last; `None`: no limit.
    pub session_timeout: Option<Duration>,
}

/// Retries of a rule's requests, which replace those of the backend's policy. The retry budget stays that of the
/// backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleRetry {
    /// Maximum number of attempts at a request, including the first.
    pub attempts: NonZeroU32,
    /// Base of the backoff: the first retry waits a random time up to this, each further retry up to twice as long.
    /// `None`: the backend's policy determines it.
    pub backoff: Option<Duration>,
    /// Response statuses that are retried, sorted.
    pub statuses: Box<[u16]>,
}

/// The request of a probe, and the expected response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeSettings {
    /// A GET over HTTP/1.1.
    Http {
        /// The path, with an optional query.
        target: Box<str>,
        /// The `Host`; `None`: the endpoint's address and port.
        host: Option<Box<str>>,
        /// The port; `None`: the endpoint's own port.
        port: Option<NonZeroU16>,
        /// The statuses of a successful probe.
        statuses: RangeInclusive<u16>,
    },
    /// A TCP connection, which is closed at once.
    Tcp {
        /// The port; `None`: the endpoint's own port.
        port: Option<NonZeroU16>,
    },
    /// The gRPC health check: the answer must be `SERVING`.
    Grpc {
        /// The service name. Empty: the server as a whole.
        service: Box<str>,
        /// The `:authority`; `None`: the endpoint's address and port.
        host: Option<Box<str>>,
        /// The port; `None`: the endpoint's own port.
        port: Option<NonZeroU16>,
    },
}

/// A version of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyVersion {
    /// The text format.
    V1,
    /// The binary format.
    V2,
}

/// ClientPolicy, with every default filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientSettings {
    /// Maximum number of connections to the listener.
    pub max_connections: u32,
    /// Maximum age of a connection. An older connection is closed after its next response. `None`: no limit.
    pub connection_max_age: Option<Duration>,
    /// Maximum time between two requests.
    pub connection_idle_timeout: Duration,
    /// Maximum size of the head of a request, in bytes. A larger head is rejected with 431 (414 for the request line).
    pub max_head_bytes: u32,
    /// Maximum number of header fields. A request with more is rejected with 431.
    pub max_header_fields: u16,
    /// Maximum size of the request target, in bytes. A longer target is rejected with 414.
    pub max_target_bytes: u32,
    /// Maximum size of the body of a request, in bytes. A larger body is rejected with 413. `None`: no limit.
    pub max_body_bytes: Option<u64>,
    /// Minimum rate of a body at a backend with a cap, in bytes per second; `None`: no minimum.
    pub min_body_rate: Option<NonZeroU32>,
    /// True if requests and responses are forwarded with the fields that they came with: no forwarding field is added,
    /// replaced or removed, from any peer. `trusted_proxies` then only decide on the client's address.
    pub forwards_unchanged: bool,
    /// True if the client's address is appended to `X-Forwarded-For` although `forwards_unchanged` is true.
    pub appends_forwarded_for: bool,
    /// True if field names with an underscore from untrusted clients are kept.
    pub keeps_underscores: bool,
    /// True if fields in which proxies describe the client are kept, although an untrusted client wrote them.
    pub keeps_proxy_fields: bool,
    /// Normalisation of paths.
    pub path: PathSettings,
    /// Maximum time from the first to the last byte of a head. After it the request is rejected with 408.
    pub head_timeout: Duration,
    /// Maximum time without a byte of a body between Sheave and the client. After it the request is rejected with 408,
    /// or the connection is cut.
    pub body_timeout: Duration,
    /// Maximum time in which a body arrives before the request asks for a slot of a backend with a cap; 0: it asks at
    /// once.
    pub body_buffering_timeout: Duration,
    /// Trusted proxies: `X-Forwarded-*`, `Forwarded` and `X-Request-Id` from them are kept.
    pub trusted_proxies: Vec<IpNet>,
    /// Connections that begin with a PROXY protocol header.
    pub proxy_protocol: ProxyProtocol,
    /// Maximum time without a byte in a TCP connection, or in one that was upgraded from HTTP.
    pub stream_idle_timeout: Duration,
    /// Maximum time without a datagram in a UDP flow.
    pub flow_idle_timeout: Duration,
    /// Maximum number of concurrent requests on one HTTP/2 connection.
    pub http2_max_concurrent_streams: u32,
}

/// Normalisation of the paths of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathSettings {
    /// True if dot segments are removed and escapes of unreserved characters are decoded.
    pub normalise: bool,
    /// True if adjacent slashes become one.
    pub merge_slashes: bool,
    /// True if a path with an escaped slash or backslash is rejected.
    pub reject_escaped_slashes: bool,
}

/// HTTP/3 settings of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http3Settings {
    /// Maximum number of concurrent requests on one connection.
    pub max_concurrent_streams: u32,
    /// True if requests are accepted before the handshake completes (0-RTT).
    pub zero_rtt: bool,
    /// The congestion control algorithm.
    pub congestion_control: CongestionControl,
    /// The UDP port to advertise; `None`: the listener's.
    pub advertised_port: Option<NonZeroU16>,
}

/// A congestion control algorithm of QUIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CongestionControl {
    /// CUBIC, which follows packet loss.
    #[default]
    Cubic,
    /// BBR, which follows the measured bandwidth and round-trip time.
    Bbr,
}

/// Client connections that begin with a PROXY protocol header, of either version. The address of the peer determines if
/// a header is read, never the bytes that it sends: a header is read from trusted proxies only, and they must send one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// No connection has a header.
    #[default]
    Off,
    /// Connections from trusted proxies have a header. All others come directly from clients and have none.
    FromTrusted,
    /// Connections from trusted proxies have a header. All others are closed.
    Required,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(header: &PriorityHeader, value: &str) -> Option<u8> {
        header.read(value.as_bytes()).map(PriorityLevel::number)
    }

    #[test]
    fn priority_header_is_a_number_or_an_rfc_9218_urgency() {
        let header = PriorityHeader { name: "priority".into(), values: Box::default() };
        for (value, expected) in [
            ("0", Some(0)),
            ("7", Some(7)),
            (" 4 ", Some(4)),
            ("u=1", Some(1)),
            ("u=5, i", Some(5)),
            ("i, u=2", Some(2)),
            ("u=1, u=6", Some(6)),
            ("u=3;x=1", Some(3)),
            ("8", None),
            ("u=9", None),
            ("-1", None),
            ("10", None),
            ("1.5", None),
            ("i", None),
            ("u=", None),
            ("high", None),
            ("", None),
            ("\u{e9}", None),
        ] {
            assert_eq!(number(&header, value), expected, "{value:?}");
        }
    }

    #[test]
    fn configured_priority_names_exclude_numbers() {
        let first = PriorityLevel::new(0).unwrap();
        let values = Box::new([("gold".into(), first)]);
        let header = PriorityHeader { name: "x-plan".into(), values };
        assert_eq!(number(&header, "gold"), Some(0));
        assert_eq!(number(&header, "Gold"), None);
        assert_eq!(number(&header, "0"), None);
    }

    #[test]
    fn rule_priority_overrides_route_priority() {
        let [first, last] = [0, 7].map(|number| PriorityLevel::new(number).unwrap());
        let routes = Box::new([("shop/web/pay".into(), first), ("shop/web/".into(), last)]);
        let priorities = PriorityRules { header: None, routes, default: PriorityLevel::default() };
        assert_eq!(priorities.of_rule("shop/web/pay"), first);
        assert_eq!(priorities.of_rule("shop/web/0"), last);
        assert_eq!(priorities.of_rule("shop/web2/0"), PriorityLevel::default());
        assert_eq!(priorities.of_rule("shop/web/pay2"), last);
    }
}
