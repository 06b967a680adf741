//! Policies, with every default filled in: what the data plane goes by at a listener and at a backend.

use std::num::{NonZeroU16, NonZeroU32};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use balance::health::HealthSettings;
use balance::retry::RetrySettings;
use balance::{Algorithm, LimitSettings, PriorityLevel};
use ipnet::IpNet;

use super::EndpointTls;

/// BackendPolicy, with every default filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct BackendSettings {
    /// How an endpoint is chosen.
    pub algorithm: Algorithm,
    /// What of a request decides where the algorithm hashes.
    pub hash_key: HashKey,
    /// What keeps a client at its endpoint; `None`: nothing does.
    pub affinity: Option<AffinitySettings>,
    /// Endpoints of our own zone go first, as long as they have room.
    pub prefers_same_zone: bool,
    /// Requests in flight at one endpoint, at most; `None`: no limit.
    pub max_in_flight_per_endpoint: Option<NonZeroU32>,
    /// The limit of each endpoint is learned, between these bounds; `None`: it is not.
    pub auto_limit: Option<LimitSettings>,
    /// An endpoint that says it is full is given less for a while.
    pub heeds_refusals: bool,
    /// Requests that may wait for a slot; 0: none.
    pub queue_max_requests: u32,
    /// How long one may wait.
    pub queue_timeout: Duration,
    /// How long one may wait in a long overload; `None`: as long as ever.
    pub queue_target: Option<Duration>,
    /// The rules of routes share the queue.
    pub queue_fair: bool,
    /// Who goes first; `None`: who came first.
    pub queue_priority: Option<Arc<PriorityRules>>,
    /// What a refused request is answered with: 429 or 503.
    pub overload_status: u16,
    /// `Retry-After` of that answer, whole seconds, at least.
    pub overload_retry_after: Duration,
    /// From the first SYN to the established connection.
    pub connect_timeout: Duration,
    /// From the request's head to the last byte of the response; `None`: no limit.
    pub request_timeout: Option<Duration>,
    /// From the start of an attempt to its response head; `None`: no limit.
    pub per_attempt_timeout: Option<Duration>,
    /// No byte moved between us and the endpoint while a request runs.
    pub idle_timeout: Duration,
    /// A connection to an endpoint on which nothing is acknowledged for so long has broken.
    pub unacknowledged_timeout: Duration,
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
    /// How often requests are tried again; a rule may have attempts and a back-off of its own.
    pub retry: RetrySettings,
    /// Statuses of responses that are tried again, sorted; a rule may have its own.
    pub retry_statuses: Box<[u16]>,
    /// How the health of endpoints is judged.
    pub health: HealthSettings,
    /// What a probe sends and where; there is one exactly where `health` is active.
    pub probe: Option<ProbeSettings>,
    /// Each new connection begins with a PROXY protocol header of this version; `None`: with none.
    pub proxy_protocol: Option<ProxyVersion>,
    /// What is spoken to endpoints.
    pub protocol: EndpointProtocol,
    /// How connections to endpoints are encrypted; `None`: not at all.
    pub tls: Option<Arc<EndpointTls>>,
    /// Codes of gRPC statuses that are tried again, sorted; a rule may have its own.
    pub retry_grpc_statuses: Box<[u8]>,
}

/// Which priority a request has: what its header field says, else that of its route, else the default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriorityRules {
    /// What of a request says it; `None`: nothing does.
    pub header: Option<PriorityHeader>,
    /// Names of rules (`namespace/route/rule`), or of routes (`namespace/route/`), and their priority; rules first.
    pub routes: Box<[(Box<str>, PriorityLevel)]>,
    /// That of all other requests.
    pub default: PriorityLevel,
}

/// A header field that says a request's priority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriorityHeader {
    /// Its name, in lower case.
    pub name: Box<str>,
    /// What its values mean; empty: they are numbers, or as `Priority` has them in RFC 9218.
    pub values: Box<[(Box<str>, PriorityLevel)]>,
}

impl PriorityRules {
    /// The priority of a rule's requests, by its name.
    pub fn of_rule(&self, name: &str) -> PriorityLevel {
        let is_named =
            |part: &str| if part.ends_with('/') { name.starts_with(part) } else { name == part };
        let named = self.routes.iter().find(|(part, _)| is_named(part));
        named.map_or(self.default, |(_, priority)| *priority)
    }
}

impl PriorityHeader {
    /// What a value says; `None`: nothing.
    pub fn read(&self, value: &[u8]) -> Option<PriorityLevel> {
        if self.values.is_empty() {
            return urgency(value).and_then(PriorityLevel::new);
        }
        let meant = self.values.iter().find(|(known, _)| known.as_bytes() == value);
        meant.map(|(_, priority)| *priority)
    }
}

