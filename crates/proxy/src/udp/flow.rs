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

use super::{Front, LARGEST, Whence};
use crate::backend::{BackendRef, Slot};
use crate::clock;
use crate::deadline::Deadline;
use crate::dial::pool::{Endpoint, EndpointData};
use crate::failure::Failure;
use crate::observe::passage::Record;
use crate::passage::{self, Entered, Way};
use crate::scratch::{KeepBudget, Kept};
use crate::sys;
use crate::worker::{Stage, Worker};

/// Datagrams of a flow that are kept for another endpoint.
const KEPT: usize = 4;
/// A flow in which nothing has passed for so long does not hold up the end of the process.
const QUIET: Duration = Duration::from_secs(1);

/// A client's datagrams, and where they go.
pub(super) struct Flow {
    pub(super) whence: Whence,
    /// While there is an endpoint.
    line: RefCell<Option<Line>>,
    unanswered: RefCell<Unanswered>,
    /// When something passed.
    last: Cell<Time>,
    received_bytes: Cell<u64>,
    sent_bytes: Cell<u64>,
    /// Wakes the flow's task.
    waker: RefCell<Waker>,
}

/// The way to an endpoint.
struct Line {
    socket: Rc<UdpSocket>,
    backend: BackendRef,
    endpoint: Arc<Endpoint>,
    /// The endpoints among which it was seen last.
    set: Arc<EndpointSet<EndpointData>>,
    has_answered: bool,
    /// Why it cannot be used any more.
    end: Option<End>,
}

/// Why a flow leaves its endpoint.
#[derive(Clone, Copy)]
enum End {
    /// Nothing has passed for a while, or nobody listens any more.
    Over,
    /// The endpoint gets nothing new.
    Left,
    Refused(Failure),
}

/// What no endpoint has answered yet, within a budget.
struct Unanswered {
    datagrams: Vec<Box<[u8]>>,
    kept: Kept,
}

/// Carries the flow to its end.
pub(super) async fn run(front: Rc<Front>, flow: Rc<Flow>) {
    let worker = &front.worker;
    let sleeping = poll_fn(|cx| Poll::Ready(worker.sleep_here(cx.waker().clone()))).await;
    let mut record = Record::of_flow(&front.bound, flow.whence.client);
    record.failure = flow.carry(&front, &mut record).await.err();
    record.passed(worker, flow.received_bytes.get(), flow.sent_bytes.get());
    worker.leave(sleeping);
    front.forget(&flow);
    record.close(worker);
}

impl Flow {
    pub(super) fn new(whence: Whence, budget: &Rc<KeepBudget>) -> Self {
        Self {
            whence,
            line: RefCell::default(),
            unanswered: RefCell::new(Unanswered { datagrams: Vec::new(), kept: Kept::new(budget) }),
            last: Cell::new(clock::now()),
            received_bytes: Cell::new(0),
            sent_bytes: Cell::new(0),
            waker: RefCell::new(Waker::noop().clone()),
        }
    }

    /// Sends a datagram of the client on. False: it is lost.
    pub(super) fn forward(&self, datagram: &[u8]) -> bool {
        self.last.set(clock::now());
        self.received_bytes.set(self.received_bytes.get() + datagram.len() as u64);
        let mut line = self.line.borrow_mut();
        let is_in_use = line.as_mut().is_some_and(Line::is_in_use);
        let Some(line) = line.as_mut().filter(|_| is_in_use) else {
            self.waker.borrow().wake_by_ref();
            return self.unanswered.borrow_mut().keep(datagram);
        };
        let kept = !line.has_answered && self.unanswered.borrow_mut().keep(datagram);
        match line.socket.try_send(datagram) {
            Ok(_) => true,
            Err(error) if is_of_the_datagram(&error) => false,
            Err(_) => {
                line.end = Some(End::Refused(Failure::ConnectFailed));
                self.waker.borrow().wake_by_ref();
                kept || self.unanswered.borrow_mut().keep(datagram)
            }
        }
    }

    async fn carry(&self, front: &Front, record: &mut Record) -> Result<(), Failure> {
        let worker = &*front.worker;
        let mut tried = Vec::new();
        loop {
            let (way, idle) = way(front)?;
            record.goes(&way);
            let client = self.whence.client.ip();
            let slot = admit(worker, client, &way.backend, &tried, record).await?;
            record.attempt(&slot);
            let end = match self.open(&slot).await {
                Ok(()) => self.exchange(front, &slot, idle, record).await,
                Err(failure) => End::Refused(failure),
            };
            let answered = self.line.take().is_some_and(|line| line.has_answered);
            let failure = match end {
                End::Refused(failure) => Some(failure),
                End::Over | End::Left => None,
            };
            if !answered {
                // That nothing came back may be as it should be.
                let end = failure.map_or(balance::AttemptResult::Cancelled, Failure::end);
                slot.conclude(worker, &slot.backend.hold(), end, None);
            }
            let Some(failure) = failure else {
                if matches!(end, End::Over) {
                    return Ok(());
                }
                tried.clear();
                continue;
            };
            slot.found(worker, failure);
            if answered {
                tried.clear();
            }
            tried.push(Arc::clone(&slot.endpoint));
            if !passage::is_another_left(&slot, &tried) {
                return Err(failure);
            }
            way.backend.counters[worker.index].retries.add(1);
        }
    }

