//! `kubectl sheave dashboard`: a local address with the dashboard of a replica, relayed by the proxy of the API server.
//!
//! It passes on reads of the dashboard's paths alone, to one pod, and answers to local host names alone: a page of
//! another site cannot use the operator's credentials by it.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::Context;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use kube::ClusterClient;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::replicas::{ReplicaGroup, admin_port, reason};
use crate::admin::ServedHosts;
use crate::check::print;
use crate::dashboard;
use crate::failure::Failure;

/// Requests that are relayed at a time; further ones wait.
const MAX_RELAYED: usize = 16;

/// Header fields of answers that are passed on.
const PASSED_FIELDS: [HeaderName; 6] = [
    header::CONTENT_TYPE,
    header::CACHE_CONTROL,
    header::CONTENT_SECURITY_POLICY,
    header::REFERRER_POLICY,
    header::X_CONTENT_TYPE_OPTIONS,
    header::ETAG,
];

/// The pod to which requests are relayed.
#[derive(Clone)]
struct RelayTarget {
    client: ClusterClient,
    namespace: Arc<str>,
    pod: Arc<str>,
    port: u16,
    hosts: ServedHosts,
    slots: Arc<Semaphore>,
}

/// Relays until the process is stopped.
pub(super) fn run(group: &ReplicaGroup<'_>, no_open: bool) -> Result<(), Failure> {
    // The first answer tells that the pod is reached, before an address is shown.
    let (pod, _) = group.ask_any::<serde_json::Value>("/api/v1/overview")?;
    let port = group.pods.iter().find(|it| it.name == pod).map(admin_port).unwrap_or_default();
    let target = RelayTarget {
        client: group.cluster.client.clone(),
        namespace: group.namespace.as_str().into(),
        pod: pod.as_str().into(),
        port,
        hosts: ServedHosts::new([]),
        slots: Arc::new(Semaphore::new(MAX_RELAYED)),
    };
    group.cluster.wait(serve(target, no_open))
}

async fn serve(target: RelayTarget, no_open: bool) -> Result<(), Failure> {
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await;
    let listener = listener.context("cannot listen on 127.0.0.1")?;
    let address = listener.local_addr().context("the address of the listener")?;
    let url = format!("http://{address}/dashboard/");
    print(&[url.clone(), format!("Dashboard of {}; Ctrl-C ends it.", target.pod)])?;
    dashboard::open_in_browser(&url, no_open);
    let served = axum::serve(listener, router(target)).await;
    Ok(served.context("the local address")?)
}

fn router(target: RelayTarget) -> Router {
    Router::new().fallback(relay).with_state(target)
}

async fn relay(State(target): State<RelayTarget>, request: Request) -> Response {
    let refuse = |status: StatusCode, text: &str| (status, format!("{text}\n")).into_response();
    if target.hosts.rejected(request.uri(), request.headers()).is_some() {
        let text = "open the dashboard by the address that was printed";
        return refuse(StatusCode::MISDIRECTED_REQUEST, text);
    }
    if request.method() != Method::GET {
        return refuse(StatusCode::METHOD_NOT_ALLOWED, "only GET");
    }
    // A page of another site can send requests here, with the credentials of the operator.
    let site = request.headers().get("sec-fetch-site").map_or(&b"none"[..], HeaderValue::as_bytes);
    if ![&b"none"[..], b"same-origin"].contains(&site) {
        return refuse(StatusCode::FORBIDDEN, "not for pages of other sites");
    }
    let path = request.uri().path();
    if !is_relayed(path) {
        return refuse(StatusCode::NOT_FOUND, "the dashboard is at /dashboard/");
    }
    let path = request.uri().path_and_query().map_or(path, |it| it.as_str());
    // It is never closed.
    let _slot = target.slots.acquire().await;
    let pod = (&*target.namespace, &*target.pod);
    match target.client.pod_get(pod, target.port, path).await {
        Ok(answer) => {
            let mut response = Response::new(Body::from(answer.body));
            *response.status_mut() = answer.status;
            for name in PASSED_FIELDS {
                if let Some(value) = answer.headers.get(&name) {
                    response.headers_mut().insert(name, value.clone());
                }
            }
            response
        }
        Err(error) => refuse(StatusCode::BAD_GATEWAY, &reason(&error)),
    }
}

/// True if the path is one that the dashboard asks, in its plain form.
fn is_relayed(path: &str) -> bool {
    let is_plain = !path.contains("..") && !path.contains("//") && !path.contains('%');
    is_plain && (path.starts_with("/dashboard/") || path.starts_with("/api/v1/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_dashboard_alone_are_relayed() {
        for path in ["/dashboard/", "/dashboard/app.js", "/api/v1/overview/backends"] {
            assert!(is_relayed(path), "{path}");
        }
        for path in [
            "/",
            "/metrics",
            "/dashboard/../x",
            "/api/v1//x",
            "/api/v1/%2e%2e/x",
            "/dashboard",
            "/dashboards",
        ] {
            assert!(!is_relayed(path), "{path}");
        }
    }
}
