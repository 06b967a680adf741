//! Properties of slot assignment over several balancers.
#![cfg(not(loom))]

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use balance::health::{AttemptTotals, HealthSettings, PassiveSettings};
use balance::slot_assignment::HANDOVER_TIME;
use balance::{
    Admission, AdmissionConfig, AdmissionDecision, AdmissionLimits, AdmissionRejection, Algorithm,
    AttemptResult, ConcurrencyCap, EndpointRegistry, EndpointSet, HealthEvaluator, Outcome,
    PickRequest, Picker, Queue, SetMember, SlotAssigner, SlotAssignment, Time,
};
use proptest::collection::btree_set;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

fn endpoint(number: u32) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::from_bits(0x0A00_0000 + number), 8080))
}

fn member(number: u32) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::from_bits(0x0A01_0000 + number), 0))
}

/// Returns each member's share of an endpoint's slots.
fn shares(members: &[SocketAddr], endpoint: SocketAddr, slots: u32) -> Vec<u32> {
    let share = |&me| SlotAssignment::among(me, members.iter().copied()).share(endpoint, slots);
    members.iter().map(share).collect()
}

fn members() -> impl Strategy<Value = Vec<SocketAddr>> {
    btree_set(0_u32..1000, 1..12).prop_map(|numbers| numbers.into_iter().map(member).collect())
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn slot_shares_sum_to_the_cap_and_differ_by_at_most_one(
        members in members(),
        number in any::<u16>(),
        slots in prop_oneof![0_u32..40, any::<u32>()],
    ) {
        let shares = shares(&members, endpoint(number.into()), slots);
        prop_assert_eq!(shares.iter().map(|&it| u64::from(it)).sum::<u64>(), u64::from(slots));
        let [least, most] = [shares.iter().min(), shares.iter().max()].map(|it| it.unwrap());
        prop_assert!(most - least <= 1);
    }

    #[test]
    fn joining_replica_only_takes_slots_and_leaving_replica_only_gives_slots(
        members in members(),
        number in any::<u16>(),
        slots in 0_u32..40,
    ) {
        let newcomer = member(5000);
        let all = [&members[..], &[newcomer]].concat();
        let before = shares(&members, endpoint(number.into()), slots);
        let after = shares(&all, endpoint(number.into()), slots);
        for (before, after) in before.iter().zip(&after) {
            prop_assert!(after <= before, "another member gets more when one joins");
        }
        let given: u32 = before.iter().zip(&after).map(|(before, after)| before - after).sum();
        prop_assert_eq!(given, after[members.len()]);
    }

    #[test]
    fn assignment_is_independent_of_member_order_and_address_form(
        members in members(),
        number in any::<u16>(),
        slots in 0_u32..40,
    ) {
        let mapped = |member: &SocketAddr| match member {
            SocketAddr::V4(it) => SocketAddr::from((it.ip().to_ipv6_mapped(), it.port())),
            SocketAddr::V6(it) => SocketAddr::V6(*it),
        };
        let me = members[0];
        let assignment = SlotAssignment::among(me, members.clone());
        let other = SlotAssignment::among(mapped(&me), members.iter().rev().map(mapped).chain([me]));
        prop_assert_eq!(&assignment, &other);
        let at = endpoint(number.into());
        prop_assert_eq!(assignment.share(at, slots), other.share(at, slots));
    }

    /// Members come and go at random and learn of it late. Requests last as long as that delay
    /// leaves of the handover time. So a member that has released a slot has finished its requests
    /// there when another uses it.
    #[test]
    fn slots_in_use_never_exceed_the_cap_during_membership_changes(
        present in prop::collection::vec(btree_set(0_u32..5, 1..5), 1..12),
        gaps in prop::collection::vec(1_u64..4_000, 12),
        lags in prop::collection::vec(0_u64..1_000, 60),
        number in any::<u16>(),
        slots in 1_u32..9,
    ) {
        let millis = |it: u64| Time::ZERO + Duration::from_millis(it);
        // Time at which each assigner learns of each list.
        let mut news: Vec<(u64, usize, &BTreeSet<u32>)> = Vec::new();
        let mut at = 0;
        for (change, list) in present.iter().enumerate() {
            let latest = |me: usize| news.iter().filter(|it| it.1 == me).map(|it| it.0).max();
            let lists: Vec<_> = (0..5)
                .map(|me| {
                    // The first list is known from the beginning.
                    let lag = if change == 0 { 0 } else { lags[change * 5 + me] };
                    ((at + lag).max(latest(me).unwrap_or(0)), me, list)
                })
                .collect();
            news.extend(lists);
            at += gaps[change];
        }
        news.sort_by_key(|&(at, ..)| at);
        let mut assigners: Vec<_> = (0..5).map(|me| SlotAssigner::new(member(me))).collect();
        let longest = HANDOVER_TIME.as_millis() as u64 - 1_000;
        // Share of each member at each moment. A request from that moment may last for the window
        // below.
        let mut used = [const { Vec::<u32>::new() }; 5];
        let mut news = news.into_iter().peekable();
        for now in (0..at + 6_000).step_by(50) {
            while let Some((_, me, list)) = news.next_if(|&(at, ..)| at <= now) {
                assigners[me].update_members(list.iter().copied().map(member), millis(now));
            }
            let lasts = (longest / 50) as usize;
            for (me, assigner) in assigners.iter().enumerate() {
                // Before the first list a member gets no requests.
                let knows = assigner.assignment(millis(now)) != SlotAssignment::alone();
                let share = assigner.assignment(millis(now)).share(endpoint(number.into()), slots);
                used[me].push(if knows { share } else { 0 });
            }
            let busiest = |had: &Vec<u32>| *had[had.len().saturating_sub(lasts)..].iter().max().unwrap();
            let in_use: u32 = used.iter().map(busiest).sum();
            prop_assert!(in_use <= slots, "{in_use} of {slots} in use after {now} ms");
        }
    }
}

