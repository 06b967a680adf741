//! Hashes that are the same on every machine and in every version: a key must lead to the same
//! endpoint everywhere.

use std::net::{IpAddr, SocketAddr};

use crate::rng::mix;

/// Returns the hash of some bytes, as a key for choosing. Not for secrets, and not
/// collision-resistant: a client that sends the bytes can aim at an endpoint, as it could by
/// repeating a request.
pub fn hash(bytes: &[u8]) -> u64 {
    hash_from(0, bytes)
}

/// Returns the hash of an address. An IPv4 address is hashed as its IPv4-mapped IPv6 address.
pub(crate) fn hash_address(seed: u64, address: SocketAddr) -> u64 {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    hash_from(hash_from(seed, &ip.octets()), &address.port().to_be_bytes())
}

/// Returns the point after `times` probes of a key's probe sequence, which begins at the key.
pub(crate) fn probe_hash(key: u64, times: u64) -> u64 {
    if times == 0 { key } else { mix(key ^ mix(times)) }
}

/// Hashes eight bytes at a time and mixes all bits after each; the length distinguishes trailing
/// zeros.
fn hash_from(seed: u64, bytes: &[u8]) -> u64 {
    let mut state = mix(seed ^ mix(bytes.len() as u64));
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        state = mix(state ^ u64::from_le_bytes(word));
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_never_change() {
        assert_eq!(hash(b""), 0xa706_dd2f_4d19_7e6f);
        assert_eq!(hash(b"a user of ours"), 0x6cb2_0780_ca10_d3e0);
    }

    #[test]
    fn every_byte_changes_the_hash() {
        assert_ne!(hash(b"abc"), hash(b"abd"));
        assert_ne!(hash(b"abc"), hash(b"abc\0"));
        assert_ne!(hash(b"12345678a"), hash(b"a12345678"));
    }

    #[test]
    fn ipv4_address_hashes_like_its_ipv4_mapped_ipv6_address() {
        let hash_of = |address: &str| hash_address(7, address.parse().unwrap());
        assert_eq!(hash_of("10.0.0.1:80"), hash_of("[::ffff:10.0.0.1]:80"));
        assert_ne!(hash_of("10.0.0.1:80"), hash_of("10.0.0.1:81"));
    }
}
