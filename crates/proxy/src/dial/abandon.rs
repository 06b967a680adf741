//! What is done with a request that nobody waits for any more.
//!
//! A slot is free when the endpoint has finished, not when the client has gone: a synchronous server does not notice a
//! closed socket and works on. So at a capped endpoint the rest of the response is read and dropped, within bounds, and
//! the slot is held meanwhile. At an uncapped one the connection is closed.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;

use tokio::io::AsyncWrite;

use crate::body::{Pump, Source};
use crate::clock;
use crate::dial::h1::{Lease, RESPONSE_LIMITS, poll_head};
use crate::dial::pool;
use crate::exchange::{Exchange, Terms};
use crate::h1::parse;
use crate::head::{Framing, Method, ResponseHead};
use crate::worker::Worker;

/// Bytes of a response that are read for nobody; beyond it the connection is closed.
const MOST_BYTES: u64 = 16 * 1024 * 1024;

/// Gives the request up.
pub(crate) fn abandon(
    worker: &Rc<Worker>,
    lease: Lease,
    exchange: &mut Exchange,
    terms: &Terms<'_>,
) {
    if !terms.is_capped() || exchange.upload.written == 0 {
        return;
    }
    lease.slot.backend.counters[worker.index].abandoned.add(1);
    let until = clock::instant(clock::now() + terms.backend().abandoned_timeout);
    let mut rest = Rest {
        lease,
        method: exchange.request.method,
        sent_whole: exchange.upload.is_done(),
        request_bytes: exchange.upload.written,
        response: std::mem::take(&mut exchange.response),
        pump: std::mem::replace(&mut exchange.download, Pump::new()),
    };
    let worker = Rc::clone(worker);
    tokio::task::spawn_local(async move {
        let end = tokio::time::timeout_at(until, rest.finish(&worker)).await;
        match end {
            Ok(End::Reusable) => rest.lay_down(&worker),
            // Closed by either side, or so late that the slot cannot wait for it.
            Ok(End::Closed) | Err(_) => {}
            Ok(End::TooMuch) => {
                let Lease { slot, connection, .. } = rest.lease;
                drop(connection);
                tokio::time::sleep_until(until).await;
                drop(slot);
            }
        }
    });
}

/// What is left of an abandoned request.
struct Rest {
    lease: Lease,
    method: Method,
    /// The endpoint has the whole request; if not, it is told that the rest will not come.
    sent_whole: bool,
    request_bytes: u64,
    response: ResponseHead,
    pump: Pump,
}

enum End {
    Reusable,
    Closed,
    TooMuch,
}

impl Rest {
    async fn finish(&mut self, worker: &Worker) -> End {
        let connection = &mut self.lease.connection;
        if !self.sent_whole
            && poll_fn(|cx| Pin::new(&mut connection.stream).poll_shutdown(cx)).await.is_err()
        {
            return End::Closed;
        }
        // Status 0: not even the head has come.
        while self.response.status == 0 || self.response.is_interim() {
            let (method, response) = (self.method, &mut self.response);
            let mut head =
                |unread: &[u8]| parse::response(unread, &RESPONSE_LIMITS, method, response);
            let connection = &mut self.lease.connection;
            if poll_fn(|cx| poll_head(cx, worker, connection, &mut head)).await.is_err() {
                return End::Closed;
            }
            self.pump.start(self.response.framing, Framing::None);
        }
        self.discard(worker).await
    }

    async fn discard(&mut self, worker: &Worker) -> End {
        let Self { lease, pump, .. } = self;
        pump.allow(pump.body_bytes.saturating_add(MOST_BYTES));
        let connection = &mut lease.connection;
        let read = poll_fn(|cx| {
            let mut source =
                Source { stream: &mut connection.stream, buffer: &mut connection.buffer };
            pump.poll_discard(cx, &mut source, &worker.scratch)
        });
        match read.await {
            Ok(()) if self.sent_whole && self.is_reusable() => End::Reusable,
            Ok(()) => End::Closed,
            Err(crate::body::Stop::TooLarge) => End::TooMuch,
            Err(_) => End::Closed,
        }
    }

    fn is_reusable(&self) -> bool {
        let unasked = self.lease.connection.buffer.as_ref().is_some_and(|left| !left.is_empty());
        self.response.keep_alive && self.response.framing != Framing::UntilClose && !unasked
    }

    fn lay_down(self, worker: &Worker) {
        let Lease { slot, mut connection, .. } = self.lease;
        connection.written += self.request_bytes;
        worker.scratch.stock.reclaim(&mut connection.buffer);
        pool::give_back(&slot.endpoint, connection, true, clock::now());
        drop(slot);
    }
}
