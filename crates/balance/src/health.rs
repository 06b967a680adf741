//! Decides which endpoints are fit to serve, from what came of attempts and probes.

/// What an operator may say about it.
mod settings;

pub use settings::{ActiveSettings, HealthSettings, PassiveSettings, SlowStartSettings};
