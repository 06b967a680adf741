//! Tests of whole tables that exchange messages.

use super::message::LeaseRefusal::{
    Absurd, Misaddressed, PredecessorLease, StaleIncarnation, StaleSequence, UnknownMember, Version,
};
use super::rebalance::FAIRNESS_MARGIN;
use super::*;
use crate::queue::PriorityLevel;
use crate::slot_assignment::HANDOVER_TIME;

const CAP: u32 = 4;
const POOL: PoolKey = PoolKey(7);

fn member(number: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 1, number], 0))
}

fn identity(number: u8) -> ReplicaIdentity {
    ReplicaIdentity { member: member(number), incarnation: 1 }
}

fn endpoint() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 80))
}

/// Replicas in front of one endpoint, with one clock.
struct ReplicaGroup {
    tables: Vec<LeaseTable>,
    in_flight: Vec<u32>,
    queued: Vec<u32>,
    queued_since: Vec<Option<Time>>,
    /// Priority of the requests that wait at each replica.
    priorities: Vec<PriorityLevel>,
    now: Time,
    /// Replica that no message reaches or leaves.
    cut_off: Option<usize>,
    messages: Vec<LeaseMessage>,
    /// Requests that begin before each poll, and pay for messages.
    requests: u32,
}

impl ReplicaGroup {
    /// Returns replicas that use their bases and know one another.
    fn new(count: usize, policy: CutOffPolicy) -> Self {
        let mut group = Self {
            tables: Vec::new(),
            in_flight: vec![0; count],
            queued: vec![0; count],
            queued_since: vec![None; count],
            priorities: vec![PriorityLevel::default(); count],
            now: Time::from_nanos(1_000),
            cut_off: None,
            messages: Vec::new(),
            requests: 10,
        };
        group.tables = (0..count).map(|number| group.start(number, count, 1, policy)).collect();
        group.pass(HANDOVER_TIME);
        group
    }

    fn start(&self, number: usize, count: usize, run: u64, policy: CutOffPolicy) -> LeaseTable {
        let identity = ReplicaIdentity { incarnation: run, ..identity(number as u8) };
        let mut table = LeaseTable::new(identity, policy);
        table.update_members((0..count).map(|it| member(it as u8)), self.now);
        table.update_endpoints(&[LeasedEndpoint { address: endpoint(), cap: CAP, pool: POOL }]);
        table
    }

    fn poll(&mut self, number: usize) -> Vec<LeaseMessage> {
        let table = &mut self.tables[number];
        table.record_requests(self.requests);
        table.report_in_flight(endpoint(), self.in_flight[number]);
        let queued = self.queued[number];
        let since = &mut self.queued_since[number];
        *since = if queued > 0 { since.or(Some(self.now)) } else { None };
        let priority = self.priorities[number];
        let queue = QueueState::of_one_priority(queued, *since);
        table.report_queue(POOL, QueueState { priority, ..queue });
        let in_flight = self.in_flight[number];
        table.poll(self.now, |_, _| in_flight)
    }

    /// Polls all and delivers messages until there are none.
    fn exchange(&mut self) {
        for _ in 0..20 {
            let sent: Vec<_> = (0..self.tables.len()).flat_map(|it| self.poll(it)).collect();
            if sent.is_empty() {
                return;
            }
            for message in sent {
                let of = |it: ReplicaIdentity| usize::from(octet(it.member));
                let ends = [of(message.from), of(message.to)];
                if !ends.iter().any(|&end| self.cut_off == Some(end))
                    && self.tables[ends[1]].receive(&message, self.now).is_ok()
                {
                    self.messages.push(message);
                }
            }
            self.check();
        }
    }

    /// Lets time pass, tick by tick.
    fn pass(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.now < end {
            self.now = self.now + TICK;
            self.exchange();
        }
    }

    fn shares(&self) -> Vec<u32> {
        let usable = |table: &LeaseTable| {
            let share = table.share(endpoint());
            if self.now < table.valid_until() { share.slots } else { share.without_leases }
        };
        self.tables.iter().map(usable).collect()
    }

    fn check(&self) {
        let shares = self.shares();
        let emergency = self.tables.iter().filter(|it| it.share(endpoint()).is_emergency).count();
        assert!(shares.iter().sum::<u32>() <= CAP + emergency as u32, "{shares:?}");
    }

