//! Nodes of a cluster with an autoscaler of nodes: a pod that finds no room waits for a node, which
//! takes minutes to start, and a node that has had no pod for some time is removed.

use std::collections::BTreeMap;
use std::time::Duration;

use balance::Time;

use super::settings::{DaySettings, NodeSettings};
use crate::random::RandomSource;

pub(crate) type NodeNumber = u32;

/// Nodes, or one node of any size that always exists.
pub(crate) struct NodePool {
    settings: NodeSettings,
    dice: RandomSource,
    ready: BTreeMap<NodeNumber, NodeState>,
    /// Time at which each starting node will be ready.
    starting: Vec<Time>,
    created: NodeNumber,
}

struct NodeState {
    pods: u32,
    /// Time from which on the node has had no pod.
    idle_since: Time,
}

impl NodePool {
    /// Creates the nodes for this many pods, at least one.
    pub(crate) fn new(settings: &DaySettings, pods: u32) -> Self {
        let mut pool = Self {
            settings: settings.nodes,
            dice: RandomSource::new(settings.seed ^ 3),
            ready: BTreeMap::new(),
            starting: Vec::new(),
            created: 0,
        };
        let count = if pool.is_limited() { pods.div_ceil(pool.settings.pods).max(1) } else { 1 };
        (0..count).for_each(|_| pool.add(Time::ZERO));
        pool
    }

    fn is_limited(&self) -> bool {
        self.settings.pods > 0
    }

    /// Returns the number of nodes that are paid for; none if they always exist.
    pub(crate) fn count(&self) -> u32 {
        if self.is_limited() { (self.ready.len() + self.starting.len()) as u32 } else { 0 }
    }

    /// Places a pod on the fullest node with room, so that other nodes can become empty.
    pub(crate) fn place(&mut self) -> Option<NodeNumber> {
        let (is_limited, most) = (self.is_limited(), self.settings.pods);
        let has_room = |(_, node): &(&NodeNumber, &mut NodeState)| !is_limited || node.pods < most;
        let nodes = self.ready.iter_mut().filter(has_room);
        let (number, node) = nodes.max_by_key(|(number, node)| (node.pods, u32::MAX - **number))?;
        node.pods += 1;
        Some(*number)
    }

    /// Records that a pod has left its node.
    pub(crate) fn release(&mut self, number: NodeNumber, now: Time) {
        let node = self.ready.get_mut(&number).expect("a node with a pod is not removed");
        node.pods -= 1;
        node.idle_since = now;
    }

    /// Starts nodes, until the starting ones have room for this many pods.
    pub(crate) fn request(&mut self, pending: u32, now: Time) {
        let [least, most] = self.settings.start.map(|duration| duration.as_millis() as u32);
        while (self.starting.len() as u32) < pending.div_ceil(self.settings.pods.max(1)) {
            let takes = Duration::from_millis(self.dice.between(least, most).into());
            self.starting.push(now + takes);
        }
    }

    /// Makes nodes ready whose time has come, and removes those that have been empty for long; one
    /// stays.
    pub(crate) fn advance(&mut self, now: Time) {
        let before = self.starting.len();
        self.starting.retain(|&ready_at| ready_at > now);
        (self.starting.len()..before).for_each(|_| self.add(now));
        while self.ready.len() > 1
            && let Some(number) = self.idle_node(now)
        {
            self.ready.remove(&number);
        }
    }

    /// Returns the newest node that has had no pod for the idle time.
    fn idle_node(&self, now: Time) -> Option<NodeNumber> {
        let is_idle = |(_, node): &(&NodeNumber, &NodeState)| {
            node.pods == 0 && now.saturating_since(node.idle_since) >= self.settings.idle
        };
        self.ready.iter().rev().find(is_idle).map(|(&number, _)| number)
    }

    fn add(&mut self, now: Time) {
        self.ready.insert(self.created, NodeState { pods: 0, idle_since: now });
        self.created += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn pod_without_room_waits_for_a_node_and_an_idle_node_is_removed() {
        let options = ["node_pods=3", "node_start_seconds_least=30", "node_start_seconds_most=60"];
        let mut nodes = NodePool::new(&DaySettings::parse(&options).unwrap(), 2);
        assert_eq!(nodes.count(), 1);
        assert_eq!([nodes.place(), nodes.place(), nodes.place()], [Some(0); 3]);
        assert_eq!(nodes.place(), None, "the node is full");
        nodes.request(4, at(0));
        nodes.request(4, at(5));
        assert_eq!(nodes.count(), 3, "two nodes have room for four pods");
        nodes.advance(at(29));
        assert_eq!(nodes.place(), None, "no node is ready");
        nodes.advance(at(60));
        assert_eq!([nodes.place(), nodes.place()], [Some(1); 2], "the fullest node is first");
        nodes.release(0, at(60));
        assert_eq!(nodes.place(), Some(0));
        nodes.release(1, at(100));
        nodes.release(1, at(100));
        nodes.advance(at(60 + 599));
        assert_eq!(nodes.count(), 3);
        nodes.advance(at(60 + 600));
        assert_eq!(nodes.count(), 2, "one node has never had a pod");
        nodes.advance(at(100 + 600));
        assert_eq!(nodes.count(), 1);
    }

    #[test]
    fn last_node_stays() {
        let mut nodes = NodePool::new(&DaySettings::parse(&["node_pods=3"]).unwrap(), 0);
        nodes.advance(at(10_000));
        assert_eq!(nodes.count(), 1);
    }

    #[test]
    fn nodes_that_always_exist_have_room_for_every_pod() {
        let mut nodes = NodePool::new(&DaySettings::default(), 2);
        assert!((0..1_000).all(|_| nodes.place() == Some(0)));
        assert_eq!(nodes.count(), 0, "they cost nothing");
    }
}
