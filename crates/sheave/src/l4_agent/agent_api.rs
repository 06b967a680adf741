//! The HTTP API of the agent: probes, metrics, and what the data path serves, as JSON.

use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;

use super::agent::L4Agent;
use super::flow_report::{self, FlowQuestion};
use super::metrics;
use super::overview::L4Overview;
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

    fn overview(&self) -> L4Overview {
        let mut overview = self.agent.as_ref().map_or_else(L4Overview::default, L4Overview::of);
        overview.unready = self.unready_reason().map(str::to_owned);
        overview.problems = self.problems.clone();
        overview
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

async fn overview(State(state): State<SharedState>) -> Json<L4Overview> {
    let state = state.lock().unwrap_or_else(PoisonError::into_inner);
    Json(state.overview())
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
