//! Every interleaving of grant, cancel and replacement, in small models: no slot is lost, none is
//! granted twice, and no request sleeps while a slot is free.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p balance --release --test loom`
#![cfg(loom)]

use std::net::SocketAddr;

use balance::demand::{DemandAverager, DemandShard, DemandTotals};
use balance::leases::EndpointShare;
use balance::{
    Admission, AdmissionConfig, AdmissionDecision, AdmissionLimits, AdmissionRejection, Algorithm,
    ConcurrencyCap, Endpoint, EndpointRegistry, EndpointSet, LeaseValidity, PickRequest, Picker,
    PriorityLevel, Queue, QueueParameters, SetMember, Ticket, Time,
};
use loom::sync::{Arc, Mutex, MutexGuard};
use loom::thread;

type Set = std::sync::Arc<EndpointSet<()>>;
type Slot = std::sync::Arc<Endpoint<()>>;
type Place = std::sync::Arc<Ticket<()>>;

/// One request in flight at each endpoint.
const LIMITS: AdmissionLimits =
    AdmissionLimits { cap: ConcurrencyCap::of(1), max_waiting: 4, fair: true, delay: None };

struct Backend {
    admission: Admission,
    queue: Mutex<Queue<(), &'static str>>,
    limits: AdmissionLimits,
}

impl Backend {
    fn new(set: &Set) -> Arc<Self> {
        Self::with(set, LIMITS)
    }

    fn with(set: &Set, limits: AdmissionLimits) -> Arc<Self> {
        let queue = Mutex::new(Queue::new(set.clone(), limits));
        Arc::new(Self { admission: Admission::new(), queue, limits })
    }

    fn lock(&self) -> MutexGuard<'_, Queue<(), &'static str>> {
        self.queue.lock().expect("a model ends at a panic")
    }

    fn enter(&self, set: &Set, name: &'static str) -> AdmissionDecision<(), &'static str> {
        self.enter_for(set, None, name)
    }

    fn enter_for(
        &self,
        set: &Set,
        only: Option<&Slot>,
        name: &'static str,
    ) -> AdmissionDecision<(), &'static str> {
        self.enter_with(set, &PickRequest { only, ..PickRequest::default() }, name)
    }

    /// Enters a request of the highest priority.
    fn enter_first(&self, set: &Set, name: &'static str) -> AdmissionDecision<(), &'static str> {
        let queueing =
            QueueParameters { priority: PriorityLevel::ALL[0], ..QueueParameters::default() };
        self.enter_with(set, &PickRequest { queueing, ..PickRequest::default() }, name)
    }

    fn enter_with(
        &self,
        set: &Set,
        request: &PickRequest<'_, ()>,
        name: &'static str,
    ) -> AdmissionDecision<(), &'static str> {
        let mut picker = Picker::new(Algorithm::LeastLoad, 0);
        let config = AdmissionConfig { set, limits: self.limits };
        self.admission.enter(&mut picker, config, request, || self.lock(), || name)
    }

    fn take(&self, set: &Set) -> Slot {
        let AdmissionDecision::Slot(slot) = self.enter(set, "first") else {
            panic!("a slot is free")
        };
        slot
    }

    fn wait(&self, set: &Set, name: &'static str) -> Place {
        let AdmissionDecision::Waiting { ticket: place, .. } = self.enter(set, name) else {
            panic!("no slot is free")
        };
        place
    }

    fn release(&self, slot: &Slot) -> Option<&'static str> {
        assert_eq!(slot.in_flight(), 1, "over the cap");
        self.admission.release(slot, || Time::ZERO, || self.lock()).granted
    }

    fn replace(&self, set: &Set) -> Vec<&'static str> {
        self.admission.replace(set.clone(), self.limits, Time::ZERO, || self.lock())
    }
}

/// Two endpoints, with a set of each alone, one of both and an empty one.
struct World {
    first: Set,
    second: Set,
    both: Set,
    none: Set,
}

