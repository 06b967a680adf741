//! One HTTP/3 connection to an endpoint.
//!
//! A connection is usable when the SETTINGS of the endpoint have arrived, so that it is known to speak HTTP/3 before
//! any request depends on it. QUIC itself detects a dead endpoint: keep-alive packets prevent silence on a live
//! connection, and the idle timeout ends a dead one.

use std::cell::Cell;
use std::future::{pending, poll_fn};
use std::rc::Rc;
use std::sync::Arc;

use codec::h3::{H3ErrorCode, PeerRole, request};
use quic::{CloseReason, QuicConnection, RecvStream, SendStream};
use tls::EndpointTlsError;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::dial::RESPONSE_LIMITS;
use crate::dial::h2::FIELD_OVERHEAD;
use crate::dial::marked_socket::MarkGuard;
use crate::dial::multiplex_connection::{
    self, ConnectionAvailability, ConnectionCounts, ConnectionUsage, MultiplexState,
    OpenConnectionGuard, PING_INTERVAL, PING_TIMEOUT, StreamGuard,
};
use crate::dial::stream_call::StreamRequest;
use crate::failure::Failure;
use crate::h3::{ControlStreamEvent, ControlStreams, H3ConnectionState, H3Stream};
use crate::stream::PeerStream;

/// One HTTP/3 connection to an endpoint.
pub(super) struct H3EndpointConnection {
    connection: QuicConnection,
    connection_state: Rc<H3ConnectionState>,
    supports_extended_connect: bool,
    shared: Rc<H3SharedState>,
    /// Opened in advance to test the stream limit; this sends nothing.
    next_stream: Option<(SendStream, RecvStream)>,
    usage: ConnectionUsage,
}

/// State that a connection and its driver share.
#[derive(Default)]
struct H3SharedState {
    goaway_received: Cell<bool>,
    /// Notified if the endpoint allows no more streams now.
    streams_exhausted: Notify,
}

/// Performs the HTTP/3 handshake with the endpoint; the caller bounds the time.
pub(super) async fn handshake(
    connection: &QuicConnection,
    stream_available: Arc<Notify>,
    counts: Arc<ConnectionCounts>,
) -> Result<(H3EndpointConnection, H3ConnectionDriver), Failure> {
    poll_fn(|cx| connection.poll_established(cx)).await.map_err(handshake_failure)?;
    let head = RESPONSE_LIMITS.head_bytes + RESPONSE_LIMITS.fields * FIELD_OVERHEAD;
    let mut control_streams = ControlStreams::new(connection, PeerRole::Endpoint, head as u64);
    let settings = loop {
        tokio::select! {
            event = poll_fn(|cx| control_streams.poll(cx)) => match event {
                Ok(ControlStreamEvent::Settings(settings)) => break settings,
                Ok(ControlStreamEvent::GoAway(_)) => {}
                Err(_offence) => return Err(Failure::EndpointClosed),
            },
            closed = poll_fn(|cx| connection.poll_closed(cx)) => return Err(handshake_failure(closed)),
        }
    };
    // QUIC itself enforces the stream limit.
    let state = MultiplexState::new(u32::MAX, stream_available, counts, Arc::default());
    let shared = Rc::new(H3SharedState::default());
    let link = H3EndpointConnection {
        connection: connection.clone(),
        connection_state: Rc::clone(control_streams.connection_state()),
        supports_extended_connect: settings.connect_protocol,
        shared: Rc::clone(&shared),
        next_stream: None,
        usage: ConnectionUsage::new(Arc::clone(&state)),
    };
    let driver = H3ConnectionDriver {
        connection: connection.clone(),
        control_streams,
        shared,
        _client_mark: None,
        _open: OpenConnectionGuard::new(&state),
        state,
    };
    Ok((link, driver))
}

/// Returns the failure for a connection that ended before it carried any request.
fn handshake_failure(closed: CloseReason) -> Failure {
    match closed {
        CloseReason::Refused => Failure::ConnectFailed,
        CloseReason::TimedOut => Failure::ConnectTimeout,
        CloseReason::TlsFailed(why) => Failure::EndpointTls(why),
        CloseReason::Transport | CloseReason::VersionMismatch => {
            Failure::EndpointTls(EndpointTlsError::Protocol)
        }
        CloseReason::Reset => Failure::EndpointReset,
        CloseReason::ByPeer { .. } | CloseReason::ByUs | CloseReason::Flood => {
            Failure::EndpointClosed
        }
    }
}

