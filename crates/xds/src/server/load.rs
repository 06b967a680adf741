//! The server of `envoy.service.load_stats.v3.LoadReportingService`: one stream for each client.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::{Body, BoxFuture, Service, StdError};
use tonic::server::{Grpc, NamedService};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use super::stream::wait_for_close;
use super::{MAX_CLIENTS, MAX_REQUEST_BYTES, connection};
use crate::client::client_name;
use crate::limit::{ClaimTable, ReportedDemand};
use crate::load::{ClientLoad, LoadTable, REPORT_INTERVAL, REPORT_LIFETIME};
use crate::message::{LoadStatsRequest, LoadStatsResponse};

/// The method in which a client reports its load.
const STREAM_LOAD: &str = "/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats";
/// Time between two reports that are read: a client that sends them faster waits.
const MIN_REPORT_SPACING: Duration = Duration::from_millis(500);
/// Maximum length of the name of a client in logs.
const MAX_CLIENT_BYTES: usize = 128;

/// The service.
#[derive(Clone)]
pub struct LoadReportService {
    table: Arc<LoadTable>,
    claims: Arc<ClaimTable>,
    is_closing: watch::Receiver<bool>,
}

/// A place among the clients, given back when it is dropped.
struct ReportPlace(Arc<LoadTable>);

impl LoadReportService {
    pub(crate) fn new(
        table: Arc<LoadTable>,
        claims: Arc<ClaimTable>,
        is_closing: watch::Receiver<bool>,
    ) -> Self {
        Self { table, claims, is_closing }
    }
}

impl ReportPlace {
    /// Takes a place; `None` if there are too many clients.
    fn take(table: &Arc<LoadTable>) -> Option<Self> {
        let place = Self(Arc::clone(table));
        if table.clients.fetch_add(1, Ordering::Relaxed) >= MAX_CLIENTS {
            table.refused_streams.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(place)
    }
}

impl Drop for ReportPlace {
    fn drop(&mut self) {
        self.0.clients.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The stream of one client.
struct ReportStream {
    requests: Streaming<LoadStatsRequest>,
    responses: mpsc::Sender<Result<LoadStatsResponse, Status>>,
    is_closing: watch::Receiver<bool>,
    load: ClientLoad,
    /// The name of the client, for logs.
    client: String,
    /// The time until which the last report counts.
    expires_at: Instant,
    /// The time from which on the next report is read.
    reads_at: Instant,
}

impl ReportStream {
    /// Takes reports until the client disconnects, exceeds a limit, or the server closes.
    async fn run(mut self) {
        if let Err(status) = self.serve().await {
            drop(self.responses.try_send(Err(status)));
        }
    }

    async fn serve(&mut self) -> Result<(), Status> {
        let settings = LoadStatsResponse {
            load_reporting_interval: Some(REPORT_INTERVAL.into()),
            send_all_clusters: true,
        };
        // There is room: it is the first response.
        drop(self.responses.try_send(Ok(settings)));
        let mut has_report = false;
        loop {
            let is_read = Instant::now() >= self.reads_at;
            tokio::select! {
                request = self.requests.message(), if is_read => match request {
                    Ok(Some(request)) => {
                        self.receive(request)?;
                        has_report = true;
                    }
                    // The client has gone, or has sent what is no message.
                    Ok(None) | Err(_) => return Ok(()),
                },
                () = sleep_until(self.reads_at), if !is_read => {}
                () = sleep_until(self.expires_at), if has_report => {
                    self.load.expire();
                    has_report = false;
                }
                () = self.responses.closed() => return Ok(()),
                () = wait_for_close(&mut self.is_closing) => {
                    return Err(Status::unavailable("this Sheave is shutting down"));
                }
            }
        }
    }

    fn receive(&mut self, request: LoadStatsRequest) -> Result<(), Status> {
        let now = Instant::now();
        (self.expires_at, self.reads_at) = (now + REPORT_LIFETIME, now + MIN_REPORT_SPACING);
        if let Some(node) = request.node.filter(|_| self.client.is_empty()) {
            self.client = client_name(&node, MAX_CLIENT_BYTES);
        }
        self.load.record(&request.cluster_stats).map_err(|fault| {
            tracing::warn!(client = self.client, "an xDS client reports its load: {fault}");
            Status::resource_exhausted(fault.to_string())
        })
    }
}

type SettingsReceiver = ReceiverStream<Result<LoadStatsResponse, Status>>;

impl Service<Request<Streaming<LoadStatsRequest>>> for LoadReportService {
    type Response = Response<SettingsReceiver>;
    type Error = Status;
    type Future = BoxFuture<Response<SettingsReceiver>, Status>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Streaming<LoadStatsRequest>>) -> Self::Future {
        let Self { table, claims, is_closing } = self.clone();
        Box::pin(async move {
            let Some(place) = ReportPlace::take(&table) else {
                return Err(Status::resource_exhausted("there are too many clients"));
            };
            let demand = connection(&request).map(|it| ReportedDemand::new(&claims, it));
            // One response, and the end.
            let (responses, receiver) = mpsc::channel(2);
            let stream = ReportStream {
                requests: request.into_inner(),
                responses,
                is_closing,
                load: ClientLoad::new(table, demand),
                client: String::new(),
                expires_at: Instant::now() + REPORT_LIFETIME,
                // The first request has no report, and the next one comes an interval later.
                reads_at: Instant::now(),
            };
            tokio::spawn(async move {
                stream.run().await;
                drop(place);
            });
            Ok(Response::new(ReceiverStream::new(receiver)))
        })
    }
}

impl<B> Service<http::Request<B>> for LoadReportService
where
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            if request.uri().path() != STREAM_LOAD {
                let message = "only StreamLoadStats of xDS v3 is served";
                return Ok(Status::unimplemented(message).into_http());
            }
            let codec = ProstCodec::<LoadStatsResponse, LoadStatsRequest>::default();
            let mut grpc =
                Grpc::new(codec).apply_max_message_size_config(Some(MAX_REQUEST_BYTES), None);
            Ok(grpc.streaming(service, request).await)
        })
    }
}

impl NamedService for LoadReportService {
    const NAME: &'static str = "envoy.service.load_stats.v3.LoadReportingService";
}

#[cfg(test)]
mod tests;
