//! The channel between replicas: connections that are always open, over which they exchange state.
//!
//! Each replica listens on one address and dials every other member. It sends only on connections
//! that it has dialled and receives only on those that it has accepted, so no two of them compete.
//! Both sides show a certificate of the cluster's authority for [`REPLICA_NAME`] (TLS 1.3); without
//! certificates the channel works on loopback alone.
//!
//! A [`ReplicaMessage`] is the newest state of its kind: [`ChannelSender::send`] never waits, and
//! of messages that a peer does not take, only the newest of each kind is kept. A message may be
//! lost with its connection. Messages of one peer arrive in the order in which they were sent.
//!
//! # Bounds
//!
//! [`MAX_MEMBERS`] members. For each of them: one dialled connection (two while it is renewed), at
//! most two accepted ones and at most [`MAX_HANDSHAKES`] in their handshake; one unsent message of
//! each kind; frames of at most [`MAX_FRAME_BYTES`], of which each connection buffers one, and
//! socket buffers of [`SOCKET_BUFFER_BYTES`]. The decoded messages that wait for the consumer are
//! at most [`RECEIVE_QUEUE`]; then reading pauses. Addresses of other hosts get no handshake.
//!
//! The crate knows no lease table, no flag and no metric: the caller hands in the members and
//! certificates, and reads [`ChannelCounts`].

/// Settings, bounds and times.
mod settings;
/// Messages that replicas exchange.
mod message;
/// Wire form of messages: protobuf.
mod wire;
/// Wire form of reports.
mod wire_reports;
/// Wire form of shared keys.
mod wire_keys;
/// Frames on a connection: length and protobuf.
mod frame;
/// Introduction of both sides, with which a connection begins.
mod hello;
/// Certificates with which replicas authenticate one another.
mod certificates;
/// Connections: TCP, with or without TLS.
mod connection;
/// Members, and the rule for plaintext.
mod members;
/// Counts of events.
mod counts;
/// State that all connections of the channel use.
mod context;
/// Messages that wait for the connection to a peer, and the state of that.
mod peer;
/// The connection to one peer: dialling, sending, renewal.
mod dial;
/// Connections of peers: authentication, receiving.
mod accept;
/// Accepted connections by peer, and their limits.
mod accepted;
/// The channel as a whole.
mod channel;
#[cfg(test)]
mod tests;

pub use certificates::{CertificateError, REPLICA_NAME, ReplicaCertificates};
pub use channel::{ChannelReceiver, ChannelSender, start_channel};
pub use counts::{ChannelCounts, RefusalReason};
pub use frame::MAX_FRAME_BYTES;
pub use hello::PROTOCOL_VERSION;
pub use members::MemberError;
pub use message::{ReceivedMessage, ReplicaMessage};
pub use peer::PeerState;
pub use settings::{
    ChannelError, ChannelSettings, ChannelTimes, MAX_HANDSHAKES, MAX_MEMBERS, RECEIVE_QUEUE,
    SOCKET_BUFFER_BYTES,
};
