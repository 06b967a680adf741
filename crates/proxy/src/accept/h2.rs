//! A client's HTTP/2 connection: many requests at a time, each on a stream and in a task of its own.
//!
//! The connection reads frames, begins requests, and writes what they have to say: those that are ready at a time leave
//! in one write. What becomes of a request is decided where it is decided for every protocol. It ends by GOAWAY in two
//! steps (RFC 9113 §6.8), so that nothing is lost that a client had sent; a client for which there is no use (`Fault`)
//! is told so and cut off.

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
use crate::worker::Worker;

/// The connection from its first request to its end.
mod connection;
/// The task of one request.
mod request_task;
/// What a client's frames are worth.
mod flood_detector;
/// What the library reads and writes.
mod metered_stream;
/// For what a connection is ended before its time.
mod fault;

pub(crate) use fault::H2ClientFault;
pub(super) use flood_detector::PREFACE;

use connection::H2Connection;
use flood_detector::FloodDetector;
use metered_stream::MeteredStream;

/// What a client may send of one request before the endpoint has taken it: at 1 ms from us it is 2 Gbit/s.
const STREAM_WINDOW: u32 = 256 * 1024;
/// What it may send on one connection: the requests of 16 endpoints that take nothing do not hold up the others.
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;
/// Bodies come in frames of this size at most: a large body takes a quarter of the frames that the usual 16 KiB need.
const FRAME: u32 = 64 * 1024;
/// What of one response may wait to be written.
const SEND_BUFFER: usize = 128 * 1024;
/// Requests that were answered before their end, of which the latest are remembered.
const ANSWERED_EARLY: usize = 256;
/// What a field takes of the limit of a head beside its text (RFC 9113 §6.5.2).
const FIELD_OVERHEAD: usize = 32;

/// Serves requests until the connection ends.
pub(crate) async fn serve(presence: ConnectionGuard, mut client: ClientConnection) {
    let worker = Rc::clone(&presence.worker);
    let sleeping = poll_fn(|cx| Poll::Ready(worker.register_waker(cx.waker().clone()))).await;
    let end = match read_preface(&worker, &mut client).await {
        Ok(()) => serve_connection(&worker, client).await,
        Err(fault) => fault,
    };
    worker.unregister_waker(sleeping);
    if let Some(fault) = end {
        worker.counters().http2_ended[fault as usize].add(1);
    }
}

/// Reads as far as it takes to know that this is HTTP/2. The fault is `None` for a client that has only left.
async fn read_preface(
    worker: &Worker,
    client: &mut ClientConnection,
) -> Result<(), Option<H2ClientFault>> {
    let patience = settings(worker, client, |settings| settings.head_timeout).ok_or(None)?;
    client.deadline.set(clock::now() + patience);
    let mut buffer = client.buffer.take().unwrap_or_else(|| worker.scratch.buffer_pool.take());
    let result = loop {
        let count = buffer.len().min(PREFACE.len());
        if buffer.unread()[..count] != PREFACE[..count] {
            // Whoever speaks neither is not told in words that it does not know.
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

/// Tells a client of HTTP/1.1 what is wrong, in words that it knows.
async fn answer_in_http1(client: &mut ClientConnection) {
    let answer = b"HTTP/1.1 505 HTTP Version Not Supported\r\nConnection: close\r\n\
        Content-Type: text/plain; charset=utf-8\r\nContent-Length: 29\r\n\r\nthis connection is of HTTP/2\n";
    // One short write to a connection that has just begun; who does not take it does without.
    let ClientConnection { stream, deadline, .. } = client;
    let mut writing = pin!(stream.write_all(answer));
    poll_fn(|cx| match writing.as_mut().poll(cx) {
        Poll::Ready(_) => Poll::Ready(()),
        Poll::Pending => deadline.poll(cx),
    })
    .await;
}

/// What the listener's policy says now; `None`: nobody listens there any more.
fn settings<T>(
    worker: &Worker,
    client: &ClientConnection,
    of: impl FnOnce(&ClientSettings) -> T,
) -> Option<T> {
    client.listener(&worker.config()).map(|listener| of(&listener.client))
}

/// Agrees on HTTP/2, and serves requests. Why the connection was ended; `None`: it has come to its end.
async fn serve_connection(
    worker: &Rc<Worker>,
    mut client: ClientConnection,
) -> Option<H2ClientFault> {
    let (builder, streams) = settings(worker, &client, |settings| {
        (builder(settings), settings.http2_max_concurrent_streams)
    })?;
    let ahead = client.take_unread(worker);
    let (stream, mut deadline, mut arrival) = client.into_parts();
    arrival.destination = arrival.destination.or_else(|| stream.local_addr().ok());
    let meter = Rc::new(RefCell::new(FloodDetector::new(streams, clock::now())));
    let turns = Rc::default();
    let wire = MeteredStream::new(stream, ahead, Rc::clone(&meter), Rc::clone(&turns));
    let mut handshake = pin!(builder.handshake(wire));
    // The preface is there; only our own settings may have to wait for room.
    let begun = poll_fn(|cx| match handshake.as_mut().poll(cx) {
        Poll::Ready(begun) => Poll::Ready(Some(begun)),
        Poll::Pending => deadline.poll(cx).map(|()| None),
    });
    let frames = begun.await?.ok()?;
    let mut talk = H2Connection::new(frames, MultiplexedClient::new(worker, arrival), meter, turns);
    poll_fn(|cx| talk.poll(cx, &mut deadline)).await
}

/// The settings that we say, and the library's own.
fn builder(settings: &ClientSettings) -> Builder {
    let fields = usize::from(settings.max_header_fields);
    let head = settings.max_head_bytes as usize + fields * FIELD_OVERHEAD;
    let mut builder = Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .max_header_list_size(u32::try_from(head).unwrap_or(u32::MAX))
        .max_concurrent_streams(settings.http2_max_concurrent_streams)
        .max_send_buffer_size(SEND_BUFFER)
        // The meter ends such a connection first, and knows who may.
        .max_pending_accept_reset_streams(
            4 * most_resets(settings.http2_max_concurrent_streams) as usize,
        )
        // Requests that were answered before they had come: what still comes of them is dropped without a word.
        .max_concurrent_reset_streams(ANSWERED_EARLY)
        .enable_connect_protocol();
    builder
}
