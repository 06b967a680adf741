//! The admin API: the state of this process over HTTP. It is read-only, and it never shows a secret.

/// Connections: bounded in number and time.
mod accept;
/// Host names under which the API answers.
mod host;
/// State as JSON.
mod api;
/// The addresses of a pool, as JSON.
mod addresses;
/// Status of each object, as JSON.
mod status;
/// Replicas, as JSON.
mod replicas;
/// Transparent mode, as JSON.
mod transparent;
/// `/api/v1/xds`.
mod xds;
/// Metrics of the announcer.
mod announcer;
/// Client of the admin API.
mod client;
/// Metrics of the process, and the whole of `/metrics`.
mod metrics;
/// Metrics in the text formats of Prometheus and OpenMetrics.
mod exposition;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use proxy::{Proxy, clock};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::log::DroppedEvents;
use crate::replicas::ReplicaStatus;
use crate::report::{ProcessPhase, ProcessReport};
use crate::transparent::AgentStatus;
use ::xds::ResourcePublisher;
pub(crate) use accept::{BoundedConnection, BoundedListener};
pub(crate) use addresses::{AddressRoute, AddressesResponse};
pub(crate) use announcer::serve_announcer_metrics;
pub(crate) use api::{BackendInfo, BackendsResponse, EndpointInfo, RouteInfo, RoutesResponse};
pub(crate) use client::{failure, query};
pub(crate) use exposition::{ExpositionFormat, ExpositionWriter};
pub(crate) use host::ServedHosts;
use metrics::ProcessState;
pub(crate) use replicas::ReplicasResponse;

/// Index page: every path with a description.
const INDEX: &str = "\
Sheave's admin API

/healthz            200 while the process runs, else 503
/readyz             200 while requests are served, else 503
/metrics            Prometheus metrics: OpenMetrics if the Accept field asks for it, else the older text format
/api/v1/listeners   listeners and their addresses
/api/v1/backends    backends, their endpoints and the requests in flight
/api/v1/routes      rules of routes, their backends and the rates of requests
/api/v1/addresses   pool addresses served here, and the number of endpoints on each node
/api/v1/replicas    slots leased to other replicas, and the connections to them
/api/v1/transparent transparent mode: what is taken on this node, what is not, and why
/api/v1/xds         clients of the xDS server, what they reject or do not follow, and their load
/api/v1/config      the configuration in force, and the errors of the one read last
";

/// Time from the first byte of a request until its response begins.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// State shared by the handlers of the admin API.
#[derive(Clone)]
pub(crate) struct ApiState {
    proxy: Arc<Proxy>,
    report: watch::Receiver<ProcessReport>,
    dropped_events: Arc<DroppedEvents>,
    components: ComponentStatuses,
    started: SystemTime,
}

/// Statuses of optional parts of the process; `None`: the part is off.
#[derive(Clone, Default)]
pub(crate) struct ComponentStatuses {
    /// Transparent mode.
    pub(crate) agent: Option<Arc<AgentStatus>>,
    /// Leases of slots among replicas.
    pub(crate) replicas: Option<Arc<ReplicaStatus>>,
    /// The xDS server.
    pub(crate) xds: Option<Arc<ResourcePublisher>>,
}

/// State that the probes show.
#[derive(Clone)]
pub(crate) struct ProcessHealth {
    report: watch::Receiver<ProcessReport>,
    agent: Option<Arc<AgentStatus>>,
}

impl ApiState {
    /// Returns the state of a process that starts now.
    pub(crate) fn new(
        proxy: Arc<Proxy>,
        report: watch::Receiver<ProcessReport>,
        dropped_events: Arc<DroppedEvents>,
        components: ComponentStatuses,
    ) -> Self {
        Self { proxy, report, dropped_events, components, started: clock::wall() }
    }

    /// Returns the state that the probes show.
    pub(crate) fn health(&self) -> ProcessHealth {
        ProcessHealth { report: self.report.clone(), agent: self.components.agent.clone() }
    }
}

/// Serves the API under these host names, until the returned task is aborted.
pub(crate) fn serve(listener: BoundedListener, hosts: ServedHosts, state: ApiState) -> AbortHandle {
    start(listener, router(state, hosts), "admin API")
}

/// Serves other paths in the same way: under these host names, and with the same answers to all other requests.
pub(crate) fn serve_agent(
    listener: BoundedListener,
    hosts: ServedHosts,
    paths: Router,
) -> AbortHandle {
    start(listener, guarded(paths, hosts), "admin API")
}

/// Serves the API as soon as the process that has the address has ended.
pub(crate) async fn serve_when_free(address: SocketAddr, hosts: ServedHosts, state: ApiState) {
    let listener = BoundedListener::bind_when_free(address, "--admin", REQUEST_TIMEOUT).await;
    drop(serve(listener, hosts, state));
}

/// Serves the probes of Kubernetes and nothing else, until the returned task is aborted.
pub(crate) fn serve_probes(listener: BoundedListener, health: ProcessHealth) -> AbortHandle {
    start(listener, probes().with_state(health), "probes")
}

fn start(listener: BoundedListener, router: Router, name: &'static str) -> AbortHandle {
    tracing::info!(address = %listener.address, "{name}");
    let serving = tokio::spawn(async move {
        let served = axum::serve(listener, router).await;
        tracing::error!(?served, "stopped: {name}");
    });
    serving.abort_handle()
}

