//! Demand compared with a count by hand.

use proptest::prelude::*;

use super::*;

const fn second(seconds: u64) -> Time {
    Time::from_nanos(seconds * 1_000_000_000)
}

fn ms(millis: u64) -> Time {
    Time::from_nanos(millis * 1_000_000)
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// One worker, and the averager that reads it.
struct DemandFixture {
    shard: DemandShard,
    shed: RejectedDemand,
    averager: DemandAverager,
}

impl DemandFixture {
    fn new(at: Time) -> Self {
        Self {
            shard: DemandShard::new(),
            shed: RejectedDemand::new(),
            averager: DemandAverager::new(at),
        }
    }

    fn look(&mut self, at: Time) {
        let mut totals = self.shed.read(at);
        totals += self.shard.read().expect("no change is in progress");
        self.averager.record(at, totals);
    }

    fn look_until(&mut self, from: u64, to: u64) {
        (from..=to).for_each(|at| self.look(second(at)));
    }
}

fn near(demand: RequestDemand, expected: [f64; 3]) {
    let RequestDemand { in_flight, queued, rejected: shed } = demand;
    for (found, expected) in [in_flight, queued, shed].into_iter().zip(expected) {
        assert!((found - expected).abs() < 1e-9, "{demand:?}, expected {expected:?}");
    }
}

#[test]
fn request_between_two_readings_counts_for_its_duration() {
    let mut fixture = DemandFixture::new(second(100));
    // Between two readings, so no sample would have seen it.
    fixture.shard.wait(ms(100_200));
    fixture.shard.grant(ms(100_500));
    fixture.shard.give_back(ms(100_500), ms(100_900));
    fixture.look(second(101));
    near(fixture.averager.request_seconds(), [0.4, 0.3, 0.0]);
    near(fixture.averager.average(WINDOW), [0.4, 0.3, 0.0]);
    near(fixture.averager.present(), [0.0; 3]);
    assert_eq!(fixture.averager.service_time(), Some(millis(400)));
}

#[test]
fn running_request_counts_from_its_start() {
    let mut fixture = DemandFixture::new(second(0));
    fixture.shard.take(ms(500));
    fixture.look(second(1));
    near(fixture.averager.average(WINDOW), [0.5, 0.0, 0.0]);
    fixture.look_until(2, 30);
    near(fixture.averager.average(WINDOW), [1.0, 0.0, 0.0]);
    near(fixture.averager.average(millis(1_000)), [1.0, 0.0, 0.0]);
    near(fixture.averager.average(LONGEST_WINDOW), [29.5 / 30.0, 0.0, 0.0]);
}

#[test]
fn request_that_leaves_the_queue_counts_for_its_wait() {
    let mut fixture = DemandFixture::new(second(0));
    fixture.shard.wait(second(1));
    fixture.shard.abandon(second(3));
    fixture.look(second(4));
    near(fixture.averager.request_seconds(), [0.0, 2.0, 0.0]);
    assert_eq!(fixture.averager.service_time(), None);
}

#[test]
fn average_excludes_demand_before_the_window() {
    let mut fixture = DemandFixture::new(second(0));
    (0..10).for_each(|_| fixture.shard.take(second(0)));
    fixture.look_until(1, 20);
    (0..10).for_each(|_| fixture.shard.give_back(second(0), second(20)));
    fixture.look_until(21, 27);
    near(fixture.averager.average(WINDOW), [80.0 / 15.0, 0.0, 0.0]);
    assert!(fixture.averager.is_active(WINDOW, 0.0) && !fixture.averager.is_active(WINDOW, 6.0));
    fixture.look_until(28, 34);
    assert!(fixture.averager.is_active(WINDOW, 0.0), "a second of it is in the window");
    fixture.look(second(35));
    near(fixture.averager.average(WINDOW), [0.0; 3]);
    assert!(!fixture.averager.is_active(WINDOW, 0.0));
}

#[test]
fn first_queued_request_activates_immediately() {
    let mut fixture = DemandFixture::new(second(0));
    fixture.look_until(1, 5);
    assert!(!fixture.averager.is_active(WINDOW, 0.0));
    fixture.shard.wait(ms(5_100));
    fixture.look(ms(5_100));
    assert!(fixture.averager.is_active(WINDOW, 0.0));
    assert!(!fixture.averager.is_active(WINDOW, 0.5), "the average is below the threshold");
}

#[test]
fn average_is_exact_beyond_the_kept_readings() {
    let mut fixture = DemandFixture::new(second(0));
    fixture.shard.take(second(0));
    fixture.look_until(1, 10_000);
    assert!(fixture.averager.readings.len() <= 63, "{}", fixture.averager.readings.len());
    near(fixture.averager.average(LONGEST_WINDOW), [1.0, 0.0, 0.0]);
    near(fixture.averager.request_seconds(), [10_000.0, 0.0, 0.0]);
}

#[test]
fn request_seconds_do_not_wrap() {
    // 2^64 request-nanoseconds are 213 days of 1,000 requests.
    let mut fixture = DemandFixture::new(second(0));
    (0..1_000).for_each(|_| fixture.shard.take(second(0)));
    let day = 86_400;
    (1..=300).for_each(|at| fixture.look(second(at * day)));
    near(fixture.averager.average(WINDOW), [1_000.0, 0.0, 0.0]);
    assert_eq!(fixture.averager.request_seconds().in_flight, 300.0 * day as f64 * 1_000.0);
}

#[test]
fn late_reported_end_is_subtracted_from_request_seconds() {
    let mut fixture = DemandFixture::new(second(0));
    fixture.shard.take(second(0));
    fixture.look(ms(10_001));
    // The request ended before the reading, but its worker had not yet reported it.
    fixture.shard.give_back(second(0), second(10));
    fixture.look(second(11));
    near(fixture.averager.request_seconds(), [10.0, 0.0, 0.0]);
}

#[test]
fn rejected_clients_that_retry_at_once_count_once_each() {
    let mut fixture = DemandFixture::new(second(0));
    let mut counted: Vec<Time> = vec![Time::ZERO; 36];
    // 36 clients, rejected every 10 ms for 40 seconds, while others are served within 340 ms:
    // 144,000 rejections.
    for step in 0..4_000 {
        let at = ms(step * 10);
        for until in &mut counted {
            fixture.shed.record_retry(*until, at);
            *until = fixture.shed.reject(at, millis(340));
        }
        fixture.look(at);
    }
    near(fixture.averager.average(WINDOW), [0.0, 0.0, 36.0]);
    assert_eq!(fixture.averager.rejected_requests(), 144_000);
    // The clients have gone: each counts for the rest of its service time, and no longer.
    fixture.look(second(41));
    let rest = fixture.averager.request_seconds().rejected - 36.0 * 39.99;
    assert!((rest - 36.0 * 0.34).abs() < 1e-6, "{rest}");
}

#[test]
fn rejected_clients_without_retry_count_for_one_service_time() {
    let mut fixture = DemandFixture::new(second(0));
    // 100 a second, each from another client, where requests take 2 s: 200 more would have had
    // slots.
    for step in 0..4_000 {
        fixture.shed.reject(ms(step * 10), millis(2_000));
        fixture.look(ms(step * 10));
    }
    let demand = fixture.averager.average(WINDOW);
    assert!((demand.rejected - 200.0).abs() < 0.5, "{demand:?}");
}

#[test]
fn rejected_request_counts_for_at_most_sixty_seconds() {
    let mut fixture = DemandFixture::new(second(0));
    let until = fixture.shed.reject(second(5), Duration::MAX);
    assert_eq!(until, second(65));
    fixture.look_until(1, 100);
    near(fixture.averager.request_seconds(), [0.0, 0.0, 60.0]);
    let until = fixture.shed.reject(second(100), Duration::ZERO);
    fixture.shed.record_retry(until, second(100));
    fixture.look(second(101));
    near(fixture.averager.request_seconds(), [0.0, 0.0, 60.0]);
}

#[test]
fn service_time_follows_completed_requests() {
    let mut fixture = DemandFixture::new(second(0));
    let mut at = 0;
    let mut serve = |fixture: &mut DemandFixture, took: u64, seconds: u64| {
        for _ in 0..seconds * 10 {
            at += 100;
            fixture.shard.take(ms(at - took));
            fixture.shard.give_back(ms(at - took), ms(at));
            fixture.look(ms(at));
        }
    };
    serve(&mut fixture, 50, 300);
    let before = fixture.averager.service_time().unwrap();
    assert!(before.abs_diff(millis(50)) < millis(1), "{before:?}");
    serve(&mut fixture, 90, 30);
    let half = fixture.averager.service_time().unwrap();
    assert!(half.abs_diff(millis(70)) < millis(1), "{half:?}");
}

/// One step of a test; it happens after a number of milliseconds.
#[derive(Clone, Copy, Debug)]
enum Step {
    Take,
    Wait,
    /// Grants a slot to the queued request at this index, modulo their number.
    Grant(usize),
    Leave(usize),
    GiveBack(usize),
    Refuse(u64),
    AskAgain(usize),
    Look,
}

fn step() -> impl Strategy<Value = (u64, Step)> {
    let which = any::<usize>;
    let step = prop_oneof![
        3 => Just(Step::Take),
        2 => Just(Step::Wait),
        2 => which().prop_map(Step::Grant),
        1 => which().prop_map(Step::Leave),
        3 => which().prop_map(Step::GiveBack),
        3 => (0_u64..70_000).prop_map(Step::Refuse),
        2 => which().prop_map(Step::AskAgain),
        3 => Just(Step::Look),
    ];
    (prop_oneof![0_u64..20, 0_u64..5_000], step)
}

/// Begin of a request, and its end if it has ended.
type Span = (u64, Option<u64>);

/// Every request of a test.
#[derive(Default)]
struct Model {
    in_flight: Vec<Span>,
    queued: Vec<Span>,
    /// Each with the end that is predicted or has come.
    shed: Vec<(u64, u64)>,
}

fn open(spans: &[Span], which: usize) -> Option<usize> {
    let open: Vec<usize> = (0..spans.len()).filter(|&it| spans[it].1.is_none()).collect();
    Some(*open.get(which % open.len().max(1))?)
}

fn sum(spans: &[Span], now: u64) -> f64 {
    spans.iter().map(|(begin, end)| end.unwrap_or(now) - begin).sum::<u64>() as f64 / 1e3
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn request_seconds_match_a_model_of_every_request(
        steps in proptest::collection::vec(step(), 1..200),
    ) {
        let mut now = 12_345;
        let mut fixture = DemandFixture::new(ms(now));
        let mut model = Model::default();
        for (after, step) in steps {
            now += after;
            let at = ms(now);
            match step {
                Step::Take => {
                    fixture.shard.take(at);
                    model.in_flight.push((now, None));
                }
                Step::Wait => {
                    fixture.shard.wait(at);
                    model.queued.push((now, None));
                }
                Step::Grant(which) => if let Some(it) = open(&model.queued, which) {
                    fixture.shard.grant(at);
                    model.queued[it].1 = Some(now);
                    model.in_flight.push((now, None));
                },
                Step::Leave(which) => if let Some(it) = open(&model.queued, which) {
                    fixture.shard.abandon(at);
                    model.queued[it].1 = Some(now);
                },
                Step::GiveBack(which) => if let Some(it) = open(&model.in_flight, which) {
                    fixture.shard.give_back(ms(model.in_flight[it].0), at);
                    model.in_flight[it].1 = Some(now);
                },
                Step::Refuse(took) => {
                    let until = fixture.shed.reject(at, millis(took));
                    model.shed.push((now, until.as_nanos() / 1_000_000));
                }
                Step::AskAgain(which) => {
                    let counting: Vec<usize> =
                        (0..model.shed.len()).filter(|&it| model.shed[it].1 > now).collect();
                    if let Some(&it) = counting.get(which % counting.len().max(1)) {
                        fixture.shed.record_retry(ms(model.shed[it].1), at);
                        model.shed[it].1 = now;
                    }
                }
                Step::Look => fixture.look(at),
            }
        }
        fixture.look(ms(now));
        let found = fixture.averager.request_seconds();
        prop_assert!((found.in_flight - sum(&model.in_flight, now)).abs() < 1e-6);
        prop_assert!((found.queued - sum(&model.queued, now)).abs() < 1e-6);
        let shed = model.shed.iter().map(|(begin, end)| end.min(&now) - begin).sum::<u64>();
        // Requests of the bucket that contains the current time may count for part of a bucket
        // more.
        let unsure = model.shed.iter().filter(|(_, end)| end / 250 == now / 250).count();
        let more = found.rejected - shed as f64 / 1e3;
        prop_assert!(more > -1e-6 && more <= unsure as f64 * 0.25 + 1e-6, "{more} of {unsure}");
        // When every bucket has expired, the sums are exact.
        now += 61_000;
        fixture.look(ms(now));
        let shed = model.shed.iter().map(|(begin, end)| end - begin).sum::<u64>();
        prop_assert!((fixture.averager.request_seconds().rejected - shed as f64 / 1e3).abs() < 1e-6);
        prop_assert!(fixture.averager.present().rejected == 0.0);
    }
}
