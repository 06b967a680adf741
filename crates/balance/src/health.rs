//! Decides from attempts and probes which endpoints may serve, and with which weight.
//!
//! Workers record their observations ([`HealthCounters`]: a few relaxed reads for a success). One
//! control thread evaluates them ([`HealthEvaluator`]), when a worker asks for it and several times
//! a second. If weights have changed, it makes a new set of endpoints: an ejected endpoint has
//! weight 0, one in slow start less than its full weight. So pickers know nothing of health.
//!
//! The models are Envoy's outlier detection and HAProxy's `observe`. Unlike both, an ejected
//! endpoint becomes half-open first: it must serve one request, alone, before it gets its share
//! again.

/// Settings.
mod settings;
/// Observations of workers.
mod counters;
/// Ejection and half-open state of one endpoint.
mod ejection;
/// Outlier detection by success rates.
mod outlier;
/// Schedule and results of active probes.
mod probe;
/// Slow start.
mod slow_start;
/// Health of one endpoint of a backend.
mod endpoint_health;
/// Events and results of an evaluation.
mod event;
/// One pass of passive health: ejects, makes half-open, unejects.
mod evaluation_pass;
/// Health of all endpoints of one backend.
mod evaluator;

pub use counters::HealthCounters;
pub use ejection::{EjectionCause, EjectionState};
pub use endpoint_health::HealthStatus;
pub use evaluator::HealthEvaluator;
pub use event::{HealthChange, HealthEvaluation, HealthEvent};
pub use outlier::AttemptTotals;
pub use probe::ProbeResult;
pub use settings::{ActiveSettings, HealthSettings, PassiveSettings, SlowStartSettings};
