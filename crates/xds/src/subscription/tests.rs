//! The protocol, request by request.

use std::collections::HashMap;

use gateway::snapshot::EndpointSpec;

use super::*;
use crate::message::{
    AnyMessage, ClientNode, DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest,
    DiscoveryResponse, RpcStatus,
};
use crate::table::ResourcePublisher;
use crate::translate::tests::snapshot;

const WEB: &str = "web.shop:80";

/// A client and what it is served.
struct ProtocolFixture {
    publisher: ResourcePublisher,
    client: ClientSubscriptions,
    nonces: BTreeMap<ResourceType, String>,
}

impl ProtocolFixture {
    fn new() -> Self {
        let publisher = ResourcePublisher::default();
        publisher
            .publish(&snapshot(include_str!("../../testdata/services.in.yaml")), "cluster.local");
        let client = ClientSubscriptions::new(ProtocolVariant::StateOfTheWorld);
        Self { publisher, client, nonces: BTreeMap::new() }
    }

    fn request(&self, kind: ResourceType, names: &[&str]) -> DiscoveryRequest {
        DiscoveryRequest {
            node: Some(ClientNode { id: "test".to_owned(), ..ClientNode::default() }),
            resource_names: names.iter().map(ToString::to_string).collect(),
            type_url: kind.type_url().to_owned(),
            response_nonce: self.nonces.get(&kind).cloned().unwrap_or_default(),
            ..DiscoveryRequest::default()
        }
    }

    fn send(&mut self, kind: ResourceType, names: &[&str]) -> RequestMeaning {
        let request = self.request(kind, names);
        self.client.receive(request.into()).unwrap()
    }

    /// Returns the type and the number of resources of the next response.
    fn next(&mut self) -> Option<(ResourceType, usize)> {
        let table = self.publisher.current_table();
        let response = self.client.respond(&table)?;
        let (kind, response) = (response.kind, DiscoveryResponse::from(response));
        assert_eq!(response.type_url, kind.type_url());
        let is_of_type = |it: &AnyMessage| it.type_url == response.type_url;
        assert!(response.resources.iter().all(is_of_type));
        self.nonces.insert(kind, response.nonce);
        Some((kind, response.resources.len()))
    }

    fn change_endpoints(&self, last: u8) {
        let key = self.publisher.key_of("shop/web:80");
        let endpoint = EndpointSpec::new(([10, 0, 0, last], 8080).into());
        self.publisher.set_endpoints(&key, &[endpoint]);
    }
}

use ResourceType::{Cluster, ClusterLoadAssignment, Listener, RouteConfiguration};

#[test]
fn client_gets_the_resources_that_it_names_once() {
    let mut fixture = ProtocolFixture::new();
    assert_eq!(fixture.next(), None, "nothing was asked for");
    assert_eq!(fixture.send(Listener, &[WEB]), RequestMeaning::Subscribed);
    assert_eq!(fixture.next(), Some((Listener, 1)));
    assert_eq!(fixture.send(Listener, &[WEB]), RequestMeaning::Acknowledged(Listener));
    assert_eq!(fixture.next(), None);
    assert_eq!(fixture.client.client.name, "test");
}

#[test]
fn change_goes_to_the_type_that_has_changed() {
    let mut fixture = ProtocolFixture::new();
    fixture.send(Cluster, &["shop/web:80"]);
    fixture.send(ClusterLoadAssignment, &["shop/web:80", "shop/idle:80"]);
    assert_eq!(fixture.next(), Some((Cluster, 1)));
    assert_eq!(fixture.next(), Some((ClusterLoadAssignment, 2)));
    fixture.send(Cluster, &["shop/web:80"]);
    fixture.send(ClusterLoadAssignment, &["shop/web:80", "shop/idle:80"]);
    fixture.change_endpoints(9);
    assert_eq!(fixture.next(), Some((ClusterLoadAssignment, 1)), "the other one is the same");
    assert_eq!(fixture.next(), None);
}

