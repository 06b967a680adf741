//! Sheave: one binary. It reads the command line and the sources of objects, and runs the data plane.

/// The command line.
mod flags;
/// `sheave serve`.
mod serve;
/// `sheave check`.
mod check;
/// The `migrate` subcommand.
mod migrate;
/// One HTTP request over a connection of its own.
mod http_client;
/// `sheave explain`.
mod explain;
/// `sheave top`.
mod top;
/// `sheave dashboard`.
mod dashboard;
/// `sheave kubectl`, the kubectl plugin.
mod kubectl;
/// Text of others for a terminal.
mod terminal_text;
/// A cluster that is read once, as an operator.
mod live_cluster;
/// `sheave announce`.
mod announce;
/// `sheave l4`.
mod l4_agent;
/// `sheave probe`.
mod probe;
/// Files as a source of Kubernetes objects.
mod files;
/// A Kubernetes cluster as a source of objects.
mod cluster;
/// Traces of requests, for a collector.
mod traces;
/// Transparent mode: connections to Services, taken on their way.
mod transparent;
/// Events of Services of type LoadBalancer.
mod load_balancer_events;
/// Peer replicas that are terminating.
mod terminating_peers;
/// The self-signed certificate used without `--cert`.
mod self_signed;
/// DNS names as endpoints.
mod dns;
/// Key sets of issuers by URL.
mod key_sets;
/// Applies objects to the data plane.
mod configuration;
/// Waits until an optional deadline.
mod timer;
/// Graceful shutdown of the process.
mod shutdown;
/// Signals of the process.
mod signals;
/// Replacement of this process by another one.
mod upgrade;
/// Replicas that share limits with this one.
mod replicas;
/// The configuration in force and the rejected objects.
mod report;
/// The HTTP API that shows this report.
mod admin;
/// KEDA's external scaler: the demand of each Service.
mod scaler;
/// The API of metrics for autoscalers.
mod metrics_api;
/// The xDS server, for gRPC clients that balance each call themselves.
mod xds;
/// Authorities that issue certificates, in a Secret.
mod authority;
/// The ready file.
mod ready;
/// The allocator, and when it returns memory to the system.
mod memory;
/// The memory that the process may have.
mod memory_limit;
/// Pods of this node.
mod node_pods;
/// Deletion costs of pods, for a scale down.
mod deletion_costs;
/// Memory and file descriptors of this process, as the kernel reports them.
mod process;
/// Linux capabilities of this process.
mod capability;
/// Log events on standard error.
mod log;
/// Errors that end the process, and its exit code.
mod failure;

use std::process::ExitCode;

use clap::Parser;

use failure::Failure;
use flags::{CliCommand, CommandLine};

fn main() -> ExitCode {
    capability::take_permitted();
    let command = match CommandLine::try_parse_from(kubectl::arguments(std::env::args_os())) {
        Ok(CommandLine { command }) => command,
        Err(answer) => return print_usage_error(&answer),
    };
    let result = match command {
        CliCommand::Serve(flags) => serve::run(*flags),
        CliCommand::Check(flags) => live_cluster::check(&flags),
        CliCommand::Migrate(flags) => migrate::run(&flags),
        CliCommand::Explain(flags) => explain::run(&flags),
        CliCommand::Top(flags) => top::run(&flags),
        CliCommand::Dashboard(flags) => dashboard::run(&flags),
        CliCommand::Kubectl(flags) => kubectl::run(&flags),
        CliCommand::Announce(flags) => announce::run(flags),
        CliCommand::L4(flags) => l4_agent::run(*flags),
        CliCommand::Probe(flags) => probe::run(&flags),
        CliCommand::Xds { command } => xds::run(command),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => Failure::report(failure),
    }
}

/// Prints help, the version, or the error in the command line.
fn print_usage_error(answer: &clap::Error) -> ExitCode {
    // If this write fails, there is no other place to report it.
    answer.print().ok();
    if answer.use_stderr() { ExitCode::from(failure::INPUT_EXIT_CODE) } else { ExitCode::SUCCESS }
}

/// Committed files that tests keep fresh.
#[cfg(test)]
mod expect;
