//! Properties of health and retries, over random sequences of events.
#![cfg(not(loom))]

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use balance::health::{
    ActiveSettings, AttemptTotals, EjectionState, HealthSettings, HealthStatus, PassiveSettings,
    ProbeResult, SlowStartSettings,
};
use balance::retry::RetrySettings;
use balance::{
    AttemptResult, Endpoint, EndpointRegistry, EndpointSet, HealthEvaluator, Outcome, RetryBudget,
    Rng, SetMember, Time,
};
use proptest::option;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

/// Number of endpoints; sets are subsets of them.
const ENDPOINTS: usize = 7;

const MILLISECOND: Duration = Duration::from_millis(1);

#[derive(Clone, Debug)]
enum Step {
    /// Attempts at one endpoint end, all with the same result. They began this many milliseconds
    /// ago.
    Attempts {
        endpoint: usize,
        end: AttemptResult,
        count: u32,
        began: u64,
    },
    Probe {
        endpoint: usize,
        result: ProbeResult,
    },
    /// This many milliseconds pass.
    Wait(u64),
    /// The weight of each endpoint; `None` if it is not in the set.
    Replace([Option<u32>; ENDPOINTS]),
}

fn step() -> impl Strategy<Value = Step> {
    let end = prop_oneof![
        3 => Just(AttemptResult::Success),
        4 => Just(AttemptResult::ServerError),
        1 => Just(AttemptResult::TimedOut),
        1 => Just(AttemptResult::Refused { retry_after: None }),
        1 => Just(AttemptResult::Cancelled),
    ];
    let began = prop_oneof![Just(0), 0_u64..2_000];
    let attempts = (0..ENDPOINTS, end, 1_u32..8, began);
    let result = prop_oneof![Just(ProbeResult::Good), Just(ProbeResult::Bad)];
    let weight = prop_oneof![1 => Just(None), 1 => Just(Some(0)), 6 => (1_u32..4).prop_map(Some)];
    prop_oneof![
        8 => attempts.prop_map(|(endpoint, end, count, began)| {
            Step::Attempts { endpoint, end, count, began }
        }),
        2 => (0..ENDPOINTS, result).prop_map(|(endpoint, result)| Step::Probe { endpoint, result }),
        4 => (1_u64..3_000).prop_map(Step::Wait),
        1 => proptest::array::uniform7(weight).prop_map(Step::Replace),
    ]
}

fn settings() -> impl Strategy<Value = HealthSettings> {
    let slow_start = (1_u64..3_000, 0_u32..=100).prop_map(|(window, floor_percent)| {
        SlowStartSettings { window: MILLISECOND * window as u32, floor_percent }
    });
    let one_to_three = || (1_u32..4).prop_map(|number| NonZeroU32::new(number).expect("from 1"));
    let active = (one_to_three(), one_to_three()).prop_map(|(rise, fall)| ActiveSettings {
        interval: MILLISECOND * 100,
        rise,
        fall,
        ..ActiveSettings::default()
    });
    let passive =
        (one_to_three(), 0_u32..=100).prop_map(|(consecutive_failures, percent)| PassiveSettings {
            consecutive_failures,
            interval: MILLISECOND * 1_000,
            outlier_minimum_requests: 4,
            base_ejection_time: MILLISECOND * 500,
            max_ejection_time: MILLISECOND * 4_000,
            max_ejection_percent: percent,
            ..PassiveSettings::default()
        });
    (option::of(passive), option::of(active), option::of(slow_start), 0_u32..=100).prop_map(
        |(passive, active, slow_start, panic_percent)| HealthSettings {
            passive,
            active,
            slow_start,
            panic_percent,
        },
    )
}

struct World {
    settings: HealthSettings,
    endpoints: Vec<Arc<Endpoint<usize>>>,
    totals: Vec<AttemptTotals>,
    configured: EndpointSet<usize>,
    evaluator: HealthEvaluator,
    rng: Rng,
    now: Time,
}

