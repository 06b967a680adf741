//! The programs that `scripts/conformance` has built or found, and how to run them.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use tests::Result;
use tokio::process::Command;
use tokio::time::timeout;

/// Options of Java for processes that live for seconds.
pub(crate) const JAVA_OPTIONS: &[&str] = &["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"];

/// Longer than any of the programs takes on a busy machine.
const BOUND: Duration = Duration::from_secs(300);

/// Returns the path of a program, or of another file that `scripts/conformance` has put there.
pub(crate) fn path(name: &str) -> Result<PathBuf> {
    let tools = env::var_os("CONFORMANCE_TOOLS")
        .context("CONFORMANCE_TOOLS is not set: run `make conformance`")?;
    Ok(PathBuf::from(tools).join(name))
}

/// True if the program is installed. Not every machine can have it; if `CONFORMANCE_ALL` is set, it
/// must be there.
pub(crate) fn is_installed(name: &str) -> Result<bool> {
    let is_there = path(name)?.is_file();
    ensure!(is_there || env::var_os("CONFORMANCE_ALL").is_none(), "{name} is not installed");
    if !is_there {
        eprintln!("skipped: {name} is not installed; see the output of `scripts/conformance`");
    }
    Ok(is_there)
}

/// Returns the command for a program of this name. The process is killed when dropped.
pub(crate) fn program(name: &str) -> Result<Command> {
    let path = path(name)?;
    ensure!(path.is_file(), "{path:?} does not exist: run `make conformance`");
    let mut command = Command::new(path);
    command.stdin(Stdio::null()).kill_on_drop(true);
    Ok(command)
}

/// Runs the program with these arguments until it exits.
pub(crate) async fn run<A: AsRef<OsStr>>(
    name: &str,
    arguments: impl IntoIterator<Item = A>,
) -> Result<Output> {
    let mut command = program(name)?;
    command.args(arguments);
    output_of(command).await
}

/// Runs this command of [`program`] until it exits.
pub(crate) async fn output_of(mut command: Command) -> Result<Output> {
    Ok(timeout(BOUND, command.output())
        .await
        .with_context(|| format!("{command:?}: did not exit within {BOUND:?}"))??)
}

/// Runs the program with these arguments and returns its standard output. A failed exit is an
/// error.
pub(crate) async fn standard_output<A: AsRef<OsStr>>(
    name: &str,
    arguments: impl IntoIterator<Item = A>,
) -> Result<String> {
    let output = run(name, arguments).await?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name}: {}: {errors}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// Returns the folder of our programs and files that are not in Rust.
pub(crate) fn conformance_folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/conformance"))
}
