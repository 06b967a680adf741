//! Detection of the protocol of a connection by its first bytes.
//!
//! HTTP/1.x and HTTP/2 with prior knowledge are routed request by request. All else is forwarded as a connection, with
//! the bytes that have been read. A client that is silent is connected to an endpoint, because in its protocol the
//! server may speak first (`tcp/silent.rs`); if neither speaks, its first bytes decide, whenever they arrive.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use codec::first_bytes::{self, FirstBytes};

use crate::accept::accepted_connection::ConnectionGuard;
use crate::accept::client::{ClientConnection, ReadOutcome};
use crate::accept::h1;
use crate::buffer::{BUFFER_BYTES, ReadBuffer};
use crate::clock;
use crate::tcp;
use crate::worker::{DrainStage, Worker};

/// Time after which a client that has sent nothing counts as silent. Clients of HTTP send their request at once, or
/// keep a connection in reserve; a client of a protocol in which the server speaks first is delayed by this time.
const SILENCE_TIMEOUT: Duration = Duration::from_millis(300);
/// Time from the first byte to the decision. A client that takes longer is forwarded.
const START_TIMEOUT: Duration = Duration::from_secs(5);

/// Protocol that was detected, or the reason that none was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DetectedProtocol {
    Http1,
    Http2,
    Tls,
    Other,
    /// The endpoint has spoken first.
    ServerFirst,
    /// The client has not sent enough bytes in time.
    Slow,
}

impl DetectedProtocol {
    /// All of them, for the metrics.
    pub(crate) const ALL: [Self; 6] =
        [Self::Http1, Self::Http2, Self::Tls, Self::Other, Self::ServerFirst, Self::Slow];

    /// Returns the metric label.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Http1 => "http1",
            Self::Http2 => "http2",
            Self::Tls => "tls",
            Self::Other => "other",
            Self::ServerFirst => "server_first",
            Self::Slow => "slow",
        }
    }

    pub(crate) fn count(self, worker: &Worker) {
        worker.counters().detected[self as usize].add(1);
    }
}

impl From<FirstBytes> for DetectedProtocol {
    fn from(first_bytes: FirstBytes) -> Self {
        match first_bytes {
            FirstBytes::Http1 => Self::Http1,
            FirstBytes::Http2 => Self::Http2,
            FirstBytes::Tls => Self::Tls,
            FirstBytes::Other => Self::Other,
        }
    }
}

/// Detects the protocol of a new connection, and starts it.
pub(super) async fn serve(guard: ConnectionGuard, mut client: ClientConnection) {
    let worker = Rc::clone(&guard.worker);
    client.deadline.set(clock::now() + SILENCE_TIMEOUT);
    match detect(&worker, &mut client).await {
        Some(protocol) => begin(guard, client, protocol),
        None => drop(tokio::task::spawn_local(tcp::silent::serve(guard, client))),
    }
}

/// Waits until the client of a connection on which neither side has spoken does, then detects the protocol and starts
/// it. A connection without traffic for long is closed.
pub(crate) async fn serve_late(guard: ConnectionGuard, mut client: ClientConnection) {
    let worker = Rc::clone(&guard.worker);
    let waker_id = poll_fn(|cx| Poll::Ready(worker.register_waker(cx.waker().clone()))).await;
    let has_begun = wait_for_start(&worker, &mut client).await;
    worker.unregister_waker(waker_id);
    if !has_begun {
        return;
    }
    client.deadline.set(clock::now() + START_TIMEOUT);
    let detected = detect(&worker, &mut client).await;
    begin(guard, client, detected.unwrap_or(DetectedProtocol::Slow));
}

fn begin(guard: ConnectionGuard, mut client: ClientConnection, protocol: DetectedProtocol) {
    protocol.count(&guard.worker);
    client.last_event_at = clock::now();
    match protocol {
        // It recognises the preface of HTTP/2 as well.
        DetectedProtocol::Http1 | DetectedProtocol::Http2 => {
            tokio::task::spawn_local(h1::serve(guard, client))
        }
        DetectedProtocol::Tls
        | DetectedProtocol::Other
        | DetectedProtocol::ServerFirst
        | DetectedProtocol::Slow => tokio::task::spawn_local(tcp::serve(guard, client)),
    };
}

/// Detects the protocol, until the deadline; `None` if the client has sent nothing by then.
async fn detect(worker: &Worker, client: &mut ClientConnection) -> Option<DetectedProtocol> {
    let mut has_begun = false;
    loop {
        let unread = client.buffer.as_ref().map_or(&[][..], ReadBuffer::unread);
        if let Some(first_bytes) = first_bytes::detect(unread) {
            return Some(first_bytes.into());
        }
        if !unread.is_empty() && !std::mem::replace(&mut has_begun, true) {
            client.deadline.set(clock::now() + START_TIMEOUT);
        }
        match read_more(worker, client).await {
            ReadOutcome::Data => {}
            // The endpoint sees the end of the client's bytes as well.
            ReadOutcome::Closed => return Some(DetectedProtocol::Other),
            ReadOutcome::TimedOut => return has_begun.then_some(DetectedProtocol::Slow),
        }
    }
}

/// Reads once, until the deadline. A client that sends nothing holds no buffer.
async fn read_more(worker: &Worker, client: &mut ClientConnection) -> ReadOutcome {
    let is_ready = poll_fn(|cx| match client.stream.poll_read_ready(cx) {
        Poll::Ready(_) => Poll::Ready(true),
        Poll::Pending => client.deadline.poll(cx).map(|()| false),
    });
    if !is_ready.await {
        return ReadOutcome::TimedOut;
    }
    let mut buffer = client.buffer.take().unwrap_or_else(|| worker.scratch.buffer_pool.take());
    let outcome = poll_fn(|cx| client.poll_fill(cx, &mut buffer, BUFFER_BYTES)).await;
    client.buffer = Some(buffer);
    worker.scratch.buffer_pool.reclaim(&mut client.buffer);
    outcome
}

/// Returns true when the client has sent something, and false if the connection is to be closed.
async fn wait_for_start(worker: &Worker, client: &mut ClientConnection) -> bool {
    let Some(patience) = client.listener(&worker.config()).map(|it| it.client.stream_idle_timeout)
    else {
        return false;
    };
    let silent_since = client.accepted;
    client.deadline.set(silent_since + patience);
    poll_fn(|cx| {
        if client.stream.poll_read_ready(cx).is_ready() {
            return Poll::Ready(true);
        }
        let is_over = worker.stage() == DrainStage::Closing
            || client.listener(&worker.config()).is_none()
            || worker.sheds_idle_connection(silent_since);
        if is_over {
            return Poll::Ready(false);
        }
        client.deadline.poll(cx).map(|()| false)
    })
    .await
}
