//! Wire form of messages: protobuf. Tags are never reused, and a field that is not known is
//! ignored, so that replicas of two versions understand one another.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use balance::PriorityLevel;
use balance::leases::{
    LEASE_VERSION, LeaseMessage, LentEntry, MAX_MESSAGE_ENTRIES, PoolEntry, PoolKey, PoolState,
    ReplicaIdentity, ReturnedEntry,
};
use balance::time::Time;
use prost::{Message, Oneof};
use thiserror::Error;

use crate::wire_keys::WireKeyMessage;
use crate::wire_reports::{WireDemandMessage, WireOutageMessage, WireRefusalMessage};

/// Learned limits.
mod limits;
/// Tokens of rate limits.
mod tokens;

pub(crate) use limits::WireLimits;
pub(crate) use tokens::WireTokens;

/// One frame. A body of an unknown kind is as none.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct WireFrame {
    #[prost(oneof = "FrameBody", tags = "1, 2, 3, 4, 5, 6, 7, 8")]
    pub(crate) body: Option<FrameBody>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum FrameBody {
    #[prost(message, tag = "1")]
    Hello(WireHello),
    #[prost(message, tag = "2")]
    Lease(WireLease),
    #[prost(message, tag = "3")]
    Demand(WireDemandMessage),
    #[prost(message, tag = "4")]
    Refusals(WireRefusalMessage),
    #[prost(message, tag = "5")]
    Outages(WireOutageMessage),
    #[prost(message, tag = "6")]
    Limits(WireLimits),
    #[prost(message, tag = "7")]
    TicketKeys(WireKeyMessage),
    #[prost(message, tag = "8")]
    Tokens(WireTokens),
}

/// First frame of each side.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct WireHello {
    /// Protocol version of the sender.
    #[prost(uint32, tag = "1")]
    pub(crate) version: u32,
    /// Oldest protocol version that the sender understands.
    #[prost(uint32, tag = "2")]
    pub(crate) oldest_version: u32,
    #[prost(message, optional, tag = "3")]
    pub(crate) from: Option<WireIdentity>,
}

/// One run of one replica.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct WireIdentity {
    #[prost(message, optional, tag = "1")]
    member: Option<WireAddress>,
    #[prost(uint64, tag = "2")]
    incarnation: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WireAddress {
    /// 4 or 16 bytes, in network order.
    #[prost(bytes = "vec", tag = "1")]
    ip: Vec<u8>,
    #[prost(uint32, tag = "2")]
    port: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WireLease {
    #[prost(uint32, tag = "1")]
    version: u32,
    #[prost(message, optional, tag = "2")]
    from: Option<WireIdentity>,
    #[prost(message, optional, tag = "3")]
    to: Option<WireIdentity>,
    #[prost(uint64, tag = "4")]
    sent_nanos: u64,
    #[prost(uint64, tag = "5")]
    echo_nanos: u64,
    #[prost(uint64, tag = "6")]
    lending_epoch: u64,
    #[prost(uint64, tag = "7")]
    borrowing_epoch: u64,
    #[prost(message, repeated, tag = "8")]
    lent: Vec<WireLent>,
    #[prost(message, repeated, tag = "9")]
    returned: Vec<WireReturned>,
    #[prost(message, repeated, tag = "10")]
    pools: Vec<WirePool>,
}

#[derive(Clone, PartialEq, Message)]
struct WireLent {
    #[prost(message, optional, tag = "1")]
    endpoint: Option<WireAddress>,
    #[prost(uint64, tag = "2")]
    granted: u64,
    #[prost(uint32, tag = "3")]
    keep: u32,
    #[prost(bool, tag = "4")]
    closed: bool,
}

#[derive(Clone, PartialEq, Message)]
struct WireReturned {
    #[prost(message, optional, tag = "1")]
    endpoint: Option<WireAddress>,
    #[prost(uint64, tag = "2")]
    returned: u64,
}

#[derive(Clone, PartialEq, Message)]
struct WirePool {
    /// A hash: its bytes are rarely zero.
    #[prost(fixed64, tag = "1")]
    pool: u64,
    #[prost(uint32, tag = "2")]
    free: u32,
    #[prost(uint32, tag = "3")]
    queued: u32,
    #[prost(uint64, tag = "4")]
    oldest_wait_nanos: u64,
    #[prost(uint64, tag = "5")]
    demand_milli: u64,
    #[prost(uint32, tag = "6")]
    wanted: u32,
    /// Number of the highest priority among the queued requests, plus one. A sender that does not
    /// know the field has requests of the default priority.
    #[prost(uint32, tag = "7")]
    priority_plus_one: u32,
    /// Number of queued requests with that priority, if it is told.
    #[prost(uint32, tag = "8")]
    first_queued: u32,
}

/// Reason why protobuf is no message.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum WireError {
    /// The message has another version: its fields may mean something else.
    #[error("message of another version")]
    Version,
    /// A field is missing or impossible, or there are too many entries.
    #[error("a field is missing or impossible, or there are too many entries")]
    Absurd,
}

impl From<SocketAddr> for WireAddress {
    fn from(address: SocketAddr) -> Self {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        Self { ip, port: u32::from(address.port()) }
    }
}

