//! The parts of a BackendPolicy that say which endpoints are fit to serve, and when a request is tried again.
//!
//! Names and defaults are those of [`balance`], which does what is said here.

use balance::health::{ActiveSettings, HealthSettings, PassiveSettings, SlowStartSettings};
use balance::retry::RetrySettings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::duration::Duration;

/// Which endpoints are fit to serve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BackendHealthPolicy {
    /// Probes endpoints; not given: none is probed.
    pub active: Option<ActiveHealth>,
    /// Ejects endpoints whose requests fail. Not given: five failures of the connection in a row (it cannot be made, it
    /// breaks, or no response comes in time) eject an endpoint for a second, each further time for twice as long, up to 30
    /// seconds; a 5xx ejects none.
    pub passive: Option<PassiveHealth>,
    /// With fewer endpoints in a hundred fit than this, all are used: better a request that may fail than none. 0:
    /// never.
    #[schemars(range(min = 0, max = 100))]
    pub panic_percent: u32,
}

/// How endpoints are probed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ActiveHealth {
    /// What a probe is.
    #[serde(rename = "type")]
    pub kind: ProbeType,
    /// What an HTTP probe asks for: a path, and perhaps a query.
    #[schemars(length(min = 1, max = 1024), extend("format" = "target"))]
    pub path: Option<String>,
    /// `Host` of an HTTP or gRPC probe; not given: the endpoint's address and port.
    #[schemars(extend("format" = "host"))]
    pub host: Option<String>,
    /// The lowest status of a good answer to an HTTP probe; not given: 200.
    #[schemars(range(min = 100, max = 599))]
    pub min_status: Option<u16>,
    /// The highest status of a good answer to an HTTP probe; not given: 399.
    #[schemars(range(min = 100, max = 599))]
    pub max_status: Option<u16>,
    /// The service that a gRPC probe asks for; not given: the server as a whole.
    #[schemars(length(min = 1, max = 1024))]
    pub service: Option<String>,
    /// The port; not given: the endpoint's own.
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<u16>,
    /// Between the end of a probe and the next, give or take a tenth. A probe is left out while requests succeed.
    pub interval: Duration,
    /// How long a probe may take.
    pub timeout: Duration,
    /// So many good probes in a row bring an endpoint back.
    #[schemars(range(min = 1, max = 100))]
    pub rise: u32,
    /// So many bad probes in a row take an endpoint out.
    #[schemars(range(min = 1, max = 100))]
    pub fall: u32,
}

/// What a probe is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ProbeType {
    /// A GET over HTTP/1.1.
    #[default]
    #[serde(rename = "HTTP")]
    Http,
    /// A connection, which is closed at once.
    #[serde(rename = "TCP")]
    Tcp,
    /// gRPC's health check (`grpc.health.v1.Health/Check`), which must say `SERVING`.
    #[serde(rename = "GRPC")]
    Grpc,
}

/// When endpoints are ejected for how their requests end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PassiveHealth {
    /// What counts as a failure.
    pub eject_on: EjectOn,
    /// So many failures in a row eject at once. A 429, or a 503 with `Retry-After`, is none.
    #[schemars(range(min = 1, max = 1000))]
    pub consecutive_failures: u32,
    /// How often success rates are compared, where a 5xx is a failure.
    pub interval: Duration,
    /// An outlier's success rate is below the mean by this many hundredths of the standard deviation.
    #[schemars(range(min = 0, max = 10_000))]
    pub outlier_deviation_percent: u32,
    /// An outlier fails at least so many requests in a hundred.
    #[schemars(range(min = 0, max = 100))]
    pub outlier_failure_percent: u32,
    /// An endpoint with fewer requests in an interval is not compared.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub outlier_minimum_requests: u64,
    /// With fewer endpoints to compare there are no outliers.
    #[schemars(range(min = 1, max = 1000))]
    pub outlier_minimum_endpoints: u32,
    /// How long the first ejection lasts; each further one lasts twice as long.
    pub base_ejection_time: Duration,
    /// How long an ejection lasts, at most.
    pub max_ejection_time: Duration,
    /// So many endpoints in a hundred are ejected at the same time, at most; one of two always may be.
    #[schemars(range(min = 0, max = 100))]
    pub max_ejection_percent: u32,
}

/// What ejects an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EjectOn {
    /// Failures of the connection, and 5xx responses.
    #[default]
    ServerErrors,
    /// Failures of the connection alone: it cannot be made, it breaks, or no response comes in time.
    ConnectionFailures,
    /// Nothing: no endpoint is ejected.
    Nothing,
}

