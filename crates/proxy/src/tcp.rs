//! TCP proxying: an endpoint is chosen once per client connection, then bytes are relayed both ways
//! until both sides have closed.
//!
//! The connection holds its slot to its end. An orderly close on one side becomes an orderly close
//! on the other, for each direction separately. A broken connection on one side becomes a reset on
//! the other, so that a truncated stream never looks complete. For the same reason a client that
//! gets no endpoint is reset. This module does not interpret the bytes.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use balance::AttemptResult;
use tls::ConnectionSecurity;

use crate::accept::accepted_connection::ConnectionGuard;
use crate::accept::client::{ClientConnection, WaitInterrupt};
use crate::backend::{BackendConfig, BackendRef, Slot};
use crate::clock;
use crate::dial::connect::{DialOptions, connect};
use crate::dial::pool::{Endpoint, EndpointConnection};
use crate::failure::Failure;
use crate::l4_session::{self, L4Admission, L4Route};
use crate::observe::l4_record::L4Record;
use crate::outcome::AttemptConclusion;
use crate::stream::PeerStream;
use crate::worker::Worker;

/// Copy in one direction of a connection.
mod one_way;
/// Clients that have sent nothing.
pub(crate) mod silent;

use one_way::{FailedSide, OneWayCopy};

/// Relays the connection to an endpoint, until it ends.
pub(crate) async fn serve(guard: ConnectionGuard, mut client: ClientConnection) {
    let worker = Rc::clone(&guard.worker);
    let mut record = L4Record::of_connection(&client);
    let end = carry(&worker, &mut client, &mut record).await;
    conclude(&worker, &client, record, end);
}

/// Records the end of a session. After a failure the client is reset.
fn conclude(
    worker: &Worker,
    client: &ClientConnection,
    mut record: L4Record,
    end: Result<(), Failure>,
) {
    if let Err(failure) = end {
        client.reset_on_close();
        record.failure = Some(failure);
    }
    record.close(worker);
}

async fn carry(
    worker: &Rc<Worker>,
    client: &mut ClientConnection,
    record: &mut L4Record,
) -> Result<(), Failure> {
    let session = TcpSession::open(worker, client, record).await?;
    session.relay(worker, client, record).await
}

/// A connection to an endpoint for one client, with its slot.
struct TcpSession {
    /// Declared before the slot: the connection is closed before the slot is released.
    connection: Box<EndpointConnection>,
    slot: Slot,
    /// Time without a byte in either direction after which the session ends.
    idle_timeout: Duration,
}

impl TcpSession {
    /// Connects the client to an endpoint.
    async fn open(
        worker: &Rc<Worker>,
        client: &mut ClientConnection,
        record: &mut L4Record,
    ) -> Result<Self, Failure> {
        let active_config = worker.config();
        let listener = client.listener(&active_config).ok_or(Failure::NoRoute)?;
        let rule = listener.connection_rule(client.tls_info.as_deref()).ok_or(Failure::NoRoute)?;
        let idle_timeout = listener.client.stream_idle_timeout;
        let route = L4Route::choose(worker, &active_config, rule)?;
        record.set_route(&route);
        drop(active_config);
        // Boxed, so that the connection does not hold the memory that its start needed.
        let mut context = TcpAttemptContext { worker, client, backend: &route.backend, record };
        let (slot, connection) = Box::pin(context.connect()).await?;
        Ok(Self { connection, slot, idle_timeout })
    }

    /// Relays bytes both ways, until both directions have ended.
    async fn relay(
        mut self,
        worker: &Worker,
        client: &mut ClientConnection,
        record: &mut L4Record,
    ) -> Result<(), Failure> {
        let endpoint = &mut self.connection.stream;
        let end = relay(worker, client, endpoint, self.idle_timeout, record).await;
        if end.is_err() {
            endpoint.reset_on_close();
        }
        end
    }
}

/// The context of a connection's attempts, which end when an endpoint has accepted it.
struct TcpAttemptContext<'a> {
    worker: &'a Rc<Worker>,
    client: &'a mut ClientConnection,
    backend: &'a BackendRef,
    record: &'a mut L4Record,
}