impl World {
    fn new() -> Self {
        let mut registry = EndpointRegistry::new();
        let mut member = |port| {
            let address = SocketAddr::from(([10, 0, 0, 1], port));
            SetMember::new(registry.endpoint(address, || ()), 1)
        };
        let (first, second) = (member(1), member(2));
        let set = |members| Set::new(EndpointSet::new(members));
        Self {
            first: set(vec![first.clone()]),
            second: set(vec![second.clone()]),
            both: set(vec![first, second]),
            none: set(Vec::new()),
        }
    }
}

/// Returns the slot of a request that has entered, if it has one by now.
fn slot_of(entry: AdmissionDecision<(), &'static str>) -> Option<Slot> {
    match entry {
        AdmissionDecision::Slot(slot) => Some(slot),
        AdmissionDecision::Waiting { ticket: place, .. } => place.granted(),
        AdmissionDecision::Rejected(refusal) => panic!("{refusal:?}"),
    }
}

fn in_flight(set: &Set) -> u32 {
    set.members().iter().map(|member| member.endpoint.in_flight()).sum()
}

#[test]
fn released_slot_reaches_a_concurrent_arrival() {
    loom::model(|| {
        let World { first, .. } = World::new();
        let backend = Backend::new(&first);
        let held = backend.take(&first);
        let releasing = {
            let backend = backend.clone();
            thread::spawn(move || backend.release(&held))
        };
        let entry = backend.enter(&first, "late");
        let woken = releasing.join().unwrap();
        assert_eq!(
            woken.is_some(),
            matches!(entry, AdmissionDecision::Waiting { .. }),
            "woken if it waits"
        );
        assert!(slot_of(entry).is_some(), "no request sleeps while the slot is free");
        assert_eq!((in_flight(&first), backend.admission.waiting()), (1, 0));
    });
}

#[test]
fn two_concurrent_arrivals_share_a_released_slot_one_after_the_other() {
    loom::model(|| {
        let World { first, .. } = World::new();
        let backend = Backend::new(&first);
        let held = backend.take(&first);
        let coming = {
            let (backend, first) = (backend.clone(), first.clone());
            thread::spawn(move || backend.enter(&first, "one"))
        };
        let releasing = {
            let backend = backend.clone();
            thread::spawn(move || backend.release(&held))
        };
        let entries = [backend.enter(&first, "other"), coming.join().unwrap()];
        releasing.join().unwrap();

        assert_eq!((in_flight(&first), backend.admission.waiting()), (1, 1));
        let mut waits = None;
        for entry in entries {
            match entry {
                AdmissionDecision::Waiting { ticket: place, .. } if place.granted().is_none() => {
                    waits = Some(place)
                }
                AdmissionDecision::Waiting { .. } | AdmissionDecision::Slot(_) => {}
                AdmissionDecision::Rejected(refusal) => panic!("{refusal:?}"),
            }
        }
        let slot = &first.members()[0].endpoint;
        assert!(backend.release(slot).is_some());
        assert!(waits.expect("one waits").granted().is_some());
        assert!(backend.release(slot).is_none());
        assert_eq!(in_flight(&first), 0);
    });
}

#[test]
fn grant_concurrent_with_cancel_goes_to_the_next_waiter() {
    loom::model(|| {
        let World { first, .. } = World::new();
        let backend = Backend::new(&first);
        let held = backend.take(&first);
        let (leaving, next) = (backend.wait(&first, "leaving"), backend.wait(&first, "next"));
        let releasing = {
            let backend = backend.clone();
            thread::spawn(move || backend.release(&held))
        };
        let mut woken = Vec::new();
        if !backend.admission.cancel(&leaving) {
            let slot = leaving.granted().expect("granted at the same moment");
            woken.extend(backend.release(&slot));
        }
        woken.extend(releasing.join().unwrap().filter(|&name| name == "next"));
        assert_eq!(woken, ["next"]);
        assert!(next.granted().is_some());
        assert_eq!((in_flight(&first), backend.admission.waiting()), (1, 0));
    });
}

