//! Session affinity: keeps a client at its endpoint by a token that it sends, or by its address.
//!
//! A token names an endpoint by a keyed hash: without the key, a client can neither find out an
//! address nor make a token for an endpoint of its choice. With a key that all replicas share
//! (`AffinityKey`), it is the same at every replica and after every restart. If sessions have a
//! timeout, the token also states the start of the session, with a keyed hash of both. Affinity is
//! soft: if the endpoint cannot serve, or the token is unknown or out of date, the request goes to
//! another endpoint and the client gets a new token.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::hmac;
use balance::hash::hash;
use balance::{Rng, SetMember};
use codec::head::cookie::CookieAttributes;
use codec::head::{RequestHead, ResponseHead, cookie};
use gateway::snapshot::{AffinityCookie, AffinitySettings};

use crate::backend::{Backend, BackendConfig, Slot};
use crate::clock;
use crate::dial::pool::{Endpoint, EndpointData};
use crate::hash_key;

/// Key of the tokens.
mod key;

pub(crate) use key::AffinityKey;

/// Number of tokens for other backends that a client may send: one cookie covers all backends that
/// use the same cookie name.
const MAX_OTHER_TOKENS: usize = 7;

/// Token that names an endpoint of one backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AffinityToken {
    /// Distinguishes the tokens of different backends.
    backend: u32,
    endpoint: u64,
    /// Start of the session, if sessions of the backend have a timeout.
    start: Option<SessionStart>,
}

/// Start of a session, as a token states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SessionStart {
    /// Milliseconds since the Unix epoch; 48 bits.
    at: u64,
    /// Keyed hash of the token, so that a client cannot prolong its session.
    tag: u64,
}

impl AffinityToken {
    fn parse(text: &[u8]) -> Option<Self> {
        let text = str::from_utf8(text).ok().filter(|text| text.is_ascii())?;
        let hex = |range| u64::from_str_radix(text.get(range)?, 16).ok();
        let start = match text.len() {
            24 => None,
            52 => Some(SessionStart { at: hex(24..36)?, tag: hex(36..52)? }),
            _ => return None,
        };
        Some(Self { backend: hex(0..8)? as u32, endpoint: hex(8..24)?, start })
    }
}

impl fmt::Display for AffinityToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}{:016x}", self.backend, self.endpoint)?;
        self.start.iter().try_for_each(|start| write!(f, "{:012x}{:016x}", start.at, start.tag))
    }
}

/// Tokens of a set's endpoints, each with its index among the members.
pub(crate) struct AffinityTokens {
    key: hmac::Key,
    backend: u32,
    /// Keyed hashes of the endpoints, sorted.
    endpoints: Vec<(u64, usize)>,
}

impl AffinityTokens {
    fn new(backend: &Backend, current: &BackendConfig) -> Self {
        let key = backend.affinity_key.of_service(current.settings.service_uid.as_deref());
        let backend = (keyed_hash(&key, "backend", &*backend.name) >> 32) as u32;
        let mut tokens = Self { key, backend, endpoints: Vec::new() };
        let members = current.set.members().iter().enumerate();
        tokens.endpoints = members
            .map(|(index, member)| (tokens.endpoint_hash(&member.endpoint), index))
            .collect();
        tokens.endpoints.sort_unstable();
        tokens
    }

    fn endpoint_hash(&self, endpoint: &Endpoint) -> u64 {
        let text = format_args!("{:08x} {}", self.backend, endpoint.address);
        keyed_hash(&self.key, "endpoint", text)
    }

    /// Returns the token of an endpoint, which may have left the set. `start` is the start of the
    /// session in milliseconds, if sessions have a timeout.
    fn token(&self, endpoint: &Endpoint, start: Option<u64>) -> AffinityToken {
        let (backend, endpoint) = (self.backend, self.endpoint_hash(endpoint));
        let start = start.map(|at| SessionStart { at, tag: self.start_tag(endpoint, at) });
        AffinityToken { backend, endpoint, start }
    }