/// How an endpoint that starts or returns comes to its full share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SlowStart {
    /// How long it takes, in equal steps.
    pub window: Duration,
    /// The share of its weight in a hundred that it begins with.
    #[schemars(range(min = 1, max = 100))]
    pub floor_percent: u32,
}

/// When a request is tried again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BackendRetry {
    /// Attempts at one request, at most, the first included. A request whose attempt failed is tried again if it is
    /// idempotent, or if not one byte of it can have reached the endpoint.
    #[schemars(range(min = 1, max = 10))]
    pub attempts: u32,
    /// Statuses of responses that are tried again as well, if the request is idempotent.
    #[schemars(length(max = 32), inner(range(min = 400, max = 599)))]
    pub statuses: Vec<u16>,
    /// Statuses of gRPC calls that are tried again as well. One that comes before any message of the answer alone can be:
    /// the client has seen nothing of it then.
    #[schemars(length(max = 16))]
    pub grpc_statuses: Vec<GrpcStatus>,
    /// The first retry waits a random time up to this, each further one up to twice as long.
    pub backoff_base: Duration,
    /// The longest wait before a retry.
    pub backoff_max: Duration,
    /// Retries in a hundred requests, at most, over ten seconds and all workers.
    #[schemars(range(min = 0, max = 100))]
    pub budget_percent: u32,
    /// Retries that are allowed on top, each second.
    #[schemars(range(min = 0, max = 10_000))]
    pub budget_floor_per_second: u32,
}

/// A status of a gRPC call other than OK.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[repr(u8)]
pub enum GrpcStatus {
    /// The caller gave up.
    Cancelled = 1,
    /// Nobody knows why.
    Unknown = 2,
    /// The request makes no sense.
    InvalidArgument = 3,
    /// It took too long.
    DeadlineExceeded = 4,
    /// There is no such thing.
    NotFound = 5,
    /// There is such a thing already.
    AlreadyExists = 6,
    /// The caller may not.
    PermissionDenied = 7,
    /// There is no more of something.
    ResourceExhausted = 8,
    /// Things are not as the call needs them.
    FailedPrecondition = 9,
    /// Somebody else was faster.
    Aborted = 10,
    /// It is beyond the end.
    OutOfRange = 11,
    /// The server does not know the method.
    Unimplemented = 12,
    /// The server is broken.
    Internal = 13,
    /// The server cannot serve now.
    Unavailable = 14,
    /// Data is lost.
    DataLoss = 15,
    /// The caller has not said who it is.
    Unauthenticated = 16,
}

impl Default for BackendHealthPolicy {
    fn default() -> Self {
        let HealthSettings { panic_percent, .. } = HealthSettings::default();
        Self { active: None, passive: None, panic_percent }
    }
}

impl Default for ActiveHealth {
    fn default() -> Self {
        let ActiveSettings { interval, timeout, rise, fall } = ActiveSettings::default();
        Self {
            kind: ProbeType::default(),
            path: None,
            host: None,
            min_status: None,
            max_status: None,
            service: None,
            port: None,
            interval: Duration(interval),
            timeout: Duration(timeout),
            rise: rise.get(),
            fall: fall.get(),
        }
    }
}

impl Default for PassiveHealth {
    fn default() -> Self {
        let defaults = PassiveSettings::default();
        Self {
            eject_on: EjectOn::default(),
            consecutive_failures: defaults.consecutive_failures.get(),
            interval: Duration(defaults.interval),
            outlier_deviation_percent: defaults.outlier_deviation_percent,
            outlier_failure_percent: defaults.outlier_failure_percent,
            outlier_minimum_requests: defaults.outlier_minimum_requests,
            outlier_minimum_endpoints: u32::try_from(defaults.outlier_minimum_endpoints)
                .unwrap_or(u32::MAX),
            base_ejection_time: Duration(defaults.base_ejection_time),
            max_ejection_time: Duration(defaults.max_ejection_time),
            max_ejection_percent: defaults.max_ejection_percent,
        }
    }
}

impl Default for SlowStart {
    fn default() -> Self {
        let SlowStartSettings { window, floor_percent } = SlowStartSettings::default();
        Self { window: Duration(window), floor_percent }
    }
}

impl Default for BackendRetry {
    fn default() -> Self {
        let defaults = RetrySettings::default();
        Self {
            attempts: defaults.attempts.get(),
            statuses: Vec::new(),
            grpc_statuses: Vec::new(),
            backoff_base: Duration(defaults.backoff_base),
            backoff_max: Duration(defaults.backoff_max),
            budget_percent: defaults.budget_percent,
            budget_floor_per_second: defaults.budget_floor_per_second,
        }
    }
}
