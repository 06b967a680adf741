//! Which resources change with what.

use super::*;
use crate::limit::{ConnectionNumber, ReportedDemand, StreamClaim, StreamNumber};
use crate::message::ListenerResource;
use crate::translate::tests::snapshot;

const SERVICES: &str = include_str!("../../testdata/services.in.yaml");

fn key(snapshot: &Snapshot, service: &str) -> BackendKey {
    let is_meant = |it: &&Backend| &*it.key.service == service && it.key.port == 80;
    snapshot.backends.iter().find(is_meant).unwrap().key.clone()
}

/// Returns the names of the resources of each type that have changed since a table.
fn changes(publisher: &ResourcePublisher, since: u64) -> [Vec<String>; 4] {
    let table = publisher.table.borrow().clone();
    ResourceType::ALL.map(|kind| {
        let changed = table.map(kind).resources.iter().filter(|(_, it)| it.version > since);
        changed.map(|(name, _)| name.to_string()).collect()
    })
}

/// Returns the first client of gRPC.
fn client() -> ClientIdentity {
    ClientIdentity { stream: StreamNumber(1), ..ClientIdentity::default() }
}

fn generation(publisher: &ResourcePublisher) -> u64 {
    publisher.table.borrow().generation()
}

#[test]
fn change_of_endpoints_changes_their_assignment_alone() {
    let (publisher, snapshot) = (ResourcePublisher::default(), snapshot(SERVICES));
    publisher.publish(&snapshot, "cluster.local");
    let since = generation(&publisher);
    let endpoints = [EndpointSpec::new(([10, 0, 0, 9], 8080).into())];
    publisher.set_endpoints(&key(&snapshot, "web"), &endpoints);
    assert_eq!(
        changes(&publisher, since),
        [vec![], vec!["shop/web:80".to_owned()], vec![], vec![]]
    );
}

#[test]
fn change_of_endpoints_with_a_cap_changes_the_limit_of_the_cluster_too() {
    let policy = "---\napiVersion: sheave.dev/v1alpha1\nkind: BackendPolicy\n\
                  metadata: {name: web, namespace: shop}\n\
                  spec: {targetRefs: [{kind: Service, name: web}], maxInFlightPerEndpoint: 2}\n";
    let (publisher, snapshot) =
        (ResourcePublisher::default(), snapshot(&format!("{SERVICES}{policy}")));
    publisher.publish(&snapshot, "cluster.local");
    let since = generation(&publisher);
    publisher.set_endpoints(&key(&snapshot, "web"), &[]);
    let name = || vec!["shop/web:80".to_owned()];
    assert_eq!(changes(&publisher, since), [name(), name(), vec![], vec![]]);
}

#[test]
fn same_configuration_changes_nothing_and_wakes_no_client() {
    let (publisher, snapshot) = (ResourcePublisher::default(), snapshot(SERVICES));
    publisher.publish(&snapshot, "cluster.local");
    let since = generation(&publisher);
    let mut table = publisher.table.subscribe();
    publisher.publish(&snapshot, "cluster.local");
    publisher.set_health(EndpointHealth::default());
    let key = key(&snapshot, "web");
    let backend = snapshot.backends.iter().find(|it| it.key == key).unwrap();
    publisher.set_endpoints(&key, &backend.endpoints);
    assert!(!table.has_changed().unwrap());
    assert_eq!(changes(&publisher, since), <[Vec<String>; 4]>::default());
    table.mark_unchanged();
}

#[test]
fn health_changes_the_assignment_of_its_backend() {
    let (publisher, snapshot) = (ResourcePublisher::default(), snapshot(SERVICES));
    publisher.publish(&snapshot, "cluster.local");
    let since = generation(&publisher);
    let mut health = EndpointHealth::default();
    health.add_unhealthy(&key(&snapshot, "web"), ([10, 0, 0, 1], 8080).into());
    publisher.set_health(health);
    assert_eq!(
        changes(&publisher, since),
        [vec![], vec!["shop/web:80".to_owned()], vec![], vec![]]
    );
}

#[test]
fn removed_service_is_gone() {
    let (publisher, snapshot) = (ResourcePublisher::default(), snapshot(SERVICES));
    publisher.publish(&snapshot, "cluster.local");
    publisher.publish(&Snapshot::default(), "cluster.local");
    let table = publisher.table.borrow().clone();
    assert_eq!(ResourceType::ALL.map(|kind| table.len(kind)), [1, 1, 0, 0]);
}

#[test]
fn server_gets_the_listener_of_its_port_with_its_own_name_and_address() {
    let (publisher, snapshot) = (ResourcePublisher::default(), snapshot(SERVICES));
    publisher.publish(&snapshot, "cluster.local");
    let table = publisher.current_table();
    let client = client();
    let find = |name: &str| table.find(ResourceType::Listener, name, &client);
    let name = name::server_template("shop/web:80").replace("%s", "[::]:50051");
    let encoded = find(&name).unwrap().encoded(&name, &client);
    let listener = ListenerResource::decode(encoded).unwrap();
    let address = listener.address.unwrap().socket_address.unwrap();
    assert_eq!(
        (listener.name, address.address, address.port_value),
        (name, "::".into(), Some(50_051))
    );
    assert!(listener.default_filter_chain.is_some() && listener.api_listener.is_none());

    // There is no such Service, and no address.
    assert!(find(&name::server_template("shop/none:80").replace("%s", "[::]:50051")).is_none());
    assert!(find(&name::server_template("shop/web:80")).is_none());
    assert!(table.names(ResourceType::Listener).all(|name| !name.contains("grpc/server")));
}