#[test]
fn left_over_slots_spread_evenly_over_replicas() {
    for (all, slots) in [(3_u32, 4_u32), (3, 1), (7, 10), (10, 3)] {
        let members: Vec<_> = (0..all).map(member).collect();
        let mut sums = vec![0_u32; members.len()];
        let endpoints = 3000;
        for number in 0..endpoints {
            let shares = shares(&members, endpoint(number), slots);
            sums.iter_mut().zip(shares).for_each(|(sum, share)| *sum += share);
        }
        let left_over = f64::from(slots % all) / f64::from(all);
        let spread = (f64::from(endpoints) * left_over * (1.0 - left_over)).sqrt();
        let mean = f64::from(endpoints * slots) / f64::from(all);
        for sum in &sums {
            assert!((f64::from(*sum) - mean).abs() <= 5.0 * spread, "{sums:?}, {mean} +- {spread}");
        }
    }
}

#[test]
fn slot_assignment_is_stable_across_machines_and_versions() {
    let members: Vec<_> = (0..3).map(member).collect();
    // The member that gets the fourth of four slots.
    let more = |number| shares(&members, endpoint(number), 4).iter().position(|&it| it == 2);
    let known: Vec<_> = (0..12).map(|number| more(number).unwrap()).collect();
    assert_eq!(known, [2, 2, 2, 0, 1, 2, 0, 0, 2, 1, 0, 1]);
}

#[test]
fn empty_membership_assigns_all_slots_and_absence_assigns_none() {
    let (me, at) = (member(1), endpoint(1));
    assert_eq!(SlotAssignment::among(me, []).share(at, 4), 4);
    assert_eq!(SlotAssignment::among(me, [me]).share(at, 4), 4);
    assert_eq!(SlotAssignment::among(me, [member(2)]).share(at, 4), 0);
    assert_eq!(
        [SlotAssignment::alone(), SlotAssignment::among(me, [me, member(2)])]
            .map(|it| it.members()),
        [1, 2]
    );
}

#[test]
fn only_a_fixed_cap_is_divided_among_replicas() {
    let assignment = SlotAssignment::among(member(1), [member(1), member(2)]);
    assert_eq!(assignment.max_in_flight(endpoint(1), ConcurrencyCap::of(4)), 2);
    assert_eq!(
        [ConcurrencyCap::None, ConcurrencyCap::Learned]
            .map(|cap| assignment.max_in_flight(endpoint(1), cap)),
        [u32::MAX; 2]
    );
    assert_eq!(SlotAssignment::alone().max_in_flight(endpoint(1), ConcurrencyCap::of(4)), u32::MAX);
}

#[test]
fn no_slot_is_ours_before_the_members_are_known() {
    let assignment = SlotAssignment::withheld();
    assert!(!assignment.takes_part());
    assert_eq!(assignment.share(endpoint(1), 4), 0);
    assert_eq!(assignment.max_in_flight(endpoint(1), ConcurrencyCap::of(4)), 0);
    assert_eq!(assignment.max_in_flight(endpoint(1), ConcurrencyCap::None), u32::MAX);
}

/// Returns an assigner's share of four slots at these times in milliseconds.
fn course(assigner: &SlotAssigner, millis: [u64; 3]) -> [u32; 3] {
    let at = |it| Time::ZERO + Duration::from_millis(it);
    millis.map(|it| assigner.assignment(at(it)).share(endpoint(1), 4))
}

