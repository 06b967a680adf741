//! Tests of PeakEwma, which learns, in a small simulation of endpoints that take time or fail.
#![cfg(not(loom))]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::SocketAddr;
use std::time::Duration;

use balance::{
    Admission, Algorithm, AttemptResult, ConcurrencyCap, EndpointRegistry, EndpointSet, Outcome,
    PickRequest, Picker, Queue, Rng, SetMember, Time,
};

/// Response of an endpoint.
#[derive(Clone, Copy)]
struct Server {
    after: Duration,
    end: AttemptResult,
}

const HEALTHY: Server = Server { after: Duration::from_millis(10), end: AttemptResult::Success };

/// Simulation: requests come at random, at the same rate whatever their results, and each is
/// answered after the server's time.
struct World {
    servers: Vec<Server>,
    set: EndpointSet<usize>,
    picker: Picker,
    rng: Rng,
    now: Time,
    /// End of each attempt, its member, and its begin.
    running: BinaryHeap<Reverse<(Time, usize, Time)>>,
}

impl World {
    fn new(servers: Vec<Server>) -> Self {
        let mut registry = EndpointRegistry::new();
        let mut member = |number: usize| {
            let address = SocketAddr::from(([10, 0, 0, 1], number as u16));
            SetMember::new(registry.endpoint(address, || number), 1)
        };
        let set = EndpointSet::new((0..servers.len()).map(&mut member).collect());
        let picker = Picker::new(Algorithm::PeakEwma, 1);
        let now = Time::ZERO + Duration::from_secs(1_000);
        Self { servers, set, picker, rng: Rng::new(1), now, running: BinaryHeap::new() }
    }

    /// Returns the number of requests that each server gets in this time.
    fn run(&mut self, duration: Duration, per_second: u64) -> Vec<u32> {
        let end = self.now + duration;
        let mut served = vec![0; self.servers.len()];
        let gap_nanos = 2_000_000_000 / per_second;
        while self.now < end {
            self.now = self.now + Duration::from_nanos(self.rng.next_u64() % gap_nanos);
            self.answer();
            let request = PickRequest { now: self.now, ..PickRequest::default() };
            let endpoint = self
                .picker
                .take(&self.set, ConcurrencyCap::None, &request)
                .expect("there is no cap");
            served[endpoint.data] += 1;
            let until = self.now + self.servers[endpoint.data].after;
            self.running.push(Reverse((until, endpoint.data, self.now)));
        }
        served
    }

    fn answer(&mut self) {
        while let Some(&Reverse((ended, server, started))) = self.running.peek()
            && ended <= self.now
        {
            self.running.pop();
            let member = self.set.members().iter().find(|member| member.endpoint.data == server);
            let endpoint = &member.expect("servers do not leave").endpoint;
            let head_after = Some(self.servers[server].after);
            let outcome = Outcome { started, head_after, result: self.servers[server].end };
            endpoint.learn(&outcome, ended);
            let no_queue = || -> &mut Queue<usize, ()> { unreachable!("no request waits") };
            assert!(Admission::new().release(endpoint, || Time::ZERO, no_queue).granted.is_none());
        }
    }
}

fn share(served: &[u32], server: usize) -> f64 {
    f64::from(served[server]) / f64::from(served.iter().sum::<u32>())
}

#[test]
fn fast_failing_endpoint_is_avoided_until_it_recovers() {
    for count in [5, 100] {
        let mut servers = vec![HEALTHY; count];
        servers[2] = Server { after: Duration::from_millis(1), end: AttemptResult::ServerError };
        let mut world = World::new(servers);
        let per_second = 200 * count as u64;
        world.run(Duration::from_secs(2), per_second);
        let failing = world.run(Duration::from_secs(20), per_second);
        assert!(share(&failing, 2) < 0.1 / count as f64, "{failing:?}");

        world.servers[2] = HEALTHY;
        world.run(Duration::from_secs(10), per_second);
        let healthy = world.run(Duration::from_secs(20), per_second);
        assert!(share(&healthy, 2) > 0.8 / count as f64, "{healthy:?}");
    }
}

#[test]
fn ten_times_slower_endpoint_gets_few_requests() {
    for count in [5, 100] {
        let mut servers = vec![HEALTHY; count];
        servers[0].after *= 10;
        let mut world = World::new(servers);
        let per_second = 200 * count as u64;
        world.run(Duration::from_secs(2), per_second);
        let served = world.run(Duration::from_secs(20), per_second);
        assert!(share(&served, 0) < 0.25 / count as f64, "{served:?}");
        assert!(served[0] > 0, "the slow endpoint is tried now and then");
    }
}

#[test]
fn endpoint_with_retry_after_is_avoided_and_serves_later() {
    let mut servers = vec![HEALTHY; 4];
    let retry_after = Some(Duration::from_secs(30));
    servers[1] =
        Server { after: Duration::from_millis(1), end: AttemptResult::Refused { retry_after } };
    let mut world = World::new(servers);
    world.run(Duration::from_secs(1), 400);
    world.servers[1] = HEALTHY;
    let avoided = world.run(Duration::from_secs(25), 400);
    assert!(avoided[1] < 20, "{avoided:?}");
    world.run(Duration::from_secs(10), 400);
    let later = world.run(Duration::from_secs(10), 400);
    assert!(share(&later, 1) > 0.2, "{later:?}");
}

#[test]
fn new_endpoint_is_neither_flooded_nor_starved() {
    for count in [5, 100] {
        let mut world = World::new(vec![HEALTHY; count]);
        let per_second = 200 * count as u64;
        world.run(Duration::from_secs(2), per_second);

        // The same endpoints as before, whose latency is known, and one more.
        let mut registry = EndpointRegistry::new();
        let address = SocketAddr::from(([10, 0, 0, 2], 1));
        let newcomer = SetMember::new(registry.endpoint(address, || count), 1);
        let known = world.set.members().iter().cloned();
        world.set = EndpointSet::new(known.chain([newcomer]).collect());
        world.servers.push(HEALTHY);

        let first = world.run(Duration::from_secs(1), per_second);
        let share = share(&first, count) * (count + 1) as f64;
        assert!((0.5..2.0).contains(&share), "{share} of its share: {first:?}");
    }
}
