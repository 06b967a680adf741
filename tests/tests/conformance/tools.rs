//! The programs that `scripts/conformance` has built, and how they are run.

use std::env;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use tests::Result;
use tokio::process::Command;
use tokio::time::timeout;

/// Longer than any of them takes on a machine that is busy.
const BOUND: Duration = Duration::from_secs(300);

/// A program of this name, not yet started; it is killed when dropped.
pub(crate) fn program(name: &str) -> Result<Command> {
    let tools = env::var_os("CONFORMANCE_TOOLS").context("`make conformance` runs this")?;
    let path = PathBuf::from(tools).join(name);
    ensure!(path.is_file(), "{path:?} is not there: `make conformance` builds it");
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
