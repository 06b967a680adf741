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
mod closed;
/// What a port's task is to look at.
mod agenda;
/// The task that drives a socket and its connections.
mod port;
/// Datagrams from and to a socket.
mod socket;
/// Clients' connections, from the first datagram to their handshake's end.
mod server;
/// The sockets of one address, one for each worker.
mod group;
/// Connection ids, and whose they are.
mod id;
/// TLS within QUIC, on our side of a client's connection.
mod session;
/// What we tell the other side that it may do.
mod transport;
/// Which of its streams go before others.
mod precedence;
/// How much may be under way.
mod cubic;
/// Keys that all workers share.
mod keys;
/// Connections to endpoints.
mod dial;
#[cfg(test)]
mod tests;

pub(crate) use closed::Closed;
pub(crate) use connection::Connection;
#[allow(unused_imports, reason = "links to endpoints are what will use it")]
pub(crate) use dial::{Dialer, LinkSettings};
pub(crate) use group::{Change, Group, Groups};
pub(crate) use keys::Keys;
pub(crate) use server::{Ports, Serve};
pub(crate) use socket::{Datagram, Dropped};
pub(crate) use stream::{RecvStream, SendStream, StreamEnd};
