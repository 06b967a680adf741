//! Study: replicas that lease slots to one another. Measures waits beside one central queue, and
//! searches seeds with faults for a request over the cap, a lost slot or a starved request.
//!
//! The protocol is the production `LeaseTable`. `docs/internals/replicas.md` shows the table.

use std::process::ExitCode;

/// Replica: the lease table, and a data plane that obeys it.
mod lease_replica;
/// Waits, by how requests are split over replicas.
mod waits;
/// Cost of the table.
mod lease_cost;
/// Plan of a seed: topology, load, network.
mod lease_plan;
/// Network between replicas, and clocks.
mod network;
/// Simulation of one seed with faults.
mod lease_faults;
/// Checks of slots and requests in flight.
mod audit;

use lease_faults::{LeaseFaultCounts, LeaseFaultSimulation};

use crate::seed_search;

/// Prints the table of waits or of costs, searches seeds, or replays one with a trace.
///
/// # Errors
///
/// Returns a message if the options are not understood, or the cost cannot be measured.
#[expect(clippy::print_stdout, reason = "the result is the output")]
pub(crate) fn print(options: &[&str]) -> Result<ExitCode, String> {
    let number = |text: &str| text.parse().map_err(|error| format!("{text:?}: {error}"));
    match options {
        [] => {
            waits::print();
            Ok(ExitCode::SUCCESS)
        }
        ["--lab"] => {
            waits::print_lab();
            Ok(ExitCode::SUCCESS)
        }
        ["--fairness"] => {
            waits::print_fairness();
            Ok(ExitCode::SUCCESS)
        }
        ["--cost"] => lease_cost::print().map(|()| ExitCode::SUCCESS),
        ["--seeds", seeds] => Ok(seed_search::search(number(seeds)?, "--leases --seed ", run)),
        ["--seed", seed] => {
            println!("{}", LeaseFaultSimulation::new(number(seed)?, true).run());
            Ok(ExitCode::SUCCESS)
        }
        _ => Err(
            "--leases takes nothing, `--lab`, `--fairness`, `--cost`, `--seeds N` or `--seed N`"
                .to_owned(),
        ),
    }
}

/// Runs a seed without a trace.
fn run(seed: u64) -> LeaseFaultCounts {
    LeaseFaultSimulation::new(seed, false).run()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_keep_the_cap_in_two_hundred_seeds() {
        for seed in 0..200 {
            let counts = seed_search::checked(seed, run);
            assert!(counts.is_some(), "`--leases --seed {seed}` replays the failure");
        }
    }

    #[test]
    fn same_seed_reproduces_the_same_leases() {
        let text = |seed| run(seed).to_string();
        assert_eq!(text(7), text(7));
        assert_ne!(text(7), text(8));
    }
}
