//! Arrival times of requests: random, with a rate that follows the hours of a day and has bursts.

use std::f64::consts::TAU;

use balance::Time;

use super::settings::DaySettings;
use crate::random::{RandomSource, ServiceVariance};

const SECONDS_OF_A_DAY: u64 = 86_400;
/// Time of the lowest rate; the day begins at midnight.
const LOWEST_AT: u64 = 4 * 3_600;

/// Poisson process whose rate is constant within each second.
pub(crate) struct TrafficSource {
    dice: RandomSource,
    /// Requests per second at the peak of the day.
    height: f64,
    valley: f64,
    /// Pods that one request per second keeps busy.
    pods_per_request: f64,
    /// Load between bursts, as a share of the usual load.
    between: f64,
    bursts: Vec<TrafficBurst>,
    /// Position of the process: the current second, and the elapsed part of it.
    second: u64,
    within: f64,
    rate: f64,
    end: u64,
}

/// Burst: multiplies the rate by `times` from the second `begins` on, until before `ends`.
struct TrafficBurst {
    begins: u64,
    ends: u64,
    times: f64,
}

impl TrafficSource {
    pub(crate) fn new(settings: &DaySettings) -> Self {
        let mut dice = RandomSource::new(settings.seed);
        let end = u64::from(settings.hours) * 3_600;
        let pods_per_request = settings.service.as_secs_f64() / f64::from(settings.slots());
        let mut traffic = Self {
            height: f64::from(settings.traffic.busy_pods) / pods_per_request,
            pods_per_request,
            valley: f64::from(settings.traffic.valley_percent) / 100.0,
            between: f64::from(settings.traffic.between_percent) / 100.0,
            bursts: draw_bursts(settings, end, &mut dice),
            dice,
            second: 0,
            within: 0.0,
            rate: 0.0,
            end,
        };
        traffic.rate = traffic.rate(0);
        traffic
    }

    /// Returns the requests per second in a second of the day.
    fn rate(&self, second: u64) -> f64 {
        let hours = (second + SECONDS_OF_A_DAY - LOWEST_AT) % SECONDS_OF_A_DAY;
        let turn = hours as f64 / SECONDS_OF_A_DAY as f64 * TAU;
        let risen = (1.0 - turn.cos()) / 2.0;
        let usual = self.height * (self.valley + (1.0 - self.valley) * risen);
        usual * self.burst(second).map_or(self.between, |burst| burst.times)
    }

    /// True if a second lies in a burst.
    pub(crate) fn is_burst(&self, second: u64) -> bool {
        self.burst(second).is_some()
    }

    fn burst(&self, second: u64) -> Option<&TrafficBurst> {
        self.bursts.iter().find(|burst| (burst.begins..burst.ends).contains(&second))
    }

    /// Returns the mean load of the requests of a second, in pods with all slots busy.
    pub(crate) fn needed(&self, second: u64) -> f64 {
        self.rate(second) * self.pods_per_request
    }

    /// Returns the length of the day.
    pub(crate) fn seconds(&self) -> u64 {
        self.end
    }

    /// Returns the time of the next request; `None` after the end of the day.
    pub(crate) fn next(&mut self) -> Option<Time> {
        let mut left = self.dice.service_factor(ServiceVariance::Exponential);
        while self.second < self.end {
            let expected = (1.0 - self.within) * self.rate;
            if left < expected {
                self.within += left / self.rate;
                let nanos = self.second as f64 * 1e9 + self.within * 1e9;
                return Some(Time::from_nanos(nanos as u64));
            }
            left -= expected;
            (self.second, self.within) = (self.second + 1, 0.0);
            self.rate = self.rate(self.second);
        }
        None
    }
}

fn draw_bursts(settings: &DaySettings, end: u64, dice: &mut RandomSource) -> Vec<TrafficBurst> {
    let [least, most] = settings.traffic.burst_minutes;
    let part = end / u64::from(settings.traffic.bursts.max(1));
    let draw = |number: u32| {
        let lasts = u64::from(dice.between(least * 60, most * 60)).min(part);
        let begins = u64::from(number) * part + dice.below((part - lasts) as usize + 1) as u64;
        TrafficBurst {
            begins,
            ends: begins + lasts,
            times: f64::from(settings.traffic.burst_times),
        }
    };
    (0..settings.traffic.bursts).map(draw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_match_the_configured_rate() {
        let settings = DaySettings::parse(&["hours=3", "bursts=2"]).unwrap();
        let mut traffic = TrafficSource::new(&settings);
        let expected: f64 = (0..traffic.end).map(|second| traffic.rate(second)).sum();
        let mut last = Time::ZERO;
        let mut arrived = 0_u64;
        while let Some(at) = traffic.next() {
            assert!(last <= at);
            (last, arrived) = (at, arrived + 1);
        }
        let deviation = (arrived as f64 - expected).abs();
        assert!(deviation < 4.0 * expected.sqrt(), "{arrived} arrived, {expected} were expected");
    }

    #[test]
    fn daily_peak_is_twelve_hours_after_the_low() {
        let traffic = TrafficSource::new(&DaySettings::parse(&["bursts=0", "hours=24"]).unwrap());
        let (low, high) = (traffic.rate(4 * 3_600), traffic.rate(16 * 3_600));
        assert!((high / low - 4.0).abs() < 1e-9);
        assert!((high - 10.0 * 4.0 / 0.34).abs() < 1e-9);
    }

    #[test]
    fn requests_may_come_in_bursts_only() {
        let settings = DaySettings::parse(&["bursts=2", "between_percent=0"]).unwrap();
        let mut traffic = TrafficSource::new(&settings);
        let mut arrived = 0;
        while let Some(at) = traffic.next() {
            assert!(traffic.is_burst(at.as_nanos() / 1_000_000_000));
            arrived += 1;
        }
        assert!(arrived > 1_000, "{arrived}");
    }
}