#[test]
fn changes_wait_for_the_reply_and_come_as_one() {
    let mut fixture = ProtocolFixture::new();
    fixture.send(ClusterLoadAssignment, &["shop/web:80"]);
    assert_eq!(fixture.next(), Some((ClusterLoadAssignment, 1)));
    assert!(fixture.client.is_awaited());
    for last in 10..20 {
        fixture.change_endpoints(last);
        assert_eq!(fixture.next(), None, "the client has not replied");
    }
    fixture.send(ClusterLoadAssignment, &["shop/web:80"]);
    assert!(!fixture.client.is_awaited());
    assert_eq!(fixture.next(), Some((ClusterLoadAssignment, 1)));
    fixture.send(ClusterLoadAssignment, &["shop/web:80"]);
    assert_eq!(fixture.next(), None);
}

#[test]
fn unknown_listener_is_reported_as_absent_and_unknown_endpoints_are_not_reported() {
    let mut fixture = ProtocolFixture::new();
    fixture.send(Listener, &["none.shop:80"]);
    assert_eq!(fixture.next(), Some((Listener, 0)));
    fixture.send(Listener, &["none.shop:80", WEB]);
    assert_eq!(fixture.next(), Some((Listener, 1)));
    fixture.send(ClusterLoadAssignment, &["none"]);
    fixture.send(RouteConfiguration, &["none"]);
    assert_eq!(fixture.next(), None);
}

#[test]
fn removed_listener_is_reported_as_absent() {
    let mut fixture = ProtocolFixture::new();
    fixture.send(Listener, &[WEB]);
    assert_eq!(fixture.next(), Some((Listener, 1)));
    fixture.send(Listener, &[WEB]);
    fixture.publisher.publish(&gateway::Snapshot::default(), "cluster.local");
    assert_eq!(fixture.next(), Some((Listener, 0)));
    fixture.send(Listener, &[WEB]);
    assert_eq!(fixture.next(), None);
}

#[test]
fn rejected_response_is_sent_again_only_when_it_changes() {
    let mut fixture = ProtocolFixture::new();
    fixture.send(ClusterLoadAssignment, &["shop/web:80"]);
    fixture.next();
    let error_detail = Some(RpcStatus { code: 3, message: "bad\nweight".to_owned() });
    let request = fixture.request(ClusterLoadAssignment, &["shop/web:80"]);
    let request = DiscoveryRequest { error_detail, ..request };
    let meaning = fixture.client.receive(request.into()).unwrap();
    let words = "bad weight".to_owned();
    assert_eq!(meaning, RequestMeaning::Rejected(ClusterLoadAssignment, words));
    assert_eq!(fixture.next(), None);
    fixture.change_endpoints(9);
    assert_eq!(fixture.next(), Some((ClusterLoadAssignment, 1)));
}

#[test]
fn outdated_reply_changes_nothing() {
    let mut fixture = ProtocolFixture::new();
    fixture.send(Listener, &[WEB]);
    fixture.next();
    let outdated = fixture.request(Listener, &["other.shop:80"]);
    fixture.send(Listener, &[WEB, "idle.shop:80"]);
    assert_eq!(fixture.next(), Some((Listener, 2)));
    assert_eq!(fixture.client.receive(outdated.into()), Ok(RequestMeaning::Outdated));
    assert!(fixture.client.is_awaited());
}

#[test]
fn names_no_longer_asked_for_are_forgotten() {
    let mut fixture = ProtocolFixture::new();
    fixture.send(ClusterLoadAssignment, &["shop/web:80"]);
    fixture.next();
    fixture.send(ClusterLoadAssignment, &[]);
    fixture.change_endpoints(9);
    assert_eq!(fixture.next(), None);
    fixture.send(ClusterLoadAssignment, &["shop/web:80"]);
    assert_eq!(fixture.next(), Some((ClusterLoadAssignment, 1)));
}

