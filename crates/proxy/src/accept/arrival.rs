//! How a connection comes to the worker that serves it, and who takes it from there.
//!
//! A connection travels as a bare descriptor, with its TLS session if it has one: it is registered with the runtime that
//! serves it and with no other.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use balance::Time;
use gateway::snapshot::{ListenerProtocol, UrlScheme};

use crate::accept::client::Client;
use crate::accept::h1;
use crate::accept::handshake;
use crate::accept::introduction::{self, Introduction};
use crate::demand::Refused;
use crate::forwarded::Origin;
use crate::live::Bound;
use crate::observe::passage::Record;
use crate::stream::{Detached, Stream};
use crate::tcp;
use crate::tls::Greeting;
use crate::worker::{Command, Seat, Worker};

/// How a connection came here.
pub(crate) struct Arrival {
    pub(crate) peer: SocketAddr,
    /// Where a proxy before us says that the client has connected to.
    pub(crate) destination: Option<SocketAddr>,
    pub(crate) bound: Arc<Bound>,
    /// What its TLS has told; `None`: nothing yet, or there is none.
    pub(crate) greeting: Option<Arc<Greeting>>,
    pub(crate) accepted: Time,
    /// What its client has been refused.
    pub(crate) refused: Refused,
    /// It comes from another worker, between two requests.
    pub(crate) moved: bool,
}

impl Arrival {
    /// Where its requests come from.
    pub(super) fn origin(&self) -> Origin {
        let scheme = if self.greeting.is_some() { UrlScheme::Https } else { UrlScheme::Http };
        Origin::new(self.peer, scheme)
    }
}

/// A connection on its way to another worker: registered with none.
pub(crate) struct Handover {
    stream: Detached,
    arrival: Arrival,
}

/// Sends the connection to the worker of that seat, which counts it already.
pub(crate) fn hand_over(seat: &Seat, stream: Stream, arrival: Arrival) {
    match stream.detach() {
        Some(stream) => seat.tell(Command::Adopt(Handover { stream, arrival })),
        None => {
            seat.connections.fetch_sub(1, Ordering::AcqRel);
            arrival.bound.leave();
        }
    }
}

/// Takes in what another worker has sent.
pub(crate) fn adopt(worker: &Rc<Worker>, handover: Handover) {
    let Handover { stream, arrival } = handover;
    match stream.attach() {
        Ok(stream) => spawn(worker, stream, arrival),
        Err(_) => drop(Presence::new(worker, &arrival.bound)),
    }
}

/// Serves the connection on this worker from now on.
pub(crate) fn spawn(worker: &Rc<Worker>, stream: Stream, arrival: Arrival) {
    let presence = Presence::new(worker, &arrival.bound);
    let moved = arrival.moved;
    let client = Client::new(stream, arrival);
    if moved {
        worker.counters().moved_in.add(1);
        return begin(presence, client);
    }
    match introduction::due(worker, &client) {
        Some(introduction) => {
            tokio::task::spawn_local(introduce(presence, client, introduction));
        }
        None => begin(presence, client),
    }
}

/// Learns who the client is before anything else.
async fn introduce(presence: Presence, mut client: Client, introduction: Introduction) {
    let worker = Rc::clone(&presence.worker);
    match introduction::hear(&worker, &mut client, introduction).await {
        Ok(()) => begin(presence, client),
        Err(failure) => {
            client.reset_on_close();
            Record::of_connection(&client).close_failed(&worker, failure);
        }
    }
}

/// Serves the client in the listener's protocol, in a task that does nothing else: each request wakes through all of it.
fn begin(presence: Presence, client: Client) {
    let live = presence.worker.live();
    let listener = client.listener(&live);
    if listener.is_some_and(|listener| listener.tls.is_some()) && client.greeting.is_none() {
        tokio::task::spawn_local(handshake::serve(presence, client));
        return;
    }
    match listener.map(|listener| &listener.protocol) {
        Some(ListenerProtocol::Http(_)) => {
            tokio::task::spawn_local(h1::serve(presence, client));
        }
        Some(ListenerProtocol::Tcp(_)) => {
            tokio::task::spawn_local(tcp::serve(presence, client));
        }
        // The address is not listened on any more, or not for connections.
        Some(ListenerProtocol::Udp(_)) | None => {}
    }
}

/// The connection in the counts of its listener and worker, for as long as it is here.
pub(crate) struct Presence {
    pub(crate) worker: Rc<Worker>,
    pub(crate) bound: Arc<Bound>,
    moved_on: bool,
}

impl Presence {
    pub(crate) fn new(worker: &Rc<Worker>, bound: &Arc<Bound>) -> Self {
        Self { worker: Rc::clone(worker), bound: Arc::clone(bound), moved_on: false }
    }

    /// It goes on on the worker of that seat, which counts it from now on.
    pub(crate) fn move_to(&mut self, home: usize) -> &Seat {
        self.moved_on = true;
        let seat = &self.worker.shared.seats[home];
        seat.connections.fetch_add(1, Ordering::AcqRel);
        seat
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.worker.seat().connections.fetch_sub(1, Ordering::AcqRel);
        if !self.moved_on {
            self.bound.leave();
            self.bound.counters[self.worker.index].closed.add(1);
        }
    }
}