    /// Returns the replica with the largest base.
    fn owner(&self) -> usize {
        let shares = self.shares();
        (0..shares.len()).max_by_key(|&it| shares[it]).unwrap()
    }

    /// Lets as many requests wait at one replica as there are slots.
    fn load(&mut self, number: usize) {
        self.queued[number] = CAP;
        self.exchange();
    }

    /// Returns a message that the receiver would accept now.
    fn valid_message(&mut self) -> LeaseMessage {
        self.now = self.now + Duration::from_secs(1) / 4;
        let messages = self.poll(0);
        messages.into_iter().find(|message| message.to.member == member(1)).expect("one is due")
    }
}

fn octet(member: SocketAddr) -> u8 {
    match member.ip() {
        std::net::IpAddr::V4(ip) => ip.octets()[3],
        std::net::IpAddr::V6(_) => unreachable!(),
    }
}

#[test]
fn replica_with_a_queue_gets_the_free_slots_of_a_peer_at_once() {
    let mut group = ReplicaGroup::new(2, CutOffPolicy::Strict);
    assert_eq!(group.shares().iter().sum::<u32>(), CAP);
    for busy in 0..2 {
        group.queued = vec![0; 2];
        group.pass(TICK * 3);
        group.load(busy);
        assert_eq!(group.shares()[busy], CAP, "without a tick between");
    }
}

#[test]
fn borrowed_slots_reach_a_third_replica_by_way_of_their_lender() {
    let mut group = ReplicaGroup::new(3, CutOffPolicy::Strict);
    for busy in 0..3 {
        group.queued = vec![0; 3];
        group.load(busy);
        let since = group.now;
        while group.shares()[busy] < CAP {
            group.queued[busy] = CAP;
            group.pass(TICK);
        }
        let waited = group.now.saturating_since(since);
        assert!(waited <= TICK * 4, "{waited:?}");
    }
}

#[test]
fn replica_without_credit_asks_later() {
    let mut group = ReplicaGroup::new(2, CutOffPolicy::Strict);
    group.load(1);
    assert_eq!(group.shares(), [0, 4]);
    group.requests = 0;
    group.tables.iter_mut().for_each(|table| (0..200).for_each(|_| table.budget.record_sent()));
    group.queued[1] = 0;
    group.load(0);
    assert_eq!(group.shares(), [0, 4], "a message has just been sent");
    group.pass(TICK * 5);
    assert_eq!(group.shares(), [4, 0]);
}

#[test]
fn poll_looks_only_at_endpoints_that_have_changed() {
    let mut table = LeaseTable::new(identity(0), CutOffPolicy::Strict);
    let at = |port| SocketAddr::from(([10, 0, 0, 1], port));
    let endpoints: Vec<_> =
        (1..100).map(|port| LeasedEndpoint { address: at(port), cap: CAP, pool: POOL }).collect();
    table.update_endpoints(&endpoints);
    let mut looked_at = Vec::new();
    let mut poll = |table: &mut LeaseTable, millis| {
        looked_at.clear();
        let now = Time::ZERO + Duration::from_millis(millis);
        table.poll(now, |address, _| {
            looked_at.push(address);
            0
        });
        looked_at.len()
    };
    assert_eq!(poll(&mut table, 1), endpoints.len());
    assert_eq!(poll(&mut table, 2), 0);
    table.report_in_flight(at(7), 1);
    assert_eq!(poll(&mut table, 300), 0, "the share is the same");
    table.update_endpoints(&endpoints[1..]);
    assert_eq!(poll(&mut table, 301), endpoints.len());
}

#[test]
fn idle_table_has_to_be_polled_only_for_messages() {
    let mut group = ReplicaGroup::new(2, CutOffPolicy::Strict);
    group.load(1);
    group.queued[1] = 0;
    group.pass(Duration::from_secs(5));
    let (mut polls, end) = (0, group.now + Duration::from_secs(1));
    while group.now < end {
        group.now = group.tables[0].next_poll(group.now);
        group.exchange();
        polls += 1;
    }
    assert!(polls <= 20, "{polls} polls in a second");
}

#[test]
fn slot_in_use_is_handed_over_once_it_is_free() {
    let mut group = ReplicaGroup::new(2, CutOffPolicy::Strict);
    group.in_flight[0] = 2;
    group.load(1);
    assert_eq!(group.shares(), [2, 2]);
    group.in_flight[0] = 1;
    group.exchange();
    assert_eq!(group.shares(), [1, 3]);
}