#[test]
fn unknown_types_and_floods_are_refused() {
    let mut fixture = ProtocolFixture::new();
    let v2 = "type.googleapis.com/envoy.api.v2.Cluster".to_owned();
    let request = DiscoveryRequest { type_url: v2.clone(), ..fixture.request(Cluster, &["a"]) };
    assert_eq!(fixture.client.receive(request.into()), Ok(RequestMeaning::UnknownType(v2)));
    assert_eq!(fixture.next(), None);
    let names = vec!["a"; MAX_NAMES + 1];
    let request = fixture.request(Cluster, &names);
    assert_eq!(fixture.client.receive(request.into()), Err(RequestFault::TooManyNames));
    let long = "a".repeat(MAX_NAME_BYTES + 1);
    let request = fixture.request(Cluster, &[&long]);
    assert_eq!(fixture.client.receive(request.into()), Err(RequestFault::LongName));
}

#[test]
fn client_that_names_nothing_at_first_gets_all_listeners_and_clusters() {
    for names in [&[][..], &["*"]] {
        let mut fixture = ProtocolFixture::new();
        fixture.send(Listener, names);
        assert_eq!(fixture.next(), Some((Listener, 9)));
        fixture.send(Listener, names);
        assert_eq!(fixture.next(), None);
        fixture.send(ClusterLoadAssignment, names);
        assert_eq!(fixture.next(), None, "endpoints are asked for by name");
        fixture.publisher.publish(&gateway::Snapshot::default(), "cluster.local");
        assert_eq!(fixture.next(), Some((Listener, 0)));
    }
}

#[test]
fn client_that_asks_for_all_is_answered_even_if_there_is_nothing() {
    let mut fixture = ProtocolFixture::new();
    fixture.publisher.publish(&gateway::Snapshot::default(), "cluster.local");
    fixture.send(Listener, &[]);
    assert_eq!(fixture.next(), Some((Listener, 0)));
    fixture.send(Listener, &[]);
    assert_eq!(fixture.next(), None);
}

#[test]
fn names_end_the_subscription_to_all_unless_it_is_among_them() {
    let mut fixture = ProtocolFixture::new();
    fixture.send(Cluster, &[]);
    assert_eq!(fixture.next(), Some((Cluster, 4)));
    fixture.send(Cluster, &["*", "shop/web:80", "none"]);
    assert_eq!(fixture.next(), Some((Cluster, 4)), "the absence of a name is news");
    fixture.send(Cluster, &["shop/web:80"]);
    assert_eq!(fixture.next(), None, "the client has it");
    fixture.send(Cluster, &[]);
    fixture.publisher.publish(&gateway::Snapshot::default(), "cluster.local");
    assert_eq!(fixture.next(), None, "a request without names asks for nothing now");
}

#[test]
fn endpoints_follow_a_changed_cluster_of_an_envoy_even_if_they_are_the_same() {
    let mut fixture = ProtocolFixture::new();
    fixture.send(Cluster, &[]);
    fixture.client.client.kind = ClientKind::Envoy;
    fixture.send(ClusterLoadAssignment, &["shop/web:80", "shop/idle:80"]);
    fixture.next();
    fixture.next();
    fixture.send(Cluster, &[]);
    fixture.send(ClusterLoadAssignment, &["shop/web:80", "shop/idle:80"]);
    let policy = "---\napiVersion: sheave.dev/v1alpha1\nkind: BackendPolicy\n\
                  metadata: {name: web, namespace: shop}\n\
                  spec: {targetRefs: [{kind: Service, name: idle}], algorithm: RoundRobin}\n";
    let services = include_str!("../../testdata/services.in.yaml");
    fixture.publisher.publish(&snapshot(&format!("{services}{policy}")), "cluster.local");
    assert_eq!(fixture.next(), Some((Cluster, 4)));
    assert_eq!(fixture.next(), Some((ClusterLoadAssignment, 1)));
    assert_eq!(fixture.next(), None);
}

/// A client of the incremental variant.
struct DeltaFixture {
    base: ProtocolFixture,
    /// Versions of the resources that the client has.
    versions: HashMap<String, String>,
}

