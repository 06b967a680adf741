//! Tests of requests and refusals, against an API server that answers by a table.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use gateway::ControllerNames;
use http_body_util::Full;
use serde_json::json;
use tower::service_fn;

use super::*;

/// Path with its query, and Host field.
type NotedRequest = (String, Option<String>);

/// API server that answers each path with what a test has set, else 404; it notes the requests.
#[derive(Clone, Default)]
struct AnswerTable {
    answers: Arc<Mutex<BTreeMap<String, (u16, Value)>>>,
    requests: Arc<Mutex<Vec<NotedRequest>>>,
}

impl AnswerTable {
    fn set(&self, path: &str, status: u16, body: Value) {
        self.answers.lock().unwrap().insert(path.to_owned(), (status, body));
    }

    fn cluster(&self) -> ClusterClient {
        let table = self.clone();
        let service = service_fn(move |request: Request<Body>| {
            let table = table.clone();
            async move { Ok::<_, Infallible>(table.answer(&request)) }
        });
        ClusterClient { client: Client::new(service, "default") }
    }

    fn answer(&self, request: &Request<Body>) -> Response<Full<Bytes>> {
        let host = request.headers().get(header::HOST).map(|it| it.to_str().unwrap().to_owned());
        let path = request.uri().path().to_owned();
        let query = request.uri().query().unwrap_or_default();
        self.requests.lock().unwrap().push((format!("{path}?{query}"), host.clone()));
        let key = host.map_or_else(|| path.clone(), |host| format!("{path} {host}"));
        let answers = self.answers.lock().unwrap();
        let (status, body) = answers.get(&key).cloned().unwrap_or_else(|| failure(404, "none"));
        let body = Full::new(Bytes::from(body.to_string()));
        Response::builder().status(status).body(body).unwrap()
    }
}

fn failure(code: u16, message: &str) -> (u16, Value) {
    let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message });
    (code, status)
}

const PROXY: &str = "/api/v1/namespaces/sheave-system/pods/sheave-1:9900/proxy/api/v1/overview";
const POD: (&str, &str) = ("sheave-system", "sheave-1");

async fn overview(table: &AnswerTable) -> Result<PodAnswer, AccessError> {
    table.cluster().pod_get(POD, 9900, "/api/v1/overview").await
}

