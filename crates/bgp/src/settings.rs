//! Routers to which routes are announced, and the routes.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

/// Maximum length of a password of TCP (RFC 2385), in bytes: the limit of the kernel.
const MAX_PASSWORD_BYTES: usize = 80;

/// The announced addresses, each a route of full length, with its attributes.
pub type RouteTable = BTreeMap<IpAddr, RouteAttributes>;

/// Identity of this node in all of its sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpeakerIdentity {
    /// BGP Identifier, unique in the AS and not zero (RFC 6286).
    pub router_id: Ipv4Addr,
}

/// A router, and how a session with it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerSettings {
    /// Name for logs and metrics.
    pub name: String,
    /// Address of the router.
    pub address: IpAddr,
    /// Port of the router.
    pub port: u16,
    /// Number of the router's AS.
    pub peer_asn: u32,
    /// Number of this node's AS.
    pub local_asn: u32,
    /// Proposed hold time in seconds, at least 3.
    pub hold_time: u16,
    /// Address of this node from which the session is opened; `None`: the kernel chooses it.
    pub source: Option<IpAddr>,
    /// Password of the TCP connection (RFC 2385).
    pub password: Option<SessionPassword>,
    /// True if the router of another AS may be more than one hop away.
    pub is_multihop: bool,
    /// True if only packets of a router that is one hop away are accepted (RFC 5082).
    pub is_ttl_checked: bool,
}

impl PeerSettings {
    /// True if the router is in the AS of this node.
    pub(crate) const fn is_internal(&self) -> bool {
        self.peer_asn == self.local_asn
    }
}

/// A password of TCP. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionPassword(Vec<u8>);

/// A password that the kernel does not take: it is empty, or longer than 80 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidPassword;

impl SessionPassword {
    /// Checks the length of a password.
    ///
    /// # Errors
    /// If it is empty, or longer than 80 bytes.
    pub fn new(bytes: Vec<u8>) -> Result<Self, InvalidPassword> {
        let is_valid = (1..=MAX_PASSWORD_BYTES).contains(&bytes.len());
        is_valid.then_some(Self(bytes)).ok_or(InvalidPassword)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for SessionPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionPassword")
    }
}

/// Attributes of a route that the operator chooses.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouteAttributes {
    /// Communities, in the order in which they are sent.
    pub communities: Vec<BgpCommunity>,
    /// Local preference, for routers of the same AS alone; `None`: 100.
    pub local_preference: Option<u32>,
}

/// A community of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BgpCommunity {
    /// RFC 1997: an AS and a number.
    Standard(u16, u16),
    /// RFC 8092: an AS and two numbers.
    Large(u32, u32, u32),
}
