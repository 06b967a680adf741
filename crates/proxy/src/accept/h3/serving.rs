//! The task of one request.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use gateway::snapshot::ClientSettings;

use crate::accept::carrier::{Carrier, websocket_key};
use crate::accept::client::Client;
use crate::clock;
use crate::exchange::Exchange;
use crate::failure::Failure;
use crate::h1::HeadLimits;
use crate::h3::H3Stream;
use crate::head::RequestHead;
use crate::quic::QuicConnection;
use crate::stream::{Broken, Stream};

/// What requests that came before the handshake was over say to endpoints (RFC 8470 §5.1).
const EARLY_DATA: &str = "Early-Data";

/// A connection as its requests share it.
pub(super) struct Streams {
    pub(super) carrier: Carrier,
    pub(super) connection: QuicConnection,
    /// Requests that the client gave up, as far as they have not been held against it.
    pub(super) given_up: Cell<u32>,
}

impl Streams {
    pub(super) fn new(carrier: Carrier, connection: QuicConnection) -> Rc<Self> {
        Rc::new(Self { carrier, connection, given_up: Cell::new(0) })
    }

    /// Begins a request, in a task of its own.
    pub(super) fn begin(self: &Rc<Self>, message: H3Stream) {
        let (mut client, exchange) = self.carrier.begin(Stream::from(message));
        client.seen_at = self.connection.peer();
        tokio::task::spawn_local(serve(Rc::clone(self), client, exchange));
    }
}

async fn serve(streams: Rc<Streams>, mut client: Client, mut exchange: Box<Exchange>) {
    let carrier = &streams.carrier;
    let read = read_head(&streams, &mut client, &mut exchange).await;
    if read == Err(Failure::ClientGone) {
        // There is nobody to answer, and nothing to tell of a request that never was.
        client.since = clock::now();
    } else {
        carrier.serve(&mut client, &mut exchange, read).await;
    }
    if let Stream::H3(message) = &client.stream
        && message.error() == Some(Broken::Reset)
    {
        carrier.worker.counters().http3_streams_reset.add(1);
        streams.given_up.set(streams.given_up.get() + 1);
    }
    carrier.end(client, exchange);
}

/// Reads a request's head by the limits that are in force when it begins.
async fn read_head(
    streams: &Streams,
    client: &mut Client,
    exchange: &mut Exchange,
) -> Result<(), Failure> {
    let worker = &streams.carrier.worker;
    let live = worker.live();
    let settings = &client.listener(&live).ok_or(Failure::NoRoute)?.client;
    let limits = HeadLimits::of(settings);
    let Client { stream: Stream::H3(message), deadline, .. } = client else {
        return Err(Failure::ClientGone);
    };
    deadline.set(clock::now() + settings.head_timeout);
    let request = &mut exchange.request;
    poll_fn(|cx| {
        let key = || websocket_key(&mut worker.rng.borrow_mut());
        if let Poll::Ready(read) = message.poll_request(cx, &limits, key, request) {
            return Poll::Ready(read);
        }
        deadline.poll(cx).map(|()| Err(Failure::HeadTimeout))
    })
    .await?;
    if streams.connection.is_early_data() { take_early(client, settings, request) } else { Ok(()) }
}

/// Whether a request may be served whose client has not shown yet that it is there: whoever has seen it pass can have
/// sent it, from any address.
fn take_early(
    client: &Client,
    settings: &ClientSettings,
    request: &mut RequestHead,
) -> Result<(), Failure> {
    let is_safe = request.method.is_safe() && !request.upgrade;
    if !is_safe || client.origin.is_trusted(settings) {
        return Err(Failure::TooEarly);
    }
    if request.fields.get(EARLY_DATA).is_none() {
        request.fields.append(EARLY_DATA, "1");
    }
    Ok(())
}
