//! Flow of one client's datagrams, from the first one to the idle timeout.
//!
//! A flow holds a slot at its endpoint, and a socket that is connected to it: so the kernel
//! delivers the answers to the right flow, and reports a port that is closed. Until the endpoint
//! answers, the first datagrams are kept, so that they can be sent to another endpoint.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use balance::{AttemptResult, EndpointSet, Time};
use gateway::snapshot::ListenerProtocol;
use tokio::io::{Interest, ReadBuf};
use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::{LARGEST, UdpFlowKey, UdpListener};
use crate::backend::{BackendRef, Slot};
use crate::clock;
use crate::deadline::Deadline;
use crate::dial::marked_socket;
use crate::dial::pool::{Endpoint, EndpointData};
use crate::failure::Failure;
use crate::l4_session::{self, L4Admission, L4Route};
use crate::observe::l4_record::L4Record;
use crate::outcome::AttemptConclusion;
use crate::scratch::{ReplayBudget, ReplayReservation};
use crate::sys;
use crate::worker::{DrainStage, Worker};

/// Number of datagrams of a flow that are kept for another endpoint.
const MAX_UNANSWERED: usize = 4;
/// Idle time after which a flow no longer delays the shutdown of the process.
const DRAIN_IDLE_TIMEOUT: Duration = Duration::from_secs(1);

/// Flow of one client's datagrams to its endpoint.
pub(super) struct UdpFlow {
    pub(super) key: UdpFlowKey,
    /// Current endpoint, if there is one.
    endpoint: RefCell<Option<FlowEndpoint>>,
    unanswered: RefCell<UnansweredDatagrams>,
    /// Time of the last datagram, in either direction.
    last_activity: Cell<Time>,
    received_bytes: Cell<u64>,
    sent_bytes: Cell<u64>,
    /// Waker of the flow's task.
    waker: RefCell<Waker>,
}

/// Connection of a flow to its endpoint.
struct FlowEndpoint {
    socket: Rc<UdpSocket>,
    backend: BackendRef,
    endpoint: Arc<Endpoint>,
    /// Endpoint set in which the endpoint was seen last.
    set: Arc<EndpointSet<EndpointData>>,
    has_answered: bool,
    /// Reason that the endpoint cannot be used any more.
    end: Option<FlowEnd>,
}

/// Reason that a flow leaves its endpoint.
#[derive(Clone, Copy)]
enum FlowEnd {
    /// The flow is idle, or the listener has been removed.
    Finished,
    /// The endpoint has been removed from its set.
    EndpointRemoved,
    Failed(Failure),
}

/// Datagrams that no endpoint has answered yet, within the replay budget.
struct UnansweredDatagrams {
    datagrams: Vec<Box<[u8]>>,
    kept: ReplayReservation,
}

/// Runs the flow to its end.
pub(super) async fn run(udp_listener: Rc<UdpListener>, flow: Rc<UdpFlow>) {
    let worker = &udp_listener.worker;
    let waker_id = poll_fn(|cx| Poll::Ready(worker.register_waker(cx.waker().clone()))).await;
    let mut record = L4Record::of_flow(&udp_listener.bound, flow.key.client);
    record.failure = flow.run_to_end(&udp_listener, &mut record).await.err();
    record.count_bytes(worker, flow.received_bytes.get(), flow.sent_bytes.get());
    worker.unregister_waker(waker_id);
    udp_listener.remove_flow(&flow);
    record.close(worker);
}

impl UdpFlow {
    pub(super) fn new(key: UdpFlowKey, budget: &Rc<ReplayBudget>) -> Self {
        Self {
            key,
            endpoint: RefCell::default(),
            unanswered: RefCell::new(UnansweredDatagrams {
                datagrams: Vec::new(),
                kept: ReplayReservation::new(budget),
            }),
            last_activity: Cell::new(clock::now()),
            received_bytes: Cell::new(0),
            sent_bytes: Cell::new(0),
            waker: RefCell::new(Waker::noop().clone()),
        }
    }

    /// Forwards a datagram of the client. Returns false if it is dropped.
    pub(super) fn forward(&self, datagram: &[u8]) -> bool {
        self.last_activity.set(clock::now());
        self.received_bytes.set(self.received_bytes.get() + datagram.len() as u64);
        let mut connection = self.endpoint.borrow_mut();
        let is_in_use = connection.as_mut().is_some_and(FlowEndpoint::is_in_use);
        let Some(connection) = connection.as_mut().filter(|_| is_in_use) else {
            self.waker.borrow().wake_by_ref();
            return self.unanswered.borrow_mut().keep(datagram);
        };
        let kept = !connection.has_answered && self.unanswered.borrow_mut().keep(datagram);
        match connection.socket.try_send(datagram) {
            Ok(_) => true,
            Err(error) if is_datagram_error(&error) => false,
            Err(_) => {
                connection.end = Some(FlowEnd::Failed(Failure::ConnectFailed));
                self.waker.borrow().wake_by_ref();
                kept || self.unanswered.borrow_mut().keep(datagram)
            }
        }
    }

