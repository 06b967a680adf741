//! Simulation of a day of an autoscaled deployment: the scaler's cost in pod-hours, its rejections
//! and its waits.
//!
//! The production `balance` code grants slots, keeps the queue and computes the demand. Around it
//! are clients that retry, pods and nodes that take time to start, and a scaler.
//! `lab run autoscale-sim` runs it and reports the result.

/// Settings of the day.
mod settings;
/// Arrival times of requests.
mod traffic;
/// Nodes that have room for pods.
mod nodes;
/// Pods that serve requests, and their cost.
mod pods;
/// Metrics that a scaler reads.
mod metrics;
/// Tolerances, windows and policies of a HorizontalPodAutoscaler.
mod behavior;
/// Scaler that sets the number of pods.
mod scaler;
/// Simulation of the day, in order of time.
mod day;
/// Results of the day.
mod record;

use day::DaySimulation;
use settings::DaySettings;

/// Runs a day and prints it: a table of its minutes, an empty line, and a table of one row with the
/// totals.
#[expect(clippy::print_stdout, reason = "the tables are the output")]
pub(crate) fn print(options: &[&str]) -> Result<(), String> {
    let settings = DaySettings::parse(options)?;
    print!("{}", DaySimulation::new(&settings).run());
    Ok(())
}
