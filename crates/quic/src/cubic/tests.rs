//! The window compared with the formulas of RFC 9438, and invariants that hold for any input.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const ROUND: Duration = Duration::from_millis(100);
const DATAGRAM: u16 = 1200;

/// A path on which a whole window is sent at the beginning of a round and acknowledged at its end.
struct Path {
    cubic: Cubic,
    now: Instant,
}

impl Path {
    fn new() -> Self {
        Self { cubic: Cubic::new(DATAGRAM), now: crate::tests::now() }
    }

    /// Creates a path with a window of `datagrams`, in which a datagram was just lost.
    fn lost_at(datagrams: f64) -> Self {
        let mut path = Self::new();
        path.cubic.window = datagrams * f64::from(DATAGRAM);
        path.lose();
        path
    }

    /// Runs rounds without a loss.
    fn run(&mut self, rounds: u32) -> &mut Self {
        for _ in 0..rounds {
            let (sent, window) = (self.now, self.cubic.window);
            self.now += ROUND;
            for _ in 0..window as u64 / u64::from(DATAGRAM) {
                self.cubic.acknowledged(self.now, sent, DATAGRAM.into(), ROUND);
            }
        }
        self
    }

    /// Acknowledges one datagram alone, with `smoothed` as the library's round-trip estimate.
    fn hear_of(&mut self, sent: Instant, smoothed: Duration) -> &mut Self {
        self.cubic.observe_newest_ack(self.now - sent, smoothed);
        self.cubic.acknowledged(self.now, sent, DATAGRAM.into(), smoothed);
        self.cubic.acknowledgement_ends();
        self
    }

    /// Returns the limit in flight, in windows.
    fn windows(&self) -> f64 {
        self.cubic.max_in_flight() / self.cubic.window
    }

    /// Loses a datagram that was sent just before.
    fn lose(&mut self) -> &mut Self {
        let sent = self.now;
        self.now += Duration::from_millis(1);
        self.cubic.reduce_window(self.now, sent);
        self.now += Duration::from_millis(1);
        self
    }

    fn datagrams(&self) -> f64 {
        self.cubic.window / f64::from(DATAGRAM)
    }
}

#[track_caller]
fn near(seen: f64, expected: f64, tolerance: f64) {
    assert!((seen - expected).abs() <= tolerance, "{seen}, not {expected}");
}

#[test]
fn slow_start_begins_with_ten_datagrams_and_doubles() {
    near(Path::new().datagrams(), 10.0, 0.0);
    near(Path::new().run(3).datagrams(), 80.0, 0.0);
    assert_eq!(Cubic::new(1200).initial_window(), 12_000);
    assert_eq!(Cubic::new(1500).initial_window(), 14_720);
    assert_eq!(Cubic::new(9000).initial_window(), 18_000);
}

#[test]
fn loss_reduces_the_window_by_thirty_percent_once_per_round_trip() {
    let mut path = Path::new();
    path.run(3);
    let sent = path.now;
    path.lose();
    near(path.datagrams(), 56.0, 0.01);
    // Another loss in the same round.
    path.cubic.reduce_window(path.now, sent);
    near(path.datagrams(), 56.0, 0.01);
    // A loss in the next round.
    path.lose();
    near(path.datagrams(), 39.2, 0.01);
}

#[test]
fn acks_of_data_sent_before_the_reduction_do_not_grow_the_window() {
    let mut path = Path::new();
    let sent = path.now;
    path.lose();
    path.cubic.acknowledged(path.now, sent, 12_000, ROUND);
    near(path.datagrams(), 7.0, 0.01);
}

#[test]
fn window_follows_the_cubic_curve() {
    for most in [300.0, 1000.0, 5000.0] {
        let mut path = Path::lost_at(most);
        let k = (most * 0.3 / 0.4_f64).cbrt();
        for round in 1..=2 * (k / 0.1) as u32 {
            path.run(1);
            // The first acknowledgement begins the growth; the window aims at the curve one round later.
            let seconds = f64::from(round) * 0.1;
            let expected = 0.4 * (seconds - k).powi(3) + most;
            near(path.datagrams() / expected, 1.0, 0.02);
        }
    }
}