    async fn run_to_end(
        &self,
        udp_listener: &UdpListener,
        record: &mut L4Record,
    ) -> Result<(), Failure> {
        let worker = &*udp_listener.worker;
        let mut tried = Vec::new();
        loop {
            let (route, idle) = route_and_idle_timeout(udp_listener)?;
            record.set_route(&route);
            let client = self.key.client.ip();
            let slot = admit(worker, client, &route.backend, &tried, record).await?;
            record.attempt(&slot);
            let end = match self.connect_endpoint(&slot).await {
                Ok(()) => self.relay_answers(udp_listener, &slot, idle, record).await,
                Err(failure) => FlowEnd::Failed(failure),
            };
            let answered = self.endpoint.take().is_some_and(|connection| connection.has_answered);
            let failure = match end {
                FlowEnd::Failed(failure) => Some(failure),
                FlowEnd::Finished | FlowEnd::EndpointRemoved => None,
            };
            if !answered {
                // A flow without an answer may be normal.
                let end = failure.map_or(AttemptResult::Cancelled, Failure::attempt_end);
                slot.conclude(worker, &slot.backend.config(), AttemptConclusion::now(end));
            }
            let Some(failure) = failure else {
                if matches!(end, FlowEnd::Finished) {
                    return Ok(());
                }
                tried.clear();
                continue;
            };
            slot.note_connect_failure(worker, failure);
            if answered {
                tried.clear();
            }
            tried.push(Arc::clone(&slot.endpoint));
            if !l4_session::is_another_left(&slot, &tried) {
                return Err(failure);
            }
            route.backend.counters[worker.index].retries.add(1);
        }
    }

    /// Connects to the slot's endpoint and sends the datagrams that are kept for it.
    async fn connect_endpoint(&self, slot: &Slot) -> Result<(), Failure> {
        let socket = connect(&slot.endpoint).map_err(|error| socket_failure(&error))?;
        if !slot.endpoint.data.budgets.descriptors.allows(&socket) {
            return Err(Failure::OutOfDescriptors);
        }
        socket.writable().await.map_err(|error| socket_failure(&error))?;
        for datagram in &self.unanswered.borrow().datagrams {
            // A datagram that the socket does not accept now is lost.
            drop(socket.try_send(datagram));
        }
        *self.endpoint.borrow_mut() = Some(FlowEndpoint {
            socket: Rc::new(socket),
            backend: slot.backend.clone(),
            endpoint: Arc::clone(&slot.endpoint),
            set: Arc::clone(&slot.backend.current().set),
            has_answered: false,
            end: None,
        });
        Ok(())
    }

    /// Relays answers until the flow leaves its endpoint.
    async fn relay_answers(
        &self,
        udp_listener: &UdpListener,
        slot: &Slot,
        idle: Duration,
        record: &mut L4Record,
    ) -> FlowEnd {
        let worker = &*udp_listener.worker;
        let mut deadline = Deadline::new(clock::now() + idle);
        let socket =
            self.endpoint.borrow().as_ref().map(|connection| Rc::clone(&connection.socket));
        let socket = socket.expect("the flow has an endpoint while it relays answers");
        let mut refused = pin!(socket.ready(Interest::ERROR));
        poll_fn(|cx| {
            self.waker.borrow_mut().clone_from(cx.waker());
            let failed = self.poll_answers(cx, udp_listener, slot);
            // A socket error shows as readiness for `ERROR` alone, not for reading.
            if failed.is_ready() || refused.as_mut().poll(cx).is_ready() {
                return Poll::Ready(FlowEnd::Failed(Failure::ConnectFailed));
            }
            record.count_bytes(worker, self.received_bytes.get(), self.sent_bytes.get());
            if let Some(end) = self.endpoint.borrow().as_ref().and_then(|connection| connection.end)
            {
                return Poll::Ready(end);
            }
            if worker.config().listener(&udp_listener.bound).is_none() {
                return Poll::Ready(FlowEnd::Finished);
            }
            let is_ending = worker.stage() == DrainStage::Closing;
            deadline.set(
                self.last_activity.get()
                    + if is_ending { DRAIN_IDLE_TIMEOUT.min(idle) } else { idle },
            );
            deadline.poll(cx).map(|()| FlowEnd::Finished)
        })
        .await
    }

