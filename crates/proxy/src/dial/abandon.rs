//! Draining of a request whose client has disconnected.
//!
//! A slot is free when the endpoint has finished, not when the client has disconnected: a synchronous server does not
//! notice a closed socket and works on. So at a capped endpoint the rest of the response is read and dropped, within
//! bounds, and the slot is held meanwhile. At an uncapped one the connection is closed.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;

use balance::Time;
use codec::head::{BodyFraming, RequestHead, RequestMethod, ResponseHead};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::time::{sleep_until, timeout_at};

use crate::backend::BackendConfig;
use crate::body::{BodyPump, BodySource};
use crate::clock;
use crate::context::AttemptContext;
use crate::dial::attempt::{AttemptConnection, poll_head};
use crate::dial::pool::{self, CompletedExchange};
use crate::exchange::Exchange;
use crate::failure::Failure;
use crate::outcome::AttemptConclusion;
use crate::relay;
use crate::worker::Worker;

/// Bytes of an abandoned response that are read and dropped; beyond that the connection is closed.
const MAX_DRAIN_BYTES: u64 = 16 * 1024 * 1024;

/// Abandons the request.
pub(crate) fn abandon(context: &mut AttemptContext<'_>, attempt: AttemptConnection) {
    let AttemptContext { worker, exchange, policy, .. } = context;
    // The reset of a stream tells the endpoint that the request is cancelled.
    let resets_stream = attempt.connection.stream_guard.is_some();
    if !policy.is_capped() || resets_stream || exchange.upload.written == 0 {
        return;
    }
    attempt.slot.backend.counters[worker.index].abandoned.add(1);
    drain_apart(context, attempt);
}

/// Discards the rest of a response, whose head `exchange` holds, so that its connection can be used again.
pub(crate) fn discard(context: &mut AttemptContext<'_>, attempt: AttemptConnection) {
    let Exchange { response, download, upload, .. } = &mut *context.exchange;
    // The end of a stream would make a part of a request look complete; its reset does not.
    if attempt.connection.stream_guard.is_some() && !upload.is_done() {
        return;
    }
    let from = attempt.connection.stream.framing(response.framing);
    download.start(from, BodyFraming::None);
    drain_apart(context, attempt);
}

/// Drains the request, while its client goes on.
fn drain_apart(context: &mut AttemptContext<'_>, attempt: AttemptConnection) {
    let AttemptContext { worker, exchange, policy, .. } = context;
    let until = clock::now() + policy.backend_settings().abandoned_timeout;
    let upload_broken = attempt.upload_broken;
    let rest = AbandonedRequest {
        attempt,
        is_capped: policy.is_capped(),
        request: method_only_head(exchange.request.method),
        sent_whole: exchange.upload.is_done() && !upload_broken,
        request_bytes: exchange.upload.written,
        response: std::mem::take(&mut exchange.response),
        pump: std::mem::replace(&mut exchange.download, BodyPump::new()),
    };
    let worker = Rc::clone(worker);
    tokio::task::spawn_local(async move { rest.drain(&worker, until).await });
}

/// The rest of an abandoned request.
pub(crate) struct AbandonedRequest {
    attempt: AttemptConnection,
    /// True if the slot is held until the endpoint has finished.
    is_capped: bool,
    /// The part of the request that the parser of its response needs.
    request: RequestHead,
    /// True if the endpoint has the whole request; if not, the connection's write side is shut down.
    sent_whole: bool,
    request_bytes: u64,
    response: ResponseHead,
    pump: BodyPump,
}

fn method_only_head(method: RequestMethod) -> RequestHead {
    let mut request = RequestHead::new();
    request.method = method;
    request
}

enum DrainOutcome {
    /// The response has been read to its end.
    Complete,
    Closed,
    TooMuch,
}

impl AbandonedRequest {
    /// Creates a request that has no client from the start.
    pub(crate) fn new(attempt: AttemptConnection, method: RequestMethod, is_capped: bool) -> Self {
        Self {
            is_capped: is_capped && attempt.connection.stream_guard.is_none(),
            attempt,
            request: method_only_head(method),
            sent_whole: false,
            request_bytes: 0,
            response: ResponseHead::new(),
            pump: BodyPump::new(),
        }
    }

