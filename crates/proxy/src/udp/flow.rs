//! One client's datagrams: from the first to when none has passed for a while.
//!
//! A flow holds a slot at its endpoint, and a socket that is connected to it: so the kernel sorts the answers, and says
//! when nobody listens there. Until the endpoint has answered, the first datagrams are kept, so that another can have
//! them.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use balance::{EndpointSet, Time};
use gateway::snapshot::ListenerProtocol;
use tokio::io::{Interest, ReadBuf};
use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::{LARGEST, UdpFlowKey, UdpListener};
use crate::backend::{BackendRef, Slot};
use crate::clock;
use crate::deadline::Deadline;
use crate::dial::pool::{Endpoint, EndpointData};
use crate::failure::Failure;
use crate::l4_session::{self, L4Admission, L4Route};
use crate::observe::l4_record::L4Record;
use crate::scratch::{ReplayBudget, ReplayReservation};
use crate::sys;
use crate::worker::{DrainStage, Worker};

/// Datagrams of a flow that are kept for another endpoint.
const MAX_UNANSWERED: usize = 4;
/// A flow in which nothing has passed for so long does not hold up the end of the process.
const DRAIN_IDLE_TIMEOUT: Duration = Duration::from_secs(1);

/// A client's datagrams, and where they go.
pub(super) struct UdpFlow {
    pub(super) key: UdpFlowKey,
    /// While there is an endpoint.
    endpoint: RefCell<Option<FlowEndpoint>>,
    unanswered: RefCell<UnansweredDatagrams>,
    /// When something passed.
    last_activity: Cell<Time>,
    received_bytes: Cell<u64>,
    sent_bytes: Cell<u64>,
    /// Wakes the flow's task.
    waker: RefCell<Waker>,
}

/// The way to an endpoint.
struct FlowEndpoint {
    socket: Rc<UdpSocket>,
    backend: BackendRef,
    endpoint: Arc<Endpoint>,
    /// The endpoints among which it was seen last.
    set: Arc<EndpointSet<EndpointData>>,
    has_answered: bool,
    /// Why it cannot be used any more.
    end: Option<FlowEnd>,
}

/// Why a flow leaves its endpoint.
#[derive(Clone, Copy)]
enum FlowEnd {
    /// Nothing has passed for a while, or nobody listens any more.
    Finished,
    /// The endpoint gets nothing new.
    EndpointRemoved,
    Failed(Failure),
}

/// What no endpoint has answered yet, within a budget.
struct UnansweredDatagrams {
    datagrams: Vec<Box<[u8]>>,
    kept: ReplayReservation,
}

