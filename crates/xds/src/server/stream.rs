//! The stream of one client: reads its requests, and sends what its subscriptions lack, now and after each change.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tonic::{Status, Streaming};

use super::{ACKNOWLEDGE_TIMEOUT, ServerContext};
use crate::client::ClientKind;
use crate::exchange::{SubscriptionRequest, VariantRequest};
use crate::limit::StreamClaim;
use crate::rejection::ClientRejections;
use crate::status::StatusRecorder;
use crate::subscription::{ClientSubscriptions, RequestMeaning};
use crate::table::ResourceTable;

/// Number of requests that a client may send in each [`PACE_INTERVAL`], where each [`NAMES_PER_REQUEST`] names count as
/// one more. Further ones wait: the client is not read.
const REQUESTS_PER_INTERVAL: usize = 500;
const NAMES_PER_REQUEST: usize = 16;
const PACE_INTERVAL: Duration = Duration::from_millis(250);

pub(super) struct ClientStream<Q: VariantRequest> {
    requests: Streaming<Q>,
    responses: mpsc::Sender<Result<Q::Response, Status>>,
    table: watch::Receiver<Arc<ResourceTable>>,
    is_closing: watch::Receiver<bool>,
    recorder: Arc<StatusRecorder>,
    subscriptions: ClientSubscriptions,
    rejections: ClientRejections,
    /// The Clusters whose limits it shares.
    claim: StreamClaim,
    /// The time until which the client must reply.
    reply_by: Instant,
    pace: RequestPace,
}

impl<Q: VariantRequest> ClientStream<Q> {
    pub(super) fn new(
        context: &ServerContext,
        requests: Streaming<Q>,
        responses: mpsc::Sender<Result<Q::Response, Status>>,
        claim: StreamClaim,
    ) -> Self {
        let mut subscriptions = ClientSubscriptions::new(Q::VARIANT);
        subscriptions.client.stream = claim.stream;
        Self {
            requests,
            responses,
            table: context.table.clone(),
            is_closing: context.is_closing.clone(),
            recorder: Arc::clone(&context.recorder),
            subscriptions,
            claim,
            rejections: ClientRejections::new(Arc::clone(&context.recorder.rejected_resources)),
            reply_by: Instant::now() + ACKNOWLEDGE_TIMEOUT,
            pace: RequestPace { left: REQUESTS_PER_INTERVAL, until: Instant::now() },
        }
    }

    /// Serves the client until it disconnects, exceeds a limit, or the server closes.
    pub(super) async fn run(mut self) {
        if let Err(status) = self.serve().await {
            // If there is no room, the client has not read anything for a long time: it sees the end of the stream.
            drop(self.responses.try_send(Err(status)));
        }
    }

    async fn serve(&mut self) -> Result<(), Status> {
        loop {
            self.send_due()?;
            tokio::select! {
                request = self.requests.message(), if self.pace.permits() => match request {
                    Ok(Some(request)) => self.receive(request.into())?,
                    // The client has gone, or has sent what is no message.
                    Ok(None) | Err(_) => return Ok(()),
                },
                () = sleep_until(self.pace.until), if !self.pace.permits() => self.pace.restart(),
                changed = self.table.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                }
                () = sleep_until(self.reply_by), if self.subscriptions.is_awaited() => {
                    StatusRecorder::add(&self.recorder.unacknowledged);
                    return Err(Status::deadline_exceeded("a response was not acknowledged in time"));
                }
                () = self.responses.closed() => return Ok(()),
                () = wait_for_close(&mut self.is_closing) => {
                    return Err(Status::unavailable("this Sheave is shutting down"));
                }
            }
        }
    }

    /// Sends each response that is due.
    fn send_due(&mut self) -> Result<(), Status> {
        let table = self.table.borrow_and_update().clone();
        let was_awaited = self.subscriptions.is_awaited();
        while let Some(response) = self.subscriptions.respond(&table) {
            self.recorder.record_response(response.kind);
            let sent = self.responses.try_send(Ok(response.into()));
            sent.map_err(|_error| Status::resource_exhausted("responses are not read"))?;
        }
        if !was_awaited {
            self.reply_by = Instant::now() + ACKNOWLEDGE_TIMEOUT;
        }
        Ok(())
    }

    fn receive(&mut self, request: SubscriptionRequest) -> Result<(), Status> {
        StatusRecorder::add(&self.recorder.requests);
        self.pace.count(request.names.len());
        let meaning = self.subscriptions.receive(request).map_err(|fault| {
            StatusRecorder::add(&self.recorder.exceeded_limits);
            let client = &self.subscriptions.client.name;
            tracing::warn!(client, "an xDS client exceeds a limit: {fault}");
            Status::resource_exhausted(fault.to_string())
        })?;
        if self.subscriptions.client.kind == ClientKind::Grpc
            && let Some(names) = self.subscriptions.take_named_clusters()
        {
            self.claim.set_clusters(names);
        }
        match meaning {
            RequestMeaning::Subscribed | RequestMeaning::Outdated => {}
            RequestMeaning::Acknowledged(kind) => {
                self.reply_by = Instant::now() + ACKNOWLEDGE_TIMEOUT;
                self.rejections.accept(kind, self.subscriptions.last_sent(kind));
            }
            RequestMeaning::Rejected(kind, message) => {
                let now = Instant::now();
                self.reply_by = now + ACKNOWLEDGE_TIMEOUT;
                let (client, names) =
                    (&self.subscriptions.client.name, self.subscriptions.last_sent(kind));
                self.rejections.reject(kind, names, client, &message, now);
                self.recorder.record_rejection(kind, &self.subscriptions.client.name, message);
            }
            RequestMeaning::UnknownType(type_url) => {
                self.recorder.record_unknown_type(&self.subscriptions.client.name, &type_url);
            }
        }
        Ok(())
    }
}

/// Waits until the server closes.
pub(super) async fn wait_for_close(is_closing: &mut watch::Receiver<bool>) {
    // The sender lives as long as that of the table.
    drop(is_closing.wait_for(|is_closing| *is_closing).await);
}

/// Limits the rate of requests.
struct RequestPace {
    left: usize,
    /// The end of the interval.
    until: Instant,
}

impl RequestPace {
    fn permits(&self) -> bool {
        self.left > 0
    }

    fn count(&mut self, names: usize) {
        if Instant::now() >= self.until {
            self.restart();
        }
        self.left = self.left.saturating_sub(1 + names / NAMES_PER_REQUEST);
    }

    fn restart(&mut self) {
        *self = Self { left: REQUESTS_PER_INTERVAL, until: Instant::now() + PACE_INTERVAL };
    }
}