#[test]
fn data_plane_that_has_taken_the_slot_meanwhile_keeps_it() {
    let mut group = ReplicaGroup::new(2, CutOffPolicy::Strict);
    group.queued[1] = CAP;
    for message in group.poll(1) {
        group.tables[0].receive(&message, group.now).unwrap();
    }
    // The table believes that two slots are free; by the time of the change one is in use.
    group.tables[0].report_in_flight(endpoint(), 0);
    let now = group.now;
    let messages = group.tables[0].poll(now, |_, _| 1);
    let granted: u64 = messages.iter().flat_map(|it| &it.lent).map(|it| it.granted).sum();
    assert_eq!(granted, 1);
    let share = group.tables[0].share(endpoint());
    assert!(share.slots <= 1, "the other is pledged");
}

#[test]
fn idle_replica_returns_what_it_borrowed() {
    let mut group = ReplicaGroup::new(3, CutOffPolicy::Strict);
    let bases = group.shares();
    group.load(0);
    assert_eq!(group.shares()[0], CAP);
    group.queued[0] = 0;
    group.pass(Duration::from_secs(5));
    assert_eq!(group.shares(), bases);
}

#[test]
fn holder_stops_before_the_lender_takes_back() {
    let mut group = ReplicaGroup::new(2, CutOffPolicy::Strict);
    group.load(1);
    assert_eq!(group.shares(), [0, 4]);
    group.cut_off = Some(1);
    let cut_at = group.now;
    let mut holder_stopped = None;
    while group.shares()[0] == 0 {
        group.now = group.now + TICK / 10;
        // The data plane stops even if the table of the holder is not polled.
        group.poll(0);
        group.check();
        if group.shares()[1] == 2 {
            holder_stopped.get_or_insert(group.now);
        }
    }
    let stopped = holder_stopped.expect("the holder stops first");
    assert!(stopped < group.now);
    let away = group.now.saturating_since(cut_at);
    assert!(away <= LEASE_TERM, "the slots come back within a term: {away:?}");
    assert_eq!(group.tables[0].counts().taken_back, 2);
}

#[test]
fn lease_outlives_lost_messages() {
    let mut group = ReplicaGroup::new(2, CutOffPolicy::Strict);
    group.load(1);
    group.cut_off = Some(1);
    group.pass(Duration::from_millis(700));
    group.cut_off = None;
    group.pass(Duration::from_millis(300));
    assert_eq!(group.shares(), [0, 4]);
    assert_eq!(group.tables[0].counts().taken_back, 0);
}

#[test]
fn replayed_messages_change_nothing() {
    let mut group = ReplicaGroup::new(2, CutOffPolicy::Strict);
    group.load(1);
    group.queued = vec![CAP, 0];
    group.exchange();
    let shares = group.shares();
    for message in group.messages.clone() {
        let to = usize::from(octet(message.to.member));
        let refusal = group.tables[to].receive(&message, group.now).unwrap_err();
        assert_eq!(refusal, StaleSequence);
    }
    assert_eq!(group.shares(), shares);
}

#[test]
fn restarted_replica_waits_for_the_lease_of_its_predecessor() {
    let mut group = ReplicaGroup::new(2, CutOffPolicy::Strict);
    group.load(1);
    let from_predecessor = group.valid_message();
    let mut successor = group.start(1, 2, 2, CutOffPolicy::Strict);
    let greeting = successor.poll(group.now, |_, _| 0).remove(0);
    let lender = &mut group.tables[0];
    assert_eq!(lender.receive(&greeting, group.now), Err(PredecessorLease));
    assert_eq!(successor.receive(&from_predecessor, group.now), Err(Misaddressed));
    let later = group.now + LEASE_TERM;
    lender.poll(later, |_, _| 0);
    assert_eq!(lender.receive(&greeting, later), Ok(()));
    let mut stale = greeting;
    stale.from.incarnation = 1;
    assert_eq!(lender.receive(&stale, later), Err(StaleIncarnation));
}

