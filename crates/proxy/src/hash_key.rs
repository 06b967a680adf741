//! Hash keys of requests, for consistent hashing and Maglev.

use std::net::IpAddr;

use balance::Algorithm;
use balance::hash::hash;
use codec::head::{RequestHead, cookie};
use gateway::matching::query_value;
use gateway::snapshot::{BackendSettings, HashKey};

/// Returns the hash key of a request; `None`: the algorithm does not hash.
///
/// If the request lacks the configured element, the key is its client's address.
pub(crate) fn of_request(
    settings: &BackendSettings,
    request: &RequestHead,
    client: impl Fn() -> IpAddr,
) -> Option<u64> {
    match settings.algorithm {
        Algorithm::ConsistentHash | Algorithm::Maglev => {}
        Algorithm::LeastLoad | Algorithm::PeakEwma | Algorithm::RoundRobin | Algorithm::Random => {
            return None;
        }
    }
    let key = match &settings.hash_key {
        HashKey::Source => None,
        HashKey::Header(name) => request.fields.get(name).map(hash),
        HashKey::Cookie(name) => cookie::find(&request.fields, name).map(hash),
        HashKey::QueryParam(name) => {
            query_value(request.query(), name.as_bytes()).map(|value| hash(&value))
        }
        HashKey::Path => Some(hash(request.path())),
        HashKey::Host => Some(hash(&request.host().to_ascii_lowercase())),
    };
    Some(key.unwrap_or_else(|| of_address(client())))
}

/// Returns the hash key of an address: the same for an IPv4 address and its IPv4-mapped IPv6 address.
pub(crate) fn of_address(address: IpAddr) -> u64 {
    match address {
        IpAddr::V4(address) => hash(&address.to_ipv6_mapped().octets()),
        IpAddr::V6(address) => hash(&address.octets()),
    }
}
