//! State as JSON: the shapes of `/api/v1`, apart from the data plane's own types so that they can stay as they are.

use std::borrow::Cow;
use std::net::SocketAddr;

use gateway::ObjectProblem;
use proxy::{BackendView, EndpointView, ListenerView};
use serde::{Deserialize, Serialize};

use super::exposition::seconds;
use super::status::ObjectStatus;
use crate::report::ProcessReport;

#[derive(Serialize)]
pub(super) struct ListenersResponse {
    listeners: Vec<ListenerInfo>,
}

#[derive(Serialize)]
struct ListenerInfo {
    name: String,
    address: SocketAddr,
    /// HTTP/3 is served at the UDP port of the same number.
    http3: bool,
    connections: u64,
}

/// What `sheave top` reads back.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct BackendsResponse {
    pub(crate) backends: Vec<BackendInfo>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct BackendInfo {
    /// As metrics and logs name it.
    pub(crate) name: String,
    namespace: String,
    service: String,
    port: u16,
    algorithm: String,
    pub(crate) max_in_flight_per_endpoint: Option<u32>,
    /// The limit of each endpoint is learned.
    auto_limit: bool,
    queue_max_requests: u32,
    queue_timeout_seconds: f64,
    pub(crate) waiting: u32,
    /// Health is ignored, because too few endpoints are well.
    panicking: bool,
    pub(crate) retries: u64,
    pub(crate) demand: DemandInfo,
    /// How long a request holds a slot, on average; `null`: none has yet.
    service_time_seconds: Option<f64>,
    pub(crate) endpoints: Vec<EndpointInfo>,
}

/// Requests at a time, on average over the last 15 s.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct DemandInfo {
    /// All of it.
    pub(crate) total: f64,
    in_flight: f64,
    queued: f64,
    /// Refused, each for as long as it would have taken.
    shed: f64,
}

impl From<proxy::RequestDemand> for DemandInfo {
    fn from(demand: proxy::RequestDemand) -> Self {
        let proxy::RequestDemand { in_flight, queued, rejected: shed } = demand;
        Self { total: demand.total(), in_flight, queued, shed }
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct EndpointInfo {
    pub(crate) address: SocketAddr,
    weight: u32,
    /// `serving`, `starting`, `ejected`, `trial` or `unfit`.
    pub(crate) health: Cow<'static, str>,
    pub(crate) in_flight: u32,
    /// How many requests it may have at once; `null`: any number.
    pub(crate) limit: Option<u32>,
    /// `fixed`, `assigned`, learned (`start`, `growing`, `knee`, `trial`, `shared`), `said` by the endpoint,
    /// or `full` while it is given less.
    limit_reason: Option<Cow<'static, str>>,
    idle_connections: usize,
    pub(crate) requests: u64,
    pub(crate) failures: u64,
    /// To the head of the response, with peaks that fade, as PeakEwma learns it; `null`: by no other algorithm, or not yet.
    pub(crate) latency_seconds: Option<f64>,
    /// `open`, or `avoided` after a failure, while requests go by TCP; `null`: HTTP/3 is not what its backend speaks.
    http3: Option<Cow<'static, str>>,
}

#[derive(Serialize)]
pub(super) struct ConfigResponse {
    generation: u64,
    applied_at_seconds: Option<f64>,
    problems: Vec<ProblemInfo>,
    unbound_listeners: Vec<String>,
    statuses: Vec<ObjectStatus>,
}

#[derive(Serialize)]
struct ProblemInfo {
    file: String,
    document: usize,
    object: String,
    field: String,
    message: String,
}

pub(super) fn listeners(views: Vec<ListenerView>) -> ListenersResponse {
    let listener = |view: ListenerView| ListenerInfo {
        name: view.name.to_string(),
        address: view.address,
        http3: view.http3,
        connections: view.connections,
    };
    ListenersResponse { listeners: views.into_iter().map(listener).collect() }
}

pub(super) fn backends(views: Vec<BackendView>) -> BackendsResponse {
    BackendsResponse { backends: views.into_iter().map(backend).collect() }
}

fn backend(view: BackendView) -> BackendInfo {
    let BackendView { key, settings, waiting, panicking, retries, demand, service_time, endpoints } =
        view;
    BackendInfo {
        name: key.to_string(),
        namespace: key.namespace.to_string(),
        service: key.service.to_string(),
        port: key.port,
        algorithm: format!("{:?}", settings.algorithm),
        max_in_flight_per_endpoint: settings.max_in_flight_per_endpoint.map(Into::into),
        auto_limit: settings.auto_limit.is_some(),
        queue_max_requests: settings.queue_max_requests,
        queue_timeout_seconds: settings.queue_timeout.as_secs_f64(),
        waiting,
        panicking,
        retries,
        demand: demand.into(),
        service_time_seconds: service_time.map(|time| time.as_secs_f64()),
        endpoints: endpoints.into_iter().map(endpoint).collect(),
    }
}

fn endpoint(view: EndpointView) -> EndpointInfo {
    let EndpointView {
        address,
        weight,
        health,
        in_flight,
        limit,
        idle_connections,
        requests,
        failures,
        latency,
        http3,
    } = view;
    EndpointInfo {
        address,
        weight,
        health: health.into(),
        in_flight,
        limit: limit.map(|(limit, _)| limit),
        limit_reason: limit.map(|(_, reason)| reason.into()),
        idle_connections,
        requests,
        failures,
        latency_seconds: latency.map(|latency| latency.as_secs_f64()),
        http3: http3.map(Into::into),
    }
}

pub(super) fn config(report: &ProcessReport) -> ConfigResponse {
    ConfigResponse {
        generation: report.generation,
        applied_at_seconds: report.applied_at.map(seconds),
        problems: report.problems.iter().map(problem_info).collect(),
        unbound_listeners: report.unbound.to_vec(),
        statuses: report.statuses.iter().map(ObjectStatus::of).collect(),
    }
}

fn problem_info(problem: &ObjectProblem) -> ProblemInfo {
    let ObjectProblem { origin, object, field, message } = problem.clone();
    ProblemInfo { file: origin.file.to_string(), document: origin.document, object, field, message }
}