impl World {
    fn new(settings: HealthSettings) -> Self {
        let mut registry = EndpointRegistry::new();
        let address = |number: usize| SocketAddr::from(([10, 0, 0, 1], number as u16));
        let endpoint = |number| registry.endpoint(address(number), || number);
        let mut world = Self {
            settings,
            endpoints: (0..ENDPOINTS).map(endpoint).collect(),
            totals: vec![AttemptTotals::default(); ENDPOINTS],
            configured: EndpointSet::empty(),
            evaluator: HealthEvaluator::new(),
            rng: Rng::new(3),
            now: Time::ZERO + Duration::from_secs(100),
        };
        world.replace(&[Some(1); ENDPOINTS]);
        world.evaluate();
        world
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Attempts { endpoint, end, count, began } => {
                (0..count).for_each(|_| self.attempt(endpoint, end, began));
            }
            Step::Probe { endpoint, result } => {
                let unknown = ProbeResult::Unknown;
                self.probe(|probed| if probed == endpoint { result } else { unknown });
            }
            Step::Wait(millis) => self.now = self.now + MILLISECOND * millis as u32,
            Step::Replace(ref weights) => self.replace(weights),
        }
        self.evaluate();
    }

    fn attempt(&mut self, endpoint: usize, end: AttemptResult, began: u64) {
        let started = Time::from_nanos(self.now.as_nanos() - began * 1_000_000);
        match end {
            AttemptResult::Success => self.totals[endpoint].successes += 1,
            AttemptResult::ServerError
            | AttemptResult::ConnectFailed
            | AttemptResult::TimedOut
            | AttemptResult::ConnectionBroken => {
                self.totals[endpoint].failures += 1;
            }
            AttemptResult::Refused { .. }
            | AttemptResult::RateLimited { .. }
            | AttemptResult::Cancelled => {}
        }
        let outcome = Outcome { started, head_after: None, result: end };
        self.endpoints[endpoint].health.learn(&outcome, &self.settings);
    }

    /// Sends the probes that are due.
    fn probe(&mut self, result: impl Fn(usize) -> ProbeResult) {
        let totals = |endpoint: &Endpoint<usize>| self.totals[endpoint.data];
        let Self { evaluator, settings, rng, now, .. } = self;
        let due = evaluator.due_probes(&self.configured, totals, settings, *now, rng);
        assert!(settings.active.is_some() || due.is_empty());
        for address in due {
            evaluator.record_probe(address, result(address.port().into()), settings, *now, rng);
        }
    }

    fn replace(&mut self, weights: &[Option<u32>; ENDPOINTS]) {
        let member = |(endpoint, weight): (&Arc<_>, &Option<u32>)| {
            weight.map(|weight| SetMember::new(Arc::clone(endpoint), weight))
        };
        let members = self.endpoints.iter().zip(weights).filter_map(member).collect();
        self.configured = EndpointSet::new(members);
    }

    fn evaluate(&mut self) {
        let totals = |endpoint: &Endpoint<usize>| self.totals[endpoint.data];
        self.evaluator.evaluate(&self.configured, totals, &self.settings, self.now);
        self.check();
    }

    /// Returns the health and the configured weight of each member.
    fn statuses(&self) -> Vec<(HealthStatus, u32)> {
        let statuses = self.evaluator.statuses(&self.settings, self.now);
        let members = self.configured.members().iter();
        members.zip(statuses).map(|(member, (_, status))| (status, member.weight)).collect()
    }

    fn check(&self) {
        let statuses = self.statuses();
        let weighted = || statuses.iter().filter(|(_, weight)| *weight > 0);
        let serving = |status: &HealthStatus| status.ejection == EjectionState::Serving;

        let ejected = weighted().filter(|(status, _)| !serving(status)).count();
        let percent =
            self.settings.passive.map_or(0, |passive| passive.max_ejection_percent as usize);
        let allowed = (weighted().count() * percent / 100).max(usize::from(weighted().count() > 1));
        assert!(ejected <= allowed, "{ejected} ejected of {}", weighted().count());

        let usable =
            weighted().filter(|(status, _)| serving(status) && status.passes_probes).count();
        let too_few = usable * 100 < weighted().count() * self.settings.panic_percent as usize;
        assert_eq!(self.evaluator.is_panicking(), too_few);

        let effective = self.evaluator.effective_set(&self.configured);
        for ((status, weight), member) in statuses.iter().zip(effective.members()) {
            let serves = serving(status) && status.passes_probes || too_few;
            let half_open = status.ejection == EjectionState::HalfOpen && status.passes_probes;
            assert_eq!(member.weight > 0, *weight > 0 && serves, "{status:?}");
            assert_eq!(member.half_open, *weight > 0 && half_open && !too_few, "{status:?}");
        }
    }

    fn ejection_state(&self, endpoint: usize) -> Option<EjectionState> {
        let address = self.endpoints[endpoint].address;
        let mut statuses = self.evaluator.statuses(&self.settings, self.now);
        statuses.find(|(other, _)| *other == address).map(|(_, status)| status.ejection)
    }

    /// Everything succeeds until all endpoints have recovered.
    fn recover(&mut self) {
        for _ in 0..100 {
            self.now = self.now + MILLISECOND * 200;
            for endpoint in 0..ENDPOINTS {
                if !matches!(self.ejection_state(endpoint), Some(EjectionState::Ejected { .. })) {
                    self.attempt(endpoint, AttemptResult::Success, 0);
                }
            }
            self.probe(|_| ProbeResult::Good);
            self.evaluate();
        }
    }
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 1_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn ejections_respect_the_limit_and_panic_mode_is_reported(
        settings in settings(),
        steps in proptest::collection::vec(step(), 1..100),
    ) {
        let mut world = World::new(settings);
        for step in &steps {
            world.run(step);
        }
        world.recover();
        for (status, _) in world.statuses() {
            let well = HealthStatus { ejection: EjectionState::Serving, passes_probes: true, share_percent: 100 };
            prop_assert_eq!(status, well);
        }
        let weights = |set: &EndpointSet<usize>| {
            set.members().iter().map(|member| member.weight).collect::<Vec<_>>()
        };
        prop_assert_eq!(weights(&world.evaluator.effective_set(&world.configured)), weights(&world.configured));
    }

    #[test]
    fn slow_start_share_never_decreases_and_ends_with_its_window(
        window in 1_u64..100_000,
        floor_percent in 0_u32..=100,
        looks in proptest::collection::vec(1_u64..10_000, 1..50),
    ) {
        let slow_start = SlowStartSettings { window: MILLISECOND * window as u32, floor_percent };
        let settings = HealthSettings { slow_start: Some(slow_start), ..HealthSettings::default() };
        let mut world = World::new(settings);
        world.replace(&[Some(1), Some(1), None, None, None, None, None]);
        world.evaluate();
        world.replace(&[Some(1), Some(1), Some(1), None, None, None, None]);
        world.evaluate();
        let begins = world.now;
        let mut before = 0;
        for look in looks {
            world.run(&Step::Wait(look));
            let share = world.statuses()[2].0.share_percent;
            prop_assert!((before.max(1)..=100).contains(&share));
            let over = world.now >= begins + slow_start.window;
            prop_assert!(share == 100 || !over);
            prop_assert!(share >= floor_percent);
            let set = world.evaluator.effective_set(&world.configured);
            let weights: Vec<_> = set.members().iter().map(|member| member.weight).collect();
            prop_assert_eq!(weights[2] * 100, weights[0] * share);
            prop_assert_eq!(world.statuses()[0].0.share_percent, 100);
            before = share;
        }
    }

    #[test]
    fn retries_stay_within_the_budget(
        budget_percent in 0_u32..200,
        budget_floor in 0_u32..50,
        steps in proptest::collection::vec((0_u64..2_000, 0_usize..50, 0_usize..50), 1..100),
    ) {
        let settings =
            RetrySettings { budget_percent, budget_floor, ..RetrySettings::default() };
        let budget = RetryBudget::new(3);
        let mut now = Time::ZERO;
        let (mut requests, mut retries) = (0_u64, 0_u64);
        for (millis, requested, retried) in steps {
            now = now + MILLISECOND * millis as u32;
            for request in 0..requested {
                budget.request(settings.budget_window, request % 3, now);
            }
            requests += requested as u64;
            retries += (0..retried).filter(|_| budget.allows(&settings, now)).count() as u64;
            let windows = now.as_nanos() / 10_000_000_000 + 1;
            let floor = windows * u64::from(budget_floor);
            prop_assert!(retries <= requests * u64::from(budget_percent) / 100 + floor);
        }
    }
}

