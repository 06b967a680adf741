//! A day of an autoscaled deployment: what a scaler costs in pod-hours, and what it refuses and keeps waiting.
//!
//! The real `balance` gives out slots, keeps the queue and reckons the demand. Around it are clients that try again,
//! pods that take their time to start, and a scaler. `lab run autoscale-sim` runs it and says what came of it.

/// What is asked for.
mod settings;
/// When requests come.
mod traffic;
/// What serves them, and what it costs.
mod pods;
/// What decides how many pods there are to be.
mod scaler;
/// All of it, in order of time.
mod day;
/// What came of it.
mod record;

use day::DaySimulation;
use settings::DaySettings;

/// Runs a day and prints it: a table of its minutes, an empty line, a table of one row with the whole.
#[expect(clippy::print_stdout, reason = "the tables are what it is for")]
pub(crate) fn print(options: &[&str]) -> Result<(), String> {
    let settings = DaySettings::parse(options)?;
    print!("{}", DaySimulation::new(&settings).run());
    Ok(())
}
