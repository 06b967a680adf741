//! Tests of the watch against the in-memory API server.

use gateway::managed_services::PublishedAddress;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::*;
use crate::api_server::ApiServer;

const SERVICES: &str = "/api/v1/services";
/// Virtual time, far longer than any retry takes.
const LONG: Duration = Duration::from_secs(600);

fn service(name: &str) -> Value {
    let metadata = json!({ "namespace": "shop", "name": name });
    json!({ "metadata": metadata, "spec": { "ports": [{ "port": 80 }] } })
}

fn watch(server: &ApiServer) -> ClusterObjects {
    let identity = ReplicaIdentity::for_tests("us");
    ClusterObjects::new(&server.cluster(), identity, WatchSelection::default())
}

/// Waits for a change and returns the names of the Services.
async fn services(objects: &mut ClusterObjects) -> Vec<String> {
    timeout(LONG, objects.changed()).await.expect("something changes");
    let name = |object: ApiObject| {
        if let ApiObject::Service(it) = object { Some(it.metadata.name.clone()) } else { None }
    };
    let contents = objects.load(&[], &ControllerNames::default()).await;
    contents.objects.into_iter().filter_map(name).collect()
}

async fn check(server: ApiServer) {
    server.put(SERVICES, service("a"));
    let mut objects = watch(&server);
    assert_eq!(services(&mut objects).await, ["a"]);
    server.put(SERVICES, service("b"));
    assert_eq!(services(&mut objects).await, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn watch_works_with_streaming_lists() {
    check(ApiServer::default()).await;
}

#[tokio::test(start_paused = true)]
async fn watch_works_without_streaming_lists() {
    check(ApiServer::without_streaming_lists()).await;
}

/// However long an outage was, and however soon it follows another.
#[tokio::test(start_paused = true)]
async fn changes_are_seen_soon_after_an_outage() {
    let server = ApiServer::default();
    let mut objects = watch(&server);
    let mut names = Vec::new();
    for seconds in [1, 40, 40, 3600] {
        server.go_down();
        sleep(Duration::from_secs(seconds)).await;
        names.push(format!("service-{}", names.len()));
        server.put(SERVICES, service(&names[names.len() - 1]));
        server.come_back();
        let back = Instant::now();
        while services(&mut objects).await != names {}
        assert!(back.elapsed() <= Duration::from_secs(5), "{:?}", back.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn unchanged_statuses_notify_no_subscriber() {
    let objects = watch(&ApiServer::default());
    let mut published = objects.statuses.subscribe();
    let mut publish = |statuses: &DesiredStatuses| {
        objects.publish(statuses.clone());
        let is_new = published.has_changed().unwrap();
        published.mark_unchanged();
        is_new
    };
    let first = DesiredStatuses::default();
    assert!(publish(&first));
    assert!(!publish(&first));
    let name = ("shop".to_owned(), "web".to_owned());
    let ingresses = [(name, vec![PublishedAddress::Ip("192.0.2.7".parse().unwrap())])].into();
    assert!(publish(&DesiredStatuses { ingresses, ..first }));
    assert!(publish(&DesiredStatuses::default()));
}

#[test]
fn network_policies_are_watched_in_transparent_mode_alone() {
    let kind = WatchedKind::index_of(NETWORK_POLICY).unwrap();
    let is_watched = |network_policies| {
        let selection = WatchSelection { network_policies, ..WatchSelection::default() };
        watches(&selection, "sheave").iter().any(|watch| watch.kind == kind)
    };
    assert!(is_watched(true));
    assert!(!is_watched(false));
}

#[test]
fn address_pools_of_the_cluster_are_watched_for_load_balancers_alone() {
    let kind = WatchedKind::index_of(ADDRESS_POOL).unwrap();
    let scopes = |address_pools| {
        let namespaces = vec!["shop".to_owned()];
        let selection = WatchSelection { namespaces, address_pools, ..WatchSelection::default() };
        let watches = watches(&selection, "sheave").into_iter();
        watches.filter(|it| it.kind == kind).map(|it| it.scope).collect::<Vec<_>>()
    };
    assert_eq!(scopes(true), [WatchScope::Cluster]);
    assert_eq!(scopes(false), []);
}

/// A translation of 20 ms is followed by a pause of 20 ms, and changes in it are loaded together.
#[tokio::test(start_paused = true)]
async fn only_changes_right_after_a_translation_wait() {
    let server = ApiServer::default();
    server.put(SERVICES, service("a"));
    let mut objects = watch(&server);
    assert_eq!(services(&mut objects).await, ["a"]);
    let translation = Duration::from_millis(20);
    sleep(translation).await;
    let ended = Instant::now();
    server.put(SERVICES, service("b"));
    let second = async {
        sleep(translation / 2).await;
        server.put(SERVICES, service("c"));
    };
    let (loaded, ()) = tokio::join!(services(&mut objects), second);
    assert_eq!(loaded, ["a", "b", "c"]);
    assert_eq!(ended.elapsed(), translation);
    assert!(timeout(LONG, objects.changed()).await.is_err());
    let quiet = Instant::now();
    server.put(SERVICES, service("d"));
    assert_eq!(services(&mut objects).await, ["a", "b", "c", "d"]);
    assert!(quiet.elapsed() < *PAUSE.start(), "{:?}", quiet.elapsed());
}