fn passive() -> HealthSettings {
    HealthSettings { passive: Some(PassiveSettings::default()), ..HealthSettings::default() }
}

#[test]
fn ejected_endpoint_returns_after_a_successful_half_open_trial() {
    let mut world = World::new(passive());
    world.run(&Step::Attempts {
        endpoint: 0,
        end: AttemptResult::ConnectionBroken,
        count: 5,
        began: 0,
    });
    assert!(matches!(world.ejection_state(0), Some(EjectionState::Ejected { .. })));
    world.run(&Step::Wait(29_999));
    assert!(matches!(world.ejection_state(0), Some(EjectionState::Ejected { .. })));
    world.run(&Step::Wait(1));
    assert_eq!(world.ejection_state(0), Some(EjectionState::HalfOpen));
    world.run(&Step::Attempts { endpoint: 0, end: AttemptResult::Success, count: 1, began: 1 });
    assert_eq!(
        world.ejection_state(0),
        Some(EjectionState::HalfOpen),
        "it began before the endpoint was half-open"
    );
    world.run(&Step::Attempts { endpoint: 0, end: AttemptResult::Cancelled, count: 1, began: 0 });
    assert_eq!(
        world.ejection_state(0),
        Some(EjectionState::HalfOpen),
        "it has no meaning for health"
    );
    world.run(&Step::Attempts { endpoint: 0, end: AttemptResult::Success, count: 1, began: 0 });
    assert_eq!(world.ejection_state(0), Some(EjectionState::Serving));
}

