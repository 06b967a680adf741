//! State as JSON: the schema of `/api/v1`, separate from the data plane's own types so that it can stay stable.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::SocketAddr;

use gateway::ObjectProblem;
use proxy::{BackendView, EndpointView, ListenerView, RouteView};
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
    /// True if HTTP/3 is served at the UDP port of the same number.
    http3: bool,
    connections: u64,
}

/// Response of `/api/v1/backends`; `sheave top` parses it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct BackendsResponse {
    pub(crate) backends: Vec<BackendInfo>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct BackendInfo {
    /// Name of the backend in metrics and logs.
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) service: String,
    pub(crate) port: u16,
    pub(crate) algorithm: String,
    pub(crate) max_in_flight_per_endpoint: Option<u32>,
    /// True if the limit of each endpoint is learned (adaptive concurrency).
    auto_limit: bool,
    queue_max_requests: u32,
    queue_timeout_seconds: f64,
    pub(crate) queue_length: u32,
    /// True in panic mode: health is ignored, because too few endpoints are healthy.
    pub(crate) panicking: bool,
    pub(crate) retries: u64,
    /// Demand of this replica.
    pub(crate) demand: DemandInfo,
    /// Demand of all replicas together; as `demand` if they do not report it to one another.
    #[serde(default)]
    pub(crate) demand_all_replicas: DemandInfo,
    /// Rates of all replicas together, as a mean over the last 15 s.
    #[serde(default)]
    pub(crate) rates_all_replicas: RateInfo,
    /// Mean time that a request holds a slot; `null`: no request has completed yet.
    service_time_seconds: Option<f64>,
    /// Number of endpoints, also if the query selects some alone.
    #[serde(default)]
    endpoint_count: usize,
    pub(crate) endpoints: Vec<EndpointInfo>,
}

/// Query of `/api/v1/backends`.
pub(super) struct BackendsQuery {
    /// Names of the backends; empty: all.
    pub(super) names: BTreeSet<String>,
    /// Number of endpoints of each backend that are left out, and of those that follow.
    offset: usize,
    limit: usize,
}

/// Concurrent requests, as a mean over the last 15 s.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct DemandInfo {
    /// Sum of the parts below.
    pub(crate) total: f64,
    pub(crate) in_flight: f64,
    pub(crate) queued: f64,
    /// Rejected requests, each counted for the mean service time.
    pub(crate) rejected: f64,
}

/// Requests per second.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct RateInfo {
    /// All requests, the rejected ones too.
    pub(crate) requests_per_second: f64,
    pub(crate) rejections_per_second: f64,
}

impl From<proxy::RequestDemand> for DemandInfo {
    fn from(demand: proxy::RequestDemand) -> Self {
        let proxy::RequestDemand { in_flight, queued, rejected } = demand;
        Self { total: demand.total(), in_flight, queued, rejected }
    }
}

impl From<proxy::RequestRates> for RateInfo {
    fn from(rates: proxy::RequestRates) -> Self {
        let proxy::RequestRates { requests, rejected } = rates;
        Self { requests_per_second: requests, rejections_per_second: rejected }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct EndpointInfo {
    pub(crate) address: SocketAddr,
    pub(crate) weight: u32,
    /// `serving`, `slow_start`, `ejected`, `half_open`, `unhealthy` or `unreachable`.
    pub(crate) health: Cow<'static, str>,
    pub(crate) in_flight: u32,
    /// Maximum number of concurrent requests; `null`: unlimited.
    pub(crate) limit: Option<u32>,
    /// Origin of the limit: `fixed`, `assigned` to this replica, `leased` by it, learned (`start`, `growing`, `saturation`, `probing`,
    /// `shared`), `reported` by the endpoint, or `full` while a rejection by the endpoint lowers it.
    pub(crate) limit_reason: Option<Cow<'static, str>>,
    idle_connections: usize,
    pub(crate) requests: u64,
    pub(crate) failures: u64,
    /// Latency to the response header, a decaying peak as PeakEwma learns it; `null`: another algorithm, or no sample
    /// yet.
    pub(crate) latency_seconds: Option<f64>,
    /// `open`, or `avoided` after a failure while requests use TCP; `null`: the protocol of the backend is not HTTP/3.
    http3: Option<Cow<'static, str>>,
}

/// Response of `/api/v1/routes`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RoutesResponse {
    pub(crate) routes: Vec<RouteInfo>,
}

/// A rule of a route.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RouteInfo {
    /// Name of the rule in metrics and logs: `namespace/route/rule`.
    pub(crate) name: String,
    /// Names of the backends that the rule refers to.
    pub(crate) backends: Vec<String>,
    /// Rates of all replicas together, as a mean over the last 15 s; `null`: the API of metrics is off.
    pub(crate) rates_all_replicas: Option<RateInfo>,
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
pub(super) struct ProblemInfo {
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

impl BackendsQuery {
    /// Reads the query, or returns the error: one sentence that names the valid form.
    pub(super) fn parse(pairs: Vec<(String, String)>) -> Result<Self, String> {
        let mut query = Self { names: BTreeSet::new(), offset: 0, limit: usize::MAX };
        for (key, value) in pairs {
            let number = || {
                let error = |_error| format!("{key} is a number, not {value:?}");
                value.parse::<usize>().map_err(error)
            };
            match key.as_str() {
                "name" => {
                    query.names.insert(value);
                }
                "offset" => query.offset = number()?,
                "limit" => query.limit = number()?,
                _ => {
                    return Err(format!(
                        "unknown parameter {key:?}: there are name, offset, limit"
                    ));
                }
            }
        }
        Ok(query)
    }
}

pub(super) fn backends(views: Vec<BackendView>, query: &BackendsQuery) -> BackendsResponse {
    BackendsResponse { backends: views.into_iter().map(|view| backend(view, query)).collect() }
}

pub(super) fn routes(views: Vec<RouteView>) -> RoutesResponse {
    let route = |view: RouteView| RouteInfo {
        name: view.name.to_string(),
        backends: view.backends.iter().map(ToString::to_string).collect(),
        rates_all_replicas: view.rates_of_all_replicas.map(Into::into),
    };
    RoutesResponse { routes: views.into_iter().map(route).collect() }
}

fn backend(view: BackendView, query: &BackendsQuery) -> BackendInfo {
    let BackendView {
        key,
        settings,
        waiting,
        panicking,
        retries,
        demand,
        demand_of_all_replicas,
        rates_of_all_replicas,
        service_time,
        endpoints,
    } = view;
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
        queue_length: waiting,
        panicking,
        retries,
        demand: demand.into(),
        demand_all_replicas: demand_of_all_replicas.into(),
        rates_all_replicas: rates_of_all_replicas.into(),
        service_time_seconds: service_time.map(|time| time.as_secs_f64()),
        endpoint_count: endpoints.len(),
        endpoints: endpoints
            .into_iter()
            .skip(query.offset)
            .take(query.limit)
            .map(endpoint)
            .collect(),
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
        problems: report.problems.iter().map(ProblemInfo::of).collect(),
        unbound_listeners: report.unbound.to_vec(),
        statuses: report
            .statuses
            .iter()
            .map(|status| ObjectStatus::of(status, &report.controller))
            .collect(),
    }
}

impl ProblemInfo {
    pub(super) fn of(problem: &ObjectProblem) -> Self {
        let ObjectProblem { origin, object, field, message } = problem.clone();
        let (file, document) = (origin.file.to_string(), origin.document);
        Self { file, document, object, field, message }
    }
}
