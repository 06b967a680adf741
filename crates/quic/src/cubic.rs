//! CUBIC congestion control (RFC 9438) for `quinn-proto`: how many bytes a connection may have in flight.
//!
//! The library's own CUBIC starts the Reno-friendly estimate (§4.3) below the window after two losses in a row. The
//! window then stands still for several rounds, which costs much throughput under random loss. See
//! docs/internals/quic.md.

use std::any::Any;
use std::f64::consts::LN_2;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn_proto::RttEstimator;
use quinn_proto::congestion::{Controller, ControllerFactory};

/// The share of the window that remains after a loss, and the scale of the growth after it: per second, cubed, in
/// datagrams.
const BETA: f64 = 0.7;
const C: f64 = 0.4;
/// Growth of the Reno-friendly window in datagrams per round, for the same decrease factor.
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// Limit of the window's growth in a round, as a factor (§4.4).
const MOST_GROWTH: f64 = 1.5;
/// Initial window in datagrams, and its limit in bytes.
const FIRST_DATAGRAMS: f64 = 10.0;
const FIRST_BYTES: f64 = 14_720.0;
/// Minimum window in datagrams, however much is lost.
const LEAST_DATAGRAMS: f64 = 2.0;
/// A receiver may delay acknowledgements (RFC 9000 §13.2.1): a browser sends one for ten datagrams, or after 25 ms.
/// Datagrams that have arrived meanwhile still count as in flight. The window is meant for what the path carries in a
/// round trip, so the limit in flight is scaled up by this factor at most.
const MOST_STRETCH: f64 = 1.25;
/// Datagrams over which the acknowledgement delay is averaged.
const STRETCH_OVER: f64 = 64.0;
/// The library paces 1.25 windows per round trip (RFC 9002 §7.7). Driven by the acknowledgements that arrive until then,
/// a window grows 1.9 times a round; to double, as slow start requires (§7.3.1), it takes 2 ln 2 windows.
const DOUBLING: f64 = 2.0 * LN_2 / 1.25;
/// The smoothed round trip, which the library paces by, starts with the time that a client takes to start up. Until
/// the estimate has once come down to the path's round trip, slow start compensates for it, by this factor at most.
const MOST_OUTDATED: f64 = 2.0;

/// Creates a controller for each path.
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
    /// Slow-start threshold: below it the window grows by all acknowledged bytes.
    slow_start_until: f64,
    /// The time of the last reduction: the loss of packets that were sent before it carries no new information.
    reduced_at: Option<Instant>,
    /// The window before the last reduction.
    prior_window: f64,
    /// The plateau of the curve: the window at which the path was last full; 0 if that is not known.
    plateau: f64,
    /// `None`: growth begins with the next acknowledgement.
    growth: Option<WindowGrowth>,
    /// Average time until a datagram is acknowledged, in round trips.
    stretch: f64,
    /// The same ratio for the newest datagram acknowledged in this batch; `None`: every batch has been evaluated.
    newest: Option<f64>,
    /// The largest such ratio, capped at 1: a measure of how close the smoothed round trip is to the path's. 0: not
    /// known.
    nearest: f64,
}

/// Growth in congestion avoidance, since it began.
#[derive(Clone, Copy, Debug)]
struct WindowGrowth {
    /// Time since growth began, without the periods in which the sender was application-limited (§5.8).
    elapsed: Duration,
    /// The acknowledgement up to which `elapsed` counts; `None`: the sender has been application-limited since.
    counted_at: Option<Instant>,
    /// Seconds to the plateau.
    k: f64,
    plateau: f64,
    /// The window that Reno would have, had it begun with ours.
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

    /// Grows the window: it was fully used, and these bytes have been acknowledged.
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
        // Once Reno would be back at its previous window, it grows by a datagram for each round.
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

    /// Updates the average acknowledgement delay. The round trip excludes the delay that the receiver reports.
    fn observe_ack_delay(&mut self, wait: Duration, rtt: Duration) {
        if let Some(stretch) = stretch(wait, rtt) {
            self.stretch += (stretch - self.stretch) / STRETCH_OVER;
        }
    }

    /// Records the delay of the newest datagram acknowledged in a batch, which has not waited for the others.
    fn observe_newest_ack(&mut self, wait: Duration, rtt: Duration) {
        self.newest = stretch(wait, rtt).or(self.newest);
    }

    /// Ends a batch of acknowledgements.
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

    /// Pauses growth: the sender is application-limited, so the window was not tested, and stays.
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

    /// Reduces the window after a loss or an ECN mark.
    fn reduce_window(&mut self, now: Instant, sent: Instant) {
        if self.is_before_reduction(sent) {
            return;
        }
        self.reduced_at = Some(now);
        self.growth = None;
        // Fast convergence (§4.7): a connection that loses packets before its plateau leaves room for others.
        let is_early = self.window < self.plateau;
        self.plateau = if is_early { self.window * (1.0 + BETA) / 2.0 } else { self.window };
        self.prior_window = self.window;
        self.window = (self.window * BETA).max(self.least_window());
        self.slow_start_until = self.window;
    }

    /// Resets the window after persistent congestion: growth begins anew, up to the window of the last reduction, with
    /// an unknown plateau (§4.8, RFC 9002 §7.6.2).
    fn reset_window(&mut self) {
        self.window = self.least_window();
        self.reduced_at = None;
        self.plateau = 0.0;
        self.growth = None;
        // The earlier acknowledgement delay must not raise the limit in flight either.
        (self.stretch, self.nearest) = (1.0, 1.0);
    }
}

/// Returns `wait` in round trips; `None` if there is no round-trip estimate yet.
fn stretch(wait: Duration, rtt: Duration) -> Option<f64> {
    // A single acknowledgement that is very late says little about the next ones, so its weight is limited.
    (!rtt.is_zero()).then(|| wait.div_duration_f64(rtt).min(2.0))
}

impl WindowGrowth {
    fn count(&mut self, now: Instant) {
        let since = self.counted_at.replace(now).unwrap_or(now);
        self.elapsed += now.saturating_duration_since(since);
    }

    /// Returns the window at the time `elapsed` after growth has begun (§4.2).
    fn curve(&self, elapsed: Duration, datagram: f64) -> f64 {
        self.plateau + C * (elapsed.as_secs_f64() - self.k).powi(3) * datagram
    }
}

/// Returns the initial window (RFC 9002 §7.2).
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
            // Grows as if the connection had begun with datagrams of this size (RFC 9002 §7.2).
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
