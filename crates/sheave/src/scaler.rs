//! KEDA's external scaler over gRPC: reports the demand of each Service to an autoscaler, and reports at once when an
//! idle Service receives a request.
//!
//! It has an address of its own, apart from the admin API: KEDA's operator has to reach it from another pod, and the
//! admin API can stay on the loopback address. It shows only the demand of Services that a client names.

/// Code generated from the .proto file.
#[allow(
    clippy::all,
    clippy::allow_attributes_without_reason,
    unreachable_pub,
    unused_qualifications,
    reason = "generated code"
)]
mod externalscaler;
/// A stream of a value.
mod stream;
/// Metadata of a KEDA trigger.
mod trigger;

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use proxy::{BackendDemand, Proxy};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tonic::{Request, Response, Status};

use crate::admin::{BoundedConnection, BoundedListener};
use crate::report::ProcessReport;
use externalscaler::external_scaler_server::{ExternalScaler, ExternalScalerServer};
use externalscaler::{
    GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, MetricSpec,
    MetricValue, ScaledObjectRef,
};
use stream::{ObservedValue, stream_changes};
use trigger::ScalerTrigger;

/// The only metric, as KEDA and the HorizontalPodAutoscaler name it.
const METRIC: &str = "demand";

/// Poll interval for changes of demand without a notification: demand has ended, or it passes a threshold above 0.
const ACTIVITY_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Interval at which KEDA is told again that a Service without endpoints is active. It forgets a signal if its write to
/// the Deployment conflicts with another one, as when it has just scaled to zero, and would ask only after 30 s.
const REPEAT_INTERVAL: Duration = Duration::from_secs(2);

/// Poll interval for changes of the limit per endpoint.
const SPEC_POLL_INTERVAL: Duration = Duration::from_secs(15);

/// Interval of HTTP/2 keepalive pings, well below the idle timeout of a connection: a stream may be silent for hours.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Time from a byte of a client until a byte is sent to it: pings alone keep it.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum number of triggers watched over one connection.
const MAX_STREAMS: u32 = 4096;

/// Serves the external scaler on this listener. Aborting the returned task stops accepting.
pub(crate) fn serve(
    listener: BoundedListener,
    proxy: Arc<Proxy>,
    report: watch::Receiver<ProcessReport>,
) -> AbortHandle {
    let address = listener.address;
    let (connections, accepting) = accept(listener);
    let scaler = ExternalScalerServer::new(ScalerService { proxy, report });
    let server = Server::builder()
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PING_TIMEOUT))
        .max_concurrent_streams(MAX_STREAMS)
        .add_service(scaler)
        .serve_with_incoming(connections);
    tokio::spawn(async move {
        let served = server.await;
        tracing::error!(?served, "the external scaler has stopped");
    });
    tracing::info!(%address, "external scaler for KEDA");
    accepting
}

/// Accepts connections, with the listener's limit on their number.
fn accept(
    mut listener: BoundedListener,
) -> (ReceiverStream<std::io::Result<BoundedConnection>>, AbortHandle) {
    let (sender, connections) = mpsc::channel(1);
    let accepting = tokio::spawn(async move {
        loop {
            let (connection, _) = listener.accept().await;
            if sender.send(Ok(connection)).await.is_err() {
                return;
            }
        }
    });
    (ReceiverStream::new(connections), accepting.abort_handle())
}

impl Connected for BoundedConnection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

#[derive(Clone)]
struct ScalerService {
    proxy: Arc<Proxy>,
    report: watch::Receiver<ProcessReport>,
}