/// Sorted names of resources that came and that went.
type Changes = (Vec<String>, Vec<String>);

impl DeltaFixture {
    fn new() -> Self {
        let mut base = ProtocolFixture::new();
        base.client = ClientSubscriptions::new(ProtocolVariant::Incremental);
        Self { base, versions: HashMap::new() }
    }

    /// Begins another stream.
    fn reconnect(&mut self) {
        self.base.client = ClientSubscriptions::new(ProtocolVariant::Incremental);
        self.base.nonces.clear();
    }

    fn request(&self, kind: ResourceType, add: &[&str], drop: &[&str]) -> DeltaDiscoveryRequest {
        let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect();
        DeltaDiscoveryRequest {
            type_url: kind.type_url().to_owned(),
            resource_names_subscribe: owned(add),
            resource_names_unsubscribe: owned(drop),
            response_nonce: self.base.nonces.get(&kind).cloned().unwrap_or_default(),
            ..DeltaDiscoveryRequest::default()
        }
    }

    fn send(&mut self, kind: ResourceType, add: &[&str], drop: &[&str]) -> RequestMeaning {
        let request = self.request(kind, add, drop);
        self.base.client.receive(request.into()).unwrap()
    }

    fn next(&mut self) -> Option<Changes> {
        let table = self.base.publisher.current_table();
        let response = self.base.client.respond(&table)?;
        let (kind, response) = (response.kind, DeltaDiscoveryResponse::from(response));
        self.base.nonces.insert(kind, response.nonce);
        let mut came = Vec::new();
        for resource in response.resources {
            assert_eq!(resource.resource.unwrap().type_url, kind.type_url());
            came.push(resource.name.clone());
            self.versions.insert(resource.name, resource.version);
        }
        Some((came, response.removed_resources))
    }
}

fn changes(came: &[&str], went: &[&str]) -> Option<Changes> {
    let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    Some((owned(came), owned(went)))
}

#[test]
fn incremental_client_gets_changes_alone() {
    let mut fixture = DeltaFixture::new();
    fixture.send(ClusterLoadAssignment, &["shop/web:80", "shop/idle:80", "none"], &[]);
    assert_eq!(fixture.next(), changes(&["shop/idle:80", "shop/web:80"], &["none"]));
    let acknowledged = fixture.send(ClusterLoadAssignment, &[], &[]);
    assert_eq!(acknowledged, RequestMeaning::Acknowledged(ClusterLoadAssignment));
    assert_eq!(fixture.next(), None);
    for last in 10..20 {
        fixture.base.change_endpoints(last);
    }
    assert_eq!(fixture.next(), changes(&["shop/web:80"], &[]));
    fixture.base.change_endpoints(20);
    assert_eq!(fixture.next(), None, "the client has not replied");
    fixture.send(ClusterLoadAssignment, &[], &["shop/web:80"]);
    assert_eq!(fixture.next(), None, "the client does not ask for it any more");
}

#[test]
fn incremental_client_of_all_resources_learns_what_comes_and_goes() {
    for names in [&[][..], &["*"]] {
        let mut fixture = DeltaFixture::new();
        fixture.base.publisher.publish(&gateway::Snapshot::default(), "cluster.local");
        fixture.send(Listener, names, &[]);
        assert_eq!(fixture.next(), changes(&[], &[]), "there is none, and the client waits");
        fixture.send(Listener, &[], &[]);
        let services = include_str!("../../testdata/services.in.yaml");
        fixture.base.publisher.publish(&snapshot(services), "cluster.local");
        assert_eq!(fixture.next().map(|(came, went)| (came.len(), went.len())), Some((9, 0)));
        fixture.send(Listener, &[], &[]);
        fixture.base.publisher.publish(&gateway::Snapshot::default(), "cluster.local");
        assert_eq!(fixture.next().map(|(came, went)| (came.len(), went.len())), Some((0, 9)));
        fixture.send(Listener, &[], &["*"]);
        fixture.base.publisher.publish(&snapshot(services), "cluster.local");
        assert_eq!(fixture.next(), None);
    }
}