#[test]
fn slot_granted_to_a_cancelled_waiter_is_freed() {
    loom::model(|| {
        let World { first, .. } = World::new();
        let backend = Backend::new(&first);
        let held = backend.take(&first);
        let leaving = backend.wait(&first, "leaving");
        let releasing = {
            let backend = backend.clone();
            thread::spawn(move || backend.release(&held))
        };
        let coming = {
            let (backend, first) = (backend.clone(), first.clone());
            thread::spawn(move || backend.enter(&first, "late"))
        };
        if !backend.admission.cancel(&leaving) {
            let slot = leaving.granted().expect("granted at the same moment");
            backend.release(&slot);
        }
        releasing.join().unwrap();
        assert!(slot_of(coming.join().unwrap()).is_some());
        assert_eq!((in_flight(&first), backend.admission.waiting()), (1, 0));
    });
}

#[test]
fn arrival_does_not_overtake_a_waiter() {
    loom::model(|| {
        let World { first, .. } = World::new();
        let backend = Backend::new(&first);
        let held = backend.take(&first);
        let waiting = backend.wait(&first, "waiting");
        let releasing = {
            let backend = backend.clone();
            thread::spawn(move || backend.release(&held))
        };
        assert!(slot_of(backend.enter(&first, "late")).is_none());
        assert_eq!(releasing.join().unwrap(), Some("waiting"));
        assert!(waiting.granted().is_some());
        assert_eq!((in_flight(&first), backend.admission.waiting()), (1, 1));
    });
}

#[test]
fn endpoint_removed_during_release_leaves_no_waiter_asleep() {
    loom::model(|| {
        let World { first, second, .. } = World::new();
        let backend = Backend::new(&first);
        let held = backend.take(&first);
        let waiting = backend.wait(&first, "waiting");
        let releasing = {
            let backend = backend.clone();
            thread::spawn(move || backend.release(&held))
        };
        let mut woken = backend.replace(&second);
        woken.extend(releasing.join().unwrap());
        assert_eq!(woken, ["waiting"]);
        assert!(waiting.granted().is_some());
        assert_eq!(in_flight(&first) + in_flight(&second), 1);
        assert_eq!(backend.admission.waiting(), 0);
    });
}

#[test]
fn removed_endpoint_is_not_granted_until_it_returns() {
    loom::model(|| {
        let World { first, none, .. } = World::new();
        let backend = Backend::new(&first);
        let held = backend.take(&first);
        let waiting = backend.wait(&first, "waiting");
        let releasing = {
            let backend = backend.clone();
            thread::spawn(move || backend.release(&held))
        };
        assert!(backend.replace(&none).is_empty());
        let granted = releasing.join().unwrap().is_some();
        assert_eq!(granted, in_flight(&first) == 1);
        assert_eq!(!granted, backend.replace(&first) == ["waiting"]);
        assert!(waiting.granted().is_some());
        assert_eq!((in_flight(&first), backend.admission.waiting()), (1, 0));
    });
}

#[test]
fn new_endpoint_serves_an_arrival_that_holds_the_old_set() {
    loom::model(|| {
        let World { first, both, second, .. } = World::new();
        let backend = Backend::new(&first);
        let held = backend.take(&first);
        let replacing = {
            let backend = backend.clone();
            thread::spawn(move || backend.replace(&both))
        };
        let releasing = {
            let backend = backend.clone();
            thread::spawn(move || backend.release(&held))
        };
        let entry = backend.enter(&first, "late");
        let woken = replacing.join().unwrap().len() + releasing.join().unwrap().iter().len();
        assert_eq!(woken == 1, matches!(entry, AdmissionDecision::Waiting { .. }));
        assert!(slot_of(entry).is_some());
        assert_eq!(in_flight(&first) + in_flight(&second), 1);
        assert_eq!(backend.admission.waiting(), 0);
    });
}

