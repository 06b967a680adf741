//! Slow start: after a start or a return, an endpoint's weight grows in equal steps over a window.

use std::time::Duration;

use crate::health::settings::SlowStartSettings;
use crate::time::nanos;

/// Steps in the window. More steps would make more sets of endpoints; fewer would be noticeable.
const STEPS: u64 = 10;

/// Returns the percentage of its weight that an endpoint has this long after its start; at least 1.
pub(crate) fn share_percent(settings: &SlowStartSettings, since_start: Duration) -> u32 {
    if since_start >= settings.window {
        return 100;
    }
    let step =
        u128::from(nanos(since_start)) * u128::from(STEPS) / u128::from(nanos(settings.window));
    let floor = settings.floor_percent.clamp(1, 100);
    floor + (100 - floor) * step as u32 / STEPS as u32
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn share_grows_linearly_from_the_floor_to_100_percent() {
        let settings = SlowStartSettings::default();
        let shares: Vec<_> =
            (0..=30).step_by(3).map(|s| share_percent(&settings, Duration::from_secs(s))).collect();
        assert_eq!(shares, [10, 19, 28, 37, 46, 55, 64, 73, 82, 91, 100]);
    }

    #[test]
    fn zero_window_disables_slow_start() {
        let settings = SlowStartSettings { window: Duration::ZERO, floor_percent: 10 };
        assert_eq!(share_percent(&settings, Duration::ZERO), 100);
    }
}
