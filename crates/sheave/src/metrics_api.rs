//! The APIs `external.metrics.k8s.io` and `custom.metrics.k8s.io`: demand of Services, and rates of Services and routes,
//! for the HorizontalPodAutoscaler, without KEDA and without Prometheus.
//!
//! It is an extension API server behind Kubernetes' aggregation layer. The API server forwards requests, and says which
//! user has sent them; whether that user may read metrics is the API server's decision too.

/// The groups of APIs.
mod api_group;
/// Metrics: their names and values.
mod metric;
/// Services and routes that a query selects.
mod selection;
/// Lists of external metrics.
mod external_metric;
/// Metrics of one object.
mod object_metric;
/// Label selectors.
mod label_selector;
/// The certificate of the API server's proxy.
mod proxy_certificate;
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
use proxy::{Proxy, clock};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::admin::BoundedListener;
use crate::authority::AuthorityKeeper;
use crate::failure::Failure;
use access::{MetricAccess, MetricScope};
pub(crate) use api_group::ApiGroup;
use front_proxy::PeerIdentity;
pub(crate) use label_selector::LabelSelector;
use metric::MetricError;
pub(crate) use metric::ScalingMetric;
use object_metric::ObjectResource;
use selection::MetricSelection;
pub(crate) use selection::SelectedKind;
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
    /// APIs to serve.
    pub(crate) groups: Vec<ApiGroup>,
}

/// State shared by the handlers.
#[derive(Clone)]
struct MetricsApi {
    proxy: Arc<Proxy>,
    access: Arc<MetricAccess>,
}

/// Newest settings of the API server's proxy; `None`: they have not been read yet.
type NewestSettings = watch::Receiver<Option<Arc<FrontProxySettings>>>;

/// Part of a query for external metrics that has an effect.
#[derive(Deserialize)]
struct ExternalQuery {
    #[serde(default, rename = "labelSelector")]
    label_selector: String,
}

/// Part of a query for metrics of an object that has an effect.
#[derive(Deserialize)]
struct ObjectQuery {
    #[serde(default, rename = "metricLabelSelector")]
    label_selector: String,
}

/// Path of a query for metrics of an object.
#[derive(Deserialize)]
struct ObjectPath {
    namespace: String,
    resource: String,
    name: String,
    metric: String,
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
    let MetricsApiCluster { client, secret, namespace, service, groups } = cluster;
    proxy.average_routes();
    let service = ApiService { namespace, name: service, groups: groups.clone() };
    let (certificates, newest_certificates) = watch::channel(None);
    let recipient = ServingCertificates(certificates);
    let keeper = AuthorityKeeper::start(secret, service.purpose(), recipient);
    let ((settings, newest_settings), (configs, newest_configs)) =
        (watch::channel(None), watch::channel(None));
    let access = Arc::new(MetricAccess::new(client.clone()));
    let upkeep =
        ApiUpkeep { client, service, certificates: newest_certificates, settings, configs };
    let values = value_router(&groups, MetricsApi { proxy, access });
    let app = router(newest_settings, groups, values);
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
fn router(settings: NewestSettings, groups: Vec<ApiGroup>, values: Router) -> Router {
    let described: Vec<_> = groups.iter().map(|group| group.description()).collect();
    let list = json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": described });
    let mut discovery = Router::new().route("/apis", get(async move || Json(list)));
    for group in groups {
        let path = format!("/apis/{}", group.name());
        discovery = discovery.route(&path, get(async move || Json(group.description())));
        let path = format!("/apis/{}", group.group_version());
        discovery = discovery.route(&path, get(async move || Json(group.resources())));
    }
    let for_proxy = middleware::from_fn_with_state(settings.clone(), authenticate_or_describe);
    let discovery = discovery.route_layer(for_proxy);
    let values = values.route_layer(middleware::from_fn_with_state(settings, authenticate));
    let probes = ["/healthz", "/livez", "/readyz"];
    let open =
        probes.into_iter().fold(Router::new(), |it, path| it.route(path, get(async || "ok")));
    discovery
        .merge(values)
        .merge(open)
        .fallback(async || MetricError::not_found("no such path".to_owned()))
}

fn value_router(groups: &[ApiGroup], api: MetricsApi) -> Router {
    let mut router = Router::new();
    for group in groups {
        let path = format!("/apis/{}/namespaces/{{namespace}}", group.group_version());
        router = match group {
            ApiGroup::External => router.route(&format!("{path}/{{metric}}"), get(external_values)),
            ApiGroup::Custom => {
                router.route(&format!("{path}/{{resource}}/{{name}}/{{metric}}"), get(object_value))
            }
        };
    }
    router.with_state(api)
}

/// Serves a description also if only the time of the proxy's certificate is wrong: if discovery failed, the API server
/// would take the API for unavailable, and forward no query whose response has the reason.
async fn authenticate_or_describe(
    settings: State<NewestSettings>,
    peer: ConnectInfo<PeerIdentity>,
    request: Request,
    next: Next,
) -> Response {
    match peer.0.problem {
        Some(_) => next.run(request).await,
        None => authenticate(settings, peer, request, next).await,
    }
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
        let message = peer.problem.unwrap_or_else(|| {
            "only the API server's proxy is served: ask at /apis of the API server".to_owned()
        });
        let (status, reason) = (StatusCode::UNAUTHORIZED, "Unauthorized");
        return MetricError { status, reason, message }.into_response();
    };
    request.extensions_mut().insert(user);
    next.run(request).await
}