/// Carries the flow to its end.
pub(super) async fn run(front: Rc<UdpListener>, flow: Rc<UdpFlow>) {
    let worker = &front.worker;
    let sleeping = poll_fn(|cx| Poll::Ready(worker.register_waker(cx.waker().clone()))).await;
    let mut record = L4Record::of_flow(&front.bound, flow.key.client);
    record.failure = flow.run_to_end(&front, &mut record).await.err();
    record.count_bytes(worker, flow.received_bytes.get(), flow.sent_bytes.get());
    worker.unregister_waker(sleeping);
    front.remove_flow(&flow);
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

    /// Sends a datagram of the client on. False: it is lost.
    pub(super) fn forward(&self, datagram: &[u8]) -> bool {
        self.last_activity.set(clock::now());
        self.received_bytes.set(self.received_bytes.get() + datagram.len() as u64);
        let mut line = self.endpoint.borrow_mut();
        let is_in_use = line.as_mut().is_some_and(FlowEndpoint::is_in_use);
        let Some(line) = line.as_mut().filter(|_| is_in_use) else {
            self.waker.borrow().wake_by_ref();
            return self.unanswered.borrow_mut().keep(datagram);
        };
        let kept = !line.has_answered && self.unanswered.borrow_mut().keep(datagram);
        match line.socket.try_send(datagram) {
            Ok(_) => true,
            Err(error) if is_datagram_error(&error) => false,
            Err(_) => {
                line.end = Some(FlowEnd::Failed(Failure::ConnectFailed));
                self.waker.borrow().wake_by_ref();
                kept || self.unanswered.borrow_mut().keep(datagram)
            }
        }
    }

    async fn run_to_end(&self, front: &UdpListener, record: &mut L4Record) -> Result<(), Failure> {
        let worker = &*front.worker;
        let mut tried = Vec::new();
        loop {
            let (way, idle) = route_and_idle_timeout(front)?;
            record.set_route(&way);
            let client = self.key.client.ip();
            let slot = admit(worker, client, &way.backend, &tried, record).await?;
            record.attempt(&slot);
            let end = match self.connect_endpoint(&slot).await {
                Ok(()) => self.relay_answers(front, &slot, idle, record).await,
                Err(failure) => FlowEnd::Failed(failure),
            };
            let answered = self.endpoint.take().is_some_and(|line| line.has_answered);
            let failure = match end {
                FlowEnd::Failed(failure) => Some(failure),
                FlowEnd::Finished | FlowEnd::EndpointRemoved => None,
            };
            if !answered {
                // That nothing came back may be as it should be.
                let end = failure.map_or(balance::AttemptResult::Cancelled, Failure::attempt_end);
                slot.conclude(worker, &slot.backend.config(), end, None);
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
            way.backend.counters[worker.index].retries.add(1);
        }
    }

    /// A line to the slot's endpoint, with what it is to get first.
    async fn connect_endpoint(&self, slot: &Slot) -> Result<(), Failure> {
        let socket = connect(slot.endpoint.address).map_err(|error| socket_failure(&error))?;
        socket.writable().await.map_err(|error| socket_failure(&error))?;
        for datagram in &self.unanswered.borrow().datagrams {
            // What it does not take now is lost on the way.
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

    /// Passes answers on until the line ends.
    async fn relay_answers(
        &self,
        front: &UdpListener,
        slot: &Slot,
        idle: Duration,
        record: &mut L4Record,
    ) -> FlowEnd {
        let worker = &*front.worker;
        let mut deadline = Deadline::new(clock::now() + idle);
        let socket = self.endpoint.borrow().as_ref().map(|line| Rc::clone(&line.socket));
        let socket = socket.expect("there is a line while answers are awaited");
        let mut refused = pin!(socket.ready(Interest::ERROR));
        poll_fn(|cx| {
            self.waker.borrow_mut().clone_from(cx.waker());
            let failed = self.poll_answers(cx, front, slot);
            // An error makes the socket ready for nothing but to be asked for it.
            if failed.is_ready() || refused.as_mut().poll(cx).is_ready() {
                return Poll::Ready(FlowEnd::Failed(Failure::ConnectFailed));
            }
            record.count_bytes(worker, self.received_bytes.get(), self.sent_bytes.get());
            if let Some(end) = self.endpoint.borrow().as_ref().and_then(|line| line.end) {
                return Poll::Ready(end);
            }
            if worker.config().listener(&front.bound).is_none() {
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

    /// Passes on what is there. Ready when the socket has failed.
    fn poll_answers(&self, cx: &mut Context<'_>, front: &UdpListener, slot: &Slot) -> Poll<()> {
        let mut line = self.endpoint.borrow_mut();
        let line = line.as_mut().expect("there is a line while answers are awaited");
        let mut large = front.worker.scratch.copy_buffer();
        loop {
            let mut room = ReadBuf::new(&mut large[..LARGEST]);
            if ready!(line.socket.poll_recv(cx, &mut room)).is_err() {
                return Poll::Ready(());
            }
            if !std::mem::replace(&mut line.has_answered, true) {
                slot.conclude(
                    &front.worker,
                    &slot.backend.config(),
                    balance::AttemptResult::Success,
                    None,
                );
                self.unanswered.borrow_mut().clear();
            }
            self.last_activity.set(clock::now());
            if front.send(self.key, room.filled()) {
                self.sent_bytes.set(self.sent_bytes.get() + room.filled().len() as u64);
            }
        }
    }
}

impl FlowEndpoint {
    /// Its endpoint may still get datagrams.
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
    /// False: there is no room for it.
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

/// Where the flow goes by the rule now in force, and how long it may be idle.
fn route_and_idle_timeout(front: &UdpListener) -> Result<(L4Route, Duration), Failure> {
    let live = front.worker.config();
    let listener = live.listener(&front.bound).ok_or(Failure::NoRoute)?;
    let ListenerProtocol::Udp(Some(rule)) = &listener.protocol else {
        return Err(Failure::NoRoute);
    };
    Ok((L4Route::choose(&front.worker, &live, rule)?, listener.client.flow_idle_timeout))
}

async fn admit(
    worker: &Worker,
    client: IpAddr,
    backend: &BackendRef,
    tried: &[Arc<Endpoint>],
    record: &mut L4Record,
) -> Result<Slot, Failure> {
    let place = match l4_session::enter(worker, backend, client, tried).await? {
        L4Admission::Slot(slot) => return Ok(slot),
        L4Admission::Queued(place) => place,
    };
    let since = clock::now();
    let granted = poll_fn(|_| place.poll());
    let granted = timeout(backend.config().settings.queue_timeout, granted).await;
    record.add_queue_time(worker, backend, clock::now().saturating_since(since));
    let admitted = granted.unwrap_or_else(|_elapsed| Err(backend.queue_timeout_failure()));
    admitted.map_err(|failure| l4_session::count_refusal(worker, backend, failure))
}

/// A socket that sends to this endpoint and hears it alone.
fn connect(endpoint: SocketAddr) -> io::Result<UdpSocket> {
    let any: SocketAddr = match endpoint {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = std::net::UdpSocket::bind(any)?;
    socket.set_nonblocking(true)?;
    // That a datagram is too large for the way is no error of the endpoint's then.
    sys::allow_fragmentation(&socket)?;
    socket.connect(endpoint)?;
    UdpSocket::from_std(socket)
}

fn socket_failure(error: &io::Error) -> Failure {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => Failure::OutOfDescriptors,
        _ => Failure::ConnectFailed,
    }
}

/// It says nothing of the endpoint: the datagram is too large for the way, or there is no room for it now.
fn is_datagram_error(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMSGSIZE | libc::EAGAIN | libc::ENOBUFS | libc::EPERM)
    ) || error.kind() == io::ErrorKind::WouldBlock
}
