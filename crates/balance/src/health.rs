//! Decides which endpoints are fit to serve, and for how much, from what came of attempts and probes.
//!
//! Workers write down what they see ([`HealthCounters`]: a few relaxed reads for a success). One control thread judges
//! ([`HealthEvaluator`]), when a worker asks for it and some times a second, and makes a new set of endpoints where weights have
//! changed: 0 for who is out, less than all for who starts. So pickers know nothing of health.
//!
//! The models are Envoy's outlier detection and HAProxy's `observe`; different from both, an endpoint that was ejected
//! must serve one request, alone, before it gets its share again.

/// What an operator may say about it.
mod settings;
/// What workers have seen of an endpoint.
mod counters;
/// An endpoint's way out and back.
mod ejection;
/// Which endpoints fail much more than the others.
mod outlier;
/// When an endpoint is probed, and what the results mean.
mod probe;
/// How an endpoint comes to its full share.
mod slow_start;
/// What is known of one endpoint.
mod endpoint_health;
/// What is told of a judgement.
mod event;
/// Who is ejected, who is tried, who comes back.
mod evaluation_pass;
/// All of it, for the endpoints of one backend.
mod evaluator;

pub use counters::HealthCounters;
pub use ejection::{EjectionCause, EjectionState};
pub use endpoint_health::HealthStatus;
pub use evaluator::HealthEvaluator;
pub use event::{HealthChange, HealthEvaluation, HealthEvent};
pub use outlier::AttemptTotals;
pub use probe::ProbeResult;
pub use settings::{ActiveSettings, HealthSettings, PassiveSettings, SlowStartSettings};