impl multiplex_connection::MultiplexConnection for H3EndpointConnection {
    fn usage(&mut self) -> &mut ConnectionUsage {
        &mut self.usage
    }

    fn protocol_availability(&mut self) -> ConnectionAvailability {
        let goaway_received = self.shared.goaway_received.get();
        if goaway_received || self.connection.closed().is_some() {
            return ConnectionAvailability::Retired { goaway_received };
        }
        ConnectionAvailability::Usable
    }

    fn has_stream_capacity(&mut self) -> bool {
        if self.next_stream.is_none() {
            self.next_stream = self.connection.open_bi();
        }
        if self.next_stream.is_none() {
            self.shared.streams_exhausted.notify_one();
        }
        self.next_stream.is_some()
    }
}

impl H3EndpointConnection {
    /// Sends the head of a request on a new stream.
    pub(super) fn send(
        &mut self,
        call: &StreamRequest<'_>,
    ) -> Result<(PeerStream, StreamGuard), Failure> {
        let source = &call.source;
        // A WebSocket needs extended CONNECT, which not every endpoint supports (RFC 9220).
        if source.request.upgrade && !self.supports_extended_connect {
            return Err(Failure::UpgradeRefused);
        }
        let (head, framing, address) = (source.request, source.framing, call.endpoint.address);
        let section = |out: &mut Vec<u8>| request::write(head, framing, address, out);
        // The connection has just reported capacity for one stream.
        let (sending, receiving) = self.next_stream.take().ok_or(Failure::EndpointClosed)?;
        let is_whole = source.is_whole();
        let message =
            H3Stream::to_endpoint(sending, receiving, &self.connection_state, section, is_whole);
        Ok((PeerStream::from(message), self.usage.begin_stream(call.fresh)))
    }
}

impl Drop for H3EndpointConnection {
    fn drop(&mut self) {
        self.usage.state.release();
    }
}

/// Processes the control streams of a connection, and closes it at its end.
pub(super) struct H3ConnectionDriver {
    connection: QuicConnection,
    control_streams: ControlStreams,
    shared: Rc<H3SharedState>,
    state: Arc<MultiplexState>,
    /// The client whose address the connection has.
    _client_mark: Option<MarkGuard>,
    _open: OpenConnectionGuard,
}

impl H3ConnectionDriver {
    /// Adds the guard of the mark that the connection has.
    pub(super) fn with_mark(self, client_mark: Option<MarkGuard>) -> Self {
        Self { _client_mark: client_mark, ..self }
    }

    /// Runs until the connection has ended.
    pub(super) async fn run(mut self) {
        let Self { connection, control_streams, shared, state, .. } = &mut self;
        tokio::select! {
            () = watch_control_streams(control_streams, shared) => {}
            () = watch_stream_limit(connection, shared, state) => {}
            () = ping_timed_out(connection, state) => {}
            // Its streams report how it ended.
            _ = poll_fn(|cx| connection.poll_closed(cx)) => {}
            () = state.drained.notified() => {}
        }
        connection.close(H3ErrorCode::NO_ERROR.0, "");
    }
}

/// Waits until the endpoint has violated the protocol, for which the connection has been closed.
async fn watch_control_streams(control_streams: &mut ControlStreams, shared: &H3SharedState) {
    while let Ok(event) = poll_fn(|cx| control_streams.poll(cx)).await {
        match event {
            ControlStreamEvent::GoAway(_) => shared.goaway_received.set(true),
            // SETTINGS arrive only once.
            ControlStreamEvent::Settings(_) => {}
        }
    }
}

/// Wakes the waiting requests when the endpoint allows more streams.
async fn watch_stream_limit(
    connection: &QuicConnection,
    shared: &H3SharedState,
    state: &MultiplexState,
) {
    loop {
        shared.streams_exhausted.notified().await;
        if poll_fn(|cx| connection.poll_can_open_bi(cx)).await.is_err() {
            return pending().await;
        }
        state.stream_available.notify_waiters();
    }
}

/// Waits until the endpoint, marked as suspect, has not even acknowledged a PING.
async fn ping_timed_out(connection: &QuicConnection, state: &MultiplexState) {
    loop {
        state.response_overdue.notified().await;
        let before = connection.received();
        connection.ping();
        sleep(PING_TIMEOUT).await;
        if connection.received() == before {
            return;
        }
        sleep(PING_INTERVAL).await;
    }
}
