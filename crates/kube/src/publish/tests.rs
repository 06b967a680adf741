//! Tests of status writes, also when the API server rejects them or does not answer.

use std::sync::Mutex;

use gateway::load_balancer::ServiceFinding;
use gateway::objects::GATEWAY_CONTROLLER;
use gateway::status::{
    ConditionReason, ConditionType, GatewayStatus, ObjectIdentity, StatusCondition,
};
use http::StatusCode;
use kube_runtime::watcher::Event;
use tokio::sync::watch::channel;
use tokio::time::sleep;

use super::*;
use crate::api_server::ApiServer;
use crate::store::WatchKey;
use crate::{ClusterObjects, ReplicaIdentity, WatchSelection};

const GATEWAYS: &str = "/apis/gateway.networking.k8s.io/v1/gateways";
const INGRESSES: &str = "/apis/networking.k8s.io/v1/ingresses";

fn gateway(name: &str) -> Value {
    let metadata = json!({ "namespace": "shop", "name": name });
    json!({ "metadata": metadata, "spec": { "gatewayClassName": "ours", "listeners": [] } })
}

/// Returns the status of a Gateway; the message distinguishes versions of it.
fn status(name: &str, message: &str) -> ResourceStatus {
    let (namespace, name) = ("shop".into(), name.into());
    let message = message.to_owned();
    let condition = StatusCondition::no(ConditionType::Accepted, ConditionReason::Invalid, message);
    let detail = GatewayStatus { conditions: vec![condition], ..GatewayStatus::default() };
    ResourceStatus {
        object: ObjectIdentity { kind: "Gateway", namespace, name },
        observed_generation: 1,
        detail: StatusDetail::Gateway(detail),
    }
}

fn statuses(names: &[&str], message: &str) -> DesiredStatuses {
    let statuses = names.iter().map(|name| status(name, message)).collect();
    DesiredStatuses { statuses, ..DesiredStatuses::default() }
}

/// Returns the watched Gateways of these names, with this replica as the leader.
async fn lead(server: &ApiServer, names: &[&str]) -> ClusterObjects {
    names.iter().for_each(|name| server.put(GATEWAYS, gateway(name)));
    let identity = ReplicaIdentity::for_tests("us");
    let mut objects = ClusterObjects::new(&server.cluster(), identity, WatchSelection::default());
    objects.changed().await;
    objects
}

/// Returns the message of the status in the API server.
fn published(server: &ApiServer, name: &str) -> Option<String> {
    let gateway = server.object(GATEWAYS, "shop", name)?;
    Some(gateway.pointer("/status/conditions/0/message")?.as_str()?.to_owned())
}

