//! Tests of the replicas that count as members.

use super::*;

const PATIENCE: Duration = Duration::from_secs(40);

fn at(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

/// Returns a slice of the peers' Service with an endpoint for each of the conditions.
fn slice(conditions: &[&str]) -> Vec<ApiObject> {
    let endpoint = |(index, it): (usize, &&str)| {
        format!("- {{addresses: [10.0.0.{index}], conditions: {{{it}}}}}\n")
    };
    let endpoints: String = conditions.iter().enumerate().map(endpoint).collect();
    let text = format!(
        "apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: peers-1
  namespace: sheave
  labels: {{kubernetes.io/service-name: peers}}
addressType: IPv4
ports: []
endpoints:
{endpoints}"
    );
    let (objects, problems) = gateway::parse(&text, "slice.yaml");
    assert_eq!(problems, []);
    objects
}

#[test]
fn terminating_peer_keeps_its_slots_for_the_grace_period() {
    let parting = TerminatingPeers::new(PATIENCE);
    let (namespace, service) = ("sheave".to_owned(), "peers".to_owned());
    let mut peers = PeerReplicas {
        namespace,
        service,
        serving: Vec::new(),
        terminating: parting,
        nodes: Arc::default(),
    };
    let mut find = |objects: &[ApiObject], seconds| {
        peers.update(objects, at(seconds));
        peers.serving.iter().map(|it| it.ip().to_string()).collect::<Vec<_>>()
    };
    let ends = slice(&[
        "ready: true",
        "ready: false, terminating: true",
        "ready: false, terminating: false",
    ]);
    assert_eq!(find(&ends, 0), ["10.0.0.0", "10.0.0.1"]);
    assert_eq!(find(&ends, 39), ["10.0.0.0", "10.0.0.1"]);
    assert_eq!(find(&ends, 40), ["10.0.0.0"]);
    let other = slice(&["ready: true", "ready: true"]);
    assert_eq!(find(&other, 41), ["10.0.0.0", "10.0.0.1"]);
}
