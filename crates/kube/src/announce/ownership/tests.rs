//! Tests with several nodes, one Lease, kernels that keep installed addresses, and faults: never two holders, and a new
//! holder soon.

use std::collections::BTreeMap;
use std::net::IpAddr;

use proptest::prelude::*;

use super::*;

const TICK: Duration = Duration::from_millis(10);
/// Duration of a probe.
const PROBE_TIME: Duration = Duration::from_millis(250);
/// Time limit of a request to the API server.
const API_TIMEOUT: Duration = Duration::from_millis(800);
/// Time limit for another node to take the address over after its holder has failed.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(5);

/// Fault of a node.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// The announcer is killed and restarts without state; its kernel keeps what it has.
    Kill,
    /// The announcer is paused.
    Pause(Duration),
    /// The whole node is off.
    PowerOff(Duration),
    /// The node cannot reach the API server.
    CutOff(Duration),
    /// No node can reach the API server.
    Outage(Duration),
    /// The Sheave on the node is not ready.
    NotReady(Duration),
    /// The number of endpoints on the node changes.
    Endpoints(usize),
}

struct Lease {
    state: LeaseState,
    version: u64,
    written: ElapsedTime,
}

struct Node {
    name: String,
    ownership: AddressOwnership,
    /// Time until which the kernel has the address.
    kernel: Option<ElapsedTime>,
    /// Version of the Lease that the node has observed.
    version: u64,
    pending: Option<PendingOperation>,
    paused: ElapsedTime,
    off: ElapsedTime,
    cut_off: ElapsedTime,
    not_ready: ElapsedTime,
}

enum PendingOperation {
    Write {
        write: LeaseWrite,
        started: ElapsedTime,
        outcome: Option<LeaseWriteOutcome>,
        done: ElapsedTime,
    },
    Probe {
        done: ElapsedTime,
        is_answered: bool,
    },
}

struct World {
    now: ElapsedTime,
    nodes: Vec<Node>,
    endpoints: BTreeMap<String, usize>,
    lease: Lease,
    latency: Duration,
    /// Successive holders of the address.
    holders: Vec<usize>,
}

impl World {
    fn new(endpoints: &[usize], latency: Duration) -> Self {
        let name = |n: usize| format!("n{n}");
        let node = |n| Node {
            name: name(n),
            ownership: AddressOwnership::new(name(n)),
            kernel: None,
            version: 0,
            pending: None,
            paused: ElapsedTime::ZERO,
            off: ElapsedTime::ZERO,
            cut_off: ElapsedTime::ZERO,
            not_ready: ElapsedTime::ZERO,
        };
        Self {
            // A clock that starts at zero would hide underflows.
            now: Duration::from_secs(100),
            nodes: (0..endpoints.len()).map(node).collect(),
            endpoints: endpoints.iter().enumerate().map(|(n, count)| (name(n), *count)).collect(),
            lease: Lease { state: LeaseState::default(), version: 1, written: ElapsedTime::ZERO },
            latency,
            holders: Vec::new(),
        }
    }

