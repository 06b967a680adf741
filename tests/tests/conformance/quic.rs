//! Cases of quic-interop-runner: other implementations of QUIC as clients of Sheave, over a line that delays, loses,
//! corrupts and rebinds.
//!
//! What each client can do is in the table of docs/internals/quic.md. A client says by its exit code that it cannot
//! do a case, as quic-interop-runner has it; the table must say the same.

use std::ffi::OsString;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use tests::Result;
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, LocalSet};

use crate::tools;

/// The cases as data, and what each requires.
mod cases;
/// One case with one client.
mod case_run;
/// The table of the documentation.
mod table;

use case_run::CaseRun;

/// Cases of one client that run at a time: most of them wait for the line.
const AT_ONCE: usize = 4;
/// Exit code of a client that cannot do a case.
const UNSUPPORTED: i32 = 127;

/// A client program.
#[derive(Clone, Copy)]
struct QuicClient {
    /// Name in the table.
    name: &'static str,
    /// Launcher.
    program: &'static str,
    /// Script that the launcher runs.
    script: Option<&'static str>,
}

impl QuicClient {
    /// Runs the client. Returns its output, or `None` if it cannot do the case.
    async fn run(self, arguments: Vec<OsString>) -> Result<Option<String>> {
        let mut all = Vec::new();
        all.extend(self.script.map(|name| tools::conformance_folder().join(name).into()));
        all.extend(arguments);
        let output = tools::run(self.program, all).await?;
        if output.status.code() == Some(UNSUPPORTED) {
            return Ok(None);
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {errors}", output.status);
        Ok(Some(String::from_utf8(output.stdout)?))
    }

    /// Runs all cases; each must end as the table says. A case that fails is run once more, after the others: the line
    /// loses at random, and a client on a busy machine gives up by timers of its own.
    async fn check_every_case(self) -> Result {
        LocalSet::new().run_until(self.run_every_case()).await
    }

    async fn run_every_case(self) -> Result {
        if !tools::is_installed(self.program)? {
            return Ok(());
        }
        let expected = table::column(self.name)?;
        let permits = Arc::new(Semaphore::new(AT_ONCE));
        let mut running = JoinSet::new();
        for case in cases::all() {
            let permits = Arc::clone(&permits);
            running.spawn_local(async move {
                let _permit = permits.acquire().await?;
                let name = case.name;
                anyhow::Ok((name, CaseRun::new(case).run(self).await))
            });
        }
        let mut outcomes = Vec::new();
        while let Some(done) = running.join_next().await {
            outcomes.push(done??);
        }
        let mut failures = Vec::new();
        for (name, mut outcome) in outcomes {
            if let Err(failure) = &outcome {
                eprintln!("{name} is run again: {failure:#}");
                let again = cases::all().into_iter().find(|case| case.name == name);
                outcome = CaseRun::new(again.context("no such case")?).run(self).await;
            }
            let is_supported = *expected.get(name).with_context(|| format!("no row for {name}"))?;
            match outcome {
                Ok(supported) if supported == is_supported => {}
                Ok(supported) => failures.push(format!("{name}: supported is {supported}")),
                Err(error) => failures.push(format!("{name}: {error:#}")),
            }
        }
        if !failures.is_empty() {
            bail!("{}:\n{}", self.name, failures.join("\n"));
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs quic-go: make conformance"]
async fn quic_go_passes_its_cases() -> Result {
    QuicClient { name: "quic-go", program: "quic-go", script: None }.check_every_case().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs aioquic: make conformance"]
async fn aioquic_passes_its_cases() -> Result {
    let script = Some("interop_client.py");
    QuicClient { name: "aioquic", program: "python-current", script }.check_every_case().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs s2n-quic: make conformance"]
async fn s2n_quic_passes_its_cases() -> Result {
    QuicClient { name: "s2n-quic", program: "s2n-quic", script: None }.check_every_case().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs quiche: make conformance"]
async fn quiche_passes_its_cases() -> Result {
    QuicClient { name: "quiche", program: "quiche", script: None }.check_every_case().await
}

#[test]
fn table_has_every_case() -> Result {
    for client in ["quic-go", "aioquic", "s2n-quic", "quiche"] {
        let rows = table::column(client)?;
        let cases = cases::all();
        ensure!(rows.len() == cases.len(), "{client}: {} rows", rows.len());
        for case in cases {
            ensure!(rows.contains_key(case.name), "{client}: no row for {}", case.name);
        }
    }
    Ok(())
}