    /// A line to the slot's endpoint, with what it is to get first.
    async fn open(&self, slot: &Slot) -> Result<(), Failure> {
        let socket = connect(slot.endpoint.address).map_err(|error| why(&error))?;
        socket.writable().await.map_err(|error| why(&error))?;
        for datagram in &self.unanswered.borrow().datagrams {
            // What it does not take now is lost on the way.
            drop(socket.try_send(datagram));
        }
        *self.line.borrow_mut() = Some(Line {
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
    async fn exchange(
        &self,
        front: &Front,
        slot: &Slot,
        idle: Duration,
        record: &mut Record,
    ) -> End {
        let worker = &*front.worker;
        let mut deadline = Deadline::new(clock::now() + idle);
        let socket = self.line.borrow().as_ref().map(|line| Rc::clone(&line.socket));
        let socket = socket.expect("there is a line while answers are awaited");
        let mut refused = pin!(socket.ready(Interest::ERROR));
        poll_fn(|cx| {
            self.waker.borrow_mut().clone_from(cx.waker());
            let failed = self.poll_answers(cx, front, slot);
            // An error makes the socket ready for nothing but to be asked for it.
            if failed.is_ready() || refused.as_mut().poll(cx).is_ready() {
                return Poll::Ready(End::Refused(Failure::ConnectFailed));
            }
            record.passed(worker, self.received_bytes.get(), self.sent_bytes.get());
            if let Some(end) = self.line.borrow().as_ref().and_then(|line| line.end) {
                return Poll::Ready(end);
            }
            if worker.live().listener(&front.bound).is_none() {
                return Poll::Ready(End::Over);
            }
            let is_ending = worker.stage() == Stage::Closing;
            deadline.set(self.last.get() + if is_ending { QUIET.min(idle) } else { idle });
            deadline.poll(cx).map(|()| End::Over)
        })
        .await
    }

    /// Passes on what is there. Ready when the socket has failed.
    fn poll_answers(&self, cx: &mut Context<'_>, front: &Front, slot: &Slot) -> Poll<()> {
        let mut line = self.line.borrow_mut();
        let line = line.as_mut().expect("there is a line while answers are awaited");
        let mut large = front.worker.scratch.large();
        loop {
            let mut room = ReadBuf::new(&mut large[..LARGEST]);
            if ready!(line.socket.poll_recv(cx, &mut room)).is_err() {
                return Poll::Ready(());
            }
            if !std::mem::replace(&mut line.has_answered, true) {
                slot.conclude(
                    &front.worker,
                    &slot.backend.hold(),
                    balance::AttemptResult::Success,
                    None,
                );
                self.unanswered.borrow_mut().clear();
            }
            self.last.set(clock::now());
            if front.send(self.whence, room.filled()) {
                self.sent_bytes.set(self.sent_bytes.get() + room.filled().len() as u64);
            }
        }
    }
}

impl Line {
    /// Its endpoint may still get datagrams.
    fn is_in_use(&mut self) -> bool {
        let current = self.backend.current();
        if !Arc::ptr_eq(&current.set, &self.set) {
            if current.set.contains(&self.endpoint) {
                self.set = Arc::clone(&current.set);
            } else {
                self.end = Some(End::Left);
            }
        }
        self.end.is_none()
    }
}

impl Unanswered {
    /// False: there is no room for it.
    fn keep(&mut self, datagram: &[u8]) -> bool {
        let bytes: usize = self.datagrams.iter().map(|kept| kept.len()).sum();
        let fits = self.datagrams.len() < KEPT && self.kept.grow(bytes + datagram.len());
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
fn way(front: &Front) -> Result<(Way, Duration), Failure> {
    let live = front.worker.live();
    let listener = live.listener(&front.bound).ok_or(Failure::NoRoute)?;
    let ListenerProtocol::Udp(Some(rule)) = &listener.protocol else {
        return Err(Failure::NoRoute);
    };
    Ok((Way::by(&front.worker, &live, rule)?, listener.client.flow_idle_timeout))
}

async fn admit(
    worker: &Worker,
    client: IpAddr,
    backend: &BackendRef,
    tried: &[Arc<Endpoint>],
    record: &mut Record,
) -> Result<Slot, Failure> {
    let place = match passage::enter(worker, backend, client, tried).await? {
        Entered::Slot(slot) => return Ok(slot),
        Entered::Queued(place) => place,
    };
    let since = clock::now();
    let granted = poll_fn(|_| place.poll());
    let granted = timeout(backend.hold().settings.queue_timeout, granted).await;
    record.waited(worker, backend, clock::now().saturating_since(since));
    let admitted = granted.unwrap_or_else(|_elapsed| Err(backend.waited_in_vain()));
    admitted.map_err(|failure| passage::turn_away(worker, backend, failure))
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
    sys::let_fragment(&socket)?;
    socket.connect(endpoint)?;
    UdpSocket::from_std(socket)
}

fn why(error: &io::Error) -> Failure {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => Failure::OutOfDescriptors,
        _ => Failure::ConnectFailed,
    }
}

/// It says nothing of the endpoint: the datagram is too large for the way, or there is no room for it now.
fn is_of_the_datagram(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMSGSIZE | libc::EAGAIN | libc::ENOBUFS | libc::EPERM)
    ) || error.kind() == io::ErrorKind::WouldBlock
}