    fn inject(&mut self, n: usize, fault: Fault) {
        let now = self.now;
        let node = &mut self.nodes[n];
        match fault {
            Fault::Kill => node.restart(),
            Fault::Pause(time) => node.paused = now + time,
            Fault::PowerOff(time) => {
                node.off = now + time;
                node.kernel = None;
                node.restart();
            }
            Fault::CutOff(time) => node.cut_off = now + time,
            Fault::Outage(time) => {
                self.nodes.iter_mut().for_each(|node| node.cut_off = node.cut_off.max(now + time));
            }
            Fault::NotReady(time) => node.not_ready = now + time,
            Fault::Endpoints(count) => {
                self.endpoints.insert(node.name.clone(), count);
            }
        }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now += TICK;
            for n in 0..self.nodes.len() {
                self.serve(n);
                self.step_announcer(n);
            }
            let holders: Vec<_> = self.current_holders().collect();
            assert!(holders.len() < 2, "{holders:?} hold it at {:?}", self.now);
            if let [one] = holders[..]
                && self.holders.last() != Some(&one)
            {
                self.holders.push(one);
            }
        }
    }

    fn current_holders(&self) -> impl Iterator<Item = usize> {
        let has = |node: &Node| node.kernel.is_some_and(|until| until > self.now);
        self.nodes.iter().enumerate().filter(move |(_, node)| has(node)).map(|(n, _)| n)
    }

    /// Lets the API server process a write halfway between request and response.
    fn serve(&mut self, n: usize) {
        let (now, node) = (self.now, &mut self.nodes[n]);
        let is_cut_off = node.cut_off > now;
        let Some(PendingOperation::Write { write, started, outcome: outcome @ None, done }) =
            &mut node.pending
        else {
            return;
        };
        if is_cut_off {
            if now >= *started + API_TIMEOUT {
                (*outcome, *done) = (Some(LeaseWriteOutcome::Unavailable), now);
            }
            return;
        }
        if now < *started + self.latency / 2 {
            return;
        }
        *done = *started + self.latency;
        if node.version != self.lease.version {
            *outcome = Some(LeaseWriteOutcome::Conflict);
            return;
        }
        let state = &mut self.lease.state;
        match write {
            LeaseWrite::AcquireOrRenew => {
                *state = LeaseState { holder: Some(node.name.clone()), ..LeaseState::default() };
            }
            LeaseWrite::RequestHandover => state.wanted_by = Some(node.name.clone()),
            LeaseWrite::HandOver(other) => {
                *state = LeaseState { holder: Some(other.clone()), ..LeaseState::default() };
            }
            LeaseWrite::Release => *state = LeaseState::default(),
        }
        self.lease.version += 1;
        self.lease.written = now;
        if *write != LeaseWrite::RequestHandover {
            self.lease.state.renewal = self.lease.version.to_string();
        }
        *outcome = Some(LeaseWriteOutcome::Done);
    }

    /// Runs the announcer of a node for one tick.
    fn step_announcer(&mut self, n: usize) {
        let now = self.now;
        let others = self.current_holders().any(|other| other != n);
        let ranking = NodeRanking {
            address: IpAddr::from([192, 0, 2, 1]),
            endpoints: self.endpoints.clone(),
        };
        let node = &mut self.nodes[n];
        if let Some(PendingOperation::Probe { is_answered, .. }) = &mut node.pending {
            *is_answered |= others;
        }
        if node.paused > now || node.off > now {
            return;
        }
        node.finish(&self.lease, now);
        // The announcer observes nothing while an operation is pending.
        if node.pending.is_some() {
            return;
        }
        let is_notified = now >= self.lease.written + self.latency && node.cut_off <= now;
        if is_notified && node.version < self.lease.version {
            node.observe(&self.lease, now);
        }
        node.ownership.set_ranking((node.not_ready <= now).then_some(ranking), now);
        node.apply_interface_action(now);
        for _ in 0..9 {
            if node.pending.is_some() {
                return;
            }
            match node.ownership.next_action(now) {
                OwnershipAction::Wait(until) => {
                    assert!(until > now, "the wait is not over at once");
                    return;
                }
                OwnershipAction::Probe => {
                    node.pending = Some(PendingOperation::Probe {
                        done: now + PROBE_TIME,
                        is_answered: others,
                    });
                }
                OwnershipAction::Announce => {
                    assert!(
                        node.kernel.is_some_and(|until| until > now),
                        "announced without being installed"
                    );
                    node.ownership.record_announcement();
                }
                OwnershipAction::WriteLease(write) => {
                    if matches!(write, LeaseWrite::HandOver(_) | LeaseWrite::Release) {
                        node.kernel = None;
                        node.ownership.record_installed(0, now);
                    }
                    let (started, outcome, done) = (now, None, NEVER);
                    node.pending = Some(PendingOperation::Write { write, started, outcome, done });
                }
            }
            node.apply_interface_action(now);
        }
        panic!("the announcer never waits");
    }
}