#[test]
fn single_replica_gets_all_slots_immediately() {
    let mut assigner = SlotAssigner::new(member(1));
    assigner.update_members([member(1)], Time::ZERO);
    assert_eq!(course(&assigner, [0, 1, 2]), [4; 3]);
    assert_eq!(assigner.next_change(Time::ZERO), None);
}

#[test]
fn slots_are_released_at_once_and_acquired_after_the_handover_delay() {
    let (mut old, mut new) = (SlotAssigner::new(member(1)), SlotAssigner::new(member(2)));
    old.update_members([member(1)], Time::ZERO);
    let both = || [member(1), member(2)];
    old.update_members(both(), Time::ZERO);
    new.update_members(both(), Time::ZERO);
    assert_eq!(course(&old, [0, 1_999, 2_000]), [2; 3]);
    assert_eq!(course(&new, [0, 1_999, 2_000]), [0, 0, 2]);
    assert_eq!(new.next_change(Time::ZERO), Some(Time::ZERO + HANDOVER_TIME));
    let later = Time::ZERO + Duration::from_secs(10);
    old.update_members([member(2)], later);
    new.update_members([member(2)], later);
    assert_eq!(course(&old, [10_000, 11_999, 12_000]), [0; 3]);
    assert_eq!(course(&new, [10_000, 11_999, 12_000]), [2, 2, 4]);
    // An empty list changes nothing.
    new.update_members([], later + HANDOVER_TIME);
    assert_eq!(course(&new, [13_000, 14_000, 15_000]), [4; 3]);
}

#[test]
fn replica_that_returns_during_handover_keeps_its_slots() {
    let mut assigner = SlotAssigner::new(member(1));
    let at = |it| Time::ZERO + Duration::from_millis(it);
    let both = || [member(1), member(2)];
    assigner.update_members(both(), at(0));
    assigner.update_members([member(1)], at(5_000));
    assigner.update_members(both(), at(6_000));
    assert_eq!(course(&assigner, [6_000, 7_000, 20_000]), [2; 3]);
    assert_eq!(assigner.next_change(at(6_000)), None);
}

/// Returns a set whose members have these numbers of assigned slots.
fn assigned_set(registry: &mut EndpointRegistry<()>, most: &[u32]) -> Arc<EndpointSet<()>> {
    let member = |(number, &most): (usize, &u32)| SetMember {
        max_in_flight: most,
        ..SetMember::new(registry.endpoint(endpoint(number as u32), || ()), 1)
    };
    Arc::new(EndpointSet::new(most.iter().enumerate().map(member).collect()))
}

fn in_flight(set: &EndpointSet<()>) -> Vec<u32> {
    set.members().iter().map(|member| member.endpoint.in_flight()).collect()
}

#[test]
fn no_algorithm_exceeds_the_assigned_slots_of_an_endpoint() {
    for algorithm in [
        Algorithm::LeastLoad,
        Algorithm::RoundRobin,
        Algorithm::Random,
        Algorithm::PeakEwma,
        Algorithm::ConsistentHash,
        Algorithm::Maglev,
    ] {
        let set = assigned_set(&mut EndpointRegistry::new(), &[0, 1, 2, u32::MAX]);
        let mut picker = Picker::new(algorithm, 7);
        for key in 0..1000 {
            let request = PickRequest { key: Some(key), ..PickRequest::default() };
            picker.take(&set, ConcurrencyCap::of(3), &request);
        }
        assert_eq!(in_flight(&set), [0, 1, 2, 3], "{algorithm:?}");
        let probes: Vec<bool> =
            set.members().iter().map(|it| it.take(ConcurrencyCap::of(4), Time::ZERO)).collect();
        assert_eq!(probes, [false, false, false, true]);
        let limits: Vec<_> =
            set.members().iter().map(|it| it.limit(ConcurrencyCap::of(3))).collect();
        assert_eq!(limits, [Some(0), Some(1), Some(2), Some(3)]);
    }
}

#[test]
fn pinned_request_falls_back_if_its_endpoint_has_no_assigned_slot() {
    let set = assigned_set(&mut EndpointRegistry::new(), &[0, 2]);
    let mut picker = Picker::new(Algorithm::LeastLoad, 7);
    let [here, there] = [1, 0].map(|member: usize| set.members()[member].endpoint.clone());
    let bound = PickRequest { only: Some(&there), ..PickRequest::default() };
    assert_eq!(picker.take(&set, ConcurrencyCap::of(2), &bound).unwrap().address, here.address);
    // A request that has failed at the only endpoint that it may use has no other.
    let tried = [here.clone()];
    let retry = PickRequest { tried: &tried, ..PickRequest::default() };
    assert_eq!(picker.take(&set, ConcurrencyCap::of(2), &retry).unwrap().address, here.address);
}

