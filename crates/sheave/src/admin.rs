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
/// Curves of the last minutes and hours.
mod history;
/// Samples of the traffic, off the workers.
mod recorder;
/// The state in the aggregated form of the dashboard.
mod overview;
/// The web page.
mod dashboard;
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

use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use proxy::{Proxy, clock};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;

use crate::explain;
use crate::log::DroppedEvents;
use crate::replicas::ReplicaStatus;
use crate::report::{ProcessPhase, ProcessReport};
use crate::transparent::AgentStatus;
use ::xds::ResourcePublisher;
pub(crate) use accept::{BoundedConnection, BoundedListener};
pub(crate) use addresses::{AddressRoute, AddressesResponse};
pub(crate) use announcer::serve_announcer_metrics;
pub(crate) use api::{BackendInfo, BackendsResponse, EndpointInfo, RouteInfo, RoutesResponse};
use api::{BackendsQuery, ProblemInfo};
pub(crate) use client::{failure, query};
pub(crate) use exposition::{ExpositionFormat, ExpositionWriter};
use history::HistoryRange;
pub(crate) use host::ServedHosts;
use metrics::ProcessState;
use overview::PageQuery;
pub(crate) use recorder::TrafficRecorder;
pub(crate) use replicas::ReplicasResponse;

/// Index page: every path with a description.
const INDEX: &str = "\
Sheave's admin API

/healthz            200 while the process runs, else 503
/readyz             200 while requests are served, else 503
/metrics            Prometheus metrics: OpenMetrics if the Accept field asks for it, else the older text format
/dashboard/         the same as pictures, for a browser
/api/v1/listeners   listeners and their addresses
/api/v1/backends    backends, their endpoints and the requests in flight; ?name=NAME&offset=N&limit=N: of some alone
/api/v1/routes      rules of routes, their backends and the rates of requests
/api/v1/addresses   pool addresses served here, and the number of endpoints on each node
/api/v1/replicas    slots leased to other replicas, and the connections to them
/api/v1/transparent transparent mode: what is taken on this node, what is not, and why
/api/v1/xds         clients of the xDS server, what they reject or do not follow, and their load
/api/v1/config      the configuration in force, and the errors of the one read last
/api/v1/problems    these errors alone, and the listeners without their address
/api/v1/overview    rates of the last second, and the busiest listeners, routes and backends
/api/v1/overview/backends
                    a page of all backends: ?search=TEXT&sort=requests&offset=N&limit=N
/api/v1/history     curves of the last ?range=10m, 2h or 24h; &backend=NAME: of one of the busiest backends
/api/v1/certificates
                    certificates in use, with their expiry
/api/v1/load-balancers
                    Services of type LoadBalancer that are served, and what of them is not
/api/v1/explain     how a request would be routed, and why: ?method=GET&url=URL&header=FIELD
";

/// Time from the first byte of a request until its response begins.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// A query, or the reason why it is invalid.
type ApiQuery<T> = Result<Query<T>, QueryRejection>;

/// State shared by the handlers of the admin API.
#[derive(Clone)]
pub(crate) struct ApiState {
    proxy: Arc<Proxy>,
    report: watch::Receiver<ProcessReport>,
    dropped_events: Arc<DroppedEvents>,
    components: ComponentStatuses,
    started: SystemTime,
    recorder: Arc<TrafficRecorder>,
    /// One explanation at a time: each translates the configuration.
    explanations: Arc<Semaphore>,
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
        let recorder = TrafficRecorder::new(Arc::clone(&proxy));
        let (started, explanations) = (clock::wall(), Arc::new(Semaphore::new(1)));
        Self { proxy, report, dropped_events, components, started, recorder, explanations }
    }

    /// Returns the sampler of the traffic; the caller runs it.
    pub(crate) fn recorder(&self) -> Arc<TrafficRecorder> {
        Arc::clone(&self.recorder)
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
        .route("/api/v1/problems", get(problems))
        .route("/api/v1/overview", get(overview))
        .route("/api/v1/overview/backends", get(overview_backends))
        .route("/api/v1/history", get(history))
        .route("/api/v1/certificates", get(certificates))
        .route("/api/v1/load-balancers", get(load_balancers))
        .route("/api/v1/explain", get(explain))
        .merge(dashboard::router())
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
        .layer(middleware::map_response(forbid_sniffing))
}

