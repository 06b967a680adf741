//! Which resources change with what.

use super::*;
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
    let find = |name: &str| table.find(ResourceType::Listener, name);
    let name = name::server_template("shop/web:80").replace("%s", "[::]:50051");
    let encoded = find(&name).unwrap().encoded(&name, &ClientIdentity::default());
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
    assert!(table.find(ResourceType::Listener, &name).unwrap().version > since);
}
