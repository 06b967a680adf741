//! The admin API: what this process does and why, over HTTP. It only shows; nothing can be changed here, and no secret is
//! ever shown.

/// Connections: few, and not for ever.
mod accept;
/// State as JSON.
mod api;
/// The addresses of a pool, as JSON.
mod addresses;
/// What became of each object, as JSON.
mod status;
/// Asking it.
mod client;
/// Metrics of the process, and all of them together.
mod metrics;
/// Metrics as text.
mod exposition;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use proxy::Proxy;
use serde_json::json;
use tokio::sync::watch;

use crate::failure::Failure;
use crate::report::{ProcessPhase, ProcessReport};
pub(crate) use accept::{BoundedListener, IdleTimeoutConnection};
pub(crate) use addresses::AddressesResponse;
pub(crate) use api::{BackendInfo, BackendsResponse, EndpointInfo};
pub(crate) use client::query;
use exposition::ExpositionFormat;
use metrics::ProcessState;

/// Every path, and what it shows.
const INDEX: &str = "\
Sheave's admin API

/healthz            200 while the process runs
/readyz             200 when requests are served, else 503
/metrics            for Prometheus: OpenMetrics if asked for, else its older text
/api/v1/listeners   addresses that are listened on
/api/v1/backends    backends, their endpoints and what is in flight
/api/v1/addresses   of a pool: those that are served here, and how many endpoints each node has
/api/v1/config      what is in force, and the errors of what was read last
";

/// What the API shows.
#[derive(Clone)]
struct ApiState {
    proxy: Arc<Proxy>,
    report: watch::Receiver<ProcessReport>,
    started: SystemTime,
}

/// Answers on the address from now on; returns it as bound.
pub(crate) async fn start(
    address: SocketAddr,
    proxy: Arc<Proxy>,
    report: watch::Receiver<ProcessReport>,
) -> Result<SocketAddr, Failure> {
    let listener = BoundedListener::bind(address, "--admin").await?;
    let address = listener.address;
    let subject = ApiState { proxy, report, started: proxy::clock::wall() };
    tokio::spawn(async move {
        let served = axum::serve(listener, router(subject)).await;
        tracing::error!(?served, "the admin API has ended");
    });
    tracing::info!(%address, "admin API");
    Ok(address)
}

fn router(subject: ApiState) -> Router {
    Router::new()
        .route("/", get(async || INDEX))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .route("/api/v1/listeners", get(listeners))
        .route("/api/v1/backends", get(backends))
        .route("/api/v1/addresses", get(addresses))
        .route("/api/v1/config", get(config))
        .fallback(async || error_response(StatusCode::NOT_FOUND, "no such path: see /"))
        .method_not_allowed_fallback(async || {
            error_response(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD")
        })
        .with_state(subject)
}

async fn ready(State(subject): State<ApiState>) -> (StatusCode, &'static str) {
    match subject.report.borrow().phase {
        ProcessPhase::Starting => (StatusCode::SERVICE_UNAVAILABLE, "starting\n"),
        ProcessPhase::Ready => (StatusCode::OK, "ready\n"),
        // For whoever asks this it is one: nothing new is to come.
        ProcessPhase::Leaving | ProcessPhase::Draining => {
            (StatusCode::SERVICE_UNAVAILABLE, "draining\n")
        }
    }
}

async fn metrics(State(subject): State<ApiState>, headers: HeaderMap) -> Response {
    let accept = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = ExpositionFormat::negotiate(&accept.collect::<Vec<_>>().join(","));
    let process =
        ProcessState { report: subject.report.borrow().clone(), started: subject.started };
    let text = metrics::render(&subject.proxy, &process, format);
    ([(header::CONTENT_TYPE, format.content_type())], text).into_response()
}

async fn listeners(State(subject): State<ApiState>) -> Json<api::ListenersResponse> {
    Json(api::listeners(subject.proxy.listeners()))
}

async fn backends(State(subject): State<ApiState>) -> Json<BackendsResponse> {
    Json(api::backends(subject.proxy.backends()))
}

/// Who carries an address goes by it: as long as a Sheave takes in who comes, it may stay.
async fn addresses(State(subject): State<ApiState>) -> Response {
    let report = subject.report.borrow().clone();
    match report.phase {
        ProcessPhase::Ready | ProcessPhase::Leaving => {
            Json(AddressesResponse::of(&report, &subject.proxy.listeners())).into_response()
        }
        ProcessPhase::Starting | ProcessPhase::Draining => {
            error_response(StatusCode::SERVICE_UNAVAILABLE, "not ready").into_response()
        }
    }
}

async fn config(State(subject): State<ApiState>) -> Json<api::ConfigResponse> {
    Json(api::config(&subject.report.borrow()))
}

fn error_response(status: StatusCode, error: &str) -> (StatusCode, Json<serde_json::Value>) {
    (status, Json(json!({ "error": error })))
}

#[cfg(test)]
mod tests;
