//! One HTTP/3 connection to an endpoint.
//!
//! A link begins when the endpoint has said its settings, so that it is known to speak HTTP/3 before any request depends
//! on it. Who has gone without a word is noticed by QUIC itself: it does not let a link fall silent, and ends one on which
//! nothing comes any more.

use std::cell::Cell;
use std::future::{pending, poll_fn};
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::time::sleep;

use crate::dial::attempt::RESPONSE_LIMITS;
use crate::dial::call::Call;
use crate::dial::h2::FIELD_OVERHEAD;
use crate::dial::link::{self, BETWEEN_PINGS, Berth, Condition, Open, PONG, State, Tally, Wear};
use crate::failure::Failure;
use crate::h3::{Code, Conversation, Event, Message, Peer, Ties, request};
use crate::quic::{Closed, Connection, RecvStream, SendStream};
use crate::stream::Stream;
use crate::tls::Untrusted;

/// One HTTP/3 connection to an endpoint.
pub(super) struct Link {
    connection: Connection,
    ties: Rc<Ties>,
    takes_websockets: bool,
    shared: Rc<Shared>,
    /// Opened to see whether one may be; nothing is sent by that.
    next: Option<(SendStream, RecvStream)>,
    wear: Wear,
}

/// What a link and its driver know of each other.
#[derive(Default)]
struct Shared {
    said_goaway: Cell<bool>,
    /// The endpoint allows no more streams now.
    full: Notify,
}

/// Agrees with the endpoint on HTTP/3; the caller bounds the time.
pub(super) async fn begin(
    connection: &Connection,
    room: Arc<Notify>,
    tally: Arc<Tally>,
) -> Result<(Link, Driver), Failure> {
    poll_fn(|cx| connection.poll_established(cx)).await.map_err(why)?;
    let head = RESPONSE_LIMITS.head_bytes + RESPONSE_LIMITS.fields * FIELD_OVERHEAD;
    let mut conversation = Conversation::new(connection, Peer::Endpoint, head as u64);
    let settings = loop {
        tokio::select! {
            heard = poll_fn(|cx| conversation.poll(cx)) => match heard {
                Ok(Event::Settings(settings)) => break settings,
                Ok(Event::GoAway(_)) => {}
                Err(_offence) => return Err(Failure::EndpointClosed),
            },
            closed = poll_fn(|cx| connection.poll_closed(cx)) => return Err(why(closed)),
        }
    };
    // How many streams there may be, QUIC says.
    let state = State::new(u32::MAX, room, tally, Arc::default());
    let shared = Rc::new(Shared::default());
    let link = Link {
        connection: connection.clone(),
        ties: Rc::clone(conversation.ties()),
        takes_websockets: settings.connect_protocol,
        shared: Rc::clone(&shared),
        next: None,
        wear: Wear::new(Arc::clone(&state)),
    };
    let driver = Driver {
        connection: connection.clone(),
        conversation,
        shared,
        _open: Open::new(&state),
        state,
    };
    Ok((link, driver))
}

/// What the end of a connection that carries nothing yet means.
fn why(closed: Closed) -> Failure {
    match closed {
        Closed::Refused => Failure::ConnectFailed,
        Closed::TimedOut => Failure::ConnectTimeout,
        Closed::Secured(why) => Failure::Untrusted(why),
        Closed::Transport | Closed::VersionMismatch => Failure::Untrusted(Untrusted::Protocol),
        Closed::Reset => Failure::EndpointReset,
        Closed::ByPeer { .. } | Closed::ByUs => Failure::EndpointClosed,
    }
}

impl link::Link for Link {
    fn wear(&mut self) -> &mut Wear {
        &mut self.wear
    }

    fn standing(&mut self) -> Condition {
        let said_goaway = self.shared.said_goaway.get();
        if said_goaway || self.connection.closed().is_some() {
            return Condition::Over { said_goaway };
        }
        Condition::Usable
    }

    fn has_room(&mut self) -> bool {
        if self.next.is_none() {
            self.next = self.connection.open_bi();
        }
        if self.next.is_none() {
            self.shared.full.notify_one();
        }
        self.next.is_some()
    }
}

impl Link {
    /// Sends the head of a request on a stream of its own.
    pub(super) fn send(&mut self, call: &Call<'_>) -> Result<(Stream, Berth), Failure> {
        let order = &call.order;
        // What opens a WebSocket is a CONNECT that not everybody takes (RFC 9220).
        if order.request.upgrade && !self.takes_websockets {
            return Err(Failure::NoUpgrade);
        }
        let (head, framing, address) = (order.request, order.framing, call.endpoint.address);
        let section = |out: &mut Vec<u8>| request::write(head, framing, address, out);
        // The link has just said that it takes one.
        let (sending, receiving) = self.next.take().ok_or(Failure::EndpointClosed)?;
        let is_whole = order.is_whole();
        let message = Message::to_endpoint(sending, receiving, &self.ties, section, is_whole);
        Ok((Stream::from(message), self.wear.berth(call.fresh)))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.wear.state.let_go();
    }
}

/// Hears what the endpoint says of a link as a whole, and ends it.
pub(super) struct Driver {
    connection: Connection,
    conversation: Conversation,
    shared: Rc<Shared>,
    state: Arc<State>,
    _open: Open,
}

impl Driver {
    /// Runs until the link has ended.
    pub(super) async fn run(mut self) {
        let Self { connection, conversation, shared, state, .. } = &mut self;
        tokio::select! {
            () = converse(conversation, shared) => {}
            () = make_room(connection, shared, state) => {}
            () = gone(connection, state) => {}
            // How it ended is told to its streams.
            _ = poll_fn(|cx| connection.poll_closed(cx)) => {}
            () = state.emptied.notified() => {}
        }
        connection.close(Code::NO_ERROR.0, "");
    }
}

/// Ready when the endpoint has offended, for which the connection has been closed.
async fn converse(conversation: &mut Conversation, shared: &Shared) {
    while let Ok(event) = poll_fn(|cx| conversation.poll(cx)).await {
        match event {
            Event::GoAway(_) => shared.said_goaway.set(true),
            // They come once.
            Event::Settings(_) => {}
        }
    }
}

/// Tells who waits when the endpoint allows more streams.
async fn make_room(connection: &Connection, shared: &Shared, state: &State) {
    loop {
        shared.full.notified().await;
        if poll_fn(|cx| connection.poll_can_open_bi(cx)).await.is_err() {
            return pending().await;
        }
        state.room.notify_waiters();
    }
}

/// Ready when the endpoint, doubted, has not even acknowledged a PING.
async fn gone(connection: &Connection, state: &State) {
    loop {
        state.doubt.notified().await;
        let before = connection.received();
        connection.ping();
        sleep(PONG).await;
        if connection.received() == before {
            return;
        }
        sleep(BETWEEN_PINGS).await;
    }
}
