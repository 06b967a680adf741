//! Connections to the admin API, the probes or the external scaler. Their number is bounded, and so is the time without
//! progress and the time until a request is complete.
//!
//! At the limit the connection that was served least recently is closed: clients that hold connections open do not keep
//! a new one out. It knows bytes alone, not the protocol on top.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use anyhow::Context as _;
use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep};

use crate::failure::{Failure, bind_advice};

/// Limit for scrapers and a few users.
const MAX_CONNECTIONS: usize = 256;

/// Time between the last byte of a response and the first byte of the next request, and between two bytes of a response
/// that the client reads.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval of attempts to bind an address that another process has.
const BIND_INTERVAL: Duration = Duration::from_secs(1);

/// Listener with a limit on concurrent connections.
pub(crate) struct BoundedListener {
    pub(crate) address: SocketAddr,
    listener: TcpListener,
    request_timeout: Duration,
    max_connections: usize,
    connections: Arc<OpenConnections>,
}

/// Connection that fails if it makes no progress for too long, or if a newer connection takes its place.
pub(crate) struct BoundedConnection {
    stream: TcpStream,
    deadline: Pin<Box<Sleep>>,
    /// True from the first byte of a request (or from the start of the connection) until a byte is sent.
    is_awaited: bool,
    request_timeout: Duration,
    place: ConnectionPlace,
}

/// The open connections of a listener, in the order in which they were served.
#[derive(Default)]
struct OpenConnections(Mutex<ConnectionOrder>);

#[derive(Default)]
struct ConnectionOrder {
    last: u64,
    /// The sender is dropped to close the connection.
    by_last_served: BTreeMap<u64, oneshot::Sender<()>>,
}

/// Entry of a connection among the open ones.
struct ConnectionPlace {
    connections: Arc<OpenConnections>,
    number: u64,
    closed: oneshot::Receiver<()>,
}

impl BoundedListener {
    /// Binds an address that another process may still have: tries again until that process has ended.
    pub(crate) async fn bind_when_free(
        address: SocketAddr,
        flag: &str,
        request_timeout: Duration,
    ) -> Self {
        let mut is_logged = false;
        loop {
            match Self::bind(address, flag, request_timeout, None).await {
                Ok(listener) => return listener,
                Err(failure) => {
                    if !std::mem::replace(&mut is_logged, true) {
                        tracing::warn!(%address, ?failure, "cannot listen yet: it is tried again until the other process ends");
                    }
                    sleep(BIND_INTERVAL).await;
                }
            }
        }
    }

    /// Binds the address of the named flag, or uses the inherited socket if it has this address. From the first byte of
    /// a request, the first byte of its response must be sent within `request_timeout`.
    pub(crate) async fn bind(
        address: SocketAddr,
        flag: &str,
        request_timeout: Duration,
        inherited: Option<std::net::TcpListener>,
    ) -> Result<Self, Failure> {
        let has_address = |it: &std::net::TcpListener| {
            let is_same = |own: SocketAddr| own == address || address.port() == 0;
            it.local_addr().is_ok_and(is_same)
        };
        let listener = match inherited.filter(has_address) {
            Some(inherited) => {
                TcpListener::from_std(inherited).context("an inherited socket cannot be used")?
            }
            None => TcpListener::bind(address).await.map_err(|error| {
                let advice = bind_advice(&error);
                Failure::input(format_args!(
                    "cannot listen on {address} ({flag}): {error}: {advice}"
                ))
            })?,
        };
        let address = listener.local_addr().with_context(|| format!("the address of {flag}"))?;
        let (max_connections, connections) = (MAX_CONNECTIONS, Arc::default());
        Ok(Self { address, listener, request_timeout, max_connections, connections })
    }

    /// Returns the listener with another limit on concurrent connections. All of them may come at once, as clients do that
    /// lost another replica.
    pub(crate) fn with_max_connections(self, max_connections: usize) -> Self {
        let backlog = i32::try_from(max_connections).unwrap_or(i32::MAX);
        // A listening socket takes another backlog. With the former one, some connections come in seconds later.
        rustix::net::listen(&self.listener, backlog).ok();
        Self { max_connections, ..self }
    }
}

impl AsFd for BoundedListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Listener for BoundedListener {
    type Io = BoundedConnection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (BoundedConnection, SocketAddr) {
        let (stream, address) = Listener::accept(&mut self.listener).await;
        // Small responses must not wait for the acknowledgement of the previous segment (Nagle's algorithm and delayed
        // ACK: 40 ms). If the connection has already gone, the next read shows it.
        drop(stream.set_nodelay(true));
        let connection = BoundedConnection {
            stream,
            deadline: Box::pin(sleep(self.request_timeout)),
            is_awaited: true,
            request_timeout: self.request_timeout,
            place: OpenConnections::add(&self.connections, self.max_connections),
        };
        (connection, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

impl OpenConnections {
    /// Adds a connection; at the limit, closes the one that was served least recently.
    fn add(connections: &Arc<Self>, max_connections: usize) -> ConnectionPlace {
        let (open, closed) = oneshot::channel();
        let mut order = connections.lock();
        if order.by_last_served.len() >= max_connections {
            order.by_last_served.pop_first();
        }
        let number = order.append(open);
        drop(order);
        ConnectionPlace { connections: Arc::clone(connections), number, closed }
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionOrder> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionOrder {
    fn append(&mut self, open: oneshot::Sender<()>) -> u64 {
        self.last += 1;
        self.by_last_served.insert(self.last, open);
        self.last
    }
}

impl ConnectionPlace {
    /// Puts the connection behind all others: it has just been served.
    fn mark_served(&mut self) {
        let mut order = self.connections.lock();
        if let Some(open) = order.by_last_served.remove(&self.number) {
            self.number = order.append(open);
        }
    }

    /// True if the connection has lost its place. The calling task is woken when that happens.
    fn is_lost(&mut self, cx: &mut Context<'_>) -> bool {
        self.closed.is_terminated() || Pin::new(&mut self.closed).poll(cx).is_ready()
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        self.connections.lock().by_last_served.remove(&self.number);
    }
}

impl BoundedConnection {
    /// Returns the result of a read or a write, unless the connection has lost its place or has been waiting for too
    /// long.
    fn check<T>(&mut self, cx: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if self.place.is_lost(cx) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        if poll.is_pending() && self.deadline.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        poll
    }

    fn set_deadline(&mut self, timeout: Duration) {
        self.deadline.as_mut().reset(Instant::now() + timeout);
    }
}

impl AsyncRead for BoundedConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_read(cx, buffer);
        ready!(self.check(cx, poll))?;
        // Further bytes do not extend the time for a request.
        if !std::mem::replace(&mut self.is_awaited, true) {
            let timeout = self.request_timeout;
            self.set_deadline(timeout);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for BoundedConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(cx, bytes);
        let written = ready!(self.check(cx, poll))?;
        self.is_awaited = false;
        self.set_deadline(IDLE_TIMEOUT);
        self.place.mark_served();
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
