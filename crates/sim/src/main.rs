//! Simulator of the production `balance` code: searches seeds for a failure, replays a seed with a
//! trace, or compares pickers or scalers.
#![expect(clippy::print_stdout, reason = "a command that reports what it finds")]

use std::process::ExitCode;

use crate::fault_simulation::FaultSimulation;

/// Plan of a seed: topology, policies, load.
mod plan;
/// Random draws.
mod random;
/// Search for a seed whose simulation fails.
mod seed_search;
/// Fault simulation.
mod fault_simulation;
/// Requests in progress.
mod requests;
/// Simulated servers with faults.
mod server;
/// Simulated balancers.
mod balancer;
/// Simulated backends.
mod backend;
/// Counts of request results.
mod request_counts;
/// Event queue, ordered by time.
mod event_queue;
/// Invariants that hold at all times.
mod invariants;
/// Endpoint sets of the simple simulations.
mod endpoint_sets;
/// Study: accuracy of learned limits.
mod limit_learning;
/// Study: learned limits of several balancers.
mod limit_sharing;
/// Study: waiting times under each picker.
mod study;
/// Study: time until a picker avoids an endpoint that becomes slow.
mod onset;
/// Study: a queue in a sustained overload.
mod overload;
/// Study: several balancers that share slots.
mod replicas;
/// Study: several balancers that lease slots to one another.
mod leases;
/// Study: a day of an autoscaled deployment.
mod autoscale;

const USAGE: &str = "usage: sim --seeds N   run seeds 0 to N - 1, stop at the first failure
       sim --seed N    run one seed and print a trace
       sim --study     print waiting times under each picker
       sim --onset     print the cost of an endpoint that becomes slow, by picker
       sim --overload  print waits and useful work of a queue in a sustained overload
       sim --limits    print the accuracy of learned limits
       sim --shared-limits
                       print the accuracy of limits that several balancers learn
       sim --replicas  print the cost of sharing slots among several balancers
       sim --leases    print waits of replicas that lease slots to one another
       sim --leases --cost
                       print the processor time of a lease table
       sim --leases --seeds N | --seed N
                       search seeds of leases with faults, or replay one
       sim --autoscale [NAME=VALUE]...
                       print a day of an autoscaled deployment";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["--seeds", number] if let Ok(seeds) = number.parse() => {
            seed_search::search(seeds, "make sim SEED=", |seed| {
                FaultSimulation::new(seed, false).run()
            })
        }
        ["--seed", number] if let Ok(seed) = number.parse() => {
            println!("{}", FaultSimulation::new(seed, true).run());
            ExitCode::SUCCESS
        }
        ["--limits"] => {
            limit_learning::print();
            ExitCode::SUCCESS
        }
        ["--shared-limits"] => {
            limit_sharing::print();
            ExitCode::SUCCESS
        }
        ["--replicas"] => {
            replicas::print();
            ExitCode::SUCCESS
        }
        ["--leases", ref options @ ..] => leases::print(options).unwrap_or_else(|message| {
            eprintln!("{message}");
            ExitCode::from(1)
        }),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invariants_hold_for_two_hundred_seeds() {
        for seed in 0..200 {
            let counts = seed_search::checked(seed, |seed| FaultSimulation::new(seed, false).run());
            assert!(counts.is_some(), "`make sim SEED={seed}` replays the failure");
        }
    }

    #[test]
    fn same_seed_reproduces_the_same_simulation() {
        let run = |seed| FaultSimulation::new(seed, false).run().to_string();
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }
}
