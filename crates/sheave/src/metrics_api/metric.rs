//! Metrics for autoscalers: their names, and their values.

use axum::http::StatusCode;
use proxy::{RequestDemand, RequestRates};
use serde_json::{Value, json};

/// A metric, averaged over [`WINDOW`](proxy::WINDOW) at all replicas together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScalingMetric {
    /// Concurrent requests: in flight, waiting and rejected ones.
    Demand,
    /// Requests that have a slot.
    InFlight,
    /// Requests in the queue.
    Waiting,
    /// Rejected requests, each for the time that it would have taken.
    Rejected,
    /// Requests per second.
    RequestRate,
    /// Rejected requests per second.
    RejectionRate,
}

/// Reason why a query has no answer, with the status of the response.
#[derive(Debug, PartialEq)]
pub(super) struct MetricError {
    pub(super) status: StatusCode,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl ScalingMetric {
    pub(crate) const ALL: [Self; 6] = [
        Self::Demand,
        Self::InFlight,
        Self::Waiting,
        Self::Rejected,
        Self::RequestRate,
        Self::RejectionRate,
    ];

    /// Returns the name in the API.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Demand => "sheave_demand",
            Self::InFlight => "sheave_requests_in_flight",
            Self::Waiting => "sheave_requests_waiting",
            Self::Rejected => "sheave_requests_rejected",
            Self::RequestRate => "sheave_requests_per_second",
            Self::RejectionRate => "sheave_rejections_per_second",
        }
    }

    /// Returns the metric of a name; `None`: there is none.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }

    /// Finds a metric by its name.
    pub(super) fn find(name: &str) -> Result<Self, MetricError> {
        Self::of_name(name).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            MetricError::not_found(format!("there is no metric {name:?}; there are: {known}"))
        })
    }

    /// True if routes have the metric too: requests wait for a Service, not for a route.
    pub(crate) const fn is_rate(self) -> bool {
        match self {
            Self::RequestRate | Self::RejectionRate => true,
            Self::Demand | Self::InFlight | Self::Waiting | Self::Rejected => false,
        }
    }

    /// Returns the value from the demand and the rates of an object.
    pub(super) fn value(self, demand: RequestDemand, rates: RequestRates) -> f64 {
        match self {
            Self::Demand => demand.total(),
            Self::InFlight => demand.in_flight,
            Self::Waiting => demand.queued,
            Self::Rejected => demand.rejected,
            Self::RequestRate => rates.requests,
            Self::RejectionRate => rates.rejected,
        }
    }
}

impl MetricError {
    pub(super) fn bad_request(message: String) -> Self {
        Self { status: StatusCode::BAD_REQUEST, reason: "BadRequest", message }
    }

    pub(super) fn not_found(message: String) -> Self {
        Self { status: StatusCode::NOT_FOUND, reason: "NotFound", message }
    }

    /// Returns it as a `Status` of the Kubernetes API: a HorizontalPodAutoscaler shows its message.
    pub(super) fn body(&self) -> Value {
        json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "reason": self.reason, "message": self.message, "code": self.status.as_u16(),
        })
    }
}

/// Returns a number as a quantity of Kubernetes, in thousandths and rounded up: some demand is never none.
pub(super) fn quantity(value: f64) -> String {
    format!("{}m", (value.max(0.0) * 1000.0).ceil())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_name_is_told_the_known_ones() {
        let unknown = ScalingMetric::find("demand").unwrap_err();
        assert_eq!(unknown.status, StatusCode::NOT_FOUND);
        for metric in ScalingMetric::ALL {
            assert!(unknown.message.contains(metric.name()), "{unknown:?}");
            assert_eq!(ScalingMetric::find(metric.name()), Ok(metric));
        }
    }

    #[test]
    fn quantities_are_never_negative_or_without_a_digit() {
        assert_eq!(quantity(0.0), "0m");
        assert_eq!(quantity(-0.5), "0m");
        assert_eq!(quantity(12.5), "12500m");
        assert_eq!(quantity(1e9), "1000000000000m");
    }
}