#[test]
fn small_window_grows_like_reno() {
    let mut path = Path::lost_at(20.0);
    near(path.datagrams(), 14.0, 0.01);
    // The window grows by 3 * (1 - 0.7) / (1 + 0.7) datagrams a round, until it is back at its old size.
    path.run(5);
    near(path.datagrams(), 14.0 + 5.0 * 0.529, 0.3);
    path.run(7);
    let before = path.datagrams();
    near(before, 20.0, 0.7);
    path.run(4);
    near(path.datagrams(), before + 4.0, 0.3);
}

#[test]
fn fast_convergence_lowers_the_plateau_after_an_early_loss() {
    let mut path = Path::lost_at(100.0);
    near(path.cubic.plateau / f64::from(DATAGRAM), 100.0, 0.01);
    path.run(1).lose();
    let second = path.cubic.prior_window;
    near(path.cubic.plateau, second * 0.85, 1.0);
    near(path.cubic.window, second * 0.7, 1.0);
}

#[test]
fn window_grows_immediately_after_two_consecutive_losses() {
    let mut path = Path::new();
    path.run(2).lose().run(1).lose();
    let least = path.datagrams();
    path.run(1);
    assert!(path.datagrams() > least + 0.4, "{least}, then {}", path.datagrams());
    path.run(3);
    assert!(path.datagrams() > least + 1.9, "{least}, then {}", path.datagrams());
}

#[test]
fn minimum_window_is_two_datagrams() {
    let mut path = Path::new();
    for _ in 0..20 {
        path.lose();
    }
    near(path.datagrams(), 2.0, 0.0);
    path.run(10);
    assert!(path.datagrams() > 6.0, "{}", path.datagrams());
}

#[test]
fn persistent_congestion_restarts_at_two_datagrams() {
    let mut path = Path::new();
    path.run(3);
    let sent = path.now;
    path.now += ROUND;
    path.cubic.on_congestion_event(path.now, sent, true, 0);
    near(path.datagrams(), 2.0, 0.0);
    path.now += ROUND;
    path.run(4);
    near(path.datagrams(), 32.0, 0.0);
    // Slow start up to 0.7 of the old window, which is the new plateau, then slow growth.
    path.run(1);
    near(path.datagrams(), 56.0, 1.0);
    path.run(1);
    near(path.datagrams(), 56.5, 1.0);
    near(path.cubic.growth.unwrap().k, 0.0, 0.0);
}

#[test]
fn persistent_congestion_applies_to_data_sent_before_a_reduction() {
    let mut path = Path::new();
    path.run(3);
    let sent = path.now;
    path.lose();
    path.cubic.on_congestion_event(path.now, sent, true, 0);
    near(path.datagrams(), 2.0, 0.0);
    near(path.cubic.slow_start_until / f64::from(DATAGRAM), 56.0, 0.01);
}

#[test]
fn application_limited_time_does_not_grow_the_window() {
    for rounds in [20, 90, 150] {
        let (mut busy, mut idle) = (Path::lost_at(1000.0), Path::lost_at(1000.0));
        busy.run(rounds);
        idle.run(rounds).cubic.pause_growth();
        near(idle.datagrams(), busy.datagrams(), 0.0);
        idle.now += Duration::from_secs(60);
        busy.run(10);
        // The round in which growth resumes counts for that much less.
        idle.run(11);
        near(idle.datagrams() / busy.datagrams(), 1.0, 0.002);
    }
}

#[test]
fn larger_mtu_raises_the_minimum_window() {
    let mut path = Path::lost_at(2.0);
    path.cubic.on_mtu_update(1452);
    assert_eq!(path.cubic.window(), 2904);
}

#[test]
fn mtu_increase_raises_the_initial_window_once() {
    let mut path = Path::new();
    path.run(1);
    let grown = path.cubic.window;
    for larger in [1336, 1404, 1438, 1472] {
        path.cubic.on_mtu_update(larger);
    }
    near(path.cubic.window, grown + 14_720.0 - 12_000.0, 0.0);
    path.cubic.on_mtu_update(1200);
    near(path.cubic.window, grown + 14_720.0 - 12_000.0, 0.0);
    // In congestion avoidance the window stays.
    let mut path = Path::lost_at(100.0);
    path.cubic.on_mtu_update(1472);
    near(path.cubic.window, 70.0 * f64::from(DATAGRAM), 0.001);
}