#[test]
fn eviction_concurrent_with_release_leaves_no_waiter_asleep() {
    loom::model(|| {
        let World { first, .. } = World::new();
        let backend = Backend::with(&first, AdmissionLimits { max_waiting: 1, ..LIMITS });
        let held = backend.take(&first);
        let lower = backend.wait(&first, "lower");
        let releasing = {
            let backend = backend.clone();
            thread::spawn(move || backend.release(&held))
        };
        let AdmissionDecision::Waiting { ticket: higher, evicted } =
            backend.enter_first(&first, "higher")
        else {
            panic!("the slot is for the waiting request");
        };
        let woken = releasing.join().unwrap().expect("a request waits");
        if evicted.is_some() {
            assert_eq!((woken, lower.refused()), ("higher", Some(AdmissionRejection::Evicted)));
            assert!(higher.granted().is_some() && lower.granted().is_none());
        } else {
            assert_eq!(woken, "lower");
            assert!(lower.granted().is_some() && higher.granted().is_none());
        }
        let waiting = u32::from(evicted.is_none());
        assert_eq!((in_flight(&first), backend.admission.waiting()), (1, waiting));
    });
}

#[test]
fn cancel_concurrent_with_eviction_is_counted_once() {
    loom::model(|| {
        let World { first, .. } = World::new();
        let backend = Backend::with(&first, AdmissionLimits { max_waiting: 1, ..LIMITS });
        let held = backend.take(&first);
        let lower = backend.wait(&first, "lower");
        let leaving = {
            let backend = backend.clone();
            thread::spawn(move || assert!(backend.admission.cancel(&lower)))
        };
        let entry = backend.enter_first(&first, "higher");
        leaving.join().unwrap();
        let waits = match entry {
            AdmissionDecision::Waiting { .. } => 1,
            // The cancelled request has left the queue, but is still counted.
            AdmissionDecision::Rejected(AdmissionRejection::Full) => 0,
            other => panic!("{other:?}"),
        };
        assert_eq!(backend.admission.waiting(), waits);
        assert_eq!(backend.release(&held).is_some(), waits == 1);
    });
}

#[test]
fn slot_freed_by_another_backend_reaches_a_concurrent_arrival() {
    loom::model(|| {
        let World { first, .. } = World::new();
        let (here, there) = (Backend::new(&first), Backend::new(&first));
        let held = there.take(&first);
        let releasing = {
            let here = here.clone();
            thread::spawn(move || {
                there.release(&held);
                here.admission.dispatch(|| Time::ZERO, || here.lock())
            })
        };
        let entry = here.enter(&first, "late");
        assert_eq!(
            releasing.join().unwrap().len() == 1,
            matches!(entry, AdmissionDecision::Waiting { .. })
        );
        assert!(slot_of(entry).is_some());
        assert_eq!((in_flight(&first), here.admission.waiting()), (1, 0));
    });
}

#[test]
fn pinned_request_gets_its_endpoint_released_concurrently() {
    loom::model(|| {
        let World { first, both, .. } = World::new();
        let backend = Backend::new(&both);
        let held = backend.take(&first);
        let releasing = {
            let (backend, held) = (backend.clone(), held.clone());
            thread::spawn(move || backend.release(&held))
        };
        let entry = backend.enter_for(&both, Some(&held), "bound");
        let woken = releasing.join().unwrap();
        assert_eq!(
            woken.is_some(),
            matches!(entry, AdmissionDecision::Waiting { .. }),
            "woken if it waits"
        );
        let slot = slot_of(entry).expect("no request sleeps while the slot is free");
        assert!(std::sync::Arc::ptr_eq(&slot, &held));
        assert_eq!((in_flight(&both), backend.admission.waiting()), (1, 0));
    });
}