async fn external_values(
    State(api): State<MetricsApi>,
    Extension(user): Extension<ApiUser>,
    Path((namespace, metric)): Path<(String, String)>,
    Query(query): Query<ExternalQuery>,
) -> Result<Json<Value>, MetricError> {
    let scope =
        MetricScope { namespace: namespace.clone(), resource: metric.clone(), subresource: None };
    api.authorize(&user, ApiGroup::External, scope).await?;
    let metric = ScalingMetric::find(&metric)?;
    let selection = MetricSelection::by_labels(metric, &namespace, &query.label_selector)?;
    let values = selection.read(&api.proxy)?;
    Ok(Json(external_metric::list(metric, values, &timestamp())))
}

async fn object_value(
    State(api): State<MetricsApi>,
    Extension(user): Extension<ApiUser>,
    Path(path): Path<ObjectPath>,
    Query(query): Query<ObjectQuery>,
) -> Result<Json<Value>, MetricError> {
    let ObjectPath { namespace, resource, name, metric } = path;
    let scope = MetricScope {
        namespace: namespace.clone(),
        resource: resource.clone(),
        subresource: Some(metric.clone()),
    };
    api.authorize(&user, ApiGroup::Custom, scope).await?;
    let resource = ObjectResource::find(&resource)?;
    let metric = ScalingMetric::find(&metric)?;
    let selection =
        MetricSelection::by_name(metric, &namespace, resource.kind, &name, &query.label_selector)?;
    let values = selection.read(&api.proxy)?;
    Ok(Json(resource.list(metric, &namespace, &name, values, &timestamp())))
}

fn timestamp() -> String {
    humantime::format_rfc3339_seconds(clock::wall()).to_string()
}

impl MetricsApi {
    /// Returns an error unless the user may read the metric.
    async fn authorize(
        &self,
        user: &ApiUser,
        group: ApiGroup,
        scope: MetricScope,
    ) -> Result<(), MetricError> {
        match self.access.permits(user, group, scope.clone()).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(forbidden(user, group, &scope)),
            Err(error) => Err(unavailable(&error.to_string())),
        }
    }
}

fn forbidden(user: &ApiUser, group: ApiGroup, scope: &MetricScope) -> MetricError {
    let MetricScope { namespace, resource, subresource } = scope;
    let metric = subresource.as_ref().map(|it| format!("/{it}")).unwrap_or_default();
    let message = format!(
        "user {:?} cannot {} \"{resource}{metric}\" in API group {} in namespace {namespace:?}",
        user.name,
        group.verb(),
        group.group_version(),
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
