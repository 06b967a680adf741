//! Client HTTP/2 connection: many concurrent requests, each with a stream and a task of its own.
//!
//! The connection reads frames, starts requests, and writes their responses: all frames that are
//! ready at the same time leave in one write. Requests are handled by the code that all protocols
//! share. The connection ends by GOAWAY in two steps (RFC 9113 §6.8), so that no request that the
//! client has sent is lost. A misbehaving client (`H2ClientFault`) gets an error code, and its
//! connection is closed.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use gateway::snapshot::ClientSettings;
use h2::server::Builder;
use memchr::memmem;
use tokio::io::AsyncWriteExt;

use crate::accept::accepted_connection::ConnectionGuard;
use crate::accept::client::{ClientConnection, ReadOutcome};
use crate::accept::multiplexed_client::MultiplexedClient;
use crate::accept::token_bucket::most_resets;
use crate::buffer::BUFFER_BYTES;
use crate::clock;
use crate::memory::FlowWindows;
use crate::worker::Worker;

/// The connection from its first request to its end.
mod connection;
/// The task of one request.
mod request_task;
/// Detection of floods in a client's frames.
mod flood_detector;
/// Byte stream that the HTTP/2 library reads and writes.
mod metered_stream;
/// Reasons for which a connection is ended early.
mod fault;

pub(crate) use fault::H2ClientFault;
pub(super) use flood_detector::PREFACE;

use connection::H2Connection;
use flood_detector::FloodDetector;
use metered_stream::MeteredStream;

/// Flow-control windows. Of a stream: bytes of one request that may be in flight until the endpoint
/// takes them; at a round-trip time of 1 ms it allows 2 Gbit/s. Of a connection: requests to 16
/// stalled endpoints do not block the other requests.
const WINDOWS: FlowWindows = FlowWindows { stream: 256 * 1024, connection: 4 * 1024 * 1024 };
/// Largest frame that a body may arrive in: a large body needs a quarter of the frames that the
/// usual 16 KiB take.
const FRAME: u32 = 64 * 1024;
/// Bytes of one response that may wait to be written.
const SEND_BUFFER: usize = 128 * 1024;
/// Number of the latest requests answered before their end that are remembered.
const ANSWERED_EARLY: usize = 256;
/// Overhead that each field counts toward the header list size, in addition to its text (RFC 9113
/// §6.5.2).
const FIELD_OVERHEAD: usize = 32;

/// Serves requests until the connection ends.
pub(crate) async fn serve(guard: ConnectionGuard, mut client: ClientConnection) {
    let worker = Rc::clone(&guard.worker);
    let waker_id = poll_fn(|cx| Poll::Ready(worker.register_waker(cx.waker().clone()))).await;
    let end = match read_preface(&worker, &mut client).await {
        Ok(()) => serve_connection(&worker, client).await,
        Err(fault) => fault,
    };
    worker.unregister_waker(waker_id);
    if let Some(fault) = end {
        worker.counters().http2_ended[fault as usize].add(1);
    }
}

/// Reads until the connection preface identifies HTTP/2. The error is `None` if the client has only
/// disconnected.
async fn read_preface(
    worker: &Worker,
    client: &mut ClientConnection,
) -> Result<(), Option<H2ClientFault>> {
    let timeout = settings(worker, client, |settings| settings.head_timeout).ok_or(None)?;
    client.deadline.set(clock::now() + timeout);
    let mut buffer = client.buffer.take().unwrap_or_else(|| worker.scratch.buffer_pool.take());
    let result = loop {
        let count = buffer.len().min(PREFACE.len());
        if buffer.unread()[..count] != PREFACE[..count] {
            // A client that speaks neither HTTP/1.1 nor HTTP/2 gets no answer.
            if memmem::find(buffer.unread(), b" HTTP/1.").is_some() {
                answer_in_http1(client).await;
            }
            break Err(Some(H2ClientFault::Preface));
        }
        if count == PREFACE.len() {
            break Ok(());
        }
        match poll_fn(|cx| client.poll_fill(cx, &mut buffer, BUFFER_BYTES)).await {
            ReadOutcome::Data => {}
            ReadOutcome::Closed => break Err(None),
            ReadOutcome::TimedOut => break Err(Some(H2ClientFault::Preface)),
        }
    };
    client.buffer = Some(buffer);
    result
}