    /// Relays the answers that are ready. Ready when the socket has failed.
    fn poll_answers(
        &self,
        cx: &mut Context<'_>,
        udp_listener: &UdpListener,
        slot: &Slot,
    ) -> Poll<()> {
        let mut connection = self.endpoint.borrow_mut();
        let connection =
            connection.as_mut().expect("the flow has an endpoint while it relays answers");
        let mut large = udp_listener.worker.scratch.copy_buffer();
        loop {
            let mut buffer = ReadBuf::new(&mut large[..LARGEST]);
            if ready!(connection.socket.poll_recv(cx, &mut buffer)).is_err() {
                return Poll::Ready(());
            }
            if !std::mem::replace(&mut connection.has_answered, true) {
                let conclusion = AttemptConclusion::now(AttemptResult::Success);
                slot.conclude(&udp_listener.worker, &slot.backend.config(), conclusion);
                self.unanswered.borrow_mut().clear();
            }
            self.last_activity.set(clock::now());
            if udp_listener.send(self.key, buffer.filled()) {
                self.sent_bytes.set(self.sent_bytes.get() + buffer.filled().len() as u64);
            }
        }
    }
}

impl FlowEndpoint {
    /// True if the endpoint may still get datagrams.
    fn is_in_use(&mut self) -> bool {
        let current = self.backend.current();
        if !Arc::ptr_eq(&current.set, &self.set) {
            if current.set.contains(&self.endpoint) {
                self.set = Arc::clone(&current.set);
            } else {
                self.end = Some(FlowEnd::EndpointRemoved);
            }
        }
        self.end.is_none()
    }
}

impl UnansweredDatagrams {
    /// Keeps a datagram. Returns false if there is no room for it.
    fn keep(&mut self, datagram: &[u8]) -> bool {
        let bytes: usize = self.datagrams.iter().map(|kept| kept.len()).sum();
        let fits = self.datagrams.len() < MAX_UNANSWERED && self.kept.grow(bytes + datagram.len());
        if fits {
            self.datagrams.push(datagram.into());
        }
        fits
    }

    fn clear(&mut self) {
        self.datagrams = Vec::new();
        self.kept.release();
    }
}

/// Returns the route by the rule now in force, and the idle timeout of the flow.
fn route_and_idle_timeout(udp_listener: &UdpListener) -> Result<(L4Route, Duration), Failure> {
    let active_config = udp_listener.worker.config();
    let listener = active_config.listener(&udp_listener.bound).ok_or(Failure::NoRoute)?;
    let ListenerProtocol::Udp(Some(rule)) = &listener.protocol else {
        return Err(Failure::NoRoute);
    };
    Ok((
        L4Route::choose(&udp_listener.worker, &active_config, rule)?,
        listener.client.flow_idle_timeout,
    ))
}

async fn admit(
    worker: &Worker,
    client: IpAddr,
    backend: &BackendRef,
    tried: &[Arc<Endpoint>],
    record: &mut L4Record,
) -> Result<Slot, Failure> {
    let waiter = match l4_session::enter(worker, backend, client, tried).await? {
        L4Admission::Slot(slot) => return Ok(slot),
        L4Admission::Queued(waiter) => waiter,
    };
    let since = clock::now();
    let granted = poll_fn(|_| waiter.poll());
    let granted = timeout(backend.config().settings.queue_timeout, granted).await;
    record.add_queue_time(worker, backend, clock::now().saturating_since(since));
    let admitted = granted.unwrap_or_else(|_elapsed| Err(backend.queue_timeout_failure()));
    admitted.map_err(|failure| l4_session::count_refusal(worker, backend, failure))
}

/// Returns a socket that is connected to this endpoint.
fn connect(endpoint: &Endpoint) -> io::Result<UdpSocket> {
    let mark = marked_socket::mark(endpoint, None);
    let socket = marked_socket::connect_udp(endpoint.address, mark)?;
    // Without this option, a datagram above the path MTU would count as an error of the endpoint.
    sys::allow_fragmentation(&socket)?;
    UdpSocket::from_std(socket)
}

fn socket_failure(error: &io::Error) -> Failure {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => Failure::OutOfDescriptors,
        _ => Failure::ConnectFailed,
    }
}

/// True if the error concerns the datagram and not the endpoint: it is too large for the path, or
/// the send buffer is full.
fn is_datagram_error(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMSGSIZE | libc::EAGAIN | libc::ENOBUFS | libc::EPERM)
    ) || error.kind() == io::ErrorKind::WouldBlock
}