    fn start_tag(&self, endpoint: u64, start: u64) -> u64 {
        let text = format_args!("{:08x}{endpoint:016x} {start:012x}", self.backend);
        keyed_hash(&self.key, "session", text)
    }

    fn find(&self, endpoint: u64) -> Option<usize> {
        let found =
            self.endpoints.binary_search_by_key(&endpoint, |(endpoint, _)| *endpoint).ok()?;
        Some(self.endpoints[found].1)
    }

    /// True if the token's session goes on at this time. Without a timeout it always does.
    fn is_in_session(&self, token: &AffinityToken, timeout: Option<Duration>, now: u64) -> bool {
        let Some(timeout) = timeout else { return true };
        let is_ours = |start: &SessionStart| start.tag == self.start_tag(token.endpoint, start.at);
        // The clock of the replica that has begun the session may be ahead.
        let goes_on =
            |start: SessionStart| Duration::from_millis(now.saturating_sub(start.at)) < timeout;
        token.start.filter(is_ours).is_some_and(goes_on)
    }
}

/// Returns the first 64 bits of the HMAC (RFC 2104) of a text.
fn keyed_hash(key: &hmac::Key, purpose: &str, text: impl fmt::Display) -> u64 {
    let tag = hmac::sign(key, format!("sheave {purpose} {text}").as_bytes());
    tag.as_ref().iter().take(8).fold(0, |bits, byte| bits << 8 | u64::from(*byte))
}

/// Returns the milliseconds since the Unix epoch.
fn millis(now: SystemTime) -> u64 {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs() * 1000 + u64::from(since.subsec_millis())
}

impl BackendConfig {
    /// Returns the tokens of the endpoints; the first request computes them.
    fn affinity_tokens(&self, backend: &Backend) -> &AffinityTokens {
        self.affinity_tokens.get_or_init(|| AffinityTokens::new(backend, self))
    }
}

/// Session affinity of a request.
pub(crate) struct SessionAffinity<'r> {
    /// Settings of the rule; `None`: those of the backend apply.
    of_rule: Option<&'r AffinitySettings>,
    /// Target endpoint; `None` if the client has none yet, or it is no longer in the set.
    endpoint: Option<Arc<Endpoint>>,
    /// The client's token for this backend; `None` if it has none, or its session is over.
    token: Option<AffinityToken>,
    /// True if the client has been at this backend before.
    is_returning: bool,
    /// Tokens that the client sends for other backends.
    other_tokens: Vec<AffinityToken>,
}

impl<'r> SessionAffinity<'r> {
    /// Returns `None` if neither the rule nor the backend has session affinity.
    pub(crate) fn of_request(
        of_rule: Option<&'r AffinitySettings>,
        backend: &Backend,
        current: &BackendConfig,
        request: &RequestHead,
        client: impl Fn() -> IpAddr,
    ) -> Option<Self> {
        let settings = of_rule.or(current.settings.affinity.as_ref())?;
        let sent_tokens = match settings {
            AffinitySettings::Cookie(AffinityCookie { name, .. }) => {
                cookie::find(&request.fields, name)
            }
            AffinitySettings::Header { name, .. } => request.fields.get(name),
            AffinitySettings::Source => {
                let endpoint = rendezvous_endpoint(client(), current.set.members());
                let (token, other_tokens) = (None, Vec::new());
                return Some(Self { of_rule, endpoint, token, is_returning: true, other_tokens });
            }
        };
        let sent_tokens =
            sent_tokens.unwrap_or_default().split(|byte| *byte == b'.').take(MAX_OTHER_TOKENS + 1);
        let tokens = current.affinity_tokens(backend);
        let is_ours = |token: &AffinityToken| token.backend == tokens.backend;
        let (ours, other_tokens): (Vec<_>, Vec<_>) =
            sent_tokens.filter_map(AffinityToken::parse).partition(is_ours);
        let timeout = settings.session_timeout();
        let now = timeout.map_or(0, |_| millis(clock::wall()));
        let token = ours.first().filter(|token| tokens.is_in_session(token, timeout, now)).copied();
        let index = token.and_then(|token| tokens.find(token.endpoint));
        let endpoint = index.map(|index| Arc::clone(&current.set.members()[index].endpoint));
        Some(Self { of_rule, endpoint, token, is_returning: token.is_some(), other_tokens })
    }

