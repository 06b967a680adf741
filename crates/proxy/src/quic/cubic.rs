//! CUBIC (RFC 9438), for `quinn-proto`: how much a connection may have under way.
//!
//! Its own starts the estimate of what Reno would do (§4.3) below the window after two losses in a row, and the window
//! then stands still for rounds, which costs much where packets get lost at random. See docs/internals/quic.md.

use std::any::Any;
use std::f64::consts::LN_2;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory};

/// What is left of the window after a loss, and how fast it grows back: per second, cubed, in datagrams.
const BETA: f64 = 0.7;
const C: f64 = 0.4;
/// Datagrams for each round by which Reno's window would grow, if it lost as little of it.
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// In a round the window grows to no more than so many times itself (§4.4).
const MOST_GROWTH: f64 = 1.5;
/// Datagrams with which a connection begins, and the bytes that they may have.
const FIRST_DATAGRAMS: f64 = 10.0;
const FIRST_BYTES: f64 = 14_720.0;
/// Datagrams that may be under way however much gets lost.
const LEAST_DATAGRAMS: f64 = 2.0;
/// Whoever receives may wait with acknowledging (RFC 9000 §13.2.1): a browser says one for ten datagrams, or after 25 ms.
/// What has arrived then still counts as under way. The window is for what the path carries in a round trip; so much more
/// may be under way, at most.
const MOST_STRETCH: f64 = 1.25;
/// Datagrams over which it is seen how long they wait.
const STRETCH_OVER: f64 = 64.0;
/// The library sends 1.25 windows in a round trip, evenly (RFC 9002 §7.7). By what has been acknowledged until then a window
/// grows 1.9 times a round; to double, as it is to in slow start (§7.3.1), takes 2 ln 2 of them.
const DOUBLING: f64 = 2.0 * LN_2 / 1.25;
/// The smoothed round trip, by which the library goes, begins with what a client takes to start: until it has come down
/// once to what the path takes, slow start makes up for it, so many times at most.
const MOST_OUTDATED: f64 = 2.0;

/// Gives each path a controller of its own.
pub(super) struct CubicFactory;

impl ControllerFactory for CubicFactory {
    fn build(self: Arc<Self>, _now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Cubic::new(current_mtu))
    }
}

/// The state of one path. Windows are in bytes.
#[derive(Clone, Debug)]
struct Cubic {
    datagram: f64,
    window: f64,
    /// Up to here the window grows by whatever is acknowledged.
    slow_start_until: f64,
    /// What becomes of packets that were sent before says nothing new.
    reduced_at: Option<Instant>,
    /// Before the last reduction.
    prior_window: f64,
    /// Where the curve is flat: the window at which the path was full last; 0 if that is not known.
    plateau: f64,
    /// `None`: begins with the next acknowledgement.
    growth: Option<WindowGrowth>,
    /// How many round trips pass until a datagram is acknowledged, on average.
    stretch: f64,
    /// The same of the newest one that has just been acknowledged; `None`: all that were have been looked at.
    newest: Option<f64>,
    /// The most of them, but 1 at most: so near has the smoothed round trip come to what the path takes. 0: not known.
    nearest: f64,
}

/// Growth in congestion avoidance, since it began.
#[derive(Clone, Copy, Debug)]
struct WindowGrowth {
    /// Without the time in which there was less to send than the window has room for (§5.8).
    elapsed: Duration,
    /// The acknowledgement up to which that counts; `None`: there was less to send since.
    counted_at: Option<Instant>,
    /// Seconds to the plateau.
    k: f64,
    plateau: f64,
    /// Reno's window, had it begun with ours.
    reno: f64,
}

impl Cubic {
    fn new(current_mtu: u16) -> Self {
        let datagram = current_mtu.into();
        Self {
            datagram,
            window: first_window(datagram),
            slow_start_until: f64::INFINITY,
            reduced_at: None,
            prior_window: 0.0,
            plateau: 0.0,
            growth: None,
            stretch: 1.0,
            newest: None,
            nearest: 0.0,
        }
    }

    fn least_window(&self) -> f64 {
        LEAST_DATAGRAMS * self.datagram
    }

    fn is_before_reduction(&self, sent: Instant) -> bool {
        self.reduced_at.is_some_and(|at| sent <= at)
    }

    /// The window was in use and these bytes have arrived.
    fn acknowledged(&mut self, now: Instant, sent: Instant, bytes: u64, rtt: Duration) {
        self.observe_ack_delay(now.saturating_duration_since(sent), rtt);
        if self.is_before_reduction(sent) {
            return;
        }
        if self.window < self.slow_start_until {
            self.window += bytes as f64;
            return;
        }
        let rounds = bytes as f64 / self.window;
        let mut growth = self.growth.unwrap_or_else(|| self.begin_growth());
        growth.count(now);
        // Where Reno would be back at, it grows by a datagram for each round.
        let alpha = if growth.reno < self.prior_window { ALPHA } else { 1.0 };
        growth.reno += alpha * rounds * self.datagram;
        self.growth = Some(growth);
        if growth.curve(growth.elapsed, self.datagram) < growth.reno {
            self.window = self.window.max(growth.reno);
        } else {
            let most = MOST_GROWTH * self.window;
            let target = growth.curve(growth.elapsed + rtt, self.datagram).clamp(self.window, most);
            self.window += (target - self.window) * rounds;
        }
    }

