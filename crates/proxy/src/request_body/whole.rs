//! The whole body of a request, for an authorizer: it has to arrive before the request is authorized.
//!
//! The body counts towards the bytes that a worker keeps for requests. It is put back when the request may be served, and
//! is then sent as one that has arrived with its head; its length is known now, and its trailers are dropped.

use std::future::poll_fn;
use std::task::{Context, Poll};

use balance::Time;
use codec::head::{BodyFraming, KnownFieldName};
use gateway::snapshot::ClientSettings;

use super::{ArrivalDeadlines, failure};
use crate::body::{BodySource, REPLAY_BYTES};
use crate::buffer::ReadBuffer;
use crate::context::RequestContext;
use crate::failure::Failure;
use crate::relay;
use crate::scratch::{ArrivalReservation, ReplayReservation};

// A body for an authorizer is never larger than what arrives before a request is served: it is whole, or refused.
const _: () = assert!((u16::MAX as usize) < REPLAY_BYTES);

/// The whole body of a request.
pub(crate) struct WholeBody {
    pub(crate) bytes: Vec<u8>,
    reservation: ReplayReservation,
}

/// Receives the body of a request, if it has one.
///
/// # Errors
/// If the body has more bytes than `most`, or does not arrive by the deadlines for bodies.
pub(crate) async fn receive(
    context: &mut RequestContext<'_>,
    settings: &ClientSettings,
    deadline: Time,
    most: u64,
) -> Result<Option<WholeBody>, Failure> {
    let framing = context.exchange.request.framing;
    if framing.is_empty() || context.exchange.request.upgrade {
        return Ok(None);
    }
    if matches!(framing, BodyFraming::Length(length) if length > most) {
        return Err(Failure::BodyTooLarge);
    }
    let room = ArrivalReservation::new(&context.worker.replay_budget);
    context.exchange.upload.write_as(BodyFraming::None);
    context.exchange.upload.set_max_body_bytes(most);
    // All of it is kept: none is left in the buffer to be sent from there.
    context.exchange.upload.keep_for_replay(&context.worker.replay_budget, None);
    let at_once = poll_fn(|cx| Poll::Ready(poll_body(cx, context, &room))).await;
    match at_once {
        Poll::Ready(received) => received?,
        Poll::Pending => wait(context, &room, settings, deadline).await?,
    }
    if !context.exchange.upload.is_read() {
        return Err(Failure::BodyTooLarge);
    }
    let request = &mut context.exchange.request;
    if request.expect_continue {
        request.expect_continue = false;
        request.fields.remove(KnownFieldName::Expect);
    }
    let bytes = std::mem::take(&mut context.exchange.upload.out);
    let mut reservation = ReplayReservation::new(&context.worker.replay_budget);
    reservation.adopt(&room);
    // The question has a copy.
    if !reservation.grow(2 * bytes.len()) {
        return Err(Failure::BodyEvicted);
    }
    Ok(Some(WholeBody { bytes, reservation }))
}

async fn wait(
    context: &mut RequestContext<'_>,
    room: &ArrivalReservation,
    settings: &ClientSettings,
    deadline: Time,
) -> Result<(), Failure> {
    if context.exchange.request.expect_continue && context.exchange.upload.body_bytes == 0 {
        let RequestContext { client, exchange, .. } = context;
        relay::send_continue(client, exchange, settings.body_timeout, deadline).await?;
    }
    let started = context.record.started;
    let mut limits = ArrivalDeadlines::of_whole_body(settings, started, deadline);
    poll_fn(|cx| {
        if !room.watch(cx) {
            return Poll::Ready(Err(Failure::BodyEvicted));
        }
        if let Poll::Ready(received) = poll_body(cx, context, room) {
            return Poll::Ready(received);
        }
        limits.poll(cx, context.client, &context.exchange.upload, true).map(Err)
    })
    .await
}

fn poll_body(
    cx: &mut Context<'_>,
    context: &mut RequestContext<'_>,
    room: &ArrivalReservation,
) -> Poll<Result<(), Failure>> {
    let RequestContext { worker, client, exchange, .. } = context;
    let mut source = BodySource { stream: &mut client.stream, buffer: &mut client.buffer };
    let received = exchange.upload.poll_receive(cx, &mut source, &worker.scratch, Some(room));
    received.map_err(|stop| failure(stop).unwrap_or(Failure::ClientGone))
}

impl WholeBody {
    /// Puts the body back before what has been read from the client after it.
    pub(crate) fn put_back(self, context: &mut RequestContext<'_>) {
        let Self { mut bytes, reservation } = self;
        let RequestContext { worker, client, exchange, .. } = context;
        let framing = BodyFraming::Length(bytes.len() as u64);
        exchange.request.framing = framing;
        exchange.upload.start(framing, framing);
        if let Some(buffer) = client.buffer.take() {
            bytes.extend_from_slice(buffer.unread());
            worker.scratch.buffer_pool.give_back(buffer);
        }
        if !bytes.is_empty() {
            client.buffer = Some(ReadBuffer::from_bytes(bytes));
        }
        if let Some(filters) = &mut exchange.filters {
            filters.body_reservation = Some(reservation);
        }
    }
}