/// Returns the number of windows acknowledged in a second, for a fixed window of 30 datagrams. The receiver
/// acknowledges `at_a_time` datagrams together, and none later than `most_wait` after its arrival.
fn windows_a_second(at_a_time: usize, most_wait: Duration) -> f64 {
    const DATAGRAMS: f64 = 30.0;
    const SECONDS: u32 = 60;
    let mut path = Path::new();
    let begin = path.now;
    path.cubic.window = DATAGRAMS * f64::from(DATAGRAM);
    path.cubic.slow_start_until = 0.0;
    // The send times of datagrams in flight, and of those that have arrived.
    let (mut sent, mut arrived) = (VecDeque::new(), VecDeque::new());
    let mut acknowledged = 0.0;
    while path.now < begin + SECONDS * Duration::from_secs(1) {
        let room = path.cubic.window() / u64::from(DATAGRAM);
        if (sent.len() + arrived.len()) < room as usize {
            sent.push_back(path.now);
        }
        while sent.front().is_some_and(|at| *at + ROUND <= path.now) {
            arrived.extend(sent.pop_front());
        }
        let is_due = arrived.front().is_some_and(|at| *at + ROUND + most_wait <= path.now);
        if is_due || arrived.len() >= at_a_time {
            for at in arrived.drain(..) {
                path.cubic.acknowledged(path.now, at, DATAGRAM.into(), ROUND);
                acknowledged += 1.0;
            }
            // Growth of the window is not part of this test.
            path.cubic.window = DATAGRAMS * f64::from(DATAGRAM);
        }
        path.now += Duration::from_millis(1);
    }
    acknowledged / DATAGRAMS / f64::from(SECONDS)
}

#[test]
fn delayed_acks_do_not_reduce_the_growth_rate() {
    let at_once = windows_a_second(1, Duration::ZERO);
    near(at_once, 10.0, 0.2);
    near(windows_a_second(2, Duration::from_millis(25)), at_once, 0.6);
    near(windows_a_second(10, Duration::from_millis(25)), at_once, 0.6);
    // A longer delay is not compensated.
    let never = windows_a_second(usize::MAX, Duration::from_millis(200));
    assert!(never < at_once * 0.6, "{never}");
}

/// Returns the growth of the window per real round trip in slow start, when the library paces by the estimate
/// `smoothed`.
fn growth_in_a_round(smoothed: Duration) -> f64 {
    const ROUNDS: u32 = 6;
    let mut path = Path::new();
    let mut sent = VecDeque::new();
    let mut credit = 0.0;
    let mut grown = Vec::new();
    for step in 0..(ROUNDS + 4) * 1000 {
        if step % 1000 == 0 {
            grown.push(path.cubic.window);
        }
        let tick = ROUND / 1000;
        credit += 1.25 * path.cubic.max_in_flight() * tick.div_duration_f64(smoothed);
        while credit >= DATAGRAM.into()
            && (sent.len() as u64 + 1) * u64::from(DATAGRAM) <= path.cubic.window()
        {
            sent.push_back(path.now);
            credit -= f64::from(DATAGRAM);
        }
        while sent.front().is_some_and(|at| *at + ROUND <= path.now) {
            let at = sent.pop_front().unwrap();
            path.hear_of(at, smoothed);
        }
        path.now += tick;
    }
    // Skip the first rounds, in which the pipe is not full yet.
    (grown.last().unwrap() / grown[3]).powf(1.0 / f64::from(ROUNDS))
}

#[test]
fn slow_start_doubles_despite_pacing() {
    near(growth_in_a_round(ROUND), 2.0, 0.1);
    // The estimate is longer than the path's round trip because of the client's start-up time.
    near(growth_in_a_round(ROUND * 3 / 2), 2.0, 0.1);
    // A larger difference is not compensated.
    assert!(growth_in_a_round(ROUND * 4) < 1.8);
    // The initial window is no larger than the RFC allows.
    assert_eq!(Cubic::new(DATAGRAM).window(), 12_000);
}

#[test]
fn slow_start_does_not_fill_a_growing_queue() {
    let mut path = Path::new();
    let sent = path.now;
    path.now += ROUND * 2;
    near(path.hear_of(sent, ROUND).windows(), DOUBLING, 0.001);
}

#[test]
fn minimum_round_trip_ends_the_handshake_delay_compensation() {
    let mut path = Path::new();
    let sent = path.now;
    path.now += ROUND;
    near(path.hear_of(sent, ROUND * 4 / 3).windows(), DOUBLING * 4.0 / 3.0, 0.001);
    near(path.hear_of(sent, ROUND).windows(), DOUBLING, 0.001);
    // The estimate rises again on a path whose delay varies.
    near(path.hear_of(sent, ROUND * 2).windows(), DOUBLING, 0.001);
}

