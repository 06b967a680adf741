//! Outlier detection: finds endpoints that fail a much larger share of their requests than the
//! others.
//!
//! The comparison distinguishes a bad endpoint from a general problem: if all endpoints fail alike,
//! ejecting some does not help.

use crate::health::settings::PassiveSettings;

/// Totals of successful and failed attempts at an endpoint, over all workers, since it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttemptTotals {
    /// Attempts that count for it.
    pub successes: u64,
    /// Attempts that count against it.
    pub failures: u64,
}

impl AttemptTotals {
    /// Returns the attempts since `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            successes: self.successes.saturating_sub(earlier.successes),
            failures: self.failures.saturating_sub(earlier.failures),
        }
    }

    fn requests(self) -> u64 {
        self.successes.saturating_add(self.failures)
    }

    fn success_rate(self) -> f64 {
        self.successes as f64 / self.requests() as f64
    }
}

/// Returns the outliers among `seen`, the worst first. Each entry of `seen` is an endpoint and its
/// attempt totals.
pub(crate) fn outliers(seen: &[(usize, AttemptTotals)], settings: &PassiveSettings) -> Vec<usize> {
    let enough =
        |totals: AttemptTotals| totals.requests() >= settings.outlier_minimum_requests.max(1);
    let mut rates: Vec<(usize, f64)> = seen
        .iter()
        .filter(|(_, totals)| enough(*totals))
        .map(|(endpoint, totals)| (*endpoint, totals.success_rate()))
        .collect();
    if rates.len() < settings.outlier_minimum_endpoints.max(2) {
        return Vec::new();
    }
    let limit = outlier_threshold(&rates, settings);
    rates.retain(|(_, rate)| *rate < limit);
    rates.sort_by(|(_, one), (_, other)| one.total_cmp(other));
    rates.into_iter().map(|(endpoint, _)| endpoint).collect()
}

/// Returns the success rate below which an endpoint is an outlier.
fn outlier_threshold(rates: &[(usize, f64)], settings: &PassiveSettings) -> f64 {
    let mean = |sum: f64| sum / rates.len() as f64;
    let average = mean(rates.iter().map(|(_, rate)| rate).sum());
    let variance = mean(rates.iter().map(|(_, rate)| (rate - average).powi(2)).sum());
    let hundredths = |percent: u32| f64::from(percent) / 100.0;
    let by_deviation = average - hundredths(settings.outlier_deviation_percent) * variance.sqrt();
    by_deviation.min(1.0 - hundredths(settings.outlier_failure_percent))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Checks which endpoints are outliers if each fails its percentage of `requests`.
    fn check(requests: u64, failed_percent: &[u64], expected: &[usize]) {
        let totals = |percent: u64| {
            let failures = requests * percent / 100;
            AttemptTotals { successes: requests - failures, failures }
        };
        let seen: Vec<_> =
            failed_percent.iter().map(|percent| totals(*percent)).enumerate().collect();
        assert_eq!(outliers(&seen, &PassiveSettings::default()), expected, "{failed_percent:?}");
    }

    #[test]
    fn endpoint_with_a_much_higher_failure_rate_is_an_outlier() {
        check(1000, &[0, 0, 30, 0, 0], &[2]);
        check(1000, &[0, 70, 2, 0, 0, 1, 60, 0, 0, 1, 0, 0, 0, 0, 0, 0], &[1, 6]);
    }

    #[test]
    fn second_outlier_is_detected_after_the_worst_is_ejected() {
        check(1000, &[0, 1, 0, 60, 2, 0, 0, 55, 1, 0], &[3]);
        check(1000, &[0, 1, 0, 2, 0, 0, 55, 1, 0], &[6]);
    }

    #[test]
    fn uniform_failure_rates_have_no_outlier() {
        check(1000, &[50, 52, 48, 51, 49], &[]);
        check(1000, &[100, 100, 100, 100, 100], &[]);
    }

    #[test]
    fn slightly_higher_failure_rate_is_no_outlier() {
        check(1000, &[0, 0, 9, 0, 0, 0], &[]);
    }

    #[test]
    fn no_outlier_below_the_minimum_of_requests_or_endpoints() {
        check(99, &[0, 0, 90, 0, 0, 0], &[]);
        check(1000, &[0, 0, 90, 0], &[]);
    }
}