/// Tells browsers to take the content type of a response as it is, and to show it to pages of this server alone.
async fn forbid_sniffing(mut response: Response) -> Response {
    const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
    response
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

async fn backends(
    State(state): State<ApiState>,
    query: ApiQuery<Vec<(String, String)>>,
) -> Response {
    let query = match query.map(|Query(pairs)| BackendsQuery::parse(pairs)) {
        Ok(Ok(query)) => query,
        Ok(Err(error)) => return bad_query(&error),
        Err(error) => return bad_query(&error.body_text()),
    };
    let views = match query.names.is_empty() {
        true => state.proxy.backends(),
        false => state.proxy.backends_named(|name| query.names.contains(name)),
    };
    Json(api::backends(views, &query)).into_response()
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

async fn problems(State(state): State<ApiState>) -> Json<overview::ProblemsResponse> {
    Json(overview::problems(&state.report.borrow()))
}

async fn certificates(State(state): State<ApiState>) -> Json<overview::CertificatesResponse> {
    Json(overview::certificates(&state.report.borrow(), clock::wall()))
}

async fn load_balancers(State(state): State<ApiState>) -> Json<overview::LoadBalancersResponse> {
    Json(overview::load_balancers(&state.report.borrow()))
}

/// Answers all questions about one sample with the same bytes.
async fn overview(State(state): State<ApiState>) -> Response {
    let sample = state.recorder.latest();
    let bytes = sample.overview.get_or_init(|| {
        let report = state.report.borrow();
        let overview = overview::overview(&sample, &report, &state.components, state.started);
        Bytes::from(
            serde_json::to_vec(&overview)
                .expect("the overview has no maps with other keys than text"),
        )
    });
    ([(header::CONTENT_TYPE, "application/json")], bytes.clone()).into_response()
}

async fn overview_backends(State(state): State<ApiState>, query: ApiQuery<PageQuery>) -> Response {
    match query {
        Ok(Query(query)) => {
            Json(overview::backend_page(&state.recorder.latest(), &query)).into_response()
        }
        Err(error) => bad_query(&error.body_text()),
    }
}

/// Query of a curve.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HistoryQuery {
    #[serde(default = "shortest_range")]
    range: String,
    backend: Option<String>,
}

fn shortest_range() -> String {
    "10m".to_owned()
}

async fn history(State(state): State<ApiState>, query: ApiQuery<HistoryQuery>) -> Response {
    let query = match query {
        Ok(Query(query)) => query,
        Err(error) => return bad_query(&error.body_text()),
    };
    let Some(range) = HistoryRange::parse(&query.range) else {
        return bad_query("range is 10m, 2h or 24h");
    };
    match state.recorder.curve(query.backend.as_deref(), range) {
        Some(curve) => Json(curve).into_response(),
        None => {
            let error = "this backend is not one of the busiest, which alone have curves";
            error_response(StatusCode::NOT_FOUND, error).into_response()
        }
    }
}

/// Explains a request by the configuration in force. It takes as long as a translation, so it runs on another thread.
async fn explain(
    State(state): State<ApiState>,
    query: ApiQuery<Vec<(String, String)>>,
) -> Response {
    let question = match query.map(|Query(pairs)| explain::ExplainQuestion::parse(pairs)) {
        Ok(Ok(question)) => question,
        Ok(Err(error)) => return bad_query(&error),
        Err(error) => return bad_query(&error.body_text()),
    };
    let Ok(permit) = Arc::clone(&state.explanations).try_acquire_owned() else {
        let error = "another request is being explained: try again in a second";
        return error_response(StatusCode::SERVICE_UNAVAILABLE, error).into_response();
    };
    let applied = Arc::clone(&state.report.borrow().applied);
    let answer = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        question.answer(&applied)
    });
    match answer.await {
        Ok(Ok(lines)) => Json(json!({ "lines": lines })).into_response(),
        Ok(Err(error)) => bad_query(&error),
        Err(_) => {
            let error = "the explanation failed: see the log";
            error_response(StatusCode::INTERNAL_SERVER_ERROR, error).into_response()
        }
    }
}

fn bad_query(error: &str) -> Response {
    error_response(StatusCode::BAD_REQUEST, error).into_response()
}

fn error_response(status: StatusCode, error: &str) -> (StatusCode, Json<serde_json::Value>) {
    (status, Json(json!({ "error": error })))
}

#[cfg(test)]
mod tests;
