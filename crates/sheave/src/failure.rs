//! Errors that end the process: the message on standard error, and the exit code.

use std::fmt;
use std::io;
use std::process::ExitCode;

use crate::log;

/// Reason why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The user's input is invalid: one line per error.
    Input(Vec<String>),
    /// The shutdown closed connections with requests in flight.
    CutOff,
    /// An error of Sheave itself or of the machine.
    Internal(anyhow::Error),
}

/// Exit code for invalid input, including a command line that clap rejects.
pub(crate) const INPUT_EXIT_CODE: u8 = 1;
const INTERNAL_EXIT_CODE: u8 = 2;

impl Failure {
    /// Returns a failure for invalid input with a message of one sentence.
    pub(crate) fn input(sentence: impl fmt::Display) -> Self {
        Self::Input(vec![format!("sheave: {sentence}")])
    }

    /// Prints the message on standard error and returns the exit code.
    pub(crate) fn report(self) -> ExitCode {
        let (lines, code) = match self {
            Self::Input(lines) => (lines, INPUT_EXIT_CODE),
            Self::CutOff => (Vec::new(), INTERNAL_EXIT_CODE),
            Self::Internal(error) => (vec![format!("sheave: {error:#}")], INTERNAL_EXIT_CODE),
        };
        log::write_at_exit(lines);
        ExitCode::from(code)
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Internal(error)
    }
}

/// Returns the remedy for an address that cannot be bound.
pub(crate) fn bind_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "another process listens there: stop it, or choose another port"
        }
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 need root or the capability CAP_NET_BIND_SERVICE: choose another port, or grant it"
        }
        io::ErrorKind::AddrNotAvailable => {
            "this machine does not have that address: see `ip address`"
        }
        _ => "choose another address",
    }
}