#[test]
fn pinned_waiter_neither_blocks_others_nor_is_overtaken() {
    loom::model(|| {
        let World { first, second, both, .. } = World::new();
        let backend = Backend::new(&both);
        let held = backend.take(&first);
        let AdmissionDecision::Waiting { ticket: bound, .. } =
            backend.enter_for(&both, Some(&held), "bound")
        else {
            panic!("no slot is free");
        };
        let releasing = {
            let backend = backend.clone();
            thread::spawn(move || backend.release(&held))
        };
        let other = slot_of(backend.enter(&both, "other")).expect("the second is free");
        assert!(std::sync::Arc::ptr_eq(&other, &second.members()[0].endpoint));
        assert_eq!(releasing.join().unwrap(), Some("bound"));
        assert!(bound.granted().is_some());
        assert_eq!((in_flight(&both), backend.admission.waiting()), (2, 0));
    });
}

#[test]
fn endpoint_marked_reachable_serves_a_concurrent_arrival() {
    loom::model(|| {
        let World { first, .. } = World::new();
        let backend = Backend::new(&first);
        let endpoint = first.members()[0].endpoint.clone();
        assert!(endpoint.mark_unreachable(Time::ZERO));
        let marking = {
            let (backend, first) = (backend.clone(), first.clone());
            thread::spawn(move || {
                assert!(endpoint.mark_reachable(Time::ZERO));
                backend.replace(&first)
            })
        };
        let entry = backend.enter(&first, "late");
        let woken = marking.join().unwrap();
        assert_eq!(
            woken.len() == 1,
            matches!(entry, AdmissionDecision::Waiting { .. }),
            "woken if it waits"
        );
        assert!(slot_of(entry).is_some(), "no request sleeps while the slot is free");
        assert_eq!((in_flight(&first), backend.admission.waiting()), (1, 0));
    });
}

#[test]
fn pinned_request_falls_back_once_its_endpoint_is_unreachable() {
    loom::model(|| {
        let World { first, second, both, .. } = World::new();
        let backend = Backend::new(&both);
        let (lost, held) = (backend.take(&first), backend.take(&second));
        let releasing = {
            let backend = backend.clone();
            thread::spawn(move || backend.release(&held))
        };
        let marking = {
            let (backend, lost, both) = (backend.clone(), lost.clone(), both.clone());
            thread::spawn(move || {
                assert!(lost.mark_unreachable(Time::ZERO));
                backend.replace(&both)
            })
        };
        let entry = backend.enter_for(&both, Some(&lost), "bound");
        let woken = releasing.join().unwrap().iter().len() + marking.join().unwrap().len();
        assert_eq!(
            woken == 1,
            matches!(entry, AdmissionDecision::Waiting { .. }),
            "woken if it waits"
        );
        let slot = slot_of(entry).expect("no request sleeps while a slot is free");
        assert!(std::sync::Arc::ptr_eq(&slot, &second.members()[0].endpoint));
        assert_eq!((in_flight(&both), backend.admission.waiting()), (2, 0));
    });
}

#[test]
fn half_open_endpoint_gets_a_single_trial_request() {
    loom::model(|| {
        let World { first, .. } = World::new();
        let member = SetMember { half_open: true, ..first.members()[0].clone() };
        let trial = Set::new(EndpointSet::new(vec![member]));
        let backend = Backend::new(&trial);
        let trying = {
            let (backend, trial) = (backend.clone(), trial.clone());
            thread::spawn(move || match backend.enter(&trial, "one") {
                AdmissionDecision::Slot(slot) => {
                    backend.release(&slot);
                    true
                }
                AdmissionDecision::Waiting { .. } => false,
                AdmissionDecision::Rejected(refusal) => panic!("{refusal:?}"),
            })
        };
        let tried = slot_of(backend.enter(&trial, "other")).is_some();
        assert_ne!(tried, trying.join().unwrap(), "one of them tried it");
        assert_eq!(in_flight(&trial), u32::from(tried));
    });
}

