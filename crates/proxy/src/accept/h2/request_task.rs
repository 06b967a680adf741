//! Task of one HTTP/2 request.

use std::rc::Rc;

use bytes::Bytes;
use codec::h2::request as head;
use h2::RecvStream;
use h2::ext::Protocol;
use h2::server::SendResponse;

use crate::accept::client::head_limits;
use crate::accept::multiplexed_client::{MultiplexedClient, websocket_key};
use crate::exchange::Exchange;
use crate::failure::Failure;
use crate::h2::{H2Stream, ScheduledResponse};
use crate::stream::PeerStream;

/// Begins a request in a task of its own.
pub(super) fn begin(
    carrier: &Rc<MultiplexedClient>,
    request: http::Request<RecvStream>,
    response: SendResponse<Bytes>,
    turn: ScheduledResponse,
) {
    let (parts, body) = request.into_parts();
    let is_whole = body.is_end_stream();
    let message = Box::new(H2Stream::from_client(body, response, turn));
    let (mut client, mut exchange) = carrier.begin_request(PeerStream::H2(message));
    let read = read_head(carrier, &parts, is_whole, &mut exchange);
    let carrier = Rc::clone(carrier);
    tokio::task::spawn_local(async move {
        carrier.serve_request(&mut client, &mut exchange, read).await;
        carrier.end_request(client, exchange);
    });
}

/// Reads a request's head with the limits now in force.
fn read_head(
    carrier: &MultiplexedClient,
    parts: &http::request::Parts,
    is_whole: bool,
    exchange: &mut Exchange,
) -> Result<(), Failure> {
    let worker = &carrier.worker;
    let active_config = worker.config();
    let listener = active_config.listener(&carrier.bound).ok_or(Failure::NoRoute)?;
    let limits = head_limits(&listener.client);
    let key = || websocket_key(&mut worker.rng.borrow_mut());
    let protocol = parts.extensions.get::<Protocol>().map(Protocol::as_str);
    head::read(parts, protocol, is_whole, &limits, key, &mut exchange.request)
        .map_err(Failure::BadRequest)
}