#[test]
fn removed_clusters_go_after_the_routes_that_named_them() {
    let services = include_str!("../../testdata/services.in.yaml");
    let mut fixture = DeltaFixture::new();
    let publish = |fixture: &DeltaFixture, services: &str| {
        fixture.base.publisher.publish(&snapshot(services), "cluster.local");
    };
    fixture.send(Cluster, &["*"], &[]);
    let names = fixture.next().unwrap().0;
    assert!(names.contains(&"shop/idle:80".to_owned()), "{names:?}");
    fixture.send(Cluster, &[], &[]);
    fixture.send(RouteConfiguration, &["services:80"], &[]);
    assert_eq!(fixture.next(), changes(&["services:80"], &[]));
    fixture.send(RouteConfiguration, &[], &[]);
    assert_eq!(fixture.next(), None);

    publish(&fixture, &services.replace("{name: idle, ", "{name: other, "));
    assert_eq!(fixture.next(), changes(&["shop/other:80"], &[]));
    fixture.send(Cluster, &[], &[]);
    assert_eq!(fixture.next(), changes(&["services:80"], &[]));
    assert_eq!(fixture.next(), None, "the client has not replied");
    // It has another change meanwhile.
    fixture.base.change_endpoints(9);
    assert_eq!(fixture.next(), None);
    fixture.send(RouteConfiguration, &[], &[]);
    assert_eq!(fixture.next(), changes(&[], &["shop/idle:80"]));
    fixture.send(Cluster, &[], &[]);
    assert_eq!(fixture.next(), None);
}

#[test]
fn resource_is_sent_again_if_its_name_is() {
    let mut fixture = DeltaFixture::new();
    fixture.send(Cluster, &["*", "shop/web:80"], &[]);
    assert_eq!(fixture.next().map(|(came, _)| came.len()), Some(4));
    fixture.send(Cluster, &["shop/web:80"], &[]);
    assert_eq!(fixture.next(), changes(&["shop/web:80"], &[]), "the client may have lost it");
    fixture.send(Cluster, &[], &["shop/web:80"]);
    assert_eq!(fixture.next(), changes(&["shop/web:80"], &[]), "it is one of all");
    fixture.send(Cluster, &[], &["shop/web:80"]);
    assert_eq!(fixture.next(), None);
}

#[test]
fn client_that_reconnects_gets_what_has_changed_meanwhile() {
    let mut fixture = DeltaFixture::new();
    fixture.send(ClusterLoadAssignment, &["shop/web:80", "shop/idle:80"], &[]);
    fixture.next();
    fixture.reconnect();
    fixture.base.change_endpoints(9);
    let known = std::mem::take(&mut fixture.versions);
    let mut request = fixture.request(ClusterLoadAssignment, &["shop/web:80", "shop/idle:80"], &[]);
    request.initial_resource_versions = known;
    let lost = ("lost".to_owned(), "1".to_owned());
    let mut request_of_all = fixture.request(Cluster, &[], &[]);
    request_of_all.initial_resource_versions = HashMap::from([lost]);
    fixture.base.client.receive(request.into()).unwrap();
    assert_eq!(fixture.next(), changes(&["shop/web:80"], &[]));
    fixture.base.client.receive(request_of_all.into()).unwrap();
    let (came, went) = fixture.next().unwrap();
    assert_eq!((came.len(), went), (4, vec!["lost".to_owned()]));
}

