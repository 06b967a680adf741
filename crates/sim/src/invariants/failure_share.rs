//! Check that an endpoint which fails or refuses at once attracts no requests, though it has the
//! least load.

use std::net::SocketAddr;
use std::time::Duration;

use balance::{
    Admission, AdmissionLimits, AttemptResult, ConcurrencyCap, EndpointRegistry, EndpointSet,
    Outcome, PickRequest, Picker, Queue, SetMember, Time,
};

use crate::event_queue::EventQueue;
use crate::invariants::final_state::DEVIATIONS;
use crate::plan::BackendPlan;
use crate::random::{RandomSource, ServiceVariance};

const SERVICE: Duration = Duration::from_millis(10);
/// Time until the endpoint fails.
const FAILS_AFTER: Duration = Duration::from_micros(100);
const REQUESTS: u32 = 2_000;
/// Time before which requests are not counted: pickers avoid failures once they have seen some.
const WARMING_UP: Duration = Duration::from_millis(200);
/// Multiple of its share that the endpoint may get, apart from chance.
const MOST: f64 = 1.25;

/// Checks that an endpoint which fails or refuses at once gets no more than its share of the
/// requests, while the others serve.
pub(crate) fn failures_attract_nothing(
    plan: &BackendPlan,
    workers: usize,
    dice: &mut RandomSource,
) {
    if plan.weights.len() < 2 {
        return;
    }
    let scenario = FailureScenario {
        set: endpoints(&plan.weights),
        failing: dice.below(plan.weights.len()),
        end: if dice.percent(50) {
            AttemptResult::ServerError
        } else {
            AttemptResult::Refused { retry_after: None }
        },
        percent: dice.between(60, 100),
        gap: SERVICE / dice.between(5, 50),
    };
    let pickers = (0..workers).map(|_| Picker::new(plan.algorithm, dice.seed())).collect();
    let (picked, of) = scenario.run(pickers, dice);
    let total: u32 = plan.weights.iter().sum();
    let share = f64::from(plan.weights[scenario.failing]) / f64::from(total);
    let expected = f64::from(of) * share;
    // Each worker may be one request ahead.
    let chance = DEVIATIONS * (expected * (1.0 - share)).sqrt() + workers as f64;
    let most = expected * MOST + chance;
    assert!(f64::from(picked) <= most, "{picked} of {of} go to a share of {share}: {scenario:?}");
}

/// Scenario: requests at even intervals to endpoints that serve any number at a time.
#[derive(Debug)]
struct FailureScenario {
    set: EndpointSet<usize>,
    failing: usize,
    /// Result of `percent` of the requests at the failing endpoint.
    end: AttemptResult,
    percent: u32,
    gap: Duration,
}

/// Attempt that has ended.
struct FinishedAttempt {
    server: usize,
    outcome: Outcome,
    /// Requests in flight at its begin.
    level: u32,
}

impl FailureScenario {
    /// Returns the number of requests that the failing endpoint gets, and the number of all.
    fn run(&self, mut pickers: Vec<Picker>, dice: &mut RandomSource) -> (u32, u32) {
        let admission = Admission::new();
        let mut queue =
            Queue::<_, ()>::new(EndpointSet::empty().into(), AdmissionLimits::default());
        let mut events = EventQueue::new();
        let start = Time::ZERO + Duration::from_secs(1);
        let (mut picked, mut of) = (0, 0);
        for request in 0..REQUESTS {
            let now = start + self.gap * request;
            while let Some((at, FinishedAttempt { server, outcome, level })) =
                events.next_until(now)
            {
                let endpoint = &self.set.members()[server].endpoint;
                endpoint.learn(&outcome, at);
                if let AttemptResult::Refused { retry_after } = outcome.result {
                    endpoint.record_refusal(level, retry_after, at);
                }
                admission.release(endpoint, || at, || &mut queue);
            }
            let worker = dice.below(pickers.len());
            let pick = PickRequest { now, ..PickRequest::default() };
            let endpoint = pickers[worker]
                .take(&self.set, ConcurrencyCap::None, &pick)
                .expect("there is no cap");
            let server = endpoint.data;
            let counts = now.saturating_since(start) >= WARMING_UP;
            of += u32::from(counts);
            picked += u32::from(counts && server == self.failing);
            let fails = server == self.failing && dice.percent(self.percent);
            let (end, takes) = match fails {
                true => (self.end, FAILS_AFTER),
                false => (
                    AttemptResult::Success,
                    SERVICE.mul_f64(dice.service_factor(ServiceVariance::Exponential)),
                ),
            };
            let outcome = Outcome { started: now, head_after: Some(takes), result: end };
            events.schedule(
                now + takes,
                FinishedAttempt { server, outcome, level: endpoint.in_flight() },
            );
        }
        (picked, of)
    }
}

fn endpoints(weights: &[u32]) -> EndpointSet<usize> {
    let mut registry = EndpointRegistry::new();
    let address = |server: usize| SocketAddr::from(([10, 0, 0, 3], server as u16));
    let member = |(server, &weight): (usize, &u32)| {
        SetMember::new(registry.endpoint(address(server), || server), weight)
    };
    EndpointSet::new(weights.iter().enumerate().map(member).collect())
}
