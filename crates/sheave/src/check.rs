//! `sheave check`: prints every error in configuration files, one per line.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context;

use crate::configuration;
use crate::failure::Failure;
use crate::files;

/// Prints every error and their count, or the number of valid objects.
pub(crate) fn run(paths: &[PathBuf]) -> Result<(), Failure> {
    let mut lines = Vec::new();
    let checked = configuration::check(files::read(paths)).and_then(|checked| {
        let expired = checked.expired_certificates(proxy::clock::wall());
        if expired.is_empty() { Ok(checked) } else { Err(expired) }
    });
    let result = match checked {
        Ok(checked) => {
            lines.push(format!("{}, fine", pluralize(checked.objects.len(), "object")));
            Ok(())
        }
        Err(problems) => {
            lines.extend(problems.iter().map(ToString::to_string));
            lines.push(pluralize(problems.len(), "error"));
            Err(Failure::Input(Vec::new()))
        }
    };
    print(&lines)?;
    result
}

/// Prints lines on standard output.
pub(crate) fn print(lines: &[String]) -> Result<(), Failure> {
    Ok(write(lines).context("cannot write to standard output")?)
}

fn write(lines: &[String]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    for line in lines {
        match writeln!(stdout, "{line}") {
            // The reader has closed the pipe, as `head` does.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written?,
        }
    }
    Ok(())
}

/// Formats a count with its noun: `1 error`, `2 errors`.
pub(crate) fn pluralize(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}
