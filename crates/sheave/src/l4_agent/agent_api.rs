//! The HTTP API of the agent: probes, metrics, and what the data path serves, as JSON.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use l4::{EndpointPlace, NodeWay, VipAnnouncement};
use serde::Serialize;
use serde_json::json;

use super::agent::L4Agent;
use super::flow_report::{self, FlowQuestion};
use super::metrics;
use crate::admin::ExpositionFormat;

const INDEX: &str = "\
Sheave's layer-4 agent

/healthz                 200 while the process runs
/readyz                  200 while the data path is up to date, else 503 with the reason
/metrics                 Prometheus metrics: OpenMetrics if the Accept field asks for it, else the older text format
/api/v1/l4               addresses, services, endpoints, ways to nodes, and what is not served
/api/v1/l4/explain/FLOW  the endpoint of a connection, and why: FLOW is tcp,CLIENT:PORT,ADDRESS:PORT
";

/// State of the agent, as the API shows it.
#[derive(Default)]
pub(super) struct AgentState {
    /// The agent; `None` before the start.
    pub(super) agent: Option<L4Agent>,
    /// Reason why this node has no data path.
    pub(super) unavailable: Option<String>,
    /// Error of the last pass; empty if there was none.
    pub(super) error: String,
    /// Errors of the objects that were read last.
    pub(super) problems: Vec<String>,
}

/// The state, shared by the agent and the handlers.
pub(super) type SharedState = Arc<Mutex<AgentState>>;

/// Returns the paths of the API.
pub(super) fn router(state: SharedState) -> Router {
    Router::new()
        .route("/", get(async || INDEX))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(show_metrics))
        .route("/api/v1/l4", get(overview))
        .route("/api/v1/l4/explain/{flow}", get(explain))
        .with_state(state)
}

impl AgentState {
    /// Returns why the data path is not up to date.
    fn unready_reason(&self) -> Option<&str> {
        if let Some(reason) = &self.unavailable {
            return Some(reason);
        }
        if !self.error.is_empty() {
            return Some(&self.error);
        }
        let is_up = self.agent.as_ref().is_some_and(|it| it.desired.is_some());
        (!is_up).then_some("starting")
    }
}

async fn ready(State(state): State<SharedState>) -> (StatusCode, String) {
    let state = state.lock().unwrap_or_else(PoisonError::into_inner);
    match state.unready_reason() {
        None => (StatusCode::OK, "ready\n".to_owned()),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

async fn show_metrics(State(state): State<SharedState>, headers: HeaderMap) -> Response {
    let accept = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = ExpositionFormat::negotiate(&accept.collect::<Vec<_>>().join(","));
    let state = state.lock().unwrap_or_else(PoisonError::into_inner);
    let text = metrics::render(state.agent.as_ref(), format);
    ([(header::CONTENT_TYPE, format.content_type())], text).into_response()
}

async fn overview(State(state): State<SharedState>) -> Json<AgentOverview> {
    let state = state.lock().unwrap_or_else(PoisonError::into_inner);
    Json(AgentOverview::of(&state))
}

async fn explain(State(state): State<SharedState>, Path(flow): Path<String>) -> Response {
    let question: FlowQuestion = match flow.parse() {
        Ok(question) => question,
        Err(error) => {
            return (StatusCode::BAD_REQUEST, Json(json!({ "error": error }))).into_response();
        }
    };
    let state = state.lock().unwrap_or_else(PoisonError::into_inner);
    match &state.agent {
        Some(agent) => Json(flow_report::of_agent(agent, &question)).into_response(),
        None => {
            let error = state.unready_reason().unwrap_or("starting");
            (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "error": error }))).into_response()
        }
    }
}

/// State of the data path as JSON.
#[derive(Serialize)]
struct AgentOverview {
    /// The reason why nothing is served, or why the last change is not in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    unready: Option<String>,
    addresses: BTreeMap<String, &'static str>,
    services: Vec<ServiceView>,
    nodes: BTreeMap<String, String>,
    not_served: Vec<String>,
    problems: Vec<String>,
}

#[derive(Serialize)]
struct ServiceView {
    service: String,
    address: String,
    protocol: &'static str,
    endpoints: Vec<EndpointView>,
}

#[derive(Serialize)]
struct EndpointView {
    address: String,
    /// `local`, `host-network`, or the name of the node.
    place: String,
    draining: bool,
    new_connections: bool,
}

impl AgentOverview {
    fn of(state: &AgentState) -> Self {
        let mut overview = Self {
            unready: state.unready_reason().map(str::to_owned),
            addresses: BTreeMap::new(),
            services: Vec::new(),
            nodes: BTreeMap::new(),
            not_served: Vec::new(),
            problems: state.problems.clone(),
        };
        let Some(agent) = &state.agent else { return overview };
        let findings = agent.findings.iter();
        overview.not_served = findings.map(|it| format!("{}: {}", it.object, it.message)).collect();
        let Some(desired) = &agent.desired else { return overview };
        for (vip, announcement) in &desired.vips {
            let text = match announcement {
                VipAnnouncement::Silent => "silent",
                VipAnnouncement::Announced(_) => "announced",
            };
            overview.addresses.insert(vip.to_string(), text);
        }
        for (name, node) in &desired.nodes {
            overview.nodes.insert(name.clone(), way_label(&node.way).to_owned());
        }
        for service in &desired.services {
            let endpoints = service.endpoints.iter().map(|it| EndpointView {
                address: it.address.to_string(),
                place: place_label(&it.place).to_owned(),
                draining: it.is_draining,
                new_connections: it.weight > 0 && !it.is_draining,
            });
            overview.services.push(ServiceView {
                service: agent.service_name(service.address, service.protocol).to_owned(),
                address: service.address.to_string(),
                protocol: flow_report::protocol_label(service.protocol),
                endpoints: endpoints.collect(),
            });
        }
        overview
    }
}

fn place_label(place: &EndpointPlace) -> &str {
    match place {
        EndpointPlace::Local(_) => "local",
        EndpointPlace::HostNetwork => "host-network",
        EndpointPlace::Node(name) => name,
    }
}

fn way_label(way: &NodeWay) -> &'static str {
    match way {
        NodeWay::Layer2 { .. } => "layer2",
        NodeWay::Vxlan { .. } => "vxlan",
        NodeWay::FullNat { .. } => "full-nat",
    }
}