fn router(state: ApiState, hosts: ServedHosts) -> Router {
    let health = state.health();
    let paths = Router::new()
        .route("/", get(async || INDEX))
        .route("/metrics", get(metrics))
        .route("/api/v1/listeners", get(listeners))
        .route("/api/v1/replicas", get(replicas))
        .route("/api/v1/backends", get(backends))
        .route("/api/v1/routes", get(routes))
        .route("/api/v1/addresses", get(addresses))
        .route("/api/v1/transparent", get(transparent))
        .route("/api/v1/xds", get(xds))
        .route("/api/v1/config", get(config))
        .with_state(state)
        .merge(probes().with_state(health));
    guarded(paths, hosts)
}

/// Adds what is the same for all paths.
fn guarded(paths: Router, hosts: ServedHosts) -> Router {
    paths
        .fallback(async || error_response(StatusCode::NOT_FOUND, "no such path: see /"))
        .method_not_allowed_fallback(async || {
            error_response(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD")
        })
        .layer(middleware::from_fn_with_state(hosts, check_host))
}

fn probes() -> Router<ProcessHealth> {
    Router::new().route("/healthz", get(healthy)).route("/readyz", get(ready))
}

/// Rejects a request for a host name that is not one of this API's.
async fn check_host(State(hosts): State<ServedHosts>, request: Request, next: Next) -> Response {
    match hosts.rejected(request.uri(), request.headers()) {
        None => next.run(request).await,
        Some(host) => {
            let error = format!(
                "host {host:?} is not a name of this admin API: use its address, or start with --admin-host"
            );
            error_response(StatusCode::MISDIRECTED_REQUEST, &error).into_response()
        }
    }
}

async fn healthy(State(health): State<ProcessHealth>) -> (StatusCode, String) {
    let reason = health.agent.and_then(|agent| agent.wedged_reason(clock::now()));
    match reason {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

async fn ready(State(health): State<ProcessHealth>) -> (StatusCode, String) {
    let reason = match health.report.borrow().phase {
        ProcessPhase::Starting => Some("starting"),
        ProcessPhase::Ready => health.agent.and_then(|agent| agent.unready_reason(clock::now())),
        // To clients of /readyz, both phases are the same: send no new connections.
        ProcessPhase::Leaving | ProcessPhase::Draining => Some("draining"),
    };
    match reason {
        None => (StatusCode::OK, "ready\n".to_owned()),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

async fn metrics(State(state): State<ApiState>, headers: HeaderMap) -> Response {
    let accept = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = ExpositionFormat::negotiate(&accept.collect::<Vec<_>>().join(","));
    let process = ProcessState {
        report: state.report.borrow().clone(),
        dropped_events: Arc::clone(&state.dropped_events),
        components: state.components.clone(),
        started: state.started,
    };
    let text = metrics::render(&state.proxy, &process, format);
    ([(header::CONTENT_TYPE, format.content_type())], text).into_response()
}

async fn listeners(State(state): State<ApiState>) -> Json<api::ListenersResponse> {
    Json(api::listeners(state.proxy.listeners()))
}

async fn backends(State(state): State<ApiState>) -> Json<BackendsResponse> {
    Json(api::backends(state.proxy.backends()))
}

async fn routes(State(state): State<ApiState>) -> Json<RoutesResponse> {
    Json(api::routes(state.proxy.routes()))
}

/// The announcer follows this answer. While this Sheave accepts new connections, also during the
/// drain delay, the address may stay here.
async fn addresses(State(state): State<ApiState>) -> Response {
    let report = state.report.borrow().clone();
    match report.phase {
        ProcessPhase::Ready | ProcessPhase::Leaving => {
            Json(AddressesResponse::of(&report, &state.proxy.listeners())).into_response()
        }
        ProcessPhase::Starting | ProcessPhase::Draining => {
            error_response(StatusCode::SERVICE_UNAVAILABLE, "not ready").into_response()
        }
    }
}

async fn transparent(State(state): State<ApiState>) -> Response {
    match &state.components.agent {
        Some(agent) => Json(transparent::response(agent, &state.report.borrow())).into_response(),
        None => {
            let error = "transparent mode is off: see --transparent";
            error_response(StatusCode::NOT_FOUND, error).into_response()
        }
    }
}

async fn replicas(State(state): State<ApiState>) -> Response {
    match &state.components.replicas {
        Some(status) => Json(replicas::response(status)).into_response(),
        None => {
            let error = "no slots are leased: see --lease-slots";
            error_response(StatusCode::NOT_FOUND, error).into_response()
        }
    }
}

async fn xds(State(state): State<ApiState>) -> Response {
    match &state.components.xds {
        Some(publisher) => {
            Json(xds::response(publisher.status(), publisher.load())).into_response()
        }
        None => {
            let error = "there is no xDS server: see --xds";
            error_response(StatusCode::NOT_FOUND, error).into_response()
        }
    }
}

async fn config(State(state): State<ApiState>) -> Json<api::ConfigResponse> {
    Json(api::config(&state.report.borrow()))
}

fn error_response(status: StatusCode, error: &str) -> (StatusCode, Json<serde_json::Value>) {
    (status, Json(json!({ "error": error })))
}

#[cfg(test)]
mod tests;
