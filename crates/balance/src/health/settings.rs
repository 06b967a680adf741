//! Health settings. Plain data; an absent setting is off.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::outcome::AttemptResult;

/// Settings for the health of a backend's endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthSettings {
    /// Ejects endpoints whose requests fail. Off by default here, see
    /// [`PassiveSettings::of_connections`].
    pub passive: Option<PassiveSettings>,
    /// Probes endpoints; off by default.
    pub active: Option<ActiveSettings>,
    /// Begins with less than the full weight after a start or a return; off by default.
    pub slow_start: Option<SlowStartSettings>,
    /// Percentage of usable endpoints below which health is ignored: a request that may fail is
    /// better than none, and the remaining endpoints would be overloaded. 50 by default; 0 never
    /// ignores health.
    pub panic_percent: u32,
}

impl Default for HealthSettings {
    fn default() -> Self {
        Self { passive: None, active: None, slow_start: None, panic_percent: 50 }
    }
}

/// Settings for the ejection of endpoints by the results of their requests (outlier detection).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassiveSettings {
    /// Number of consecutive failures that eject at once; 5 by default.
    pub consecutive_failures: NonZeroU32,
    /// Counts a response that indicates a fault of the endpoint (5xx) as a failure, beside a
    /// connection that cannot be made or breaks and a missing response. True by default. Success
    /// rates are compared only if this is true.
    pub server_errors: bool,
    /// Interval between comparisons of success rates; 10 s by default.
    pub interval: Duration,
    /// Distance of an outlier's success rate below the mean, in hundredths of the standard
    /// deviation; 190 by default.
    pub outlier_deviation_percent: u32,
    /// Minimum percentage of failed requests of an outlier; 10 by default.
    pub outlier_failure_percent: u32,
    /// Minimum number of requests in an interval for an endpoint to be compared; 100 by default.
    pub outlier_minimum_requests: u64,
    /// Minimum number of comparable endpoints for outlier detection; 5 by default.
    pub outlier_minimum_endpoints: usize,
    /// Duration of the first ejection; each further one lasts twice as long. 30 s by default.
    pub base_ejection_time: Duration,
    /// Maximum duration of an ejection; 300 s by default.
    pub max_ejection_time: Duration,
    /// Maximum percentage of endpoints ejected at the same time, but one of two always may be. 50
    /// by default, because many backends have three endpoints, and the remaining endpoints must
    /// carry the whole load.
    pub max_ejection_percent: u32,
}

impl Default for PassiveSettings {
    fn default() -> Self {
        Self {
            consecutive_failures: NonZeroU32::new(5).expect("5 is not 0"),
            server_errors: true,
            interval: Duration::from_secs(10),
            outlier_deviation_percent: 190,
            outlier_failure_percent: 10,
            outlier_minimum_requests: 100,
            outlier_minimum_endpoints: 5,
            base_ejection_time: Duration::from_secs(30),
            max_ejection_time: Duration::from_secs(300),
            max_ejection_percent: 50,
        }
    }
}

impl PassiveSettings {
    /// Returns the settings for backends without a policy: only failures of the connection eject,
    /// and for a short time. A 5xx may be the fault of the request, and a restarted endpoint should
    /// soon have its share again.
    pub fn of_connections() -> Self {
        Self {
            server_errors: false,
            base_ejection_time: Duration::from_secs(1),
            max_ejection_time: Duration::from_secs(30),
            ..Self::default()
        }
    }

    /// True if the result of an attempt is not a failure by these settings, though it may be one by
    /// others.
    pub(crate) fn ignores(&self, end: AttemptResult) -> bool {
        end == AttemptResult::ServerError && !self.server_errors
    }
}

/// Settings for active probes. The content of a probe is not part of this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActiveSettings {
    /// Time from the end of a probe to the next, plus or minus a tenth; 5 s by default.
    pub interval: Duration,
    /// Timeout of a probe; 1 s by default.
    pub timeout: Duration,
    /// Number of consecutive good probes that make an endpoint healthy; 2 by default.
    pub rise: NonZeroU32,
    /// Number of consecutive bad probes that make an endpoint unhealthy; 3 by default.
    pub fall: NonZeroU32,
}

impl Default for ActiveSettings {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(1),
            rise: NonZeroU32::new(2).expect("2 is not 0"),
            fall: NonZeroU32::new(3).expect("3 is not 0"),
        }
    }
}

/// Settings for slow start: the growth of an endpoint's weight after it starts or returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowStartSettings {
    /// Duration until the full weight, in equal steps; 30 s by default.
    pub window: Duration,
    /// Percentage of its weight that it begins with; 10 by default.
    pub floor_percent: u32,
}

impl Default for SlowStartSettings {
    fn default() -> Self {
        Self { window: Duration::from_secs(30), floor_percent: 10 }
    }
}