#[tokio::test]
async fn answer_of_a_pod_is_returned_with_any_status_of_its_own() {
    let table = AnswerTable::default();
    table.set(PROXY, 200, json!({ "sample": 1 }));
    assert_eq!(overview(&table).await.unwrap().body, r#"{"sample":1}"#);
    table.set(PROXY, 404, json!({ "error": "no such path: see /" }));
    assert_eq!(overview(&table).await.unwrap().status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn host_name_is_replaced_only_if_the_pod_rejects_it() {
    let table = AnswerTable::default();
    table.set(PROXY, 421, json!({ "error": "host \"api.example\" is not a name" }));
    table.set(&format!("{PROXY} localhost"), 200, json!({}));
    assert_eq!(overview(&table).await.unwrap().status, StatusCode::OK);
    let hosts: Vec<_> = table.requests.lock().unwrap().iter().map(|it| it.1.clone()).collect();
    assert_eq!(hosts, [None, Some("localhost".to_owned())]);
}

#[tokio::test]
async fn refusal_names_the_missing_permission() {
    let table = AnswerTable::default();
    let (code, body) = failure(403, "pods \"sheave-1:9900\" is forbidden");
    table.set(PROXY, code, body.clone());
    let error = overview(&table).await.unwrap_err().to_string();
    assert!(error.starts_with("you may not get pods/proxy in namespace sheave-system"), "{error}");
    table.set("/api/v1/namespaces/shop/pods", code, body.clone());
    let error = table.cluster().labelled_pods("shop", "a=b").await.unwrap_err().to_string();
    assert!(error.starts_with("you may not list pods in namespace shop"), "{error}");
    table.set("/api/v1/namespaces/shop/pods/web/log", code, body);
    let log = table.cluster().follow_log(("shop", "web"), "c").await;
    let error = log.err().unwrap().to_string();
    assert!(error.starts_with("you may not get pods/log in namespace shop"), "{error}");
}

#[tokio::test]
async fn other_failures_are_told_apart() {
    let table = AnswerTable::default();
    let error = overview(&table).await.unwrap_err();
    assert_eq!(error, AccessError::NotFound("pod sheave-1".to_owned()));
    let (code, body) = failure(401, "Unauthorized");
    table.set(PROXY, code, body);
    assert_eq!(overview(&table).await.unwrap_err(), AccessError::Unauthorized);
    let (code, body) =
        failure(503, "error trying to reach service: dial tcp 10.0.0.1:9900: i/o timeout");
    table.set(PROXY, code, body);
    let error = overview(&table).await.unwrap_err().to_string();
    assert!(error.starts_with("the API server cannot reach port 9900 of pod sheave-1"), "{error}");
}

#[tokio::test]
async fn names_that_are_not_of_objects_are_never_part_of_a_path() {
    let table = AnswerTable::default();
    for name in ["", "../secrets", "a/b", "a?b", "a%2f", "A", ".hidden", "a\u{1b}"] {
        let error = table.cluster().pod("shop", name).await.unwrap_err();
        assert_eq!(error, AccessError::InvalidName(name.to_owned()));
        let error = table.cluster().pod(name, "web").await.unwrap_err();
        assert_eq!(error, AccessError::InvalidName(name.to_owned()));
    }
    assert!(table.requests.lock().unwrap().is_empty());
}

#[tokio::test]
async fn pod_has_its_addresses_readiness_and_admin_port() {
    let table = AnswerTable::default();
    let pod = json!({
        "metadata": { "namespace": "sheave-system", "name": "sheave-1" },
        "spec": { "nodeName": "n1", "containers": [
            { "name": "sheave", "args": ["serve"], "ports": [{ "name": "admin", "containerPort": 9907 }] },
        ] },
        "status": { "phase": "Running", "podIPs": [{ "ip": "10.0.0.1" }, { "ip": "fd00::1" }],
            "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    table.set("/api/v1/namespaces/sheave-system/pods", 200, json!({ "items": [pod] }));
    let found = table.cluster().labelled_pods("sheave-system", "a in (b, c)").await.unwrap();
    let [pod] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!((pod.admin_port, pod.is_ready, pod.addresses.len()), (Some(9907), true, 2));
    assert_eq!(
        (pod.container.as_str(), pod.arguments.as_slice()),
        ("sheave", &["serve".to_owned()][..])
    );
    let (request, _) = table.requests.lock().unwrap()[0].clone();
    assert!(request.contains("labelSelector=a%20in%20%28b%2C%20c%29"), "{request}");
}

#[tokio::test]
async fn slices_name_a_pod_by_reference_or_address() {
    let table = AnswerTable::default();
    let slice = |service: &str, endpoint: Value| {
        json!({
            "metadata": { "labels": { "kubernetes.io/service-name": service } }, "endpoints": [endpoint],
        })
    };
    let target = json!({ "kind": "Pod", "name": "web-1" });
    let items = [
        slice(
            "web",
            json!({ "addresses": ["10.0.0.9"], "targetRef": target, "conditions": { "ready": false } }),
        ),
        slice("byhand", json!({ "addresses": ["10.0.0.1"] })),
        slice(
            "other",
            json!({ "addresses": ["10.0.0.1"], "targetRef": { "kind": "Pod", "name": "web-2" } }),
        ),
    ];
    let path = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices";
    table.set(path, 200, json!({ "items": items }));
    let pod = PodSummary {
        namespace: "shop".to_owned(),
        name: "web-1".to_owned(),
        addresses: vec!["10.0.0.1".parse().unwrap()],
        ..PodSummary::default()
    };
    let found = table.cluster().endpoints_of(&pod).await.unwrap();
    let found: Vec<_> = found.iter().map(|it| (it.service.as_str(), it.is_ready)).collect();
    assert_eq!(found, [("byhand", true), ("web", false)]);
}

fn secret(data: Value) -> Value {
    json!({ "metadata": { "namespace": "shop", "name": "tls" }, "type": "kubernetes.io/tls", "data": data })
}

/// A Gateway whose listener refers to Secret shop/tls.
fn served_gateway(table: &AnswerTable) {
    let class = json!({ "metadata": { "name": "sheave" }, "spec": { "controllerName": "sheave.dev/gateway" } });
    let listener = json!({ "name": "https", "port": 443, "protocol": "HTTPS",
        "tls": { "certificateRefs": [{ "name": "tls" }] } });
    let gateway = json!({ "metadata": { "namespace": "shop", "name": "web" },
        "spec": { "gatewayClassName": "sheave", "listeners": [listener] } });
    let root = "/apis/gateway.networking.k8s.io/v1";
    table.set(&format!("{root}/gatewayclasses"), 200, json!({ "items": [class] }));
    table.set(&format!("{root}/gateways"), 200, json!({ "items": [gateway] }));
}

#[tokio::test]
async fn listing_has_the_secrets_that_objects_refer_to_and_no_others() {
    let table = AnswerTable::default();
    served_gateway(&table);
    table.set(
        "/api/v1/namespaces/shop/secrets/tls",
        200,
        secret(json!({ "tls.crt": "UEVN", "tls.key": "UEVN" })),
    );
    let listing =
        table.cluster().list_configuration(None, &ControllerNames::default()).await.unwrap();
    assert_eq!(listing.objects.len(), 3, "{listing:?}");
    assert!(listing.refused.is_empty() && listing.unreadable.is_empty());
    let requests = table.requests.lock().unwrap();
    assert!(!requests.iter().any(|(path, _)| path.starts_with("/api/v1/secrets")), "{requests:?}");
}

#[tokio::test]
async fn listing_names_kinds_and_secrets_that_may_not_be_read() {
    let table = AnswerTable::default();
    served_gateway(&table);
    let (code, body) = failure(403, "forbidden");
    table.set("/api/v1/namespaces/shop/secrets/tls", code, body.clone());
    table.set("/apis/networking.k8s.io/v1/ingresses", code, body);
    let listing =
        table.cluster().list_configuration(None, &ControllerNames::default()).await.unwrap();
    let [(kind, permission)] = listing.refused.as_slice() else { panic!("{listing:?}") };
    assert_eq!(
        (*kind, permission.to_string().as_str()),
        ("Ingress", "list ingresses.networking.k8s.io in the whole cluster")
    );
    let reasons: Vec<_> = listing.unreadable.values().collect();
    assert!(reasons[0].starts_with("you may not get secrets in namespace shop"), "{reasons:?}");
}

#[tokio::test]
async fn credentials_that_cannot_be_used_are_an_error() {
    let missing =
        OperatorCredentials { kubeconfig: Some("/nonexistent/kubeconfig".into()), context: None };
    let Err(error) = ClusterClient::connect_as(&missing).await else { panic!("accepted") };
    assert_eq!(error.to_string(), "the kubeconfig cannot be used");
}
