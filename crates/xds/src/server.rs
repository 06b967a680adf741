//! The server of `envoy.service.discovery.v3.AggregatedDiscoveryService`: one stream for each client, in either variant of
//! the protocol.

/// The stream of one client.
mod stream;
/// Reports of load.
mod load;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::{Body, BoxFuture, Service, StdError};
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::exchange::VariantRequest;
use crate::limit::{ClaimTable, ConnectionNumber, StreamClaim};
use crate::message::{DeltaDiscoveryRequest, DiscoveryRequest, ResourceType};
use crate::status::StatusRecorder;
use crate::table::ResourceTable;
pub use load::LoadReportService;
use stream::ClientStream;

/// Maximum number of streams.
pub const MAX_CLIENTS: u64 = 4_096;
/// Maximum size of a request.
pub const MAX_REQUEST_BYTES: usize = 1 << 20;
/// Time in which a client must reply to a response.
pub const ACKNOWLEDGE_TIMEOUT: Duration = Duration::from_secs(60);

/// The method in which a client gets all types of resources over one stream, as the state of the world.
const STREAM_RESOURCES: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
/// The incremental method.
const DELTA_RESOURCES: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";

/// The service.
#[derive(Clone)]
pub struct DiscoveryService {
    context: Arc<ServerContext>,
}

/// State of all streams.
struct ServerContext {
    table: watch::Receiver<Arc<ResourceTable>>,
    is_closing: watch::Receiver<bool>,
    recorder: Arc<StatusRecorder>,
    claims: Arc<ClaimTable>,
}

/// A place among the clients, given back when it is dropped.
struct ClientPlace(Arc<StatusRecorder>);

impl DiscoveryService {
    pub(crate) fn new(
        table: watch::Receiver<Arc<ResourceTable>>,
        is_closing: watch::Receiver<bool>,
        recorder: Arc<StatusRecorder>,
        claims: Arc<ClaimTable>,
    ) -> Self {
        Self { context: Arc::new(ServerContext { table, is_closing, recorder, claims }) }
    }
}

/// Returns the number of the connection of a request; `None`: the caller has given it none.
fn connection<T>(request: &Request<T>) -> Option<ConnectionNumber> {
    request.extensions().get().copied()
}

impl ClientPlace {
    /// Takes a place; `None` if there are too many clients.
    fn take(recorder: &Arc<StatusRecorder>) -> Option<Self> {
        let place = Self(Arc::clone(recorder));
        if recorder.clients.fetch_add(1, Ordering::Relaxed) >= MAX_CLIENTS {
            StatusRecorder::add(&recorder.refused_streams);
            return None;
        }
        StatusRecorder::add(&recorder.streams);
        Some(place)
    }
}

impl Drop for ClientPlace {
    fn drop(&mut self) {
        self.0.clients.fetch_sub(1, Ordering::Relaxed);
    }
}

type ResponseReceiver<Q> = ReceiverStream<Result<<Q as VariantRequest>::Response, Status>>;

/// The methods of both variants.
struct StreamMethod(Arc<ServerContext>);

impl<Q: VariantRequest> StreamingService<Q> for StreamMethod {
    type Response = Q::Response;
    type ResponseStream = ResponseReceiver<Q>;
    type Future = BoxFuture<Response<ResponseReceiver<Q>>, Status>;

    fn call(&mut self, request: Request<Streaming<Q>>) -> Self::Future {
        let context = Arc::clone(&self.0);
        Box::pin(async move {
            let Some(place) = ClientPlace::take(&context.recorder) else {
                return Err(Status::resource_exhausted("there are too many clients"));
            };
            // A client has at most one response of each type that it has not replied to; one more is for the end.
            let (responses, receiver) = mpsc::channel(ResourceType::ALL.len() + 1);
            let claim = StreamClaim::new(&context.claims, connection(&request));
            let stream = ClientStream::new(&context, request.into_inner(), responses, claim);
            tokio::spawn(async move {
                stream.run().await;
                drop(place);
            });
            Ok(Response::new(ReceiverStream::new(receiver)))
        })
    }
}

impl<B> Service<http::Request<B>> for DiscoveryService
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
        let method = StreamMethod(Arc::clone(&self.context));
        Box::pin(async move {
            Ok(match request.uri().path() {
                STREAM_RESOURCES => serve_stream::<DiscoveryRequest, _>(method, request).await,
                DELTA_RESOURCES => serve_stream::<DeltaDiscoveryRequest, _>(method, request).await,
                _ => Status::unimplemented(
                    "only StreamAggregatedResources and DeltaAggregatedResources of xDS v3 are served",
                )
                .into_http(),
            })
        })
    }
}

async fn serve_stream<Q, B>(
    method: StreamMethod,
    request: http::Request<B>,
) -> http::Response<tonic::body::Body>
where
    Q: VariantRequest,
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    let codec = ProstCodec::<Q::Response, Q>::default();
    let mut grpc = Grpc::new(codec).apply_max_message_size_config(Some(MAX_REQUEST_BYTES), None);
    grpc.streaming(method, request).await
}

impl NamedService for DiscoveryService {
    const NAME: &'static str = "envoy.service.discovery.v3.AggregatedDiscoveryService";
}

#[cfg(test)]
mod tests;
