//! Session affinity: keeps a client at its endpoint by a token that it sends, or by its address.
//!
//! A token names an endpoint by a keyed hash: without the key, a client can neither find out an
//! address nor make a token for an endpoint of its choice. With a key that all replicas share
//! (`AffinityKey`), it is the same at every replica and after every restart. Affinity is soft: if
//! the endpoint cannot serve, or the token is unknown, the request goes to another endpoint and the
//! client gets a new token.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use aws_lc_rs::hmac;
use balance::hash::hash;
use balance::{Rng, SetMember};
use codec::head::{RequestHead, ResponseHead, cookie};
use gateway::snapshot::AffinitySettings;

use crate::backend::{Backend, BackendConfig, Slot};
use crate::dial::pool::{Endpoint, EndpointData};
use crate::hash_key;

/// Key of the tokens.
mod key;

pub(crate) use key::AffinityKey;

/// Number of tokens for other backends that a client may send: one cookie covers all backends that
/// use the same cookie name.
const MAX_OTHER_TOKENS: usize = 7;

/// Token that names an endpoint of one backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct AffinityToken {
    /// Distinguishes the tokens of different backends.
    backend: u32,
    endpoint: u64,
}

impl AffinityToken {
    fn parse(text: &[u8]) -> Option<Self> {
        let text = str::from_utf8(text).ok().filter(|text| text.is_ascii())?;
        let (backend, endpoint) = text.split_at_checked(8).filter(|_| text.len() == 24)?;
        Some(Self {
            backend: u32::from_str_radix(backend, 16).ok()?,
            endpoint: u64::from_str_radix(endpoint, 16).ok()?,
        })
    }
}

impl fmt::Display for AffinityToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}{:016x}", self.backend, self.endpoint)
    }
}

/// Tokens of a set's endpoints, each with its index among the members.
pub(crate) struct AffinityTokens {
    key: hmac::Key,
    backend: u32,
    tokens: Vec<(AffinityToken, usize)>,
}

impl AffinityTokens {
    fn new(backend: &Backend, current: &BackendConfig) -> Self {
        let key = backend.affinity_key.of_service(current.settings.service_uid.as_deref());
        let backend = (keyed_hash(&key, "backend", &*backend.name) >> 32) as u32;
        let mut tokens = Self { key, backend, tokens: Vec::new() };
        let members = current.set.members().iter().enumerate();
        tokens.tokens =
            members.map(|(index, member)| (tokens.token(&member.endpoint), index)).collect();
        tokens.tokens.sort_unstable();
        tokens
    }

    /// Returns the token of an endpoint, which may have left the set.
    fn token(&self, endpoint: &Endpoint) -> AffinityToken {
        let text = format_args!("{:08x} {}", self.backend, endpoint.address);
        let endpoint = keyed_hash(&self.key, "endpoint", text);
        AffinityToken { backend: self.backend, endpoint }
    }

    fn find(&self, token: AffinityToken) -> Option<usize> {
        let found = self.tokens.binary_search_by_key(&token, |(token, _)| *token).ok()?;
        Some(self.tokens[found].1)
    }
}

/// Returns the first 64 bits of the HMAC (RFC 2104) of a text.
fn keyed_hash(key: &hmac::Key, purpose: &str, text: impl fmt::Display) -> u64 {
    let tag = hmac::sign(key, format!("sheave {purpose} {text}").as_bytes());
    tag.as_ref().iter().take(8).fold(0, |bits, byte| bits << 8 | u64::from(*byte))
}

impl BackendConfig {
    /// Returns the tokens of the endpoints; the first request computes them.
    fn affinity_tokens(&self, backend: &Backend) -> &AffinityTokens {
        self.affinity_tokens.get_or_init(|| AffinityTokens::new(backend, self))
    }
}

/// Session affinity of a request.
pub(crate) struct SessionAffinity {
    /// Target endpoint; `None` if the client has none yet, or it is no longer in the set.
    endpoint: Option<Arc<Endpoint>>,
    /// True if the client has been at this backend before.
    is_returning: bool,
    /// Tokens that the client sends for other backends.
    other_tokens: Vec<AffinityToken>,
}

impl SessionAffinity {
    /// Returns `None` if the backend has no session affinity.
    pub(crate) fn of_request(
        backend: &Backend,
        current: &BackendConfig,
        request: &RequestHead,
        client: impl Fn() -> IpAddr,
    ) -> Option<Self> {
        let sent_tokens = match current.settings.affinity.as_ref()? {
            AffinitySettings::Cookie { name, .. } => cookie::find(&request.fields, name),
            AffinitySettings::Header(name) => request.fields.get(name),
            AffinitySettings::Source => {
                let endpoint = rendezvous_endpoint(client(), current.set.members());
                return Some(Self { endpoint, is_returning: true, other_tokens: Vec::new() });
            }
        };
        let sent_tokens =
            sent_tokens.unwrap_or_default().split(|byte| *byte == b'.').take(MAX_OTHER_TOKENS + 1);
        let tokens = current.affinity_tokens(backend);
        let is_ours = |token: &AffinityToken| token.backend == tokens.backend;
        let (ours, others): (Vec<_>, Vec<_>) =
            sent_tokens.filter_map(AffinityToken::parse).partition(is_ours);
        let index = ours.first().and_then(|token| tokens.find(*token));
        let endpoint = index.map(|index| Arc::clone(&current.set.members()[index].endpoint));
        Some(Self { endpoint, is_returning: !ours.is_empty(), other_tokens: others })
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
        let Some(affinity) = &current.settings.affinity else { return };
        let kept = self.endpoint.as_ref().is_some_and(|it| Arc::ptr_eq(it, &slot.endpoint));
        let counters = &slot.backend.counters[worker].affinity;
        match (kept, self.is_returning) {
            (true, _) => counters.kept.add(1),
            (false, true) => counters.broken.add(1),
            (false, false) => counters.begun.add(1),
        }
        match affinity {
            AffinitySettings::Cookie { name, max_age } if !kept => {
                let cookie =
                    cookie::set(name, &self.cookie_value(current, slot), *max_age, is_secure);
                response.fields.append("Set-Cookie", cookie);
            }
            AffinitySettings::Header(name) => {
                response.fields.remove_named(name.as_bytes());
                response.fields.append(&**name, self.cookie_value(current, slot));
            }
            AffinitySettings::Cookie { .. } | AffinitySettings::Source => {}
        }
    }

    /// Returns the value that the client sends from now on: its tokens for all backends.
    fn cookie_value(&self, current: &BackendConfig, slot: &Slot) -> String {
        let ours = current.affinity_tokens(&slot.backend).token(&slot.endpoint);
        let all = std::iter::once(&ours).chain(self.other_tokens.iter().take(MAX_OTHER_TOKENS));
        all.map(AffinityToken::to_string).collect::<Vec<_>>().join(".")
    }
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
            let token = AffinityToken { backend: bits as u32, endpoint: bits };
            assert_eq!(AffinityToken::parse(token.to_string().as_bytes()), Some(token));
        }
        let (long, odd) = ("0".repeat(25), format!("{}\u{e9}", "0".repeat(22)));
        for bad in ["", "0", &long, "g00000000000000000000000", &odd] {
            assert_eq!(AffinityToken::parse(bad.as_bytes()), None, "{bad}");
        }
    }
}
