//! The parts of a BackendPolicy for health checks, outlier detection, slow start and retries.
//!
//! Names and defaults are those of [`balance`], which implements them.

use balance::health::{ActiveSettings, HealthSettings, PassiveSettings, SlowStartSettings};
use balance::retry::RetrySettings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::duration::Duration;

/// Active health checks and outlier detection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BackendHealthPolicy {
    /// Active health checks. Default: endpoints are not probed.
    pub active: Option<ActiveHealth>,
    /// Outlier detection: ejects endpoints whose requests fail. Default: five connection failures in a row (the
    /// connection cannot be established, it breaks, or no response arrives in time) eject an endpoint for one second,
    /// and each further ejection lasts twice as long, up to 30 seconds; a 5xx response does not eject.
    pub passive: Option<PassiveHealth>,
    /// Panic threshold, in percent. If fewer endpoints than this are healthy, all endpoints are used, because a request
    /// that may fail is better than a rejected one. 0 disables panic mode.
    #[schemars(range(min = 0, max = 100))]
    pub panic_percent: u32,
}

/// Active health checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ActiveHealth {
    /// The type of a probe.
    #[serde(rename = "type")]
    pub kind: ProbeType,
    /// The path of an HTTP probe, with an optional query.
    #[schemars(length(min = 1, max = 1024), extend("format" = "target"))]
    pub path: Option<String>,
    /// The `Host` of an HTTP or gRPC probe. Default: the endpoint's address and port.
    #[schemars(extend("format" = "host"))]
    pub host: Option<String>,
    /// The lowest status of a successful HTTP probe. Default: 200.
    #[schemars(range(min = 100, max = 599))]
    pub min_status: Option<u16>,
    /// The highest status of a successful HTTP probe. Default: 399.
    #[schemars(range(min = 100, max = 599))]
    pub max_status: Option<u16>,
    /// The service name in a gRPC probe. Default: the server as a whole.
    #[schemars(length(min = 1, max = 1024))]
    pub service: Option<String>,
    /// The port to probe. Default: the endpoint's own port.
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<u16>,
    /// The time between the end of a probe and the next one, with a jitter of 10 %. A probe is skipped while requests
    /// succeed.
    pub interval: Duration,
    /// Maximum time for a probe.
    pub timeout: Duration,
    /// Number of successful probes in a row after which an unhealthy endpoint is healthy.
    #[schemars(range(min = 1, max = 100))]
    pub rise: u32,
    /// Number of failed probes in a row after which a healthy endpoint is unhealthy.
    #[schemars(range(min = 1, max = 100))]
    pub fall: u32,
}

/// A type of probe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ProbeType {
    /// A GET over HTTP/1.1.
    #[default]
    #[serde(rename = "HTTP")]
    Http,
    /// A TCP connection, which is closed at once.
    #[serde(rename = "TCP")]
    Tcp,
    /// The gRPC health check (`grpc.health.v1.Health/Check`), which must answer `SERVING`.
    #[serde(rename = "GRPC")]
    Grpc,
}

/// Outlier detection (passive health checks).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PassiveHealth {
    /// The outcomes that count as failures.
    pub eject_on: EjectOn,
    /// Number of failures in a row that eject an endpoint at once. A 429, or a 503 with `Retry-After`, is not a
    /// failure.
    #[schemars(range(min = 1, max = 1000))]
    pub consecutive_failures: u32,
    /// The interval at which success rates are compared. A 5xx response is a failure in this comparison.
    pub interval: Duration,
    /// Maximum deviation of the success rate below the mean, in percent of the standard deviation. An endpoint below it
    /// is an outlier.
    #[schemars(range(min = 0, max = 10_000))]
    pub outlier_deviation_percent: u32,
    /// The lowest failure rate of an outlier, in percent of its requests.
    #[schemars(range(min = 0, max = 100))]
    pub outlier_failure_percent: u32,
    /// Minimum number of requests in an interval. An endpoint with fewer requests is not compared.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub outlier_minimum_requests: u64,
    /// Minimum number of endpoints to compare. With fewer endpoints there are no outliers.
    #[schemars(range(min = 1, max = 1000))]
    pub outlier_minimum_endpoints: u32,
    /// The duration of the first ejection. Each further ejection lasts twice as long.
    pub base_ejection_time: Duration,
    /// Maximum duration of an ejection.
    pub max_ejection_time: Duration,
    /// Maximum share of endpoints that are ejected at the same time, in percent. Of two endpoints one can always be
    /// ejected.
    #[schemars(range(min = 0, max = 100))]
    pub max_ejection_percent: u32,
}

/// The outcomes that eject an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EjectOn {
    /// Connection failures and 5xx responses.
    #[default]
    ServerErrors,
    /// Connection failures only: the connection cannot be established, it breaks, or no response arrives in time.
    ConnectionFailures,
    /// None: no endpoint is ejected.
    Nothing,
}

/// Slow start of an endpoint that is new or returns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SlowStart {
    /// The duration of slow start, in which the weight grows in equal steps.
    pub window: Duration,
    /// The initial weight of an endpoint, in percent of its full weight.
    #[schemars(range(min = 1, max = 100))]
    pub floor_percent: u32,
}

/// Retries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BackendRetry {
    /// Maximum number of attempts at a request, including the first. A failed attempt is retried if the request is
    /// idempotent, or if no byte of it can have reached the endpoint.
    #[schemars(range(min = 1, max = 10))]
    pub attempts: u32,
    /// Response statuses that are also retried, if the request is idempotent.
    #[schemars(length(max = 32), inner(range(min = 400, max = 599)))]
    pub statuses: Vec<u16>,
    /// gRPC statuses that are also retried. A retry is possible only if the status arrives before any response message,
    /// because the client has then received nothing of the response.
    #[schemars(length(max = 16))]
    pub grpc_statuses: Vec<GrpcStatus>,
    /// Base of the exponential backoff: the first retry waits a random time up to this, each further retry up to twice
    /// as long.
    pub backoff_base: Duration,
    /// Maximum wait before a retry.
    pub backoff_max: Duration,
    /// Retry budget: maximum number of retries, in percent of the requests of the last ten seconds, over all workers.
    #[schemars(range(min = 0, max = 100))]
    pub budget_percent: u32,
    /// Number of retries per second that are allowed in addition to the budget.
    #[schemars(range(min = 0, max = 10_000))]
    pub budget_floor_per_second: u32,
}

/// A gRPC status other than OK.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[repr(u8)]
pub enum GrpcStatus {
    /// The call was cancelled, typically by the caller.
    Cancelled = 1,
    /// The cause of the failure is unknown.
    Unknown = 2,
    /// The request is invalid.
    InvalidArgument = 3,
    /// The deadline has passed.
    DeadlineExceeded = 4,
    /// The requested entity does not exist.
    NotFound = 5,
    /// The entity to create exists already.
    AlreadyExists = 6,
    /// The caller has no permission.
    PermissionDenied = 7,
    /// A resource is exhausted.
    ResourceExhausted = 8,
    /// The system is not in the state that the call requires.
    FailedPrecondition = 9,
    /// The operation was aborted, typically by a concurrent one.
    Aborted = 10,
    /// The operation is past the valid range.
    OutOfRange = 11,
    /// The server does not implement the method.
    Unimplemented = 12,
    /// Internal error of the server.
    Internal = 13,
    /// The service is currently unavailable.
    Unavailable = 14,
    /// Data was lost or corrupted.
    DataLoss = 15,
    /// The caller has no valid credentials.
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
            budget_floor_per_second: defaults.budget_floor_per_second(),
        }
    }
}