#[test]
fn inconclusive_half_open_trial_is_repeated() {
    let mut world = World::new(passive());
    world.run(&Step::Attempts {
        endpoint: 0,
        end: AttemptResult::ConnectionBroken,
        count: 5,
        began: 0,
    });
    world.run(&Step::Wait(30_000));
    let mut repeated = |millis| {
        world.now = world.now + MILLISECOND * millis;
        let totals = |endpoint: &Endpoint<usize>| world.totals[endpoint.data];
        world.evaluator.evaluate(&world.configured, totals, &world.settings, world.now).changed
    };
    assert_eq!([999, 1, 1].map(&mut repeated), [false, true, false]);
    assert!(world.endpoints[0].take(balance::ConcurrencyCap::None, Time::ZERO));
    assert!(!repeated(1_000), "it is in flight");
}

#[test]
fn failed_half_open_trial_doubles_the_ejection_time() {
    let mut world = World::new(passive());
    world.run(&Step::Attempts {
        endpoint: 0,
        end: AttemptResult::ConnectionBroken,
        count: 5,
        began: 0,
    });
    world.run(&Step::Wait(30_000));
    world.run(&Step::Attempts { endpoint: 0, end: AttemptResult::TimedOut, count: 1, began: 0 });
    let until = world.now + Duration::from_secs(60);
    assert_eq!(world.ejection_state(0), Some(EjectionState::Ejected { until }));
}

/// The connections of an endpoint break when it dies, and the process that returns may be another
/// one.
#[test]
fn an_unreachable_endpoint_is_not_ejected() {
    let mut world = World::new(passive());
    let broken =
        Step::Attempts { endpoint: 0, end: AttemptResult::ConnectionBroken, count: 5, began: 0 };
    world.run(&broken);
    assert!(matches!(world.ejection_state(0), Some(EjectionState::Ejected { .. })));
    assert!(world.endpoints[0].mark_unreachable(world.now));
    world.run(&Step::Wait(1));
    assert_eq!(world.ejection_state(0), Some(EjectionState::Serving), "it is ejected no longer");
    world.run(&broken);
    assert_eq!(
        world.ejection_state(0),
        Some(EjectionState::Serving),
        "it is not ejected meanwhile"
    );
    assert!(world.endpoints[0].mark_reachable(world.now));
    world.run(&Step::Wait(1));
    assert_eq!(world.ejection_state(0), Some(EjectionState::Serving), "it starts without failures");
    world.run(&broken);
    assert!(
        matches!(world.ejection_state(0), Some(EjectionState::Ejected { .. })),
        "it is reachable and fails"
    );
}