#[test]
fn newly_assigned_slots_wake_waiters_and_released_slots_drain() {
    let mut registry = EndpointRegistry::new();
    let limits = AdmissionLimits {
        cap: ConcurrencyCap::of(4),
        max_waiting: 9,
        ..AdmissionLimits::default()
    };
    let (before, after) = (assigned_set(&mut registry, &[1]), assigned_set(&mut registry, &[3]));
    let (admission, mut queue) = (Admission::new(), Queue::new(Arc::clone(&before), limits));
    let mut picker = Picker::new(Algorithm::LeastLoad, 7);
    let mut ask = |set: &EndpointSet<()>, queue: &mut Queue<(), u32>, name| {
        let request = PickRequest {
            queueing: balance::QueueParameters { deadline: Time::MAX, ..Default::default() },
            ..PickRequest::default()
        };
        let config = AdmissionConfig { set, limits };
        matches!(
            admission.enter(&mut picker, config, &request, || queue, || name),
            AdmissionDecision::Slot(_)
        )
    };
    let served: Vec<bool> = (0..4).map(|name| ask(&before, &mut queue, name)).collect();
    assert_eq!(served, [true, false, false, false]);
    let woken = admission.replace(Arc::clone(&after), limits, Time::ZERO, || &mut queue);
    assert_eq!(woken, [1, 2]);
    // Back to one slot: two requests have to end before the next may begin.
    let woken = admission.replace(Arc::clone(&before), limits, Time::ZERO, || &mut queue);
    assert_eq!((woken.len(), in_flight(&before)), (0, vec![3]));
    let mut release = || {
        let endpoint = &before.members()[0].endpoint;
        admission.release(endpoint, || Time::ZERO, || &mut queue).granted
    };
    assert_eq!([release(), release(), release()], [None, None, Some(3)]);
}

#[test]
fn request_without_an_assigned_slot_is_refused_with_no_slot_or_queued() {
    let ask = |set: Arc<EndpointSet<()>>, max_waiting| {
        let limits = AdmissionLimits {
            cap: ConcurrencyCap::of(1),
            max_waiting,
            ..AdmissionLimits::default()
        };
        let mut queue = Queue::<(), ()>::new(Arc::clone(&set), limits);
        let mut picker = Picker::new(Algorithm::LeastLoad, 7);
        let queueing = balance::QueueParameters { deadline: Time::MAX, ..Default::default() };
        let request = PickRequest { queueing, ..PickRequest::default() };
        let config = AdmissionConfig { set: &set, limits };
        let entry = Admission::new().enter(&mut picker, config, &request, || &mut queue, || ());
        match entry {
            AdmissionDecision::Rejected(refusal) => Some(refusal),
            AdmissionDecision::Slot(_) => panic!("a slot that is assigned to another member"),
            AdmissionDecision::Waiting { .. } => None,
        }
    };
    let mut registry = EndpointRegistry::new();
    assert_eq!(ask(assigned_set(&mut registry, &[0, 0]), 0), Some(AdmissionRejection::NoSlot));
    assert_eq!(ask(assigned_set(&mut registry, &[0, 0]), 1), None);
    assert_eq!(ask(assigned_set(&mut registry, &[]), 0), Some(AdmissionRejection::NoEndpoint));
    assert!(assigned_set(&mut registry, &[0, 0]).has_no_assigned_slot());
    assert!(!assigned_set(&mut registry, &[0, 1]).has_no_assigned_slot());
}

/// Two of five endpoints have slots assigned to us, and both fail: that the others are healthy does
/// not help here.
#[test]
fn endpoints_without_assigned_slots_do_not_count_as_available() {
    let set = assigned_set(&mut EndpointRegistry::new(), &[0, 4, 0, 4, 0]);
    let settings =
        HealthSettings { passive: Some(PassiveSettings::default()), ..HealthSettings::default() };
    let now = Time::ZERO + Duration::from_secs(1);
    for member in set.members().iter().filter(|member| member.max_in_flight > 0) {
        let outcome =
            Outcome { started: now, head_after: None, result: AttemptResult::ServerError };
        for _ in 0..5 {
            member.endpoint.health.learn(&outcome, &settings);
        }
    }
    let mut evaluator = HealthEvaluator::new();
    evaluator.evaluate(&set, |_| AttemptTotals::default(), &settings, now);
    let effective = evaluator.effective_set(&set);
    let mut picker = Picker::new(Algorithm::LeastLoad, 7);
    while picker.take(&effective, ConcurrencyCap::of(4), &PickRequest::default()).is_some() {}
    assert_eq!(in_flight(&effective).iter().sum::<u32>(), 4, "one of the two is not ejected");
}
