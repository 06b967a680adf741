//! Tests of the replicas that count as members.

use super::*;

const PATIENCE: Duration = Duration::from_secs(40);

fn at(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

/// Returns a slice of the peers' Service with an endpoint for each of the conditions.
fn slice(conditions: &[&str]) -> Vec<ApiObject> {
    slice_at(conditions.iter().copied().enumerate())
}

/// Returns a slice of endpoints, each with the last part of its address, and conditions.
fn slice_at<'c>(endpoints: impl IntoIterator<Item = (usize, &'c str)>) -> Vec<ApiObject> {
    let endpoint = |(last, it)| format!("- {{addresses: [10.0.0.{last}], conditions: {{{it}}}}}\n");
    let endpoints: String = endpoints.into_iter().map(endpoint).collect();
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

fn peers() -> PeerReplicas {
    let (namespace, service) = ("sheave".to_owned(), "peers".to_owned());
    PeerReplicas {
        namespace,
        service,
        serving: Vec::new(),
        terminating: TerminatingPeers::new(PATIENCE),
        nodes: Arc::default(),
        lease_slots: false,
    }
}

/// During an update of transparent mode a node has two agents, with its address; docs/internals/replicas.md has the
/// effect on caps.
#[test]
fn two_agents_of_a_node_are_one_member() {
    let mut peers = peers();
    let mut count = |agents: &[(usize, &str)], seconds| {
        peers.update(&slice_at(agents.iter().copied()), at(seconds));
        peers.serving.len()
    };
    let (ready, ends) = ("ready: true", "ready: false, terminating: true");
    assert_eq!(count(&[(1, ready), (2, ready)], 0), 2);
    assert_eq!(count(&[(1, ready), (1, ready), (2, ready)], 1), 2);
    assert_eq!(count(&[(1, ready), (1, ends), (2, ready)], 2), 2);
    assert_eq!(count(&[(1, ready), (1, ends), (2, ready)], 60), 2);
    assert_eq!(count(&[(1, ready), (2, ready)], 61), 2);
}

#[test]
fn terminating_peer_keeps_its_slots_for_the_grace_period() {
    let mut peers = peers();
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
