//! Members, and the rule for plaintext: it is for loopback alone.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use thiserror::Error;

use crate::certificates::ReplicaCertificates;
use crate::settings::MAX_MEMBERS;

/// Reason why members cannot be used. Those in use before stay in use.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum MemberError {
    /// There are too many.
    #[error("{0} replicas are more than {MAX_MEMBERS}")]
    TooMany(usize),
    /// Without certificates, an address is not on loopback.
    #[error("replicas need certificates: {0} is not a loopback address")]
    PlaintextBeyondLoopback(SocketAddr),
}

/// Members without this replica; addresses are in their canonical form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PeerList(Arc<BTreeSet<SocketAddr>>);

impl PeerList {
    /// Returns the peers of `me` in a list of members.
    pub(crate) fn new(members: &[SocketAddr], me: SocketAddr) -> Result<Self, MemberError> {
        if members.len() > MAX_MEMBERS {
            return Err(MemberError::TooMany(members.len()));
        }
        let peers = members.iter().copied().map(canonical).filter(|&member| member != me);
        Ok(Self(Arc::new(peers.collect())))
    }

    pub(crate) fn contains(&self, member: SocketAddr) -> bool {
        self.0.contains(&member)
    }

    /// True if a peer has this address.
    pub(crate) fn contains_ip(&self, ip: IpAddr) -> bool {
        let from = SocketAddr::new(ip, 0);
        self.0.range(from..).next().is_some_and(|member| member.ip() == ip)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = SocketAddr> {
        self.0.iter().copied()
    }
}

/// Protection of connections.
#[derive(Clone, Debug)]
pub(crate) enum ChannelSecurity {
    /// None: all is on loopback.
    Plaintext,
    /// TLS, and certificates on both sides.
    Tls(Arc<ReplicaCertificates>),
}

impl ChannelSecurity {
    /// Returns the protection by certificates. Without them, all addresses must be on loopback.
    pub(crate) fn new(
        certificates: Option<Arc<ReplicaCertificates>>,
        addresses: impl IntoIterator<Item = SocketAddr>,
    ) -> Result<Self, MemberError> {
        if let Some(certificates) = certificates {
            return Ok(Self::Tls(certificates));
        }
        match addresses.into_iter().find(|address| !address.ip().to_canonical().is_loopback()) {
            Some(address) => Err(MemberError::PlaintextBeyondLoopback(address)),
            None => Ok(Self::Plaintext),
        }
    }

    /// True if connections of both are alike.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Plaintext, Self::Plaintext) => true,
            (Self::Tls(one), Self::Tls(other)) => Arc::ptr_eq(one, other),
            (Self::Plaintext, Self::Tls(_)) | (Self::Tls(_), Self::Plaintext) => false,
        }
    }
}

/// Returns an IPv4 address that is written as IPv6 as IPv4.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn plaintext_is_for_loopback_alone() {
        let allowed = |addresses: &[&str]| {
            ChannelSecurity::new(None, addresses.iter().map(|it| address(it))).map(|_| ())
        };
        assert_eq!(allowed(&["127.0.0.1:1", "[::1]:2", "127.0.0.9:0"]), Ok(()));
        assert_eq!(allowed(&["[::ffff:127.0.0.1]:1"]), Ok(()));
        for outside in ["10.0.0.1:1", "0.0.0.0:1", "[::]:1", "[fd00::1]:1"] {
            let error = MemberError::PlaintextBeyondLoopback(address(outside));
            assert_eq!(allowed(&["127.0.0.1:1", outside]), Err(error));
        }
    }

    #[test]
    fn peers_are_the_other_members_in_canonical_form() {
        let me = address("10.0.0.1:0");
        let members = ["10.0.0.1:0", "[::ffff:10.0.0.2]:0", "[fd00::1]:7"].map(address);
        let peers = PeerList::new(&members, me).unwrap();
        assert!(!peers.contains(me) && peers.contains(address("10.0.0.2:0")));
        let contains_ip = |ip: &str| peers.contains_ip(ip.parse().unwrap());
        assert!(contains_ip("10.0.0.2") && contains_ip("fd00::1"));
        assert!(!contains_ip("10.0.0.1") && !contains_ip("10.0.0.3") && !contains_ip("fd00::"));
        let too_many = vec![me; MAX_MEMBERS + 1];
        assert_eq!(PeerList::new(&too_many, me), Err(MemberError::TooMany(MAX_MEMBERS + 1)));
    }
}
