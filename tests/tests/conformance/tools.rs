//! The programs that `scripts/conformance` has built, or knows where to find, and how they are run.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use tests::Result;
use tokio::process::Command;
use tokio::time::timeout;

/// Longer than any of them takes on a machine that is busy.
const BOUND: Duration = Duration::from_secs(300);

fn path(name: &str) -> Result<PathBuf> {
    let tools = env::var_os("CONFORMANCE_TOOLS").context("`make conformance` runs this")?;
    Ok(PathBuf::from(tools).join(name))
}

/// Whether there is a program that not every machine can have. Where `CONFORMANCE_ALL` is set, there has to be.
pub(crate) fn is_installed(name: &str) -> Result<bool> {
    let is_there = path(name)?.is_file();
    ensure!(is_there || env::var_os("CONFORMANCE_ALL").is_none(), "{name} has to be there");
    if !is_there {
        eprintln!("skipped: there is no {name}; `scripts/conformance` has said why");
    }
    Ok(is_there)
}

/// A program of this name, not yet started; it is killed when dropped.
pub(crate) fn program(name: &str) -> Result<Command> {
    let path = path(name)?;
    ensure!(path.is_file(), "{path:?} is not there: `make conformance` gets it");
    let mut command = Command::new(path);
    command.stdin(Stdio::null()).kill_on_drop(true);
    Ok(command)
}

/// The program with these arguments, to its end.
pub(crate) async fn run<A: AsRef<OsStr>>(
    name: &str,
    arguments: impl IntoIterator<Item = A>,
) -> Result<Output> {
    let output = program(name)?.args(arguments).output();
    Ok(timeout(BOUND, output).await.with_context(|| format!("{name}: not after {BOUND:?}"))??)
}

/// What the program says on standard output with these arguments, if it ends well.
pub(crate) async fn standard_output<A: AsRef<OsStr>>(
    name: &str,
    arguments: impl IntoIterator<Item = A>,
) -> Result<String> {
    let output = run(name, arguments).await?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name}: {}: {errors}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// Where the programs and files are that are ours and not in Rust.
pub(crate) fn conformance_folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/conformance"))
}