impl Node {
    fn restart(&mut self) {
        self.ownership = AddressOwnership::new(self.name.clone());
        self.pending = None;
        self.version = 0;
    }

    fn observe(&mut self, lease: &Lease, now: ElapsedTime) {
        self.version = lease.version;
        self.ownership.observe_lease(Some(lease.state.clone()), now);
    }

    fn finish(&mut self, lease: &Lease, now: ElapsedTime) {
        match self.pending.take() {
            Some(PendingOperation::Probe { done, is_answered }) if done <= now => {
                self.ownership.record_probe(is_answered, now);
            }
            Some(PendingOperation::Write { write, started, outcome: Some(outcome), done })
                if done <= now =>
            {
                if matches!(outcome, LeaseWriteOutcome::Done | LeaseWriteOutcome::Conflict) {
                    self.observe(lease, now);
                }
                self.ownership.record_write(&write, outcome, started, now);
            }
            pending => self.pending = pending,
        }
    }

    fn apply_interface_action(&mut self, now: ElapsedTime) {
        match self.ownership.interface_action(now) {
            InterfaceAction::Keep => {}
            InterfaceAction::Remove => {
                self.kernel = None;
                self.ownership.record_installed(0, now);
            }
            InterfaceAction::InstallFor(seconds) => {
                // The kernel drops the address with the delay that was measured.
                self.kernel = Some(now + from_seconds(seconds) + Duration::from_millis(300));
                self.ownership.record_installed(seconds, now);
            }
        }
    }
}

fn latency() -> impl Strategy<Value = Duration> {
    (0u64..100).prop_map(Duration::from_millis)
}

