//! The API `external.metrics.k8s.io`: demand of Services for the HorizontalPodAutoscaler, without KEDA and without
//! Prometheus.
//!
//! It is an extension API server behind Kubernetes' aggregation layer. The API server forwards requests, and says which
//! user has sent them; whether that user may read metrics is the API server's decision too.

/// Metrics, and their values for a query.
mod external_metric;
/// Label selectors.
mod label_selector;
/// The user of a request.
mod front_proxy;
/// Access of users.
mod access;
/// TLS connections.
mod tls_listener;
/// The task that keeps the API served.
mod upkeep;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{ConnectInfo, Path, Query, Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Json, Router};
use kube::{ApiUser, ClusterClient, FrontProxySettings, OwnSecret};
use proxy::{Proxy, WINDOW, clock};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::admin::BoundedListener;
use crate::authority::AuthorityKeeper;
use crate::failure::Failure;
use access::MetricAccess;
use external_metric::{ExternalMetric, GROUP_VERSION, MetricError};
use front_proxy::PeerIdentity;
use tls_listener::TlsListener;
use upkeep::{ApiService, ApiUpkeep, ServingCertificates};

/// Time from the first byte of a request until its response begins.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Parts of the cluster that the API needs.
pub(crate) struct MetricsApiCluster {
    pub(crate) client: ClusterClient,
    /// Secret with the authorities of the API's certificate.
    pub(crate) secret: OwnSecret,
    /// Namespace and name of the Service through which the API server connects.
    pub(crate) namespace: String,
    pub(crate) service: String,
}

/// State shared by the handlers.
#[derive(Clone)]
struct MetricsApi {
    proxy: Arc<Proxy>,
    access: Arc<MetricAccess>,
}

/// Newest settings of the API server's proxy; `None`: they have not been read yet.
type NewestSettings = watch::Receiver<Option<Arc<FrontProxySettings>>>;

/// Part of a query that has an effect.
#[derive(Deserialize)]
struct MetricQuery {
    #[serde(default, rename = "labelSelector")]
    label_selector: String,
}

/// Binds the address of the API.
///
/// # Errors
/// If it cannot be bound.
pub(crate) async fn bind(address: SocketAddr) -> Result<BoundedListener, Failure> {
    BoundedListener::bind(address, "--metrics-api", REQUEST_TIMEOUT, None).await
}

/// Serves the API on this listener. Aborting the returned task stops it.
pub(crate) fn serve(
    listener: BoundedListener,
    cluster: MetricsApiCluster,
    proxy: Arc<Proxy>,
) -> AbortHandle {
    tracing::info!(address = %listener.address, "API of metrics for autoscalers");
    let MetricsApiCluster { client, secret, namespace, service } = cluster;
    let service = ApiService { namespace, name: service };
    let (certificates, newest_certificates) = watch::channel(None);
    let recipient = ServingCertificates(certificates);
    let keeper = AuthorityKeeper::start(secret, service.purpose(), recipient);
    let ((settings, newest_settings), (configs, newest_configs)) =
        (watch::channel(None), watch::channel(None));
    let access = Arc::new(MetricAccess::new(client.clone()));
    let upkeep =
        ApiUpkeep { client, service, certificates: newest_certificates, settings, configs };
    let app = router(newest_settings, value_router(MetricsApi { proxy, access }));
    let listener = TlsListener::new(listener, newest_configs);
    let serving = tokio::spawn(async move {
        let _keeper = keeper;
        let app = app.into_make_service_with_connect_info::<PeerIdentity>();
        tokio::select! {
            served = axum::serve(listener, app) => tracing::error!(?served, "stopped: API of metrics"),
            () = upkeep.run() => {}
        }
    });
    serving.abort_handle()
}

/// Returns the API: discovery, and `values` for the proxy in the API server alone; probes for everybody.
fn router(settings: NewestSettings, values: Router) -> Router {
    let versioned = Router::new()
        .route("/apis", get(async || Json(groups())))
        .route("/apis/external.metrics.k8s.io", get(async || Json(external_metric::group())))
        .route(
            "/apis/external.metrics.k8s.io/v1beta1",
            get(async || Json(external_metric::resources())),
        )
        .merge(values)
        .route_layer(middleware::from_fn_with_state(settings, authenticate));
    let probes = ["/healthz", "/livez", "/readyz"];
    let open =
        probes.into_iter().fold(Router::new(), |it, path| it.route(path, get(async || "ok")));
    versioned.merge(open).fallback(async || MetricError::not_found("no such path".to_owned()))
}

fn value_router(api: MetricsApi) -> Router {
    let path = "/apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/{metric}";
    Router::new().route(path, get(values)).with_state(api)
}

fn groups() -> serde_json::Value {
    json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": [external_metric::group()] })
}

/// Finds out the user of a request; rejects it with 401 unless the API server's proxy names one.
async fn authenticate(
    State(settings): State<NewestSettings>,
    ConnectInfo(peer): ConnectInfo<PeerIdentity>,
    mut request: Request,
    next: Next,
) -> Response {
    let settings = settings.borrow().clone();
    let user = settings.and_then(|settings| peer.user(&settings, request.headers()));
    let Some(user) = user else {
        let message = "only the API server's proxy is served: ask at /apis of the API server";
        let (status, reason) = (StatusCode::UNAUTHORIZED, "Unauthorized");
        return MetricError { status, reason, message: message.to_owned() }.into_response();
    };
    request.extensions_mut().insert(user);
    next.run(request).await
}

async fn values(
    State(api): State<MetricsApi>,
    Extension(user): Extension<ApiUser>,
    Path((namespace, metric)): Path<(String, String)>,
    Query(query): Query<MetricQuery>,
) -> Response {
    match api.access.permits(&user, &namespace, &metric).await {
        Ok(true) => {}
        Ok(false) => return forbidden(&user, &namespace, &metric).into_response(),
        Err(error) => return unavailable(&error.to_string()).into_response(),
    }
    let found = ExternalMetric::find(&metric).and_then(|metric| {
        let timestamp = humantime::format_rfc3339_seconds(clock::wall()).to_string();
        let demand = |key: &_| Some(api.proxy.demand(key)?.average(WINDOW));
        let keys = api.proxy.backend_keys();
        metric.query(&namespace, &query.label_selector, keys, &timestamp, demand)
    });
    match found {
        Ok(list) => Json(list).into_response(),
        Err(error) => error.into_response(),
    }
}

fn forbidden(user: &ApiUser, namespace: &str, metric: &str) -> MetricError {
    let message = format!(
        "user {:?} cannot list {metric:?} in API group {GROUP_VERSION} in namespace {namespace:?}",
        user.name
    );
    MetricError { status: StatusCode::FORBIDDEN, reason: "Forbidden", message }
}

fn unavailable(error: &str) -> MetricError {
    let message = format!("cannot ask whether the user may read metrics: {error}");
    let (status, reason) = (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable");
    MetricError { status, reason, message }
}

impl IntoResponse for MetricError {
    fn into_response(self) -> Response {
        (self.status, Json(self.body())).into_response()
    }
}

#[cfg(test)]
mod tests;