/// A number alone, or the member `u` of a dictionary (RFC 9218 §4.1, RFC 9651 §3.2): the last one counts.
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

/// What is spoken to endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EndpointProtocol {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/2: known beforehand without TLS, agreed upon (ALPN) with it.
    Http2,
    /// HTTP/3, always encrypted; where it cannot be had, what TLS over TCP agrees upon: HTTP/2 or HTTP/1.1.
    Http3,
}

impl EndpointProtocol {
    /// A request has a stream to itself, with trailers of its own.
    pub const fn has_streams(self) -> bool {
        match self {
            Self::Http1 => false,
            Self::Http2 | Self::Http3 => true,
        }
    }
}

/// What of a request decides where an algorithm hashes. A request that has none of it is placed by its client's address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HashKey {
    /// The client's IP address.
    #[default]
    Source,
    /// The first value of a header field; the name is in lower case.
    Header(Box<str>),
    /// The value of a cookie of the request.
    Cookie(Box<str>),
    /// The first value of a parameter of the query.
    QueryParam(Box<str>),
    /// The path, without the query.
    Path,
    /// The host, without the port.
    Host,
}

/// What keeps a client at its endpoint. It yields to health: a client whose endpoint cannot serve gets another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AffinitySettings {
    /// A cookie that we set, and that names the endpoint.
    Cookie {
        /// Its name.
        name: Box<str>,
        /// How long the client keeps it; `None`: as long as its session.
        max_age: Option<Duration>,
    },
    /// A header field that we set in responses and that the client repeats; the name is in lower case.
    Header(Box<str>),
    /// The client's IP address decides.
    Source,
}

/// When a rule's requests are tried again, in place of what the backend's policy says. The budget is the backend's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleRetry {
    /// Attempts at one request, at most, the first included.
    pub attempts: NonZeroU32,
    /// The first retry waits a random time up to this, each further one up to twice as long; `None`: as the backend's
    /// policy says.
    pub backoff: Option<Duration>,
    /// Statuses of responses that are tried again, sorted.
    pub statuses: Box<[u16]>,
}

/// What a probe sends to an endpoint, and what it expects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeSettings {
    /// A GET over HTTP/1.1.
    Http {
        /// What is asked for: a path, and perhaps a query.
        target: Box<str>,
        /// `Host`; `None`: the endpoint's address and port.
        host: Option<Box<str>>,
        /// Where; `None`: the endpoint's own port.
        port: Option<NonZeroU16>,
        /// Statuses of a good answer.
        statuses: RangeInclusive<u16>,
    },
    /// A connection, which is closed again at once.
    Tcp {
        /// Where; `None`: the endpoint's own port.
        port: Option<NonZeroU16>,
    },
    /// gRPC's health check: the answer must be that it serves.
    Grpc {
        /// What is asked for; empty: the server as a whole.
        service: Box<str>,
        /// `:authority`; `None`: the endpoint's address and port.
        host: Option<Box<str>>,
        /// Where; `None`: the endpoint's own port.
        port: Option<NonZeroU16>,
    },
}

/// A version of the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyVersion {
    /// A line of text.
    V1,
    /// Binary.
    V2,
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
    /// Whether connections begin with a PROXY protocol header.
    pub proxy_protocol: ProxyProtocol,
    /// No byte moved in a TCP connection, or in one that has left HTTP.
    pub stream_idle_timeout: Duration,
    /// No datagram passed in a UDP flow.
    pub flow_idle_timeout: Duration,
    /// Requests at a time on one connection of HTTP/2, at most.
    pub http2_max_concurrent_streams: u32,
}

/// How requests come by HTTP/3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http3Settings {
    /// Requests at a time on one connection, at most.
    pub max_concurrent_streams: u32,
    /// Whether requests are taken before the handshake is over.
    pub zero_rtt: bool,
    /// How fast connections send.
    pub congestion_control: CongestionControl,
    /// The UDP port that clients are told; `None`: the listener's.
    pub advertised_port: Option<NonZeroU16>,
}

/// What a connection of QUIC goes by when it sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CongestionControl {
    /// Lost packets.
    #[default]
    Cubic,
    /// Bandwidth and round trips, as they are measured.
    Bbr,
}

/// Whether connections of clients begin with a PROXY protocol header, of either version. Who connects decides, never what
/// was sent: a header is read from trusted proxies alone, and there it must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProxyProtocol {
    /// None does.
    #[default]
    Off,
    /// Those of trusted proxies do; all others are of clients that connect directly, and do not.
    FromTrusted,
    /// Those of trusted proxies do; all others are closed.
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
