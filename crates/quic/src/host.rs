//! The owner of client connections, as a driver sees it: it decides, serves and counts.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use gateway::snapshot::CongestionControl;
use tls::{ClientTlsError, SniTable};

use crate::socket::DatagramDropReason;
use crate::{QuicConnection, ReceivedDatagram, SocketGroup};

/// Owner of the client connections of one driver, on the driver's thread.
///
/// A trait although production has one implementation: this crate must not know the workers and listeners behind it.
/// No call is made for each datagram, except to hand one over.
pub trait ConnectionOwner {
    /// Returns the settings of new connections; `None` if no more are accepted.
    fn settings(&self) -> Option<ServerSettings>;

    /// Returns the source of the certificates for new connections.
    fn sni_source(&self) -> SniSource;

    /// True if first datagrams of new connections are processed. Otherwise their clients are refused.
    fn accepts_handshakes(&self) -> bool;

    /// Counts a new connection. Returns false if there is no room for it.
    fn admit(&self) -> bool;

    /// Ends the count of an admitted connection that is not served.
    fn release(&self);

    /// Serves an admitted connection whose handshake is complete, or that may be served before (0-RTT), and ends its
    /// count.
    fn serve(&self, connection: QuicConnection);

    /// Counts the end of an admitted connection's handshake.
    fn record_handshake(&self, result: Result<CompletedHandshake, ClientTlsError>);

    /// Counts the datagrams of a turn.
    fn record_datagrams(&self, counts: &DatagramCounts);

    /// Sends a datagram to the worker that it belongs to. Returns false if too many are in transit.
    fn hand_over(
        &self,
        worker: usize,
        group: &Arc<SocketGroup>,
        datagram: ReceivedDatagram,
    ) -> bool;
}

/// Settings of client connections.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ServerSettings {
    /// Bidirectional streams that a client may have open at a time.
    pub max_concurrent_streams: u32,
    /// The time without requests after which the [`ConnectionOwner`] closes a connection. The idle timeout of QUIC (RFC
    /// 9000, section 10.1) is longer by a margin.
    pub idle_timeout: Duration,
    /// The time limit of a handshake.
    pub handshake_timeout: Duration,
    pub congestion_control: CongestionControl,
}

/// Returns the current certificates for handshakes; `None` if there are none any more.
pub type SniSource = Arc<dyn Fn() -> Option<SniSettings> + Send + Sync>;

/// Certificates for handshakes.
pub struct SniSettings {
    pub sni_table: Arc<SniTable>,
    /// True if early data (0-RTT) is accepted.
    pub early_data: bool,
}

/// Kind of a complete handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletedHandshake {
    Full,
    Resumed,
}

/// Numbers of datagrams from and to clients.
#[derive(Default, PartialEq)]
pub struct DatagramCounts {
    pub received: u64,
    pub sent: u64,
    /// Datagrams dropped, by [`DatagramDropReason`].
    pub dropped: [u64; DatagramDropReason::ALL.len()],
    /// Datagrams handed over to the worker that has the connection.
    pub handed_over: u64,
    /// Requests to clients to validate their address.
    pub retries: u64,
}

impl DatagramCounts {
    /// Passes the numbers on to `host`, and begins again at zero.
    pub(super) fn report(&mut self, host: &dyn ConnectionOwner) {
        if *self != Self::default() {
            host.record_datagrams(&std::mem::take(self));
        }
    }
}

/// The permit by which an owner counts a client connection; released when the connection is served or dropped.
pub(super) struct ConnectionPermit(Option<Rc<dyn ConnectionOwner>>);

impl ConnectionPermit {
    /// Admits a connection; `None` if there is no room for it.
    pub(super) fn admit(host: &Rc<dyn ConnectionOwner>) -> Option<Self> {
        host.admit().then(|| Self(Some(Rc::clone(host))))
    }

    /// Lets the host serve the connection.
    pub(super) fn serve(mut self, connection: QuicConnection) {
        if let Some(host) = self.0.take() {
            host.serve(connection);
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        if let Some(host) = self.0.take() {
            host.release();
        }
    }
}
