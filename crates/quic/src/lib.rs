//! QUIC: the connections of one worker, with clients and with endpoints.
//!
//! `quinn-proto` implements the protocol; this crate adds sockets, timers, and streams that tasks can wait on.
//! Nothing here knows what streams carry. All of it belongs to one thread: a call changes the state of the connection
//! at once, and the driver sends the resulting packets after every task that is ready has run, so that many packets
//! leave together.
//!
//! The state of workers and listeners is unknown here, and so are metrics: a [`ConnectionOwner`] stands for them, and
//! `now` is a function that the caller hands in.

/// A connection as the tasks that use it see it.
mod connection;
/// The two directions of a stream.
mod stream;
/// The reason why a connection is closed.
mod close_reason;
/// Handle to the driver task of a socket.
mod driver_handle;
/// The task that drives a socket and its connections.
mod driver;
/// Datagrams from and to a socket.
mod socket;
/// Client connections, from the first datagram to the end of the handshake.
mod server;
/// Limit of the bytes that are sent to an address before it is validated.
mod amplification;
/// Detection of clients that send frames without use.
mod flood_detector;
/// The owner of client connections, which the caller implements.
mod host;
/// The sockets of one address, one for each worker.
mod socket_group;
/// Connection ids, and the worker that each belongs to.
mod connection_id;
/// TLS within QUIC, on the server side of a client connection.
mod session;
/// Transport parameters that we announce, and settings for sending.
mod transport;
/// Order in which the streams of a connection send.
mod stream_scheduler;
/// CUBIC congestion control.
mod cubic;
/// Keys that all workers share.
mod keys;
/// Socket options that no safe interface offers.
mod sys;
/// Connections to endpoints.
mod dial;
#[cfg(test)]
mod tests;

pub use close_reason::CloseReason;
pub use connection::QuicConnection;
pub use dial::{DialError, DialSettings, QuicDialer};
pub use host::{
    CompletedHandshake, ConnectionOwner, DatagramCounts, ServerSettings, SniSettings, SniSource,
};
pub use keys::QuicTokenKeys;
pub use server::ServerDrivers;
pub use socket::{DatagramDropReason, ReceivedDatagram};
pub use socket_group::{GroupShape, SocketGroup, SocketGroupChange, SocketGroups};
pub use stream::{RecvStream, SendStream, StreamEnd};
