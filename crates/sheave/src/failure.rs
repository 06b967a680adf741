//! What ends the process early, what is said then, and the exit code.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

/// Why a command did not do what was asked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// What the person gave us is wrong: one line each.
    Input(Vec<String>),
    /// Running requests were cut off.
    CutOff,
    /// It is our doing, or the machine's.
    Internal(anyhow::Error),
}

/// The exit code for wrong input, a command line that clap refuses included.
pub(crate) const INPUT_EXIT_CODE: u8 = 1;
const INTERNAL_EXIT_CODE: u8 = 2;

impl Failure {
    /// Wrong input that takes one sentence.
    pub(crate) fn input(sentence: impl fmt::Display) -> Self {
        Self::Input(vec![format!("sheave: {sentence}")])
    }

    /// Says what is to be said on standard error.
    pub(crate) fn report(self) -> ExitCode {
        let (lines, code) = match self {
            Self::Input(lines) => (lines, INPUT_EXIT_CODE),
            Self::CutOff => (Vec::new(), INTERNAL_EXIT_CODE),
            Self::Internal(error) => (vec![format!("sheave: {error:#}")], INTERNAL_EXIT_CODE),
        };
        let mut stderr = io::stderr().lock();
        for line in lines {
            // There is nobody else to tell.
            writeln!(stderr, "{line}").ok();
        }
        ExitCode::from(code)
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Internal(error)
    }
}

/// What a person can do about an address that cannot be listened on.
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