    /// An acknowledgement came so long after what it is for. The round trip is without what its sender waited, as it says.
    fn observe_ack_delay(&mut self, wait: Duration, rtt: Duration) {
        if let Some(stretch) = stretch(wait, rtt) {
            self.stretch += (stretch - self.stretch) / STRETCH_OVER;
        }
    }

    /// Of those that are acknowledged at a time the newest one has not waited for the others.
    fn observe_newest_ack(&mut self, wait: Duration, rtt: Duration) {
        self.newest = stretch(wait, rtt).or(self.newest);
    }

    /// That was all that was acknowledged at this time.
    fn acknowledgement_ends(&mut self) {
        let newest = self.newest.take().unwrap_or_default();
        self.nearest = self.nearest.max(newest.min(1.0));
    }

    fn max_in_flight(&self) -> f64 {
        let waiting = self.stretch.clamp(1.0, MOST_STRETCH);
        if self.nearest == 0.0 || self.window >= self.slow_start_until {
            return self.window * waiting;
        }
        self.window * waiting.max(DOUBLING / self.nearest.max(1.0 / MOST_OUTDATED))
    }

    /// There was less to send than the window has room for: it was not tried, and stays.
    fn pause_growth(&mut self) {
        if let Some(growth) = &mut self.growth {
            growth.counted_at = None;
        }
    }

    fn begin_growth(&self) -> WindowGrowth {
        let plateau = self.plateau.max(self.window);
        let k = ((plateau - self.window) / self.datagram / C).cbrt();
        WindowGrowth { elapsed: Duration::ZERO, counted_at: None, k, plateau, reno: self.window }
    }

    /// Something was lost, or marked (ECN).
    fn reduce_window(&mut self, now: Instant, sent: Instant) {
        if self.is_before_reduction(sent) {
            return;
        }
        self.reduced_at = Some(now);
        self.growth = None;
        // Fast convergence (§4.7): who is pushed back before the plateau leaves room to others.
        let is_early = self.window < self.plateau;
        self.plateau = if is_early { self.window * (1.0 + BETA) / 2.0 } else { self.window };
        self.prior_window = self.window;
        self.window = (self.window * BETA).max(self.least_window());
        self.slow_start_until = self.window;
    }

    /// Nothing has arrived for long: all begins anew, up to the last reduction, with a plateau to be found (§4.8,
    /// RFC 9002 §7.6.2).
    fn reset_window(&mut self) {
        self.window = self.least_window();
        self.reduced_at = None;
        self.plateau = 0.0;
        self.growth = None;
        // Nor is more under way than that because of how it was before.
        (self.stretch, self.nearest) = (1.0, 1.0);
    }
}

/// How many round trips that was; `None`: there is none yet.
fn stretch(wait: Duration, rtt: Duration) -> Option<f64> {
    // One that somebody slept over says little of the next ones.
    (!rtt.is_zero()).then(|| wait.div_duration_f64(rtt).min(2.0))
}

impl WindowGrowth {
    fn count(&mut self, now: Instant) {
        let since = self.counted_at.replace(now).unwrap_or(now);
        self.elapsed += now.saturating_duration_since(since);
    }

    /// The window so long after growth has begun (§4.2).
    fn curve(&self, elapsed: Duration, datagram: f64) -> f64 {
        self.plateau + C * (elapsed.as_secs_f64() - self.k).powi(3) * datagram
    }
}

/// RFC 9002 §7.2.
fn first_window(datagram: f64) -> f64 {
    FIRST_BYTES.clamp(LEAST_DATAGRAMS * datagram, FIRST_DATAGRAMS * datagram)
}

impl Controller for Cubic {
    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        self.observe_newest_ack(now.saturating_duration_since(sent), rtt.get());
        if app_limited {
            self.pause_growth();
        } else {
            self.acknowledged(now, sent, bytes, rtt.get());
        }
    }

    fn on_end_acks(&mut self, _: Instant, _: u64, _: bool, _: Option<u64>) {
        self.acknowledgement_ends();
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        _lost_bytes: u64,
    ) {
        self.reduce_window(now, sent);
        if is_persistent_congestion {
            self.reset_window();
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        let before = first_window(self.datagram);
        self.datagram = new_mtu.into();
        if self.slow_start_until.is_infinite() {
            // As though it had begun with datagrams of this size (RFC 9002 §7.2).
            self.window += (first_window(self.datagram) - before).max(0.0);
        }
        self.window = self.window.max(self.least_window());
    }

    fn window(&self) -> u64 {
        self.max_in_flight() as u64
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        first_window(self.datagram) as u64
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests;
