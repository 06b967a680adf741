//! KEDA's external scaler over gRPC: tells an autoscaler how much each Service is asked for, and at once when a Service
//! that has nothing to do is asked for something.
//!
//! It has an address of its own, apart from the admin API: KEDA's operator has to reach it from another pod, and the
//! admin API stays where it was. It shows no more than the demand for Services that somebody names.

/// What the .proto file comes to.
#[allow(
    clippy::all,
    clippy::allow_attributes_without_reason,
    unreachable_pub,
    unused_qualifications,
    reason = "made by a program"
)]
mod externalscaler;
/// What a trigger of KEDA's asks for.
mod trigger;

use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use proxy::{BackendDemand, Proxy};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tonic::{Request, Response, Status};

use crate::admin::{BoundedListener, IdleTimeoutConnection};
use crate::report::{ProcessPhase, ProcessReport};
use externalscaler::external_scaler_server::{ExternalScaler, ExternalScalerServer};
use externalscaler::{
    GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, MetricSpec,
    MetricValue, ScaledObjectRef,
};
use trigger::ScalerTrigger;

/// The one metric that there is, as KEDA and the HorizontalPodAutoscaler name it.
const METRIC: &str = "demand";

/// How often demand is looked at where nobody tells of it: that it has ended, or that it passes a threshold.
const ACTIVITY_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// How often it is looked at what an endpoint may be given.
const SPEC_POLL_INTERVAL: Duration = Duration::from_secs(15);

/// A client that says nothing is asked whether it is there, well within the time after which an idle connection is
/// closed: a stream says nothing for hours.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Triggers that one connection watches.
const MAX_STREAMS: u32 = 4096;

/// Answers there from now on.
pub(crate) fn serve(
    listener: BoundedListener,
    proxy: Arc<Proxy>,
    report: watch::Receiver<ProcessReport>,
) {
    let address = listener.address;
    let scaler = ExternalScalerServer::new(ScalerService { proxy, report });
    let server = Server::builder()
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PING_TIMEOUT))
        .max_concurrent_streams(MAX_STREAMS)
        .add_service(scaler)
        .serve_with_incoming(accept(listener));
    tokio::spawn(async move {
        let served = server.await;
        tracing::error!(?served, "the external scaler has ended");
    });
    tracing::info!(%address, "external scaler for KEDA");
}

/// Connections, a bounded number of them at a time.
fn accept(mut listener: BoundedListener) -> ReceiverStream<std::io::Result<IdleTimeoutConnection>> {
    let (sender, connections) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            let (connection, _) = listener.accept().await;
            if sender.send(Ok(connection)).await.is_err() {
                return;
            }
        }
    });
    ReceiverStream::new(connections)
}

impl Connected for IdleTimeoutConnection {
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
    /// What is asked for, and the demand that it is about.
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
        // It has gone since: as if it had before.
        let gone = || Status::not_found(format!("Service {}: no longer routed to", trigger.name()));
        self.proxy.demand(&key).ok_or_else(gone)
    }

    /// Says whether there is demand, at once and whenever that changes, until the client leaves, the Service has gone or
    /// the process ends.
    async fn stream_activity(
        mut self,
        trigger: ScalerTrigger,
        sender: mpsc::Sender<Result<IsActiveResponse, Status>>,
    ) {
        let mut told = None;
        loop {
            let mut demand = match self.demand(&trigger) {
                Ok(demand) => demand,
                Err(status) => return drop(sender.send(Err(status)).await),
            };
            // Before the look, so that what comes after it is told of.
            demand.expect_rise();
            let result = demand.is_active(trigger.window, trigger.activation);
            if told != Some(result) {
                told = Some(result);
                if sender.send(Ok(IsActiveResponse { result })).await.is_err() {
                    return;
                }
            }
            // Above a threshold that is not 0, one request more says little.
            let is_first_awaited = !result && trigger.activation == 0.0;
            tokio::select! {
                () = demand.wait_for_rise(), if is_first_awaited => {}
                () = sleep(ACTIVITY_POLL_INTERVAL) => {}
                () = sender.closed() => return,
                status = wait_for_drain(&mut self.report) => return drop(sender.send(Err(status)).await),
            }
        }
    }

    /// Says what one replica is to bear, at once and whenever that changes.
    async fn stream_specs(
        mut self,
        trigger: ScalerTrigger,
        sender: mpsc::Sender<Result<GetMetricSpecResponse, Status>>,
    ) {
        let mut told = None;
        loop {
            let target = self.demand(&trigger).and_then(|demand| target(&trigger, &demand));
            let target = match target {
                Ok(target) => target,
                Err(status) => return drop(sender.send(Err(status)).await),
            };
            if told != Some(target) {
                told = Some(target);
                if sender.send(Ok(spec(target))).await.is_err() {
                    return;
                }
            }
            tokio::select! {
                () = sleep(SPEC_POLL_INTERVAL) => {}
                () = sender.closed() => return,
                status = wait_for_drain(&mut self.report) => return drop(sender.send(Err(status)).await),
            }
        }
    }
}

/// Who is told this asks another replica, or this one's successor.
async fn wait_for_drain(report: &mut watch::Receiver<ProcessReport>) -> Status {
    // Its sender lives as long as the process.
    drop(
        report
            .wait_for(|report| {
                matches!(report.phase, ProcessPhase::Leaving | ProcessPhase::Draining)
            })
            .await,
    );
    Status::unavailable("this Sheave drains")
}

/// What one replica is to bear.
fn target(trigger: &ScalerTrigger, demand: &BackendDemand) -> Result<f64, Status> {
    let uncapped = || {
        let message = "target: needed, as the Service has no maxInFlightPerEndpoint that is known: how many \
                       requests at a time one replica is to bear";
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