#[test]
fn timeouts_from_before_the_ejection_are_ignored_after_return() {
    let mut world = World::new(passive());
    world.run(&Step::Attempts {
        endpoint: 0,
        end: AttemptResult::TimedOut,
        count: 5,
        began: 5_000,
    });
    world.run(&Step::Wait(30_000));
    world.run(&Step::Attempts { endpoint: 0, end: AttemptResult::Success, count: 1, began: 0 });
    assert_eq!(world.ejection_state(0), Some(EjectionState::Serving));
    world.run(&Step::Attempts {
        endpoint: 0,
        end: AttemptResult::TimedOut,
        count: 50,
        began: 30_001,
    });
    assert_eq!(world.ejection_state(0), Some(EjectionState::Serving));
}

#[test]
fn fifth_consecutive_failure_requests_a_health_evaluation() {
    let world = World::new(passive());
    let learn = |end| {
        let outcome = Outcome { started: world.now, head_after: None, result: end };
        world.endpoints[0].health.learn(&outcome, &world.settings)
    };
    assert_eq!([AttemptResult::ConnectionBroken; 5].map(learn), [false, false, false, false, true]);
    assert!(!learn(AttemptResult::Success), "a success at a serving endpoint changes nothing");
}

fn suspect_all(world: &mut World, until: Time) {
    let until = world.endpoints.iter().map(|it| (it.address, until)).collect();
    assert!(world.evaluator.suspect(&until, world.now));
}

#[test]
fn suspected_endpoint_is_ejected_by_three_failures_of_five() {
    let mut world = World::new(passive());
    let failures = |endpoint, count| {
        let end = AttemptResult::ConnectionBroken;
        Step::Attempts { endpoint, end, count, began: 0 }
    };
    let ejected = |world: &World, endpoint| {
        matches!(world.ejection_state(endpoint), Some(EjectionState::Ejected { .. }))
    };
    world.run(&failures(0, 3));
    assert!(!ejected(&world, 0), "it is not suspected");
    let until = world.now + Duration::from_secs(3);
    suspect_all(&mut world, until);
    world.run(&failures(1, 2));
    assert!(ejected(&world, 0) && !ejected(&world, 1));
    assert!(world.evaluator.is_pending());
    // That is no observation of this replica alone, unlike the next one.
    assert_eq!(world.evaluator.own_ejections().count(), 0);
    world.run(&failures(2, 5));
    let own: Vec<_> = world.evaluator.own_ejections().collect();
    assert_eq!(own, [world.endpoints[2].address]);
    // The suspicion ends.
    world.run(&Step::Wait(3_000));
    world.run(&failures(3, 4));
    assert!(!ejected(&world, 3));
}

#[test]
fn suspicion_alone_ejects_nothing() {
    let mut world = World::new(passive());
    let until = world.now + Duration::from_secs(60);
    for endpoint in 0..ENDPOINTS {
        // A failure now and then, between successes.
        for end in [AttemptResult::ServerError, AttemptResult::Success] {
            suspect_all(&mut world, until);
            world.run(&Step::Attempts { endpoint, end, count: 1, began: 0 });
        }
    }
    world.run(&Step::Wait(1));
    assert!(world.statuses().iter().all(|(it, _)| it.ejection == EjectionState::Serving));
    // All fail: as without a suspicion, half of them stay.
    for endpoint in 0..ENDPOINTS {
        let end = AttemptResult::ServerError;
        world.run(&Step::Attempts { endpoint, end, count: 9, began: 0 });
    }
    let statuses = world.statuses();
    let serving = statuses.iter().filter(|(it, _)| it.ejection == EjectionState::Serving);
    assert_eq!(serving.count(), ENDPOINTS - ENDPOINTS / 2);
}

#[test]
fn suspected_endpoint_is_probed_at_once() {
    let settings = HealthSettings { active: Some(ActiveSettings::default()), ..passive() };
    let mut world = World::new(settings);
    world.probe(|_| ProbeResult::Good);
    let until = world.now + Duration::from_secs(3);
    suspect_all(&mut world, until);
    let totals = |endpoint: &Endpoint<usize>| world.totals[endpoint.data];
    for expected in [ENDPOINTS, 0] {
        let (settings, rng) = (&world.settings, &mut world.rng);
        let due = world.evaluator.due_probes(&world.configured, totals, settings, world.now, rng);
        // The second time, each is under way.
        assert_eq!(due.len(), expected);
    }
}
