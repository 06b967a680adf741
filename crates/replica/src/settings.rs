//! Settings, bounds and times of the channel.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use balance::leases::ReplicaIdentity;
use thiserror::Error;
use tokio::sync::watch;

use crate::certificates::ReplicaCertificates;
use crate::members::MemberError;

/// Maximum number of members. A longer list is refused as a whole.
pub const MAX_MEMBERS: usize = 1024;

/// Maximum number of connections from one address that have not authenticated yet. One more closes
/// the oldest of them.
pub const MAX_HANDSHAKES: usize = 8;

/// Maximum number of received messages that wait for the consumer.
pub const RECEIVE_QUEUE: usize = 64;

/// Size of the send buffer and of the receive buffer of each socket in bytes, as far as we ask for
/// it (Linux doubles it). Bytes in these buffers can no longer be replaced by newer messages.
pub const SOCKET_BUFFER_BYTES: usize = 64 * 1024;

/// Shortest pause before a failed connection is dialled again; it doubles up to
/// [`MAX_RECONNECT_PAUSE`].
pub(crate) const MIN_RECONNECT_PAUSE: Duration = Duration::from_millis(50);

/// Longest pause between two attempts to connect. A connection that lasts as long as this makes the
/// next pause short again.
pub(crate) const MAX_RECONNECT_PAUSE: Duration = Duration::from_secs(1);

/// Settings of the channel of one replica.
#[derive(Debug)]
pub struct ChannelSettings {
    /// This replica. Connections to peers have the IP address of the member as their source.
    pub me: ReplicaIdentity,
    /// Socket that listens for peers.
    pub listener: TcpListener,
    /// Port to dial at members whose address has port 0, as in a list of pod IPs.
    pub port: u16,
    /// Members; this replica may be among them.
    pub members: watch::Receiver<Arc<[SocketAddr]>>,
    /// Certificates, replaced while the channel runs. `None`: plaintext, on loopback alone.
    pub certificates: watch::Receiver<Option<Arc<ReplicaCertificates>>>,
    /// Times.
    pub times: ChannelTimes,
}

/// Times of the channel.
#[derive(Clone, Copy, Debug)]
pub struct ChannelTimes {
    /// Time for a connection with its handshakes, on both sides.
    pub handshake: Duration,
    /// Time for which a peer may take or acknowledge nothing, before its connection is closed; also
    /// for it to read the rest of a connection that another one replaces.
    pub write: Duration,
    /// Time after which a keep-alive is sent if there is no message.
    pub keep_alive: Duration,
    /// Time after which an accepted connection without a frame is closed.
    pub idle: Duration,
    /// Time within which connections are renewed with new certificates, at a random moment.
    pub renewal: Duration,
    /// Age at which a dialled connection is renewed, less a random part of up to half of it.
    /// Connections of peers are closed at twice this age and the time of a handshake, so that an
    /// authority that is no longer trusted, or an expired certificate, does not count for longer.
    pub max_age: Duration,
}

impl Default for ChannelTimes {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(3),
            write: Duration::from_secs(2),
            keep_alive: Duration::from_secs(1),
            idle: Duration::from_secs(5),
            renewal: Duration::from_secs(10),
            max_age: Duration::from_secs(5 * 60),
        }
    }
}

/// Reason why the channel does not start.
#[derive(Debug, Error)]
pub enum ChannelError {
    /// The members or the listener do not allow the channel.
    #[error(transparent)]
    Members(#[from] MemberError),
    /// The listening socket cannot be used.
    #[error("cannot use the socket that listens for replicas")]
    Listener(#[source] io::Error),
}