type GrpcResult<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl ExternalScaler for ScalerService {
    type StreamIsActiveStream = ReceiverStream<Result<IsActiveResponse, Status>>;
    type StreamMetricSpecStream = ReceiverStream<Result<GetMetricSpecResponse, Status>>;

    async fn is_active(&self, request: Request<ScaledObjectRef>) -> GrpcResult<IsActiveResponse> {
        let (trigger, demand) = self.resolve(request.get_ref())?;
        let result = demand.is_active(trigger.window, trigger.activation);
        Ok(Response::new(IsActiveResponse { result }))
    }

    async fn stream_is_active(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> GrpcResult<Self::StreamIsActiveStream> {
        let (trigger, _) = self.resolve(request.get_ref())?;
        let (sender, answers) = mpsc::channel(1);
        tokio::spawn(self.clone().stream_activity(trigger, sender));
        Ok(Response::new(ReceiverStream::new(answers)))
    }

    async fn get_metric_spec(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> GrpcResult<GetMetricSpecResponse> {
        let (trigger, demand) = self.resolve(request.get_ref())?;
        Ok(Response::new(spec(target(&trigger, &demand)?)))
    }

    async fn stream_metric_spec(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> GrpcResult<Self::StreamMetricSpecStream> {
        let (trigger, demand) = self.resolve(request.get_ref())?;
        target(&trigger, &demand)?;
        let (sender, answers) = mpsc::channel(1);
        tokio::spawn(self.clone().stream_specs(trigger, sender));
        Ok(Response::new(ReceiverStream::new(answers)))
    }

    async fn get_metrics(
        &self,
        request: Request<GetMetricsRequest>,
    ) -> GrpcResult<GetMetricsResponse> {
        let GetMetricsRequest { scaled_object_ref, metric_name } = request.get_ref();
        let reference = scaled_object_ref.clone().unwrap_or_default();
        let (trigger, demand) = self.resolve(&reference)?;
        if metric_name != METRIC {
            let message = format!("metricName: there is no {metric_name:?}, only {METRIC:?}");
            return Err(Status::invalid_argument(message));
        }
        let demand = demand.average(trigger.window).total();
        let value = MetricValue {
            metric_name: METRIC.to_owned(),
            metric_value: demand.ceil() as i64,
            metric_value_float: demand,
        };
        Ok(Response::new(GetMetricsResponse { metric_values: vec![value] }))
    }
}

impl ScalerService {
    /// Parses the trigger and returns it with the demand of its Service.
    fn resolve(
        &self,
        reference: &ScaledObjectRef,
    ) -> Result<(ScalerTrigger, BackendDemand), Status> {
        let trigger = ScalerTrigger::parse(&reference.namespace, &reference.scaler_metadata)
            .map_err(Status::invalid_argument)?;
        let demand = self.demand(&trigger)?;
        Ok((trigger, demand))
    }

    fn demand(&self, trigger: &ScalerTrigger) -> Result<BackendDemand, Status> {
        let key = trigger.select_backend(self.proxy.backend_keys())?;
        // The backend has gone since its selection.
        let gone = || {
            Status::not_found(format!("Service {}: no route refers to it any more", trigger.name()))
        };
        self.proxy.demand(&key).ok_or_else(gone)
    }

    /// Sends whether there is demand.
    async fn stream_activity(
        self,
        trigger: ScalerTrigger,
        sender: mpsc::Sender<Result<IsActiveResponse, Status>>,
    ) {
        let mut told_at = Instant::now();
        let observe = || {
            let mut demand = self.demand(&trigger)?;
            // Subscribe before reading the demand, so that no later rise is missed.
            demand.expect_rise();
            let result = demand.is_active(trigger.window, trigger.activation);
            // If the threshold is not 0, a single request does not decide.
            let is_awaited = result && !demand.has_endpoint();
            let is_first_awaited = !result && trigger.activation == 0.0;
            let risen = async move {
                match is_first_awaited {
                    true => demand.wait_for_rise().await,
                    false => pending().await,
                }
            };
            let is_repeated = is_awaited && told_at.elapsed() >= REPEAT_INTERVAL;
            if is_repeated || !is_awaited {
                told_at = Instant::now();
            }
            Ok(ObservedValue { value: IsActiveResponse { result }, is_repeated, changed: risen })
        };
        stream_changes(sender, ACTIVITY_POLL_INTERVAL, self.report.clone(), observe).await;
    }

    /// Sends the target per replica.
    async fn stream_specs(
        self,
        trigger: ScalerTrigger,
        sender: mpsc::Sender<Result<GetMetricSpecResponse, Status>>,
    ) {
        let observe = || {
            let target = target(&trigger, &self.demand(&trigger)?)?;
            Ok(ObservedValue { value: spec(target), is_repeated: false, changed: pending() })
        };
        stream_changes(sender, SPEC_POLL_INTERVAL, self.report.clone(), observe).await;
    }
}

/// Returns the target of concurrent requests per replica.
fn target(trigger: &ScalerTrigger, demand: &BackendDemand) -> Result<f64, Status> {
    let uncapped = || {
        let message = "target: required (concurrent requests per replica), because the Service has no \
                       known maxInFlightPerEndpoint";
        Status::invalid_argument(message)
    };
    trigger.target.or_else(|| demand.cap().map(f64::from)).ok_or_else(uncapped)
}

fn spec(target: f64) -> GetMetricSpecResponse {
    let spec = MetricSpec {
        metric_name: METRIC.to_owned(),
        target_size: target.ceil() as i64,
        target_size_float: target,
    };
    GetMetricSpecResponse { metric_specs: vec![spec] }
}