fn fault() -> impl Strategy<Value = Fault> {
    let time = || (0u64..12_000).prop_map(Duration::from_millis);
    prop_oneof![
        Just(Fault::Kill),
        time().prop_map(Fault::Pause),
        time().prop_map(Fault::PowerOff),
        time().prop_map(Fault::CutOff),
        time().prop_map(Fault::Outage),
        time().prop_map(Fault::NotReady),
        (0usize..6).prop_map(Fault::Endpoints),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn address_is_never_on_two_nodes(
        latency in latency(),
        faults in prop::collection::vec((0usize..3, fault(), 0u64..4_000), 0..24),
    ) {
        let mut world = World::new(&[1, 2, 3], latency);
        world.run(Duration::from_secs(2));
        for (n, fault, pause) in faults {
            world.inject(n, fault);
            world.run(Duration::from_millis(pause));
        }
        // After the end of all faults, one node holds the address.
        world.run(Duration::from_secs(24));
        prop_assert_eq!(world.current_holders().count(), 1);
    }

    #[test]
    fn another_node_takes_over_from_a_dead_holder(
        latency in latency(),
        is_power in any::<bool>(),
        after in 4_000u64..8_000,
    ) {
        let mut world = World::new(&[1, 2, 3], latency);
        world.run(Duration::from_millis(after));
        let holder = world.current_holders().next().unwrap();
        let gone = Duration::from_secs(60);
        world.inject(holder, if is_power { Fault::PowerOff(gone) } else { Fault::Pause(gone) });
        world.run(TAKEOVER_TIMEOUT);
        prop_assert_eq!(world.current_holders().count(), 1);
        prop_assert!(world.current_holders().all(|now| now != holder));
    }

    #[test]
    fn api_server_outage_does_not_move_the_address(latency in latency(), time in 1u64..120) {
        let mut world = World::new(&[1, 2, 3], latency);
        world.run(Duration::from_secs(3));
        world.inject(0, Fault::Outage(Duration::from_secs(time)));
        for _ in 0..time + 10 {
            world.run(Duration::from_secs(1));
            prop_assert_eq!(world.current_holders().count(), 1);
        }
        prop_assert_eq!(world.holders.len(), 1);
    }

    #[test]
    fn holder_cut_off_from_the_api_server_keeps_the_address(latency in latency()) {
        let mut world = World::new(&[1, 2, 3], latency);
        world.run(Duration::from_secs(3));
        let holder = world.holders[0];
        world.inject(holder, Fault::CutOff(Duration::from_secs(60)));
        world.run(Duration::from_secs(90));
        prop_assert_eq!(&world.holders, &[holder]);
    }

    #[test]
    fn address_settles_on_the_node_with_most_endpoints(
        latency in latency(),
        endpoints in prop::collection::vec(0usize..9, 1..4),
    ) {
        let mut world = World::new(&endpoints, latency);
        world.run(Duration::from_secs(300));
        let most = endpoints.iter().max();
        prop_assert_eq!(world.holders.len(), 1);
        prop_assert_eq!(Some(&endpoints[world.holders[0]]), most);
    }

    #[test]
    fn address_moves_only_after_a_lasting_worthwhile_change(
        latency in latency(),
        changes in prop::collection::vec((0usize..3, 0usize..6), 1..30),
    ) {
        let mut world = World::new(&[1, 1, 1], latency);
        world.run(Duration::from_secs(3));
        // Counts that change every 20 s have not settled, so the address does not move while they change on one node.
        for (_, count) in changes {
            let other = (world.holders[0] + 1) % 3;
            world.inject(other, Fault::Endpoints(count));
            world.run(Duration::from_secs(20));
            world.inject(other, Fault::Endpoints(1));
            world.run(Duration::from_secs(1));
        }
        prop_assert_eq!(world.holders.len(), 1);
        // A lasting change moves the address, once.
        let other = (world.holders[0] + 1) % 3;
        world.inject(other, Fault::Endpoints(3));
        world.run(MIN_TENURE + HANDOVER_DELAY * 2);
        prop_assert_eq!(&world.holders[1..], &[other]);
    }
}

#[test]
fn holder_that_becomes_unready_releases_the_address_at_once() {
    let mut world = World::new(&[2, 1], Duration::from_millis(10));
    world.run(Duration::from_secs(3));
    let holder = world.holders[0];
    world.inject(holder, Fault::NotReady(Duration::from_secs(60)));
    world.run(Duration::from_secs(2));
    assert_eq!(world.holders, [holder, 1 - holder]);
}

#[test]
fn slow_lease_renewal_shortens_the_hold_time() {
    let mut ownership = AddressOwnership::new("n1".to_owned());
    let ranking = NodeRanking { address: IpAddr::from([192, 0, 2, 1]), endpoints: BTreeMap::new() };
    ownership.set_ranking(Some(ranking), Duration::from_secs(9));
    let state = LeaseState { holder: Some("n1".to_owned()), ..LeaseState::default() };
    ownership.observe_lease(Some(state), Duration::from_secs(9));
    let started = Duration::from_secs(10);
    ownership.record_write(&LeaseWrite::AcquireOrRenew, LeaseWriteOutcome::Done, started, started);
    // A previous holder that is cut off may still have the address: the link is probed first.
    assert_eq!(ownership.interface_action(started), InterfaceAction::Remove);
    let mut after = |millis| {
        let now = started + Duration::from_millis(millis);
        ownership.record_probe(false, now);
        ownership.interface_action(now)
    };
    assert_eq!(after(0), InterfaceAction::InstallFor(3));
    assert_eq!(after(500), InterfaceAction::InstallFor(3));
    assert_eq!(after(600), InterfaceAction::InstallFor(2));
    assert_eq!(after(2500), InterfaceAction::InstallFor(1));
    assert_eq!(after(2600), InterfaceAction::Remove);
}
