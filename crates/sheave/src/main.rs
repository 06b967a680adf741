//! Sheave: one binary. It reads the command line and the sources of objects, and runs the data plane.

/// What a person may type.
mod flags;
/// `sheave serve`.
mod serve;
/// `sheave check`.
mod check;
/// `sheave explain`.
mod explain;
/// `sheave top`.
mod top;
/// `sheave announce`.
mod announce;
/// Files as a source of objects.
mod files;
/// A cluster as a source of objects.
mod cluster;
/// Peers that end.
mod terminating_peers;
/// The certificate where none is given.
mod self_signed;
/// Names in DNS as endpoints.
mod dns;
/// From objects to what is in force.
mod configuration;
/// Waiting for what may be due some time.
mod timer;
/// The end of the process.
mod shutdown;
/// The Sheaves that share limits with this one.
mod replicas;
/// What is in force and what was refused.
mod report;
/// The HTTP API that shows it.
mod admin;
/// KEDA's external scaler: how much each Service is asked for.
mod scaler;
/// The ready file.
mod ready;
/// The allocator, and when it gives memory back.
mod memory;
/// What the kernel says of this process.
mod process;
/// What it may do beyond what any other may.
mod capability;
/// Events on standard error.
mod log;
/// What ends the process, and its exit code.
mod failure;

use std::process::ExitCode;

use clap::Parser;

use failure::Failure;
use flags::{CliCommand, CommandLine};

fn main() -> ExitCode {
    capability::take_permitted();
    let command = match CommandLine::try_parse() {
        Ok(CommandLine { command }) => command,
        Err(answer) => return print_usage_error(&answer),
    };
    let result = match command {
        CliCommand::Serve(flags) => serve::run(*flags),
        CliCommand::Check(flags) => check::run(&flags.paths),
        CliCommand::Explain(flags) => explain::run(&flags),
        CliCommand::Top(flags) => top::run(&flags),
        CliCommand::Announce(flags) => announce::run(flags),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => Failure::report(failure),
    }
}

/// Prints help, the version, or what is wrong with the command line.
fn print_usage_error(answer: &clap::Error) -> ExitCode {
    // There is nobody else to tell.
    answer.print().ok();
    if answer.use_stderr() { ExitCode::from(failure::INPUT_EXIT_CODE) } else { ExitCode::SUCCESS }
}

/// Committed files that tests keep fresh.
#[cfg(test)]
mod expect;