/// Tells an HTTP/1.1 client, in HTTP/1.1, that this connection is HTTP/2.
async fn answer_in_http1(client: &mut ClientConnection) {
    let answer = b"HTTP/1.1 505 HTTP Version Not Supported\r\nConnection: close\r\n\
        Content-Type: text/plain; charset=utf-8\r\nContent-Length: 28\r\n\r\nthis connection uses HTTP/2\n";
    // One short write to a new connection; if the client does not accept it in time, it gets no
    // answer.
    let ClientConnection { stream, deadline, .. } = client;
    let mut writing = pin!(stream.write_all(answer));
    poll_fn(|cx| match writing.as_mut().poll(cx) {
        Poll::Ready(_) => Poll::Ready(()),
        Poll::Pending => deadline.poll(cx),
    })
    .await;
}

/// Returns a setting of the listener's current policy; `None` if the listener has been removed.
fn settings<T>(
    worker: &Worker,
    client: &ClientConnection,
    of: impl FnOnce(&ClientSettings) -> T,
) -> Option<T> {
    client.listener(&worker.config()).map(|listener| of(&listener.client))
}

/// Completes the HTTP/2 handshake and serves requests. Returns the fault for which the connection
/// was ended, or `None` if it ended normally.
async fn serve_connection(
    worker: &Rc<Worker>,
    mut client: ClientConnection,
) -> Option<H2ClientFault> {
    let windows = WINDOWS.under(worker.shared.budgets.memory.pressure());
    let (builder, streams) = settings(worker, &client, |settings| {
        (builder(settings, windows), settings.http2_max_concurrent_streams)
    })?;
    let preread = client.take_unread(worker);
    let (stream, mut deadline, mut arrival) = client.into_parts();
    arrival.destination = arrival.destination.or_else(|| stream.local_addr().ok());
    let detector = Rc::new(RefCell::new(FloodDetector::new(streams, clock::now())));
    let scheduler = Rc::default();
    let metered_stream =
        MeteredStream::new(stream, preread, Rc::clone(&detector), Rc::clone(&scheduler));
    let mut handshake = pin!(builder.handshake(metered_stream));
    // The preface has arrived; only the write of our own SETTINGS can block.
    let handshake_result = poll_fn(|cx| match handshake.as_mut().poll(cx) {
        Poll::Ready(handshake_result) => Poll::Ready(Some(handshake_result)),
        Poll::Pending => deadline.poll(cx).map(|()| None),
    });
    let frames = handshake_result.await?.ok()?;
    let carrier = MultiplexedClient::new(worker, arrival);
    let mut h2_connection = H2Connection::new(frames, carrier, detector, scheduler, windows);
    poll_fn(|cx| h2_connection.poll(cx, &mut deadline)).await
}

/// Returns the library's configuration: the SETTINGS that we send, and the library's own limits.
fn builder(settings: &ClientSettings, windows: FlowWindows) -> Builder {
    let fields = usize::from(settings.max_header_fields);
    let head = settings.max_head_bytes as usize + fields * FIELD_OVERHEAD;
    let mut builder = Builder::new();
    builder
        .initial_window_size(windows.stream)
        .initial_connection_window_size(windows.connection)
        .max_frame_size(FRAME)
        .max_header_list_size(u32::try_from(head).unwrap_or(u32::MAX))
        .max_concurrent_streams(settings.http2_max_concurrent_streams)
        .max_send_buffer_size(SEND_BUFFER)
        // The flood detector ends such a connection first, and allows for the resets that a client
        // has earned.
        .max_pending_accept_reset_streams(
            4 * most_resets(settings.http2_max_concurrent_streams) as usize,
        )
        // Frames that still arrive for requests answered before their end are dropped silently.
        .max_concurrent_reset_streams(ANSWERED_EARLY)
        .enable_connect_protocol();
    builder
}