/// The thread that lowers the share reads the requests in flight after that. If there is none, the
/// slot goes to another replica, so no request may have it.
#[test]
fn slot_is_handed_over_or_taken_but_not_both() {
    loom::model(|| {
        let validity = LeaseValidity::default();
        validity.set(Time::from_nanos(1));
        let mut registry = EndpointRegistry::with_leases(validity);
        let endpoint = registry.endpoint(SocketAddr::from(([10, 0, 0, 1], 1)), || ());
        let share = |slots| EndpointShare { slots, without_leases: 0, is_emergency: false };
        assert_eq!(endpoint.set_share(share(1)), 0);
        let taking = {
            let endpoint = endpoint.clone();
            thread::spawn(move || endpoint.take(LIMITS.cap, Time::ZERO))
        };
        let in_flight = endpoint.set_share(share(0));
        let is_taken = taking.join().unwrap();
        assert!(!is_taken || in_flight == 1);
        assert_eq!(endpoint.in_flight(), u32::from(is_taken));
    });
}

/// A request takes a slot and gives it back because the share is lowered. If the share is raised
/// meanwhile, a queued request that found no free slot must not sleep beside one.
#[test]
fn slot_given_back_in_a_race_leaves_no_waiter_asleep() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let validity = LeaseValidity::default();
        validity.set(Time::from_nanos(1));
        let mut registry = EndpointRegistry::with_leases(validity);
        let endpoint = registry.endpoint(SocketAddr::from(([10, 0, 0, 1], 1)), || ());
        let share = |slots| EndpointShare { slots, without_leases: 0, is_emergency: false };
        endpoint.set_share(share(1));
        let set = std::sync::Arc::new(EndpointSet::new(vec![SetMember::new(endpoint.clone(), 1)]));
        let backend = Backend::new(&set);
        let taking = {
            let endpoint = endpoint.clone();
            thread::spawn(move || endpoint.take(LIMITS.cap, Time::ZERO))
        };
        let changing = {
            let (endpoint, backend) = (endpoint.clone(), backend.clone());
            thread::spawn(move || {
                endpoint.set_share(share(0));
                endpoint.set_share(share(1));
                backend
                    .admission
                    .dispatch::<_, _, MutexGuard<'_, _>>(|| Time::ZERO, || backend.lock());
            })
        };
        let decision = backend.enter(&set, "queued");
        taking.join().unwrap();
        changing.join().unwrap();
        let sleeps = match decision {
            AdmissionDecision::Waiting { ticket, .. } => ticket.granted().is_none(),
            AdmissionDecision::Slot(_) | AdmissionDecision::Rejected(_) => false,
        };
        assert!(!sleeps || endpoint.in_flight() == 1, "it sleeps beside a free slot");
    });
}

#[test]
fn demand_reads_concurrent_with_writes_are_atomic() {
    loom::model(|| {
        let at = |seconds: u64| Time::from_nanos(seconds * 1_000_000_000);
        let shard = Arc::new(DemandShard::new());
        let working = {
            let shard = shard.clone();
            thread::spawn(move || {
                shard.wait(at(1));
                shard.grant(at(3));
                shard.give_back(at(3), at(6));
            })
        };
        let totals: Option<DemandTotals> = shard.read();
        if let Some(totals) = totals {
            let mut averager = DemandAverager::new(at(0));
            averager.record(at(10), totals);
            let spent = averager.request_seconds();
            let seen = [spent.in_flight, spent.queued].map(|seconds| seconds as u64);
            assert!([[0, 0], [0, 9], [7, 2], [3, 2]].contains(&seen), "{seen:?}");
        }
        working.join().unwrap();
        assert!(shard.read().is_some(), "no write is in progress");
    });
}
