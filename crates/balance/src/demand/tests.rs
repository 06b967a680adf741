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
    meter: DemandAverager,
}

impl DemandFixture {
    fn new(at: Time) -> Self {
        Self {
            shard: DemandShard::new(),
            shed: RejectedDemand::new(),
            meter: DemandAverager::new(at),
        }
    }

    fn look(&mut self, at: Time) {
        let mut totals = self.shed.read(at);
        totals += self.shard.read().expect("no change is in progress");
        self.meter.record(at, totals);
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
    let mut place = DemandFixture::new(second(100));
    // Between two readings, so no sample would have seen it.
    place.shard.wait(ms(100_200));
    place.shard.grant(ms(100_500));
    place.shard.give_back(ms(100_500), ms(100_900));
    place.look(second(101));
    near(place.meter.request_seconds(), [0.4, 0.3, 0.0]);
    near(place.meter.average(WINDOW), [0.4, 0.3, 0.0]);
    near(place.meter.present(), [0.0; 3]);
    assert_eq!(place.meter.service_time(), Some(millis(400)));
}

#[test]
fn running_request_counts_from_its_start() {
    let mut place = DemandFixture::new(second(0));
    place.shard.take(ms(500));
    place.look(second(1));
    near(place.meter.average(WINDOW), [0.5, 0.0, 0.0]);
    place.look_until(2, 30);
    near(place.meter.average(WINDOW), [1.0, 0.0, 0.0]);
    near(place.meter.average(millis(1_000)), [1.0, 0.0, 0.0]);
    near(place.meter.average(LONGEST_WINDOW), [29.5 / 30.0, 0.0, 0.0]);
}

#[test]
fn request_that_leaves_the_queue_counts_for_its_wait() {
    let mut place = DemandFixture::new(second(0));
    place.shard.wait(second(1));
    place.shard.abandon(second(3));
    place.look(second(4));
    near(place.meter.request_seconds(), [0.0, 2.0, 0.0]);
    assert_eq!(place.meter.service_time(), None);
}

#[test]
fn average_excludes_demand_before_the_window() {
    let mut place = DemandFixture::new(second(0));
    (0..10).for_each(|_| place.shard.take(second(0)));
    place.look_until(1, 20);
    (0..10).for_each(|_| place.shard.give_back(second(0), second(20)));
    place.look_until(21, 27);
    near(place.meter.average(WINDOW), [80.0 / 15.0, 0.0, 0.0]);
    assert!(place.meter.is_active(WINDOW, 0.0) && !place.meter.is_active(WINDOW, 6.0));
    place.look_until(28, 34);
    assert!(place.meter.is_active(WINDOW, 0.0), "a second of it is in the window");
    place.look(second(35));
    near(place.meter.average(WINDOW), [0.0; 3]);
    assert!(!place.meter.is_active(WINDOW, 0.0));
}

#[test]
fn first_queued_request_activates_immediately() {
    let mut place = DemandFixture::new(second(0));
    place.look_until(1, 5);
    assert!(!place.meter.is_active(WINDOW, 0.0));
    place.shard.wait(ms(5_100));
    place.look(ms(5_100));
    assert!(place.meter.is_active(WINDOW, 0.0));
    assert!(!place.meter.is_active(WINDOW, 0.5), "the average is below the threshold");
}

#[test]
fn average_is_exact_beyond_the_kept_readings() {
    let mut place = DemandFixture::new(second(0));
    place.shard.take(second(0));
    place.look_until(1, 10_000);
    assert!(place.meter.readings.len() <= 63, "{}", place.meter.readings.len());
    near(place.meter.average(LONGEST_WINDOW), [1.0, 0.0, 0.0]);
    near(place.meter.request_seconds(), [10_000.0, 0.0, 0.0]);
}

#[test]
fn request_seconds_do_not_wrap() {
    // 2^64 request-nanoseconds are 213 days of 1,000 requests.
    let mut place = DemandFixture::new(second(0));
    (0..1_000).for_each(|_| place.shard.take(second(0)));
    let day = 86_400;
    (1..=300).for_each(|at| place.look(second(at * day)));
    near(place.meter.average(WINDOW), [1_000.0, 0.0, 0.0]);
    assert_eq!(place.meter.request_seconds().in_flight, 300.0 * day as f64 * 1_000.0);
}

#[test]
fn late_reported_end_is_subtracted_from_request_seconds() {
    let mut place = DemandFixture::new(second(0));
    place.shard.take(second(0));
    place.look(ms(10_001));
    // The request ended before the reading, but its worker had not yet reported it.
    place.shard.give_back(second(0), second(10));
    place.look(second(11));
    near(place.meter.request_seconds(), [10.0, 0.0, 0.0]);
}

#[test]
fn rejected_clients_that_retry_at_once_count_once_each() {
    let mut place = DemandFixture::new(second(0));
    let mut counted: Vec<Time> = vec![Time::ZERO; 36];
    // 36 clients, rejected every 10 ms for 40 seconds, while others are served within 340 ms:
    // 144,000 rejections.
    for step in 0..4_000 {
        let at = ms(step * 10);
        for until in &mut counted {
            place.shed.record_retry(*until, at);
            *until = place.shed.reject(at, millis(340));
        }
        place.look(at);
    }
    near(place.meter.average(WINDOW), [0.0, 0.0, 36.0]);
    assert_eq!(place.meter.rejected_requests(), 144_000);
    // The clients have gone: each counts for the rest of its service time, and no longer.
    place.look(second(41));
    let rest = place.meter.request_seconds().rejected - 36.0 * 39.99;
    assert!((rest - 36.0 * 0.34).abs() < 1e-6, "{rest}");
}

#[test]
fn rejected_clients_without_retry_count_for_one_service_time() {
    let mut place = DemandFixture::new(second(0));
    // 100 a second, each from another client, where requests take 2 s: 200 more would have had
    // slots.
    for step in 0..4_000 {
        place.shed.reject(ms(step * 10), millis(2_000));
        place.look(ms(step * 10));
    }
    let demand = place.meter.average(WINDOW);
    assert!((demand.rejected - 200.0).abs() < 0.5, "{demand:?}");
}

#[test]
fn rejected_request_counts_for_at_most_sixty_seconds() {
    let mut place = DemandFixture::new(second(0));
    let until = place.shed.reject(second(5), Duration::MAX);
    assert_eq!(until, second(65));
    place.look_until(1, 100);
    near(place.meter.request_seconds(), [0.0, 0.0, 60.0]);
    let until = place.shed.reject(second(100), Duration::ZERO);
    place.shed.record_retry(until, second(100));
    place.look(second(101));
    near(place.meter.request_seconds(), [0.0, 0.0, 60.0]);
}

#[test]
fn service_time_follows_completed_requests() {
    let mut place = DemandFixture::new(second(0));
    let mut at = 0;
    let mut serve = |place: &mut DemandFixture, took: u64, seconds: u64| {
        for _ in 0..seconds * 10 {
            at += 100;
            place.shard.take(ms(at - took));
            place.shard.give_back(ms(at - took), ms(at));
            place.look(ms(at));
        }
    };
    serve(&mut place, 50, 300);
    let before = place.meter.service_time().unwrap();
    assert!(before.abs_diff(millis(50)) < millis(1), "{before:?}");
    serve(&mut place, 90, 30);
    let half = place.meter.service_time().unwrap();
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
        let mut place = DemandFixture::new(ms(now));
        let mut model = Model::default();
        for (after, step) in steps {
            now += after;
            let at = ms(now);
            match step {
                Step::Take => {
                    place.shard.take(at);
                    model.in_flight.push((now, None));
                }
                Step::Wait => {
                    place.shard.wait(at);
                    model.queued.push((now, None));
                }
                Step::Grant(which) => if let Some(it) = open(&model.queued, which) {
                    place.shard.grant(at);
                    model.queued[it].1 = Some(now);
                    model.in_flight.push((now, None));
                },
                Step::Leave(which) => if let Some(it) = open(&model.queued, which) {
                    place.shard.abandon(at);
                    model.queued[it].1 = Some(now);
                },
                Step::GiveBack(which) => if let Some(it) = open(&model.in_flight, which) {
                    place.shard.give_back(ms(model.in_flight[it].0), at);
                    model.in_flight[it].1 = Some(now);
                },
                Step::Refuse(took) => {
                    let until = place.shed.reject(at, millis(took));
                    model.shed.push((now, until.as_nanos() / 1_000_000));
                }
                Step::AskAgain(which) => {
                    let counting: Vec<usize> =
                        (0..model.shed.len()).filter(|&it| model.shed[it].1 > now).collect();
                    if let Some(&it) = counting.get(which % counting.len().max(1)) {
                        place.shed.record_retry(ms(model.shed[it].1), at);
                        model.shed[it].1 = now;
                    }
                }
                Step::Look => place.look(at),
            }
        }
        place.look(ms(now));
        let found = place.meter.request_seconds();
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
        place.look(ms(now));
        let shed = model.shed.iter().map(|(begin, end)| end - begin).sum::<u64>();
        prop_assert!((place.meter.request_seconds().rejected - shed as f64 / 1e3).abs() < 1e-6);
        prop_assert!(place.meter.present().rejected == 0.0);
    }
}
