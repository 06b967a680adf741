//! The real `balance` in a virtual world: searches seeds for a failure, replays one, traced,
//! or compares pickers, or scalers.
#![expect(clippy::print_stdout, reason = "a command that reports what it finds")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use crate::fault_simulation::FaultSimulation;
use crate::request_counts::RequestCounts;

/// What a seed draws.
mod plan;
/// How it draws.
mod random;
/// What happens.
mod fault_simulation;
/// To whom it happens.
mod requests;
/// Where they end up.
mod server;
/// Who sends them there.
mod balancer;
/// What they ask for slots.
mod backend;
/// How they end.
mod request_counts;
/// In which order.
mod event_queue;
/// What must hold all along.
mod invariants;
/// Endpoints of plainer worlds.
mod endpoint_sets;
/// Another world, long: how well limits are learned.
mod limit_learning;
/// Another world, plain and large: how long requests wait under each picker.
mod study;
/// And another: how soon a picker finds an endpoint that turns slow.
mod onset;
/// And another: a queue in a long overload.
mod overload;
/// And another: several balancers that share slots.
mod replicas;
/// And another: a day of a deployment that is scaled as its load goes.
mod autoscale;

const USAGE: &str = "usage: sim --seeds N   run seeds 0 to N - 1, stop at the first that fails
       sim --seed N    run one, traced
       sim --study     print how long requests wait under each picker
       sim --onset     print what an endpoint that turns slow costs under each picker
       sim --overload  print what a queue does in a long overload
       sim --limits    print how well limits are learned
       sim --replicas  print what sharing slots over several balancers costs
       sim --autoscale [NAME=VALUE]...
                       print a day of a deployment that is scaled as its load goes";

/// How many seeds between two signs of life.
const PROGRESS: u64 = 1_000;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["--seeds", number] if let Ok(seeds) = number.parse() => search(seeds),
        ["--seed", number] if let Ok(seed) = number.parse() => {
            println!("{}", FaultSimulation::new(seed, true).run());
            ExitCode::SUCCESS
        }
        ["--limits"] => {
            limit_learning::print();
            ExitCode::SUCCESS
        }
        ["--replicas"] => {
            replicas::print();
            ExitCode::SUCCESS
        }
        ["--study"] => {
            study::print();
            ExitCode::SUCCESS
        }
        ["--onset"] => {
            onset::print();
            ExitCode::SUCCESS
        }
        ["--overload"] => {
            overload::print();
            ExitCode::SUCCESS
        }
        ["--autoscale", ref options @ ..] => match autoscale::print(options) {
            Ok(()) => ExitCode::SUCCESS,
            Err(message) => {
                eprintln!("{message}");
                ExitCode::from(1)
            }
        },
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(1)
        }
    }
}

fn search(seeds: u64) -> ExitCode {
    let mut total = RequestCounts::default();
    for seed in 0..seeds {
        let Ok(tally) = catch_unwind(AssertUnwindSafe(|| FaultSimulation::new(seed, false).run()))
        else {
            println!("seed {seed} fails; `make sim SEED={seed}` replays it");
            return ExitCode::FAILURE;
        };
        total += tally;
        if (seed + 1).is_multiple_of(PROGRESS) {
            println!("{} seeds, {total}", seed + 1);
        }
    }
    println!("no failure in {seeds} seeds, {total}");
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invariants_hold_for_two_hundred_seeds() {
        for seed in 0..200 {
            let run = catch_unwind(AssertUnwindSafe(|| FaultSimulation::new(seed, false).run()));
            assert!(run.is_ok(), "`make sim SEED={seed}` replays the failure");
        }
    }

    #[test]
    fn same_seed_reproduces_the_same_simulation() {
        let run = |seed| FaultSimulation::new(seed, false).run().to_string();
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }
}
