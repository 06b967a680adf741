//! Search for a seed whose simulation fails.

use std::fmt::Display;
use std::ops::AddAssign;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

/// Number of seeds after which progress is printed.
const PROGRESS: u64 = 1000;

/// Runs the simulation of each seed below `seeds`, and prints the sum of what they return. At the first that panics, it
/// prints the command that replays the seed: `replay` followed by the number.
#[expect(clippy::print_stdout, reason = "the result is the output")]
pub(crate) fn search<C: AddAssign + Default + Display>(
    seeds: u64,
    replay: &str,
    run: impl Fn(u64) -> C,
) -> ExitCode {
    let mut total = C::default();
    for seed in 0..seeds {
        let Some(counts) = checked(seed, &run) else {
            println!("seed {seed} fails; `{replay}{seed}` replays it");
            return ExitCode::FAILURE;
        };
        total += counts;
        if (seed + 1).is_multiple_of(PROGRESS) {
            println!("{} seeds, {total}", seed + 1);
        }
    }
    println!("no failure in {seeds} seeds, {total}");
    ExitCode::SUCCESS
}

/// Returns the result of a seed's simulation; `None` if it panics.
pub(crate) fn checked<C>(seed: u64, run: impl Fn(u64) -> C) -> Option<C> {
    catch_unwind(AssertUnwindSafe(|| run(seed))).ok()
}
