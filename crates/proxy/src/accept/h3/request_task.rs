//! Task of one HTTP/3 request.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

use codec::head::RequestHead;
use gateway::snapshot::ClientSettings;
use quic::QuicConnection;

use crate::accept::client::{ClientConnection, head_limits};
use crate::accept::multiplexed_client::{MultiplexedClient, websocket_key};
use crate::clock;
use crate::exchange::Exchange;
use crate::failure::Failure;
use crate::h3::H3Stream;
use crate::stream::{PeerStream, StreamError};

/// Field that tells endpoints that a request arrived as TLS early data (RFC 8470 §5.1).
const EARLY_DATA: &str = "Early-Data";

/// Connection as its requests share it.
pub(super) struct H3ConnectionContext {
    pub(super) multiplexed_client: MultiplexedClient,
    pub(super) connection: QuicConnection,
    /// Cancelled requests that have not been charged to the client's token bucket.
    pub(super) uncharged_resets: Cell<u32>,
}

impl H3ConnectionContext {
    pub(super) fn new(carrier: MultiplexedClient, connection: QuicConnection) -> Rc<Self> {
        Rc::new(Self { multiplexed_client: carrier, connection, uncharged_resets: Cell::new(0) })
    }

    /// Begins a request in a task of its own.
    pub(super) fn begin_request(self: &Rc<Self>, message: H3Stream) {
        let (mut client, exchange) =
            self.multiplexed_client.begin_request(PeerStream::from(message));
        client.current_peer = self.connection.peer();
        tokio::task::spawn_local(serve(Rc::clone(self), client, exchange));
    }
}

async fn serve(
    streams: Rc<H3ConnectionContext>,
    mut client: ClientConnection,
    mut exchange: Box<Exchange>,
) {
    let carrier = &streams.multiplexed_client;
    let read = read_head(&streams, &mut client, &mut exchange).await;
    if read == Err(Failure::ClientGone) {
        // The client has disconnected before the request was complete: there is no response to send
        // and no request to log.
        client.last_event_at = clock::now();
    } else {
        carrier.serve_request(&mut client, &mut exchange, read).await;
    }
    if let PeerStream::H3(message) = &client.stream
        && message.error() == Some(StreamError::Reset)
    {
        carrier.worker.counters().http3_streams_reset.add(1);
        streams.uncharged_resets.set(streams.uncharged_resets.get() + 1);
    }
    carrier.end_request(client, exchange);
}

/// Reads a request's head with the limits in force when the request begins.
async fn read_head(
    streams: &H3ConnectionContext,
    client: &mut ClientConnection,
    exchange: &mut Exchange,
) -> Result<(), Failure> {
    let worker = &streams.multiplexed_client.worker;
    let active_config = worker.config();
    let settings = &client.listener(&active_config).ok_or(Failure::NoRoute)?.client;
    let limits = head_limits(settings);
    let ClientConnection { stream: PeerStream::H3(message), deadline, .. } = client else {
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
    if streams.connection.is_early_data() {
        admit_early_data(client, settings, request)
    } else {
        Ok(())
    }
}

/// Admits a request in early data if replaying it is safe: the client is not yet validated, so an
/// observer of the packets may have replayed the request, from any address.
fn admit_early_data(
    client: &ClientConnection,
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
