//! QUIC: the connections of one worker, with clients and with endpoints.
//!
//! What QUIC says is decided by `quinn-proto`; here are sockets, timers, and streams that tasks can wait on. Nothing here
//! knows what streams carry. All of it is of one thread: what is asked for is done at once, and what it has to say leaves
//! when every task that is ready has had its turn, so that much leaves together.

/// A connection as its tasks see it.
mod connection;
/// The two directions of a stream.
mod stream;
/// Why a connection is over.
mod close_reason;
/// What a port's task is to look at.
mod driver_handle;
/// The task that drives a socket and its connections.
mod driver;
/// Datagrams from and to a socket.
mod socket;
/// Clients' connections, from the first datagram to their handshake's end.
mod server;
/// The sockets of one address, one for each worker.
mod socket_group;
/// Connection ids, and whose they are.
mod connection_id;
/// TLS within QUIC, on our side of a client's connection.
mod session;
/// What we tell the other side that it may do.
mod transport;
/// Which of its streams go before others.
mod stream_scheduler;
/// How much may be under way.
mod cubic;
/// Keys that all workers share.
mod keys;
/// Connections to endpoints.
mod dial;
#[cfg(test)]
mod tests;

pub(crate) use close_reason::CloseReason;
pub(crate) use connection::QuicConnection;
#[allow(unused_imports, reason = "links to endpoints are what will use it")]
pub(crate) use dial::{DialSettings, QuicDialer};
pub(crate) use keys::QuicTokenKeys;
pub(crate) use server::{ServeConnection, ServerDrivers};
pub(crate) use socket::{DatagramDropReason, ReceivedDatagram};
pub(crate) use socket_group::{SocketGroup, SocketGroupChange, SocketGroups};
pub(crate) use stream::{RecvStream, SendStream, StreamEnd};
