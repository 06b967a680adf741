//! A client's connection as its requests see it.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use balance::Time;
use gateway::snapshot::ClientSettings;
use tokio::net::TcpStream;

use crate::buffer::{BUFFER_BYTES, Buffer};
use crate::deadline::Deadline;
use crate::forwarded::Origin;
use crate::live::{Bound, Live, LiveListener};
use crate::worker::{Stage, Worker};

/// A connection as its requests see it.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    /// Read from the client and not yet used.
    pub(crate) buffer: Option<Buffer>,
    /// The one timer of whatever the connection waits for.
    pub(crate) deadline: Deadline,
    pub(crate) bound: Arc<Bound>,
    pub(crate) origin: Origin,
    pub(crate) peer: SocketAddr,
    pub(super) accepted: Time,
    /// When the last thing happened.
    pub(crate) since: Time,
    pub(super) seen_tick: u32,
    pub(super) has_served: bool,
}

/// What ended a wait before its time.
pub(crate) enum Interrupt {
    ClientGone,
    Deadline,
}

impl Client {
    /// The listener the connection came by, or `None` if nobody listens there any more.
    pub(crate) fn listener<'l>(&self, live: &'l Live) -> Option<&'l LiveListener> {
        let listener = live.listeners.get(self.bound.place)?.as_ref()?;
        Arc::ptr_eq(&listener.bound, &self.bound).then_some(listener)
    }

    /// The connection may be used for another request, as far as its age and the process' stage go.
    pub(crate) fn may_stay(&self, worker: &Worker, settings: &ClientSettings) -> bool {
        let age = self.since.saturating_since(self.accepted);
        worker.stage() == Stage::Serving
            && settings.connection_max_age.is_none_or(|most| age < most)
    }

    /// Ready when the client has closed the connection.
    ///
    /// A half-closed connection counts as closed, as in most proxies: a client that has gone looks just the same.
    /// What a client sends ahead is kept, up to a buffer of it.
    pub(crate) fn poll_gone(&mut self, cx: &mut Context<'_>, worker: &Worker) -> Poll<()> {
        loop {
            if self.buffer.as_ref().is_some_and(|buffer| buffer.len() >= BUFFER_BYTES / 2) {
                return Poll::Pending;
            }
            // Costs no system call while nothing has come.
            if ready!(self.stream.poll_read_ready(cx)).is_err() {
                return Poll::Ready(());
            }
            let buffer = self.buffer.get_or_insert_with(|| worker.scratch.stock.take());
            match buffer.poll_fill(cx, &mut self.stream, BUFFER_BYTES) {
                Poll::Ready(Ok(count)) if count > 0 => {}
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => {
                    worker.scratch.stock.reclaim(&mut self.buffer);
                    return Poll::Pending;
                }
            }
        }
    }

    /// Awaits `future`, but not beyond `deadline` and not for a client that has gone.
    pub(crate) async fn until<F: Future>(
        &mut self,
        worker: &Worker,
        deadline: Time,
        future: F,
    ) -> Result<F::Output, Interrupt> {
        let mut future = pin!(future);
        self.deadline.set(deadline);
        poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Ok(output));
            }
            if self.poll_gone(cx, worker).is_ready() {
                return Poll::Ready(Err(Interrupt::ClientGone));
            }
            self.deadline.poll(cx).map(|()| Err(Interrupt::Deadline))
        })
        .await
    }
}
