//! The protocol, request by request.

use gateway::snapshot::EndpointSpec;

use super::*;
use crate::message::{AnyMessage, ClientNode, RpcStatus};
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
        Self { publisher, client: ClientSubscriptions::default(), nonces: BTreeMap::new() }
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
        self.client.receive(request).unwrap()
    }

    /// Returns the type and the number of resources of the next response.
    fn next(&mut self) -> Option<(ResourceType, usize)> {
        let table = self.publisher.current_table();
        let (kind, response) = self.client.respond(&table)?;
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
    assert_eq!(fixture.client.client, "test");
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
    let meaning = fixture.client.receive(DiscoveryRequest { error_detail, ..request }).unwrap();
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
    assert_eq!(fixture.client.receive(outdated), Ok(RequestMeaning::Outdated));
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
    assert_eq!(fixture.client.receive(request), Ok(RequestMeaning::UnknownType(v2)));
    assert_eq!(fixture.next(), None);
    let names = vec!["a"; MAX_NAMES + 1];
    let request = fixture.request(Cluster, &names);
    assert_eq!(fixture.client.receive(request), Err(RequestFault::TooManyNames));
    let long = "a".repeat(MAX_NAME_BYTES + 1);
    let request = fixture.request(Cluster, &[&long]);
    assert_eq!(fixture.client.receive(request), Err(RequestFault::LongName));
}