    pub(crate) fn endpoint(&self) -> Option<&Arc<Endpoint>> {
        self.endpoint.as_ref()
    }

    /// Counts the result, and gives the client its new token if it needs one. `is_secure`: the client's connection has
    /// TLS.
    pub(crate) fn apply_to_response(
        &self,
        worker: usize,
        current: &BackendConfig,
        slot: &Slot,
        response: &mut ResponseHead,
        is_secure: bool,
    ) {
        let Some(affinity) = self.of_rule.or(current.settings.affinity.as_ref()) else { return };
        let kept = self.endpoint.as_ref().is_some_and(|it| Arc::ptr_eq(it, &slot.endpoint));
        let counters = &slot.backend.counters[worker].affinity;
        match (kept, self.is_returning) {
            (true, _) => counters.kept.add(1),
            (false, true) => counters.broken.add(1),
            (false, false) => counters.begun.add(1),
        }
        let tokens = || {
            let kept = self.token.filter(|_| kept);
            let start = || affinity.session_timeout().map(|_| millis(clock::wall()));
            let new = || current.affinity_tokens(&slot.backend).token(&slot.endpoint, start());
            self.with_others(kept.unwrap_or_else(new))
        };
        match affinity {
            AffinitySettings::Cookie(cookie) if !kept => {
                response.fields.append("Set-Cookie", set_cookie(cookie, &tokens(), is_secure));
            }
            AffinitySettings::Header { name, .. } => {
                response.fields.remove_named(name.as_bytes());
                response.fields.append(&**name, tokens());
            }
            AffinitySettings::Cookie(_) | AffinitySettings::Source => {}
        }
    }

    /// Returns the value that the client sends from now on: its tokens for all backends.
    fn with_others(&self, ours: AffinityToken) -> String {
        let all = std::iter::once(&ours).chain(self.other_tokens.iter().take(MAX_OTHER_TOKENS));
        all.map(AffinityToken::to_string).collect::<Vec<_>>().join(".")
    }
}

/// Returns the value of `Set-Cookie`. `is_secure`: the client's connection has TLS.
fn set_cookie(cookie: &AffinityCookie, value: &str, is_secure: bool) -> String {
    let attributes = CookieAttributes {
        path: &cookie.path,
        max_age: cookie.max_age,
        domain: cookie.domain.as_deref(),
        is_secure: is_secure || cookie.is_always_secure,
        same_site: cookie.same_site.text(),
    };
    cookie::set(&cookie.name, value, &attributes)
}