#[test]
fn changed_server_is_a_changed_listener() {
    let policy = "---\napiVersion: sheave.dev/v1alpha1\nkind: BackendPolicy\n\
                  metadata: {name: web, namespace: shop}\n\
                  spec: {targetRefs: [{kind: Service, name: web}], \
                  xdsServers: {clientAddresses: {allow: [10.0.0.0/8]}}}\n";
    let publisher = ResourcePublisher::default();
    publisher.publish(&snapshot(SERVICES), "cluster.local");
    let since = generation(&publisher);
    publisher.publish(&snapshot(&format!("{SERVICES}{policy}")), "cluster.local");
    let table = publisher.current_table();
    assert!(table.version(ResourceType::Listener) > since);
    let name = name::server_template("shop/web:80").replace("%s", "10.0.0.1:80");
    assert!(table.find(ResourceType::Listener, &name, &client()).unwrap().version() > since);
}

/// Returns the maximum number of requests of a client to the backend with a limit of 2 for each of 2 endpoints.
fn max_requests_of(publisher: &ResourcePublisher, stream: u64) -> u32 {
    let client = ClientIdentity { stream: StreamNumber(stream), ..ClientIdentity::default() };
    let table = publisher.current_table();
    let name = "shop/web:80";
    let cluster = table.find(ResourceType::Cluster, name, &client).unwrap().encoded(name, &client);
    let cluster = ClusterResource::decode(cluster).unwrap();
    let [thresholds] = cluster.circuit_breakers.unwrap().thresholds[..] else { panic!("one") };
    thresholds.max_requests.unwrap().value
}

/// Divides beside this number of requests of the proxy.
fn divide(publisher: &ResourcePublisher, local: u64) {
    publisher.divide_limits(|_| CompetingDemand { local, peers: 0 });
}

fn publish_limited(publisher: &ResourcePublisher) {
    let policy = "---\napiVersion: sheave.dev/v1alpha1\nkind: BackendPolicy\n\
                  metadata: {name: web, namespace: shop}\n\
                  spec: {targetRefs: [{kind: Service, name: web}], maxInFlightPerEndpoint: 8}\n";
    publisher.publish(&snapshot(&format!("{SERVICES}{policy}")), "cluster.local");
    let endpoints = [1, 2].map(|last| EndpointSpec::new(([10, 0, 0, last], 8080).into()));
    publisher.set_endpoints(&publisher.key_of("shop/web:80"), &endpoints);
}

#[test]
fn clients_share_the_limits_of_all_endpoints() {
    let publisher = ResourcePublisher::default();
    publish_limited(&publisher);
    let claims: Vec<_> = (1..=2)
        .map(|connection| {
            let claim = StreamClaim::new(&publisher.claims, Some(ConnectionNumber(connection)));
            claim.set_clusters([Arc::from("shop/web:80")].into_iter());
            claim
        })
        .collect();
    assert_eq!(max_requests_of(&publisher, 1), 16, "no client was known");
    let since = generation(&publisher);
    divide(&publisher, 0);
    assert_eq!([1, 2].map(|stream| max_requests_of(&publisher, stream)), [8, 8]);
    let table = publisher.current_table();
    assert!(table.version_for(ResourceType::Cluster, &client()) > since);
    assert!(table.version(ResourceType::Cluster) <= since, "the resource itself is the same");
    assert_eq!(publisher.load().clusters.iter().map(|(_, load)| load.shares).sum::<u64>(), 16);

    let report = ReportedDemand::new(&publisher.claims, ConnectionNumber(2));
    report.set(Some([(Arc::from("shop/web:80"), 12)].into()));
    let report_of_idle = ReportedDemand::new(&publisher.claims, ConnectionNumber(1));
    report_of_idle.set(Some(BTreeMap::new()));
    divide(&publisher, 0);
    assert_eq!([1, 2].map(|stream| max_requests_of(&publisher, stream)), [3, 13]);
    divide(&publisher, 24);
    let shares = [1, 2].map(|stream| max_requests_of(&publisher, stream));
    assert_eq!(shares, [1, 7], "the proxy has more to do, and leaves a half");

    let unchanged = generation(&publisher);
    divide(&publisher, 24);
    assert_eq!(generation(&publisher), unchanged);
    drop(claims);
    divide(&publisher, 0);
    assert!(publisher.current_table().shares.is_empty());
    assert_eq!(publisher.load().clusters.iter().map(|(_, load)| load.shares).sum::<u64>(), 0);
}

#[test]
fn replicas_that_do_not_know_the_demand_of_others_have_equal_parts() {
    let publisher = ResourcePublisher::default();
    publish_limited(&publisher);
    let claim = StreamClaim::new(&publisher.claims, None);
    claim.set_clusters([Arc::from("shop/web:80")].into_iter());
    let share = |count, share_demand| {
        let count = NonZeroU32::new(count).unwrap();
        publisher.set_replicas(LimitReplicas { count, share_demand });
        let peers = CompetingDemand { local: 0, peers: 6 };
        publisher.divide_limits(|_| peers);
        max_requests_of(&publisher, 1)
    };
    assert_eq!([share(1, false), share(2, false), share(4, false)], [16, 8, 4]);
    assert_eq!(share(2, true), 10, "what the others leave");
}