#[test]
fn bad_messages_are_refused_by_reason_and_have_no_effect() {
    type Change = fn(&mut LeaseMessage);
    let changes: [(LeaseRefusal, Change); 14] = [
        (Version, |it| it.version = 2),
        (UnknownMember, |it| it.from.member = member(9)),
        (Misaddressed, |it| it.to.member = member(9)),
        (Misaddressed, |it| it.to.incarnation = 9),
        (Absurd, |it| it.from.incarnation = 0),
        (StaleSequence, |it| it.sent = Time::ZERO),
        (Absurd, |it| it.sent = Time::MAX),
        (Absurd, |it| it.sent = it.sent + Duration::from_secs(100)),
        (Absurd, |it| it.echo = Time::MAX),
        (Absurd, |it| it.to.incarnation = 0),
        (Absurd, |it| it.lent = vec![lent(u64::MAX, 1)]),
        (Absurd, |it| it.lent = vec![lent(1, u32::MAX)]),
        (Absurd, |it| it.lent = vec![lent(1, 1); MAX_MESSAGE_ENTRIES + 1]),
        (Absurd, |it| it.returned = vec![ReturnedEntry { endpoint: endpoint(), returned: 3 }]),
    ];
    for (reason, change) in changes {
        let mut group = ReplicaGroup::new(2, CutOffPolicy::Strict);
        group.load(0);
        let mut message = group.valid_message();
        change(&mut message);
        let before = format!("{:?}", group.tables[1]);
        let counts = group.tables[1].counts();
        assert_eq!(group.tables[1].receive(&message, group.now), Err(reason));
        let refused = group.tables[1].counts().refused[reason as usize];
        assert_eq!(refused, counts.refused[reason as usize] + 1);
        group.tables[1].counts = counts;
        assert_eq!(format!("{:?}", group.tables[1]), before, "{reason:?}");
    }
}

fn lent(granted: u64, keep: u32) -> LentEntry {
    LentEntry { endpoint: endpoint(), granted, keep, closed: false }
}

#[test]
fn peer_that_grants_too_much_does_not_lift_us_over_the_cap() {
    let mut group = ReplicaGroup::new(2, CutOffPolicy::Strict);
    let mut message = group.valid_message();
    message.lent = vec![lent(1_000, MAX_SLOTS)];
    group.queued[1] = CAP;
    group.tables[1].receive(&message, group.now).unwrap();
    group.poll(1);
    assert_eq!(group.tables[1].share(endpoint()).slots, CAP);
}

#[test]
fn replica_without_slots_that_is_cut_off_gets_one_if_the_policy_says_so() {
    for (policy, slots) in [(CutOffPolicy::Strict, 0), (CutOffPolicy::Available, 1)] {
        let mut group = ReplicaGroup::new(5, policy);
        let without = group.shares().iter().position(|&share| share == 0).unwrap();
        group.cut_off = Some(without);
        group.pass(LEASE_TERM * 2);
        assert_eq!(group.shares()[without], slots);
        group.cut_off = None;
        group.pass(LEASE_TERM);
        assert_eq!(group.shares().iter().sum::<u32>(), CAP);
    }
}

#[test]
fn slots_of_a_removed_endpoint_are_given_up_and_lent_anew_later() {
    let mut group = ReplicaGroup::new(2, CutOffPolicy::Strict);
    for _ in 0..2 {
        group.load(1);
        assert_eq!(group.shares(), [0, 4]);
        group.queued[1] = 0;
        group.tables.iter_mut().for_each(|table| table.update_endpoints(&[]));
        group.pass(Duration::from_secs(1));
        assert_eq!(group.shares(), [0, 0]);
        assert_eq!(group.tables[0].lent_and_borrowed(), (0, 0));
        let configured = [LeasedEndpoint { address: endpoint(), cap: CAP, pool: POOL }];
        group.tables.iter_mut().for_each(|table| table.update_endpoints(&configured));
        group.pass(Duration::from_secs(1));
    }
}

#[test]
fn busy_slots_of_a_removed_endpoint_are_returned_once_they_are_free() {
    let mut group = ReplicaGroup::new(2, CutOffPolicy::Strict);
    group.load(1);
    group.in_flight[1] = CAP;
    group.queued[1] = 0;
    group.exchange();
    group.tables[1].update_endpoints(&[]);
    for (in_flight, lent) in [(4, 2), (2, 2), (1, 1), (0, 0)] {
        group.in_flight[1] = in_flight;
        group.pass(TICK);
        let account = group.tables[0].account(endpoint());
        assert_eq!(account.lent, lent, "{in_flight} in flight: {account:?}");
    }
}