    /// Creates a request without a body that a capped endpoint has, and whose response is no longer needed.
    pub(crate) fn sent(attempt: AttemptConnection, method: RequestMethod, bytes: u64) -> Self {
        Self { sent_whole: true, request_bytes: bytes, ..Self::new(attempt, method, true) }
    }

    /// Sends the part of the request that has not been sent yet, and awaits the head of the response.
    pub(crate) async fn send_request(
        &mut self,
        worker: &Worker,
        request: &[u8],
    ) -> Result<(), Failure> {
        let stream = &mut self.attempt.connection.stream;
        let is_sent = request.is_empty()
            || (stream.write_all(request).await.is_ok()
                && poll_fn(|cx| stream.poll_end(cx, None)).await.is_ok());
        if !is_sent {
            return Err(Failure::EndpointClosed);
        }
        self.request_bytes = request.len() as u64;
        self.sent_whole = true;
        self.await_head(worker).await
    }

    /// Reports the Outcome of the attempt, as far as it is known once the head has arrived.
    pub(crate) fn conclude(
        &self,
        worker: &Worker,
        current: &BackendConfig,
        asked: Result<(), Failure>,
    ) {
        let end = asked.map_or_else(Failure::attempt_end, |()| relay::attempt_end(&self.response));
        self.attempt.slot.conclude(worker, current, AttemptConclusion::now(end));
    }

    /// Reads the response to its end and drops it, at most until `until`; then it frees the slot and the connection.
    pub(crate) async fn drain(mut self, worker: &Worker, until: Time) {
        let until = clock::instant(until);
        match timeout_at(until, self.finish(worker)).await {
            Ok(DrainOutcome::Complete) => self.return_to_pool(worker),
            Ok(DrainOutcome::TooMuch) if self.is_capped => {
                let AttemptConnection { slot, connection, .. } = self.attempt;
                drop(connection);
                sleep_until(until).await;
                drop(slot);
            }
            // The connection is closed by either side, or the time limit of the slot is over.
            Ok(DrainOutcome::TooMuch | DrainOutcome::Closed) | Err(_) => {}
        }
    }

    async fn finish(&mut self, worker: &Worker) -> DrainOutcome {
        let connection = &mut self.attempt.connection;
        if !self.sent_whole
            && poll_fn(|cx| Pin::new(&mut connection.stream).poll_shutdown(cx)).await.is_err()
        {
            return DrainOutcome::Closed;
        }
        match self.await_head(worker).await {
            Ok(()) => self.discard(worker).await,
            Err(_) => DrainOutcome::Closed,
        }
    }

    /// Reads the head of the final response, if it has not been read yet.
    async fn await_head(&mut self, worker: &Worker) -> Result<(), Failure> {
        // Status 0: no head has arrived yet.
        while self.response.status == 0 || self.response.is_interim() {
            let Self { attempt, request, response, .. } = self;
            let connection = &mut attempt.connection;
            poll_fn(|cx| poll_head(cx, worker, connection, request, response)).await?;
            let from = connection.stream.framing(response.framing);
            self.pump.start(from, BodyFraming::None);
        }
        Ok(())
    }

    async fn discard(&mut self, worker: &Worker) -> DrainOutcome {
        let Self { attempt, pump, .. } = self;
        pump.set_max_body_bytes(pump.body_bytes.saturating_add(MAX_DRAIN_BYTES));
        let connection = &mut attempt.connection;
        let read = poll_fn(|cx| {
            let mut source =
                BodySource { stream: &mut connection.stream, buffer: &mut connection.buffer };
            pump.poll_discard(cx, &mut source, &worker.scratch)
        });
        match read.await {
            Ok(()) => DrainOutcome::Complete,
            Err(crate::body::BodyError::TooLarge) => DrainOutcome::TooMuch,
            Err(_) => DrainOutcome::Closed,
        }
    }

    fn return_to_pool(self, worker: &Worker) {
        let AttemptConnection { slot, mut connection, .. } = self.attempt;
        connection.count_written(self.request_bytes);
        worker.scratch.buffer_pool.reclaim(&mut connection.buffer);
        let done = CompletedExchange {
            response: &self.response,
            request_sent: self.sent_whole,
            response_read: self.pump.has_whole_body(),
        };
        pool::give_back(&slot.endpoint, connection, &done, self.is_capped, clock::now());
        drop(slot);
    }
}
