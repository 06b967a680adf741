//! Pods of the deployment: starting, ready or terminated; and their cost.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use balance::{EndpointRegistry, EndpointSet, SetMember, Time};

use super::settings::DaySettings;
use crate::random::RandomSource;

pub(crate) type PodEndpoint = balance::Endpoint<()>;

pub(crate) struct PodSet {
    registry: EndpointRegistry<()>,
    dice: RandomSource,
    start: [Duration; 2],
    /// Pods by the time at which they will be ready.
    starting: BTreeSet<(Time, u32)>,
    /// Ready pods, in the order in which they became ready.
    ready: Vec<Arc<PodEndpoint>>,
    created: u32,
}

impl PodSet {
    /// Creates this many ready pods.
    pub(crate) fn new(settings: &DaySettings, ready: u32) -> Self {
        let mut pods = Self {
            registry: EndpointRegistry::new(),
            dice: RandomSource::new(settings.seed ^ 1),
            start: settings.start,
            starting: BTreeSet::new(),
            ready: Vec::new(),
            created: ready,
        };
        (0..ready).for_each(|number| pods.publish(number));
        pods
    }

    pub(crate) fn ready(&self) -> u32 {
        self.ready.len() as u32
    }

    /// Returns the number of all pods that are paid for.
    pub(crate) fn count(&self) -> u32 {
        self.ready() + self.starting.len() as u32
    }

    /// Returns the endpoint set for a balancer.
    pub(crate) fn set(&self) -> Arc<EndpointSet<()>> {
        let members = self.ready.iter().map(|endpoint| SetMember::new(endpoint.clone(), 1));
        Arc::new(EndpointSet::new(members.collect()))
    }

    /// Scales to this many pods. Pods that are not yet ready are removed first, then the newest.
    /// True if an endpoint has left.
    pub(crate) fn scale(&mut self, count: u32, now: Time) -> bool {
        let [least, most] = self.start.map(|duration| duration.as_millis() as u32);
        while self.count() < count {
            let takes = Duration::from_millis(self.dice.between(least, most).into());
            self.starting.insert((now + takes, self.created));
            self.created += 1;
        }
        let before = self.ready();
        while self.count() > count {
            if self.starting.pop_last().is_none() {
                self.ready.pop();
            }
        }
        self.ready() < before
    }

    /// Publishes the pods that have become ready; true if there are any.
    pub(crate) fn become_ready(&mut self, now: Time) -> bool {
        let later = self.starting.split_off(&(now + Duration::from_nanos(1), 0));
        let started = std::mem::replace(&mut self.starting, later);
        started.iter().for_each(|&(_, number)| self.publish(number));
        !started.is_empty()
    }

    fn publish(&mut self, number: u32) {
        let address = Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 0).to_bits() + number);
        self.ready.push(self.registry.endpoint(SocketAddr::from((address, 8080)), || ()));
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
        assert!(!pods.become_ready(Time::ZERO + Duration::from_secs(29)));
        let soon = Time::ZERO + Duration::from_secs(60);
        assert!(pods.become_ready(soon));
        let ready = pods.ready();
        assert!((3..10).contains(&ready), "{ready} within a minute");
        assert!(!pods.scale(ready, soon), "only starting pods are removed");
        assert_eq!((pods.count(), pods.ready()), (ready, ready));
        assert!(pods.scale(1, soon));
        assert_eq!(pods.set().members().len(), 1);
    }
}