#[test]
fn lower_cap_is_kept_by_holders_after_one_message() {
    let mut group = ReplicaGroup::new(2, CutOffPolicy::Strict);
    group.load(1);
    assert_eq!(group.shares(), [0, 4]);
    let lower = [LeasedEndpoint { address: endpoint(), cap: 2, pool: POOL }];
    group.tables[0].update_endpoints(&lower);
    group.exchange();
    assert_eq!(group.shares()[1], 3, "one of the two lent slots was recalled");
    group.tables[1].update_endpoints(&lower);
    group.exchange();
    assert_eq!(group.shares().iter().sum::<u32>(), 2);
}

#[test]
fn member_that_left_gives_back_what_it_holds() {
    let mut group = ReplicaGroup::new(3, CutOffPolicy::Strict);
    group.load(2);
    assert_eq!(group.shares()[2], CAP);
    group.queued[2] = 0;
    for table in &mut group.tables {
        table.update_members([member(0), member(1)], group.now);
    }
    group.exchange();
    assert_eq!(group.shares()[2], 0);
    group.pass(HANDOVER_TIME + TICK);
    assert_eq!(group.shares().iter().sum::<u32>(), CAP);
}

#[test]
fn queue_that_waits_longer_gets_busy_slots() {
    let mut group = ReplicaGroup::new(2, CutOffPolicy::Strict);
    let owner = group.owner();
    let other = 1 - owner;
    group.load(owner);
    group.in_flight[owner] = CAP;
    let oldest = group.now;
    for _ in 0..20 {
        group.now = group.now + TICK;
        group.queued = vec![3; 2];
        // The requests of the owner have just come; the others wait since the start.
        group.queued_since[owner] = Some(group.now);
        group.queued_since[other] = Some(oldest);
        group.exchange();
    }
    assert!(group.tables[owner].share(endpoint()).slots < CAP, "a slot is on its way");
    group.in_flight[owner] = 3;
    group.exchange();
    assert_eq!(group.shares()[other], 1);
}

#[test]
fn requests_of_a_higher_priority_get_busy_slots_and_lower_ones_keep_some() {
    let mut group = ReplicaGroup::new(2, CutOffPolicy::Strict);
    let owner = group.owner();
    let other = 1 - owner;
    group.load(owner);
    group.in_flight[owner] = CAP;
    group.queued = vec![9; 2];
    let run = |group: &mut ReplicaGroup| (0..20).for_each(|_| group.pass(TICK));
    // The requests of the owner have waited much longer, and still one is next for each slot.
    let [high, low] = [PriorityLevel::ALL[1], PriorityLevel::ALL[5]];
    group.priorities[other] = low;
    group.pass(FAIRNESS_MARGIN * 2);
    group.priorities[owner] = high;
    run(&mut group);
    assert_eq!(group.shares()[owner], CAP, "a lower priority gets no slot in use");
    (group.priorities[owner], group.priorities[other]) = (low, high);
    for left in (1..CAP).rev() {
        run(&mut group);
        assert_eq!(group.tables[owner].share(endpoint()).slots, left, "the next one is pledged");
        group.in_flight[owner] = left;
        group.exchange();
        assert_eq!(group.shares()[other], CAP - left);
    }
    run(&mut group);
    assert_eq!(group.shares()[owner], 1, "one is kept");
}

#[test]
fn free_slot_goes_to_the_peer_with_the_higher_priority() {
    let mut group = ReplicaGroup::new(3, CutOffPolicy::Strict);
    let owner = group.owner();
    let [first, second] = [(owner + 1) % 3, (owner + 2) % 3];
    group.load(owner);
    group.in_flight[owner] = CAP;
    group.queued[owner] = 0;
    group.priorities[second] = PriorityLevel::ALL[0];
    // The longer queue, whose requests have waited longer, has the lower priority.
    group.queued[first] = 9;
    group.pass(TICK * 3);
    group.queued[second] = 1;
    group.pass(TICK * 3);
    group.in_flight[owner] = CAP - 1;
    group.exchange();
    assert_eq!(group.shares()[second], 1, "{:?}", group.shares());
    assert_eq!(group.shares()[first], 0);
}

#[test]
fn term_margin_and_drift_fit_together() {
    let drift = f64::from(MAX_CLOCK_DRIFT_PPM) / 1e6;
    let holder = (LEASE_TERM - DRIFT_MARGIN).as_secs_f64() / (1.0 - drift);
    assert!(holder <= LEASE_TERM.as_secs_f64() / (1.0 + drift));
    assert!(LEASE_TERM < HANDOVER_TIME);
}