/// Waits in virtual time until the status has this message.
async fn until_published(server: &ApiServer, name: &str, message: &str) {
    let begun = Instant::now();
    while published(server, name).as_deref() != Some(message) {
        assert!(begun.elapsed() < Duration::from_secs(600), "{name} never has {message}");
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn hanging_status_write_does_not_block_other_writes() {
    let server = ApiServer::default();
    server.ignore("a");
    let objects = lead(&server, &["a", "b"]).await;
    objects.publish(statuses(&["a", "b"], "first"));
    until_published(&server, "b", "first").await;
    objects.publish(statuses(&["a", "b"], "second"));
    until_published(&server, "b", "second").await;
    assert_eq!(published(&server, "a"), None);
}

#[tokio::test(start_paused = true)]
async fn rejected_status_write_backs_off_until_the_object_changes() {
    let server = ApiServer::default();
    server.reject_status_writes("a", StatusCode::UNPROCESSABLE_ENTITY);
    let objects = lead(&server, &["a", "b"]).await;
    objects.publish(statuses(&["a", "b"], "first"));
    until_published(&server, "b", "first").await;
    sleep(Duration::from_secs(600)).await;
    let writes = server.writes();
    assert_eq!(writes.iter().filter(|name| *name == "b").count(), 1);
    let attempts = writes.iter().filter(|name| *name == "a").count();
    assert!((5..20).contains(&attempts), "{attempts} in ten minutes");
    // A new version of the object may be valid.
    server.put(GATEWAYS, gateway("a"));
    objects.publish(statuses(&["a", "b"], "second"));
    sleep(CONFLICT_RETRY_DELAY).await;
    assert!(server.writes().contains(&"a".to_owned()));
}

/// Returns a publisher that is the leader without an election.
fn publisher(
    server: &ApiServer,
    known: Store,
    statuses: DesiredStatuses,
    until: Instant,
) -> StatusPublisher {
    let (_, statuses) = channel(Some(statuses));
    let (_, store_changes) = channel(());
    let (_, leadership) = channel(Some(until));
    let (client, known) = (server.cluster().client, Arc::new(Mutex::new(known)));
    let (backoff, published) = (WriteBackoff::default(), WrittenStatuses::default());
    StatusPublisher {
        client,
        store: known,
        statuses,
        store_changes,
        leadership,
        backoff,
        written: published,
        writer: WriterIdentity {
            controller: GATEWAY_CONTROLLER.into(),
            field_manager: "sheave".to_owned(),
        },
    }
}

/// Applies an object to the store.
fn apply(known: &mut Store, kind: &str, object: Value) {
    let object = serde_json::from_value(object).unwrap();
    known.apply_event(
        &WatchKey::of_kind(WatchedKind::index_of(kind).unwrap()),
        Event::Apply(object),
    );
}

#[tokio::test(start_paused = true)]
async fn no_status_is_written_after_the_lease_expires() {
    let names: Vec<_> =
        (0..3 * MAX_CONCURRENT_WRITES).map(|index| format!("gateway-{index:02}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let mut known = Store::for_tests();
    names.iter().for_each(|name| apply(&mut known, "Gateway", gateway(name)));
    let server = ApiServer::default();
    server.slow_down(Duration::from_secs(2));
    let until = Instant::now() + Duration::from_secs(3);
    publisher(&server, known, statuses(&names, "first"), until).write_all().await;
    assert_eq!(server.writes().len(), 2 * MAX_CONCURRENT_WRITES);
    assert!(Instant::now() <= until);
}

#[tokio::test(start_paused = true)]
async fn status_is_rewritten_when_it_or_the_object_changes() {
    let server = ApiServer::default();
    let objects = lead(&server, &["a", "b"]).await;
    for message in ["first", "second", "first"] {
        objects.publish(statuses(&["a", "b"], message));
        until_published(&server, "b", message).await;
        until_published(&server, "a", message).await;
        // Time to observe the status, and to see that nothing is due.
        sleep(CONFLICT_RETRY_DELAY).await;
        let mut emptied = gateway("a");
        emptied["status"] = json!({});
        server.put(GATEWAYS, emptied);
        assert_eq!(published(&server, "a"), None);
        until_published(&server, "a", message).await;
    }
    assert_eq!(server.writes().iter().filter(|name| *name == "b").count(), 3);
}

fn ingress(manager: &str) -> Value {
    let fields = json!({ "f:status": { "f:loadBalancer": { "f:ingress": {} } } });
    let write = json!({
        "manager": manager, "operation": "Apply", "subresource": "status", "apiVersion": "networking.k8s.io/v1",
        "fieldsType": "FieldsV1", "fieldsV1": fields,
    });
    let metadata = json!({ "namespace": "shop", "name": "web", "managedFields": [write] });
    let status = json!({ "loadBalancer": { "ingress": [{ "ip": "192.0.2.7" }] } });
    json!({ "metadata": metadata, "spec": { "ingressClassName": "theirs" }, "status": status })
}

async fn ingress_left_to_others(manager: &str) -> (Vec<String>, Option<Value>) {
    let mut known = Store::for_tests();
    apply(&mut known, "Ingress", ingress(manager));
    let server = ApiServer::default();
    server.put(INGRESSES, ingress(manager));
    let until = Instant::now() + Duration::from_secs(3);
    publisher(&server, known, DesiredStatuses::default(), until).write_all().await;
    let status = server.object(INGRESSES, "shop", "web").map(|it| it["status"].clone());
    (server.writes(), status)
}

#[tokio::test(start_paused = true)]
async fn addresses_of_an_unmanaged_ingress_are_withdrawn() {
    let (writes, status) = ingress_left_to_others("sheave").await;
    assert_eq!((writes, status), (vec!["web".to_owned()], Some(Value::Null)));
    let (writes, status) = ingress_left_to_others("another-controller").await;
    assert_eq!((writes, status), (vec![], Some(ingress("")["status"].clone())));
}

const SERVICES: &str = "/api/v1/services";

fn service(status: Option<Value>, manager: &str) -> Value {
    let mut object = ingress(manager);
    object["metadata"]["name"] = json!("db");
    object["spec"] = json!({ "type": "LoadBalancer", "loadBalancerClass": "sheave.dev/l4" });
    object["status"] = status.unwrap_or_else(|| json!({}));
    object
}

fn served(addresses: &[&str], finding: Option<ServiceFinding>) -> DesiredStatuses {
    let service = LoadBalancerService {
        namespace: "shop".into(),
        name: "db".into(),
        uid: None,
        addresses: addresses.iter().map(|it| it.parse().unwrap()).collect(),
        sockets: Vec::new(),
        is_node_local: false,
        findings: finding.into_iter().collect(),
    };
    let load_balancers = Some(vec![service].into());
    DesiredStatuses { load_balancers, ..DesiredStatuses::default() }
}

/// Returns the number of writes, and the status after them.
async fn write_service(before: Value, wanted: DesiredStatuses) -> (usize, Value) {
    let mut known = Store::for_tests();
    apply(&mut known, "Service", before.clone());
    let server = ApiServer::default();
    server.put(SERVICES, before);
    let until = Instant::now() + Duration::from_secs(3);
    publisher(&server, known, wanted, until).write_all().await;
    let status = server.object(SERVICES, "shop", "db").map(|it| it["status"].clone());
    (server.writes().len(), status.unwrap())
}

#[tokio::test(start_paused = true)]
async fn addresses_of_a_service_are_written_once_with_their_mode() {
    let wanted = served(&["192.0.2.7", "fd00::7"], None);
    let (writes, status) = write_service(service(None, "sheave"), wanted.clone()).await;
    assert_eq!(writes, 1);
    let ingress = json!([
        { "ip": "192.0.2.7", "ipMode": "Proxy" },
        { "ip": "fd00::7", "ipMode": "Proxy" },
    ]);
    assert_eq!(status["loadBalancer"]["ingress"], ingress);
    assert_eq!(status["conditions"][0]["type"], "sheave.dev/Served");
    assert_eq!(status["conditions"][0]["status"], "True");
    let (writes, _) = write_service(service(Some(status.clone()), "sheave"), wanted).await;
    assert_eq!(writes, 0, "it is up to date");
    let finding = ServiceFinding { reason: "AddressPoolExhausted", message: "full".to_owned() };
    let lost = served(&[], Some(finding));
    let (writes, status) = write_service(service(Some(status), "sheave"), lost).await;
    assert_eq!((writes, &status["loadBalancer"]), (1, &Value::Null));
    assert_eq!(status["conditions"][0]["reason"], "AddressPoolExhausted");
}

#[tokio::test(start_paused = true)]
async fn addresses_of_a_service_of_others_are_withdrawn_if_they_are_ours() {
    let status = json!({ "loadBalancer": { "ingress": [{ "ip": "192.0.2.7" }] } });
    let before = |manager| service(Some(status.clone()), manager);
    let none = DesiredStatuses { load_balancers: Some([].into()), ..DesiredStatuses::default() };
    assert_eq!(write_service(before("sheave"), none.clone()).await, (1, Value::Null));
    assert_eq!(write_service(before("another"), none).await, (0, status.clone()));
    // Where Services are not served, their statuses may not be written.
    let off = DesiredStatuses::default();
    assert_eq!(write_service(before("sheave"), off).await, (0, status.clone()));
}
