//! What an operator may say about health. Plain data; what is left out is off.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::outcome::AttemptResult;

/// How the health of a backend's endpoints is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthSettings {
    /// Ejects endpoints whose requests fail; here off by default, see [`PassiveSettings::of_connections`].
    pub passive: Option<PassiveSettings>,
    /// Probes endpoints; off by default.
    pub active: Option<ActiveSettings>,
    /// Begins with less than the full share after a start or a return; off by default.
    pub slow_start: Option<SlowStartSettings>,
    /// With fewer usable endpoints in a hundred than this, health is ignored: better a request that may fail than
    /// none, and those that are left would drown. 50 by default; 0: health is never ignored.
    pub panic_percent: u32,
}

impl Default for HealthSettings {
    fn default() -> Self {
        Self { passive: None, active: None, slow_start: None, panic_percent: 50 }
    }
}

/// When an endpoint is ejected for how its requests end, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassiveSettings {
    /// So many failures in a row eject at once; 5 by default.
    pub consecutive_failures: NonZeroU32,
    /// A response that says the endpoint is at fault (5xx) is a failure too, and not only a connection that cannot be made
    /// or breaks and a response that does not come; true by default. Only then success rates are compared.
    pub server_errors: bool,
    /// How often success rates are compared; 10 s by default.
    pub interval: Duration,
    /// An outlier's success rate is below the mean by this many hundredths of the standard deviation; 190 by default.
    pub outlier_deviation_percent: u32,
    /// An outlier fails at least so many requests in a hundred; 10 by default.
    pub outlier_failure_percent: u32,
    /// An endpoint with fewer requests in an interval is not compared; 100 by default.
    pub outlier_minimum_requests: u64,
    /// With fewer endpoints to compare there are no outliers; 5 by default.
    pub outlier_minimum_endpoints: usize,
    /// How long the first ejection lasts; each further one lasts twice as long. 30 s by default.
    pub base_ejection_time: Duration,
    /// How long an ejection lasts at most; 300 s by default.
    pub max_ejection_time: Duration,
    /// So many endpoints in a hundred are ejected at the same time at most, but one of two always may be; 50 by
    /// default, because many backends have three endpoints, and what is left must carry the load of all.
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
    /// What holds where no policy says anything: failures of the connection alone eject, for a short time. A 5xx may be
    /// the fault of the request, and an endpoint that has restarted is to have its share again soon.
    pub fn of_connections() -> Self {
        Self {
            server_errors: false,
            base_ejection_time: Duration::from_secs(1),
            max_ejection_time: Duration::from_secs(30),
            ..Self::default()
        }
    }

    /// True if what came of an attempt is not a failure by these settings, whatever it is by others.
    pub(crate) fn ignores(&self, end: AttemptResult) -> bool {
        end == AttemptResult::ServerError && !self.server_errors
    }
}

/// When an endpoint is probed, and what a result means. What a probe sends is not this crate's business.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActiveSettings {
    /// Between the end of a probe and the next, give or take a tenth; 5 s by default.
    pub interval: Duration,
    /// How long a probe may take; 1 s by default.
    pub timeout: Duration,
    /// So many good probes in a row bring an endpoint back; 2 by default.
    pub rise: NonZeroU32,
    /// So many bad probes in a row take an endpoint out; 3 by default.
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

/// How an endpoint that starts or returns comes to its full share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowStartSettings {
    /// How long it takes, in equal steps; 30 s by default.
    pub window: Duration,
    /// The share of its weight in a hundred that it begins with; 10 by default.
    pub floor_percent: u32,
}

impl Default for SlowStartSettings {
    fn default() -> Self {
        Self { window: Duration::from_secs(30), floor_percent: 10 }
    }
}