/// Returns the address that a field has.
pub(crate) fn address(wire: Option<WireAddress>) -> Result<SocketAddr, WireError> {
    let wire = wire.ok_or(WireError::Absurd)?;
    let ip = match wire.ip.len() {
        4 => <[u8; 4]>::try_from(wire.ip).map(IpAddr::from),
        _ => <[u8; 16]>::try_from(wire.ip).map(IpAddr::from),
    };
    let (Ok(ip), Ok(port)) = (ip, u16::try_from(wire.port)) else {
        return Err(WireError::Absurd);
    };
    Ok(SocketAddr::new(ip, port))
}

impl From<ReplicaIdentity> for WireIdentity {
    fn from(identity: ReplicaIdentity) -> Self {
        Self { member: Some(identity.member.into()), incarnation: identity.incarnation }
    }
}

/// Returns the identity that a message has.
pub(crate) fn identity(wire: Option<WireIdentity>) -> Result<ReplicaIdentity, WireError> {
    let WireIdentity { member, incarnation } = wire.ok_or(WireError::Absurd)?;
    Ok(ReplicaIdentity { member: address(member)?, incarnation })
}

impl From<&LeaseMessage> for WireLease {
    fn from(message: &LeaseMessage) -> Self {
        Self {
            version: u32::from(message.version),
            from: Some(message.from.into()),
            to: Some(message.to.into()),
            sent_nanos: message.sent.as_nanos(),
            echo_nanos: message.echo.as_nanos(),
            lending_epoch: message.lending_epoch,
            borrowing_epoch: message.borrowing_epoch,
            lent: message.lent.iter().map(WireLent::from).collect(),
            returned: message.returned.iter().map(WireReturned::from).collect(),
            pools: message.pools.iter().map(WirePool::from).collect(),
        }
    }
}

impl TryFrom<WireLease> for LeaseMessage {
    type Error = WireError;

    /// Returns the message. The lease table judges the rest: sender, sequence and counts.
    fn try_from(wire: WireLease) -> Result<Self, WireError> {
        if wire.version != u32::from(LEASE_VERSION) {
            return Err(WireError::Version);
        }
        let counts = [wire.lent.len(), wire.returned.len(), wire.pools.len()];
        if counts.iter().any(|&count| count > MAX_MESSAGE_ENTRIES) {
            return Err(WireError::Absurd);
        }
        Ok(Self {
            version: LEASE_VERSION,
            from: identity(wire.from)?,
            to: identity(wire.to)?,
            sent: Time::from_nanos(wire.sent_nanos),
            echo: Time::from_nanos(wire.echo_nanos),
            lending_epoch: wire.lending_epoch,
            borrowing_epoch: wire.borrowing_epoch,
            lent: wire.lent.into_iter().map(LentEntry::try_from).collect::<Result<_, _>>()?,
            returned: wire
                .returned
                .into_iter()
                .map(ReturnedEntry::try_from)
                .collect::<Result<_, _>>()?,
            pools: wire.pools.into_iter().map(PoolEntry::from).collect(),
        })
    }
}

impl From<&LentEntry> for WireLent {
    fn from(&LentEntry { endpoint, granted, keep, closed }: &LentEntry) -> Self {
        Self { endpoint: Some(endpoint.into()), granted, keep, closed }
    }
}

impl TryFrom<WireLent> for LentEntry {
    type Error = WireError;

    fn try_from(WireLent { endpoint, granted, keep, closed }: WireLent) -> Result<Self, WireError> {
        Ok(Self { endpoint: address(endpoint)?, granted, keep, closed })
    }
}

impl From<&ReturnedEntry> for WireReturned {
    fn from(&ReturnedEntry { endpoint, returned }: &ReturnedEntry) -> Self {
        Self { endpoint: Some(endpoint.into()), returned }
    }
}

impl TryFrom<WireReturned> for ReturnedEntry {
    type Error = WireError;

    fn try_from(WireReturned { endpoint, returned }: WireReturned) -> Result<Self, WireError> {
        Ok(Self { endpoint: address(endpoint)?, returned })
    }
}

impl From<&PoolEntry> for WirePool {
    fn from(&PoolEntry { pool, state, wanted }: &PoolEntry) -> Self {
        let wait = state.oldest_wait.as_nanos();
        Self {
            pool: pool.0,
            free: state.free,
            queued: state.queued,
            oldest_wait_nanos: u64::try_from(wait).unwrap_or(u64::MAX),
            demand_milli: state.demand_milli,
            wanted,
            priority_plus_one: u32::from(state.priority.number()) + 1,
            first_queued: state.first_queued,
        }
    }
}

impl From<WirePool> for PoolEntry {
    fn from(wire: WirePool) -> Self {
        let number = wire.priority_plus_one.checked_sub(1).and_then(|it| u8::try_from(it).ok());
        let priority = number.and_then(PriorityLevel::new);
        let state = PoolState {
            free: wire.free,
            queued: wire.queued,
            priority: priority.unwrap_or_default(),
            first_queued: if priority.is_some() { wire.first_queued } else { wire.queued },
            oldest_wait: Duration::from_nanos(wire.oldest_wait_nanos),
            demand_milli: wire.demand_milli,
        };
        Self { pool: PoolKey(wire.pool), state, wanted: wire.wanted }
    }
}