/// Returns the endpoint of a client address by weighted rendezvous hashing: if an endpoint is
/// removed, only its own clients move.
fn rendezvous_endpoint(
    client: IpAddr,
    members: &[SetMember<EndpointData>],
) -> Option<Arc<Endpoint>> {
    let client = hash_key::of_address(client);
    let can_serve = members.iter().filter(|member| member.weight > 0 && !member.half_open);
    let rank = |member: &SetMember<EndpointData>| {
        let endpoint = hash(member.endpoint.address.to_string().as_bytes());
        // In the open interval from 0 to 1.
        let draw = Rng::new(client ^ endpoint).next_u64() >> 11;
        let draw = (draw as f64 + 0.5) / 2f64.powi(53);
        -draw.ln() / f64::from(member.weight)
    };
    let ranked = can_serve.map(|member| (rank(member), member));
    let first = ranked.min_by(|(one, _), (other, _)| one.total_cmp(other));
    first.map(|(_, member)| Arc::clone(&member.endpoint))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::SocketAddr;

    use balance::EndpointRegistry;

    use super::*;

    fn members(ports: &[u16], weight: u32) -> Vec<SetMember<EndpointData>> {
        let mut registry = EndpointRegistry::new();
        let endpoint = |port: &u16| {
            let address = SocketAddr::from(([10, 0, 0, 1], *port));
            SetMember::new(
                registry.endpoint(address, || EndpointData::new(1, Arc::default(), None)),
                weight,
            )
        };
        ports.iter().map(endpoint).collect()
    }

    fn assigned_ports(members: &[SetMember<EndpointData>]) -> BTreeMap<u32, u16> {
        let assigned_port = |client: u32| {
            let endpoint = rendezvous_endpoint(IpAddr::V4(client.into()), members).unwrap();
            (client, endpoint.address.port())
        };
        (0..10_000).map(assigned_port).collect()
    }

    #[test]
    fn client_addresses_are_spread_by_weight() {
        let mut members = members(&[1, 2, 3], 1);
        members[0].weight = 2;
        members.extend(self::members(&[4], 0));
        let mut counts = [0; 5];
        for port in assigned_ports(&members).into_values() {
            counts[usize::from(port)] += 1;
        }
        assert!((4_750..5_250).contains(&counts[1]), "{counts:?}");
        assert!((2_250..2_750).contains(&counts[2]) && counts[4] == 0, "{counts:?}");
    }

    #[test]
    fn when_an_endpoint_leaves_only_its_clients_move() {
        let members = members(&[1, 2, 3, 4], 1);
        let (before, after) = (assigned_ports(&members), assigned_ports(&members[..3]));
        for (client, port) in before {
            assert!(port == 4 || after[&client] == port, "client {client} left {port}");
        }
    }

    #[test]
    fn ipv4_and_ipv4_mapped_client_addresses_get_the_same_endpoint() {
        let members = members(&[1, 2, 3, 4, 5, 6, 7, 8], 1);
        for last in 0..100 {
            let four = std::net::Ipv4Addr::new(192, 0, 2, last);
            let assigned = |address| rendezvous_endpoint(address, &members).unwrap().address;
            assert_eq!(assigned(four.into()), assigned(four.to_ipv6_mapped().into()));
        }
    }

    #[test]
    fn affinity_token_round_trips() {
        for bits in [0, 1, 0xdead_beef, u64::MAX] {
            for start in [None, Some(SessionStart { at: bits >> 16, tag: bits })] {
                let token = AffinityToken { backend: bits as u32, endpoint: bits, start };
                assert_eq!(AffinityToken::parse(token.to_string().as_bytes()), Some(token));
            }
        }
        let (long, odd) = ("0".repeat(25), format!("{}\u{e9}", "0".repeat(22)));
        for bad in ["", "0", &long, "g00000000000000000000000", &odd] {
            assert_eq!(AffinityToken::parse(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn session_ends_after_its_timeout_and_only_the_key_can_prolong_it() {
        let key = |text: &[u8]| hmac::Key::new(hmac::HMAC_SHA256, text);
        let tokens = AffinityTokens { key: key(b"ours"), backend: 7, endpoints: Vec::new() };
        let endpoint = &members(&[1], 1)[0].endpoint;
        let (begun, timeout) = (1_700_000_000_000, Some(Duration::from_secs(60)));
        let token = tokens.token(endpoint, Some(begun));
        let goes_on = |token: &AffinityToken, now| tokens.is_in_session(token, timeout, now);
        assert!(goes_on(&token, begun) && goes_on(&token, begun + 59_999));
        assert!(!goes_on(&token, begun + 60_000));
        assert!(goes_on(&token, begun - 5_000), "the clock of another replica is ahead");
        let prolonged = |start: SessionStart| SessionStart { at: start.at + 60_000, ..start };
        let forged = AffinityToken { start: token.start.map(prolonged), ..token };
        assert!(!goes_on(&forged, begun + 60_000));
        assert!(!goes_on(&AffinityToken { start: None, ..token }, begun), "no start");
        let other = AffinityTokens { key: key(b"other"), backend: 7, endpoints: Vec::new() };
        assert!(!goes_on(&other.token(endpoint, Some(begun)), begun), "another key");
        assert!(tokens.is_in_session(&token, None, u64::MAX), "no timeout");
    }
}
