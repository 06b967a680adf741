//! How a connection comes to the worker that serves it, and who takes it from there.
//!
//! A connection travels as a bare descriptor: it is registered with the runtime that serves it and with no other.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use balance::Time;
use gateway::snapshot::Protocol;
use tokio::net::TcpStream;

use crate::accept::client::Client;
use crate::accept::{h1, introduction};
use crate::live::Bound;
use crate::observe::passage::Record;
use crate::tcp;
use crate::worker::{Command, Seat, Worker};

/// How a connection came here.
pub(crate) struct Arrival {
    pub(crate) peer: SocketAddr,
    /// Where a proxy before us says that the client has connected to.
    pub(crate) destination: Option<SocketAddr>,
    pub(crate) bound: Arc<Bound>,
    pub(crate) accepted: Time,
    /// It comes from another worker, between two requests.
    pub(crate) moved: bool,
}

/// A connection on its way to another worker: registered with none.
pub(crate) struct Handover {
    stream: std::net::TcpStream,
    arrival: Arrival,
}

/// Sends the connection to the worker of that seat, which counts it already.
pub(crate) fn hand_over(seat: &Seat, stream: TcpStream, arrival: Arrival) {
    match stream.into_std() {
        Ok(stream) => seat.tell(Command::Adopt(Handover { stream, arrival })),
        Err(_) => {
            seat.connections.fetch_sub(1, Ordering::AcqRel);
            arrival.bound.leave();
        }
    }
}

/// Takes in what another worker has sent.
pub(crate) fn adopt(worker: &Rc<Worker>, handover: Handover) {
    let Handover { stream, arrival } = handover;
    match TcpStream::from_std(stream) {
        Ok(stream) => spawn(worker, stream, arrival),
        Err(_) => drop(Presence::new(worker, &arrival.bound)),
    }
}

/// Serves the connection on this worker from now on.
pub(crate) fn spawn(worker: &Rc<Worker>, stream: TcpStream, arrival: Arrival) {
    let presence = Presence::new(worker, &arrival.bound);
    let moved = arrival.moved;
    let client = Client::new(stream, arrival);
    worker.counters().moved_in.add(u64::from(moved));
    if moved || is_ready_for_http(worker, &client) {
        // Not by way of `receive`, through which each of its requests would have to wake.
        tokio::task::spawn_local(h1::serve(presence, client));
    } else {
        tokio::task::spawn_local(receive(presence, client));
    }
}

/// The connection is the client's from its first byte, and carries requests.
fn is_ready_for_http(worker: &Worker, client: &Client) -> bool {
    let live = worker.live();
    let listener = client.listener(&live);
    listener.is_some_and(|listener| matches!(listener.protocol, Protocol::Http(_)))
        && introduction::due(worker, client).is_none()
}

/// Learns who the client is, then serves it in the listener's protocol.
async fn receive(presence: Presence, mut client: Client) {
    let worker = Rc::clone(&presence.worker);
    if let Some(introduction) = introduction::due(&worker, &client) {
        // Boxed, so that a connection that goes on for long does not keep the room.
        let introduced = Box::pin(introduction::hear(&worker, &mut client, introduction)).await;
        if let Err(failure) = introduced {
            return Record::of_connection(&client).close_failed(&worker, failure);
        }
    }
    let live = worker.live();
    let is_http = match client.listener(&live).map(|listener| &listener.protocol) {
        Some(Protocol::Http(_)) => true,
        Some(Protocol::Tcp(_)) => false,
        // The address is not listened on any more, or not for connections.
        Some(Protocol::Udp(_)) | None => return,
    };
    drop(live);
    if is_http {
        h1::serve(presence, client).await;
    } else {
        tcp::serve(presence, client).await;
    }
}

/// The connection in the counts of its listener and worker, for as long as it is here.
pub(crate) struct Presence {
    pub(crate) worker: Rc<Worker>,
    bound: Arc<Bound>,
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
