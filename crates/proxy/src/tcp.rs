//! The life of a client's TCP connection: an endpoint is chosen once, then bytes go both ways until both sides have ended.
//!
//! The connection holds its slot to its end. What one side ends in order ends in order on the other, each way for
//! itself; what breaks on one side is reset on the other, so that half a stream never looks whole. For the same reason a
//! client that gets no endpoint is reset. It knows nothing of what the bytes mean.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use balance::AttemptResult;
use gateway::snapshot::BackendSettings;

use crate::accept::arrival::Presence;
use crate::accept::client::{Client, Interrupt};
use crate::backend::{BackendRef, Current, Slot};
use crate::clock;
use crate::dial::connect::connect;
use crate::dial::pool::Endpoint;
use crate::failure::Failure;
use crate::observe::passage::Record;
use crate::passage::{self, Entered, Way};
use crate::stream::Stream;
use crate::tls::Security;
use crate::worker::Worker;

/// One way of a connection.
mod one_way;

use one_way::{Broken, OneWay};

/// Carries the connection to an endpoint, and to its end.
pub(crate) async fn serve(presence: Presence, mut client: Client) {
    let worker = Rc::clone(&presence.worker);
    let mut record = Record::of_connection(&client);
    if let Err(failure) = carry(&worker, &mut client, &mut record).await {
        client.reset_on_close();
        record.failure = Some(failure);
    }
    record.close(&worker);
}

async fn carry(
    worker: &Rc<Worker>,
    client: &mut Client,
    record: &mut Record,
) -> Result<(), Failure> {
    let live = worker.live();
    let listener = client.listener(&live).ok_or(Failure::NoRoute)?;
    let rule = listener.connection_rule(client.greeting.as_deref()).ok_or(Failure::NoRoute)?;
    let idle = listener.client.stream_idle_timeout;
    let way = Way::by(worker, &live, rule)?;
    record.goes(&way);
    drop(live);
    // Boxed, so that the connection does not keep the room that its beginning took.
    let reached = Box::pin(reach(worker, client, &way.backend, record)).await?;
    // Dropped in reverse: the connection is closed before the slot is free.
    let (_slot, mut endpoint) = reached;
    let end = relay(worker, client, &mut endpoint, idle, record).await;
    if end.is_err() {
        endpoint.reset_on_close();
    }
    end
}

/// A connection to one of the backend's endpoints. Nothing of the client's has been sent, so each is tried once.
async fn reach(
    worker: &Rc<Worker>,
    client: &mut Client,
    backend: &BackendRef,
    record: &mut Record,
) -> Result<(Slot, Stream), Failure> {
    let held = backend.hold();
    let settings = &held.settings;
    let mut tried = Vec::new();
    loop {
        let slot = admit(worker, client, backend, &tried, settings, record).await?;
        record.attempt(&slot);
        let failure = match open(worker, client, &slot, &held).await {
            Ok(stream) => {
                slot.conclude(worker, &held, AttemptResult::Success, None);
                return Ok((slot, stream));
            }
            Err(failure) => failure,
        };
        slot.conclude(worker, &held, failure.end(), None);
        slot.found(worker, failure);
        tried.push(Arc::clone(&slot.endpoint));
        if failure == Failure::ClientGone || !passage::is_another_left(&slot, &tried) {
            return Err(failure);
        }
        backend.counters[worker.index].retries.add(1);
    }
}

async fn admit(
    worker: &Worker,
    client: &mut Client,
    backend: &BackendRef,
    tried: &[Arc<Endpoint>],
    settings: &BackendSettings,
    record: &mut Record,
) -> Result<Slot, Failure> {
    let place = match passage::enter(worker, backend, client.peer.ip(), tried).await? {
        Entered::Slot(slot) => return Ok(slot),
        Entered::Queued(place) => place,
    };
    let since = clock::now();
    let granted = poll_fn(|_| place.poll());
    let result = within(client, settings.queue_timeout, granted).await;
    record.waited(worker, backend, clock::now().saturating_since(since));
    let admitted = result.unwrap_or_else(|interrupt| {
        Err(match interrupt {
            Interrupt::ClientGone => Failure::ClientGone,
            Interrupt::Deadline => backend.waited_in_vain(),
        })
    });
    admitted.map_err(|failure| passage::turn_away(worker, backend, failure))
}

async fn open(
    worker: &Worker,
    client: &mut Client,
    slot: &Slot,
    current: &Current,
) -> Result<Stream, Failure> {
    let settings = &current.settings;
    let header = client.announcement(settings);
    let security = Security::of_connections(current.trust.as_ref());
    let unacknowledged = settings.unacknowledged_timeout;
    let connecting = connect(&slot.endpoint, worker.index, &header, security, unacknowledged);
    match within(client, settings.connect_timeout, connecting).await {
        Ok(connected) => connected.map(|connection| connection.stream),
        Err(Interrupt::ClientGone) => Err(Failure::ClientGone),
        Err(Interrupt::Deadline) => Err(Failure::ConnectTimeout),
    }
}

/// Awaits `future`, but not for longer than `patience` and not for a client whose connection has broken.
///
/// A client that has only finished sending is still there: it may want to hear.
async fn within<F: Future>(
    client: &mut Client,
    patience: Duration,
    future: F,
) -> Result<F::Output, Interrupt> {
    client.deadline.set(clock::now() + patience);
    let mut future = pin!(future);
    let mut broken = pin!(client.stream.broken());
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        if broken.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(Interrupt::ClientGone));
        }
        client.deadline.poll(cx).map(|()| Err(Interrupt::Deadline))
    })
    .await
}

/// Bytes both ways, until both have ended.
async fn relay(
    worker: &Worker,
    client: &mut Client,
    endpoint: &mut Stream,
    idle: Duration,
    record: &mut Record,
) -> Result<(), Failure> {
    let mut there = OneWay::beginning_with(client.take_unread(worker));
    let mut back = OneWay::beginning_with(Vec::new());
    client.deadline.set(clock::now() + idle);
    poll_fn(|cx| {
        let up = there.poll(cx, &mut client.stream, endpoint, &worker.scratch);
        let down = back.poll(cx, endpoint, &mut client.stream, &worker.scratch);
        if record.passed(worker, there.bytes, back.bytes) {
            client.deadline.set(clock::now() + idle);
        }
        match (up, down) {
            // Who cannot be read from any more is gone, and all that it had sent has been passed on.
            (Poll::Ready(Err(Broken::Source)), _) => Poll::Ready(Err(Failure::ClientGone)),
            (_, Poll::Ready(Err(Broken::Source))) => Poll::Ready(Err(Failure::EndpointReset)),
            // Who takes no more may have sent something before: the other way finds its end.
            (Poll::Ready(up), Poll::Ready(down)) => Poll::Ready(whole(up, down)),
            (Poll::Ready(_) | Poll::Pending, Poll::Ready(_) | Poll::Pending) => {
                client.deadline.poll(cx).map(|()| Err(Failure::StreamIdle))
            }
        }
    })
    .await
}

/// How a connection ended of which both ways have.
fn whole(up: Result<(), Broken>, down: Result<(), Broken>) -> Result<(), Failure> {
    up.map_err(|_broken| Failure::EndpointReset)?;
    down.map_err(|_broken| Failure::ClientGone)
}