#[test]
fn application_limited_acks_update_the_round_trip() {
    let mut path = Path::new();
    let sent = path.now;
    path.now += ROUND;
    path.hear_of(sent, ROUND * 2);
    path.cubic.observe_newest_ack(ROUND, ROUND);
    path.cubic.pause_growth();
    path.cubic.acknowledgement_ends();
    near(path.windows(), DOUBLING, 0.001);
}

#[test]
fn newest_acked_packet_determines_the_round_trip() {
    let mut path = Path::new();
    for waited in [3, 2, 1] {
        path.cubic.observe_newest_ack(ROUND / 2 * waited, ROUND);
    }
    path.cubic.acknowledgement_ends();
    near(path.windows(), DOUBLING * 2.0, 0.001);
}

#[test]
fn window_is_two_datagrams_after_persistent_congestion() {
    let mut path = Path::new();
    let sent = path.now;
    path.now += ROUND;
    near(path.hear_of(sent, ROUND * 2).windows(), DOUBLING * 2.0, 0.001);
    path.cubic.on_congestion_event(path.now, sent, true, 0);
    assert!((2 * DATAGRAM + 1..3 * DATAGRAM).contains(&(path.cubic.window() as u16)));
}

#[test]
fn single_late_ack_hardly_changes_the_in_flight_bound() {
    let mut path = Path::lost_at(100.0);
    let sent = path.now;
    path.now += Duration::from_secs(60);
    path.cubic.acknowledged(path.now, sent, DATAGRAM.into(), ROUND);
    near(path.cubic.max_in_flight() / path.cubic.window, 1.0, 0.02);
    // The same holds for one without a round-trip estimate.
    path.cubic.acknowledged(path.now, sent, DATAGRAM.into(), Duration::ZERO);
    near(path.cubic.max_in_flight() / path.cubic.window, 1.0, 0.02);
}

/// An event on a path, some time after the one before.
#[derive(Clone, Debug)]
enum Event {
    Acknowledged { bytes: u64, smoothed: u64, is_last: bool },
    NotFilled,
    Congested { is_persistent: bool },
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        20 => (1..=1200_u64, 0..500_u64, prop::bool::ANY)
            .prop_map(|(bytes, smoothed, is_last)| Event::Acknowledged { bytes, smoothed, is_last }),
        2 => Just(Event::NotFilled),
        1 => prop::bool::weighted(0.1).prop_map(|is_persistent| Event::Congested { is_persistent }),
    ]
}

proptest! {
    #[test]
    fn window_stays_in_its_bounds(
        steps in prop::collection::vec((event(), 0..500_u64, 0..500_u64), 1..400),
    ) {
        let mut path = Path::new();
        // The window grows by no more than the acknowledged bytes.
        let mut most = path.cubic.window;
        for (event, passed, ago) in steps {
            path.now += Duration::from_millis(passed);
            let sent = path.now.checked_sub(Duration::from_millis(ago)).unwrap();
            let before = path.cubic.window;
            match event {
                Event::Acknowledged { bytes, smoothed, is_last } => {
                    let (wait, smoothed) = (Duration::from_millis(ago), Duration::from_millis(smoothed));
                    path.cubic.observe_newest_ack(wait, smoothed);
                    path.cubic.acknowledged(path.now, sent, bytes, smoothed);
                    if is_last {
                        path.cubic.acknowledgement_ends();
                    }
                    most += bytes as f64;
                    prop_assert!(path.cubic.window >= before);
                }
                Event::NotFilled => {
                    path.cubic.pause_growth();
                    prop_assert!(path.cubic.window == before);
                }
                Event::Congested { is_persistent } => {
                    path.cubic.on_congestion_event(path.now, sent, is_persistent, 0);
                    prop_assert!(path.cubic.window <= before);
                    if path.cubic.window < before {
                        most = path.cubic.window;
                    }
                    prop_assert!(!is_persistent || path.cubic.window == 2400.0);
                }
            }
            prop_assert!((2400.0..=most + 0.001).contains(&path.cubic.window));
            let stretch = path.windows();
            let is_slow_start = path.cubic.window < path.cubic.slow_start_until;
            let most = if is_slow_start { 2.0 * DOUBLING } else { MOST_STRETCH };
            prop_assert!((0.999..=most + 0.001).contains(&stretch), "{stretch}");
        }
    }
}