#[test]
fn incremental_client_that_rejects_everything_gets_what_changes_alone() {
    let mut fixture = DeltaFixture::new();
    fixture.send(ClusterLoadAssignment, &["shop/web:80"], &[]);
    for last in 10..20 {
        assert_eq!(fixture.next(), changes(&["shop/web:80"], &[]));
        let error = RpcStatus { code: 3, message: "never".to_owned() };
        let mut request = fixture.request(ClusterLoadAssignment, &[], &[]);
        request.error_detail = Some(error);
        let meaning = fixture.base.client.receive(request.into()).unwrap();
        assert_eq!(meaning, RequestMeaning::Rejected(ClusterLoadAssignment, "never".to_owned()));
        assert_eq!(fixture.next(), None, "the same again would be rejected again");
        fixture.base.change_endpoints(last);
    }
}

#[test]
fn late_reply_of_an_incremental_client_still_changes_its_names() {
    let mut fixture = DeltaFixture::new();
    fixture.send(ClusterLoadAssignment, &["shop/web:80"], &[]);
    fixture.next();
    fixture.base.nonces.insert(ClusterLoadAssignment, "999".to_owned());
    let meaning = fixture.send(ClusterLoadAssignment, &["shop/idle:80"], &[]);
    assert_eq!(meaning, RequestMeaning::Outdated);
    assert!(fixture.base.client.is_awaited());
    fixture.base.nonces.insert(ClusterLoadAssignment, "1".to_owned());
    fixture.send(ClusterLoadAssignment, &[], &[]);
    assert_eq!(fixture.next(), changes(&["shop/idle:80"], &[]));
}

#[test]
fn names_of_an_incremental_client_are_bounded_in_sum() {
    let mut fixture = DeltaFixture::new();
    let names: Vec<String> = (0..MAX_NAMES).map(|number| number.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    fixture.send(Cluster, &names, &[]);
    let one_more = fixture.request(Cluster, &["more"], &[]);
    let refused = fixture.base.client.receive(one_more.clone().into());
    assert_eq!(refused, Err(RequestFault::TooManyNames));
    let mut fixture = DeltaFixture::new();
    let known = |number: usize| (number.to_string(), String::new());
    let initial_resource_versions = (0..=MAX_KNOWN_RESOURCES).map(known).collect();
    let request = DeltaDiscoveryRequest { initial_resource_versions, ..one_more };
    let refused = fixture.base.client.receive(request.into());
    assert_eq!(refused, Err(RequestFault::TooManyKnown));
}

/// A client that asks for all, and changes its names without end, has a bounded state.
#[test]
fn names_that_come_and_go_are_not_kept() {
    let mut fixture = DeltaFixture::new();
    fixture.send(Cluster, &["*"], &[]);
    for round in 0..10 {
        let names: Vec<String> = (0..MAX_NAMES).map(|it| format!("{round}/{it}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        fixture.send(Cluster, &names, &[]);
        fixture.send(Cluster, &[], &names);
    }
    let (came, went) = fixture.next().unwrap();
    assert_eq!((came.len(), went.len()), (4, 0));
}

/// There are as many as addresses, so they are not among the resources of a client that asks for all.
#[test]
fn listeners_of_servers_are_bounded_and_forgotten() {
    let name = |port: usize| {
        name::server_template("shop/web:80").replace("%s", &format!("10.0.0.1:{port}"))
    };
    let mut fixture = DeltaFixture::new();
    fixture.send(Listener, &["*"], &[]);
    fixture.next().unwrap();
    for port in 1..=MAX_SERVERS * 2 {
        let name = name(port);
        fixture.send(Listener, &[&name], &[]);
        assert_eq!(fixture.next(), changes(&[&name], &[]));
        fixture.send(Listener, &[], &[&name]);
        assert_eq!(fixture.next(), None);
    }
    let names: Vec<String> = (1..=MAX_SERVERS + 1).map(name).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let refused = fixture.base.client.receive(fixture.request(Listener, &names, &[]).into());
    assert_eq!(refused, Err(RequestFault::TooManyServers));

    let mut fixture = ProtocolFixture::new();
    let (first, second) = (name(1), name(2));
    for name in [&first, &second] {
        fixture.send(Listener, &["*", name]);
        // Those of the Services, and one of a server.
        assert_eq!(fixture.next(), Some((Listener, 10)));
    }
}