impl TcpAttemptContext<'_> {
    /// Connects to one of the backend's endpoints. No byte of the client has been sent yet, so each
    /// endpoint is tried once.
    async fn connect(&mut self) -> Result<(Slot, Box<EndpointConnection>), Failure> {
        let (worker, config) = (self.worker, self.backend.config());
        let mut tried = Vec::new();
        loop {
            let slot = self.admit(&tried, config.settings.queue_timeout).await?;
            self.record.attempt(&slot);
            let failure = match self.open(&slot, &config).await {
                Ok(connection) => {
                    let conclusion = AttemptConclusion::now(AttemptResult::Success);
                    slot.conclude(worker, &config, conclusion);
                    return Ok((slot, connection));
                }
                Err(failure) => failure,
            };
            slot.conclude(worker, &config, AttemptConclusion::now(failure.attempt_end()));
            slot.note_connect_failure(worker, failure);
            tried.push(Arc::clone(&slot.endpoint));
            if failure == Failure::ClientGone || !l4_session::is_another_left(&slot, &tried) {
                return Err(failure);
            }
            self.backend.counters[worker.index].retries.add(1);
        }
    }

    /// Acquires a slot at one of the backend's endpoints, at once or after a wait in the queue.
    async fn admit(
        &mut self,
        tried: &[Arc<Endpoint>],
        patience: Duration,
    ) -> Result<Slot, Failure> {
        let Self { worker, client, backend, record } = self;
        let waiter = match l4_session::enter(worker, backend, client.peer.ip(), tried).await? {
            L4Admission::Slot(slot) => return Ok(slot),
            L4Admission::Queued(waiter) => waiter,
        };
        let since = clock::now();
        let granted = poll_fn(|_| waiter.poll());
        let result = within(client, patience, granted).await;
        record.add_queue_time(worker, backend, clock::now().saturating_since(since));
        let admitted = result.unwrap_or_else(|interrupt| {
            Err(match interrupt {
                WaitInterrupt::ClientGone => Failure::ClientGone,
                WaitInterrupt::OutOfMemory => Failure::OutOfMemory,
                WaitInterrupt::Deadline => backend.queue_timeout_failure(),
            })
        });
        admitted.map_err(|failure| l4_session::count_refusal(worker, backend, failure))
    }

    /// Opens a connection to the slot's endpoint.
    async fn open(
        &mut self,
        slot: &Slot,
        config: &BackendConfig,
    ) -> Result<Box<EndpointConnection>, Failure> {
        let settings = &config.settings;
        let client_mark = self.client.mark_for(self.worker, &slot.endpoint);
        let options = DialOptions {
            header: &self.client.proxy_protocol_header(settings),
            client_mark: client_mark.as_ref(),
            security: ConnectionSecurity::of_connections(config.tls_context.as_ref()),
            unacknowledged: settings.unacknowledged_timeout,
        };
        let connecting = connect(&slot.endpoint, self.worker.index, options);
        match within(self.client, settings.connect_timeout, connecting).await {
            Ok(connected) => connected,
            Err(WaitInterrupt::ClientGone) => Err(Failure::ClientGone),
            Err(WaitInterrupt::OutOfMemory) => Err(Failure::OutOfMemory),
            Err(WaitInterrupt::Deadline) => Err(Failure::ConnectTimeout),
        }
    }
}

/// Awaits `future`, for at most `patience` and only while the client's connection is intact.
///
/// A half-closed client is still connected: it may be waiting for a response.
async fn within<F: Future>(
    client: &mut ClientConnection,
    patience: Duration,
    future: F,
) -> Result<F::Output, WaitInterrupt> {
    client.deadline.set(clock::now() + patience);
    let mut future = pin!(future);
    let mut broken = pin!(client.stream.wait_broken());
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        if broken.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(WaitInterrupt::ClientGone));
        }
        client.deadline.poll(cx).map(|()| Err(WaitInterrupt::Deadline))
    })
    .await
}

/// Relays bytes both ways, until both directions have ended.
async fn relay(
    worker: &Worker,
    client: &mut ClientConnection,
    endpoint: &mut PeerStream,
    idle: Duration,
    record: &mut L4Record,
) -> Result<(), Failure> {
    let mut to_endpoint = OneWayCopy::with_initial_bytes(client.take_unread(worker));
    let mut to_client = OneWayCopy::with_initial_bytes(Vec::new());
    client.deadline.set(clock::now() + idle);
    let mut held = client.held_memory(worker);
    poll_fn(|cx| {
        let up = to_endpoint.poll(cx, &mut client.stream, endpoint, &worker.scratch);
        let down = to_client.poll(cx, endpoint, &mut client.stream, &worker.scratch);
        if record.count_bytes(worker, to_endpoint.bytes, to_client.bytes) {
            client.deadline.set(clock::now() + idle);
        }
        match (up, down) {
            // A client that cannot be read from any more has disconnected, and all its bytes have
            // been passed on.
            (Poll::Ready(Err(FailedSide::Source)), _) => Poll::Ready(Err(Failure::ClientGone)),
            (_, Poll::Ready(Err(FailedSide::Source))) => Poll::Ready(Err(Failure::EndpointReset)),
            // A peer that accepts no more bytes may have sent some before: the other direction
            // reads them to the end.
            (Poll::Ready(up), Poll::Ready(down)) => Poll::Ready(combine_results(up, down)),
            (Poll::Ready(_) | Poll::Pending, Poll::Ready(_) | Poll::Pending) => {
                let bytes = to_endpoint.held_bytes() + to_client.held_bytes();
                if held.stall_if(bytes > 0, bytes, cx.waker()) {
                    return Poll::Ready(Err(Failure::OutOfMemory));
                }
                client.deadline.poll(cx).map(|()| Err(Failure::StreamIdle))
            }
        }
    })
    .await
}

/// Returns the result of a connection whose two directions have ended.
fn combine_results(
    up: Result<(), FailedSide>,
    down: Result<(), FailedSide>,
) -> Result<(), Failure> {
    up.map_err(|_broken| Failure::EndpointReset)?;
    down.map_err(|_broken| Failure::ClientGone)
}
