//! `sheave check`: prints every error in a configuration, one per line.

use std::io::{self, Write};

use anyhow::Context;

use crate::configuration;
use crate::failure::Failure;
use crate::files::SourceContents;
use crate::terminal_text::escaped;

/// Prints every error in a source and their count, or the number of valid objects. With sentences about what could not be
/// read, the check does not succeed.
pub(crate) fn run(contents: SourceContents, omissions: Vec<String>) -> Result<(), Failure> {
    let mut lines = Vec::new();
    let checked = configuration::check(contents).and_then(|checked| {
        // Those of a cluster, where an error of one object rejects no other.
        let mut problems = checked.translation.problems.clone();
        problems.extend(checked.expired_certificates(proxy::clock::wall()));
        if problems.is_empty() { Ok(checked) } else { Err(problems) }
    });
    let result = match checked {
        Ok(checked) => {
            lines.push(format!("{}, fine", pluralize(checked.objects.len(), "object")));
            if omissions.is_empty() { Ok(()) } else { Err(Failure::Input(omissions)) }
        }
        Err(problems) => {
            lines.extend(problems.iter().map(|problem| escaped(&problem.to_string())));
            lines.push(pluralize(problems.len(), "error"));
            Err(Failure::Input(omissions))
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
