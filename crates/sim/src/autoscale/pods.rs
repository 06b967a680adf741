//! Pods of the deployment: waiting for a node, starting, ready or terminated; and their cost.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use balance::{EndpointRegistry, EndpointSet, SetMember, Time};

use super::nodes::{NodeNumber, NodePool};
use super::settings::DaySettings;
use crate::random::RandomSource;

pub(crate) type PodEndpoint = balance::Endpoint<()>;

pub(crate) struct PodSet {
    registry: EndpointRegistry<()>,
    dice: RandomSource,
    start: [Duration; 2],
    nodes: NodePool,
    /// Pods that no node has room for.
    pending: u32,
    /// Nodes of starting pods, by the time at which they will be ready and the pod's number.
    starting: BTreeMap<(Time, u32), NodeNumber>,
    /// Ready pods, in the order in which they became ready.
    ready: Vec<ReadyPod>,
    created: u32,
}

struct ReadyPod {
    endpoint: Arc<PodEndpoint>,
    node: NodeNumber,
}

impl PodSet {
    /// Creates this many ready pods.
    pub(crate) fn new(settings: &DaySettings, ready: u32) -> Self {
        let mut pods = Self {
            registry: EndpointRegistry::new(),
            dice: RandomSource::new(settings.seed ^ 1),
            start: settings.start,
            nodes: NodePool::new(settings, ready),
            pending: 0,
            starting: BTreeMap::new(),
            ready: Vec::new(),
            created: ready,
        };
        for number in 0..ready {
            let node = pods.nodes.place().expect("the first nodes have room for the first pods");
            pods.publish(number, node);
        }
        pods
    }

    pub(crate) fn ready(&self) -> u32 {
        self.ready.len() as u32
    }

    /// Returns the number of pods that no node has room for.
    pub(crate) fn pending(&self) -> u32 {
        self.pending
    }

    /// Returns the number of all pods.
    pub(crate) fn count(&self) -> u32 {
        self.ready() + self.starting.len() as u32 + self.pending
    }

    /// Returns the number of nodes that are paid for; none if nodes are not simulated.
    pub(crate) fn nodes(&self) -> u32 {
        self.nodes.count()
    }

    /// Returns the endpoint set for a balancer.
    pub(crate) fn set(&self) -> Arc<EndpointSet<()>> {
        let members = self.ready.iter().map(|pod| SetMember::new(pod.endpoint.clone(), 1));
        Arc::new(EndpointSet::new(members.collect()))
    }

    /// Scales to this many pods. Pods that are not yet ready are removed first, then the newest.
    /// True if an endpoint has left.
    pub(crate) fn scale(&mut self, count: u32, now: Time) -> bool {
        while self.count() < count {
            self.pending += 1;
        }
        self.start_pending(now);
        let before = self.ready();
        while self.count() > count {
            self.remove_one(now);
        }
        self.ready() < before
    }

    fn remove_one(&mut self, now: Time) {
        if self.pending > 0 {
            self.pending -= 1;
        } else if let Some((_, node)) = self.starting.pop_last() {
            self.nodes.release(node, now);
        } else if let Some(pod) = self.ready.pop() {
            self.nodes.release(pod.node, now);
        }
    }

    /// Starts the pods that a node has room for, and nodes for the others.
    fn start_pending(&mut self, now: Time) {
        let [least, most] = self.start.map(|duration| duration.as_millis() as u32);
        while self.pending > 0
            && let Some(node) = self.nodes.place()
        {
            self.pending -= 1;
            let takes = Duration::from_millis(self.dice.between(least, most).into());
            self.starting.insert((now + takes, self.created), node);
            self.created += 1;
        }
        self.nodes.request(self.pending, now);
    }

    /// Starts pods on nodes that have become ready, and publishes the pods that have become ready;
    /// true if there are any of those.
    pub(crate) fn advance(&mut self, now: Time) -> bool {
        self.nodes.advance(now);
        self.start_pending(now);
        let later = self.starting.split_off(&(now + Duration::from_nanos(1), 0));
        let started = std::mem::replace(&mut self.starting, later);
        started.iter().for_each(|(&(_, number), &node)| self.publish(number, node));
        !started.is_empty()
    }

    fn publish(&mut self, number: u32, node: NodeNumber) {
        let address = Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 0).to_bits() + number);
        let endpoint = self.registry.endpoint(SocketAddr::from((address, 8080)), || ());
        self.ready.push(ReadyPod { endpoint, node });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_become_ready_and_starting_pods_are_removed_first() {
        let settings = DaySettings::default();
        let mut pods = PodSet::new(&settings, 2);
        assert!(!pods.scale(10, Time::ZERO), "no endpoint has left");
        assert!(!pods.advance(Time::ZERO + Duration::from_secs(29)));
        let soon = Time::ZERO + Duration::from_secs(60);
        assert!(pods.advance(soon));
        let ready = pods.ready();
        assert!((3..10).contains(&ready), "{ready} within a minute");
        assert!(!pods.scale(ready, soon), "only starting pods are removed");
        assert_eq!((pods.count(), pods.ready()), (ready, ready));
        assert!(pods.scale(1, soon));
        assert_eq!(pods.set().members().len(), 1);
    }

    #[test]
    fn pod_starts_after_its_node_and_a_removed_pod_makes_room() {
        let mut options = vec!["node_pods=2", "start_seconds_least=10", "start_seconds_most=10"];
        options.extend(["node_start_seconds_least=100", "node_start_seconds_most=100"]);
        let mut pods = PodSet::new(&DaySettings::parse(&options).unwrap(), 2);
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        pods.scale(5, at(0));
        assert_eq!((pods.count(), pods.pending(), pods.nodes()), (5, 3, 3));
        pods.advance(at(99));
        assert_eq!(pods.pending(), 3);
        assert!(!pods.advance(at(100)), "the nodes are ready, no pod is");
        assert_eq!(pods.pending(), 0);
        assert!(pods.advance(at(110)));
        assert_eq!(pods.ready(), 5);
        assert!(pods.scale(4, at(110)));
        pods.scale(5, at(120));
        assert_eq!((pods.pending(), pods.nodes()), (0, 3), "a node has room");
    }
}
