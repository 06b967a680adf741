//! Connections to the admin API or to the external scaler: bounded in number, each closed after one minute without
//! progress.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::Context as _;
use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};

use crate::failure::{Failure, bind_advice};

/// Limit for scrapers and a few users; further connections wait in the accept backlog.
const MAX_CONNECTIONS: usize = 256;

const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Listener with a limit on concurrent connections.
pub(crate) struct BoundedListener {
    pub(crate) address: SocketAddr,
    listener: TcpListener,
    permits: Arc<Semaphore>,
}

/// Connection that fails with a timeout if it is idle for too long.
pub(crate) struct IdleTimeoutConnection {
    stream: TcpStream,
    idle: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
}

impl BoundedListener {
    /// Binds the address of the named flag.
    pub(crate) async fn bind(address: SocketAddr, flag: &str) -> Result<Self, Failure> {
        let listener = TcpListener::bind(address).await.map_err(|error| {
            let advice = bind_advice(&error);
            Failure::input(format_args!("cannot listen on {address} ({flag}): {error}: {advice}"))
        })?;
        let address = listener.local_addr().with_context(|| format!("the address of {flag}"))?;
        Ok(Self { address, listener, permits: Arc::new(Semaphore::new(MAX_CONNECTIONS)) })
    }
}

impl Listener for BoundedListener {
    type Io = IdleTimeoutConnection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (IdleTimeoutConnection, SocketAddr) {
        let permits = self.permits.clone();
        let permit = permits.acquire_owned().await.expect("the semaphore is never closed");
        let (stream, address) = Listener::accept(&mut self.listener).await;
        // Small responses must not wait for the acknowledgement of the previous segment (Nagle's algorithm and delayed
        // ACK: 40 ms). If the connection has already gone, the next read shows it.
        drop(stream.set_nodelay(true));
        (
            IdleTimeoutConnection { stream, idle: Box::pin(sleep(IDLE_TIMEOUT)), _permit: permit },
            address,
        )
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.address)
    }
}

impl IdleTimeoutConnection {
    /// Passes the result of a read or a write on, or fails if it has been pending for too long.
    fn check_idle<T>(
        &mut self,
        cx: &mut Context<'_>,
        poll: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.idle.set(sleep(IDLE_TIMEOUT));
            return poll;
        }
        match self.idle.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for IdleTimeoutConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let poll = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.check_idle(cx, poll)
    }
}

impl AsyncWrite for IdleTimeoutConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.check_idle(cx, poll)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
