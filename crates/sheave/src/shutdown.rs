//! The end of the process: who comes is taken in for a while still, then what runs may end.
//!
//! Meanwhile all else goes on: requests that wait or are tried again are to find the endpoints that there are by then.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use proxy::Proxy;
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep_until};

use crate::failure::Failure;
use crate::report::{ProcessPhase, ProcessReport};

/// How far the process is on its way out.
pub(crate) struct Shutdown {
    proxy: Arc<Proxy>,
    /// How long new connections are taken in.
    delay: Duration,
    /// How long running requests may take from then on.
    timeout: Duration,
    report: watch::Sender<ProcessReport>,
    stage: ShutdownPhase,
}

enum ShutdownPhase {
    /// Nobody has asked for it.
    Running,
    /// Clients are told, until then.
    Leaving(Instant),
    /// Nobody is taken in any more. True: all connections had gone in time.
    Draining(JoinHandle<bool>),
}

impl Shutdown {
    pub(crate) fn new(
        proxy: Arc<Proxy>,
        delay: Duration,
        timeout: Duration,
        report: watch::Sender<ProcessReport>,
    ) -> Self {
        Self { proxy, delay, timeout, report, stage: ShutdownPhase::Running }
    }

    /// A signal has asked for it. The second is an error: what still runs is cut off.
    pub(crate) fn begin(&mut self) -> Result<(), Failure> {
        if !matches!(self.stage, ShutdownPhase::Running) {
            tracing::warn!("a second signal: the requests that still run are cut off");
            return Err(Failure::CutOff);
        }
        if !self.delay.is_zero() {
            let delay_seconds = self.delay.as_secs_f64();
            tracing::info!(delay_seconds, "leaving: new connections are still taken in");
            self.proxy.announce_shutdown();
        }
        self.report.send_modify(|report| report.phase = ProcessPhase::Leaving);
        self.stage = ShutdownPhase::Leaving(Instant::now() + self.delay);
        Ok(())
    }

    /// Waits for the end, however long it is ahead. May be dropped and called again.
    pub(crate) async fn wait_until_drained(&mut self) -> Result<(), Failure> {
        loop {
            match &mut self.stage {
                ShutdownPhase::Running => pending().await,
                ShutdownPhase::Leaving(until) => {
                    sleep_until(*until).await;
                    self.stage = ShutdownPhase::Draining(self.drain());
                }
                ShutdownPhase::Draining(drained) => {
                    if drained.await.context("draining failed")? {
                        tracing::info!("drained");
                        return Ok(());
                    }
                    tracing::warn!(
                        "the drain timeout has passed: the requests that still run are cut off"
                    );
                    return Err(Failure::CutOff);
                }
            }
        }
    }

    fn drain(&self) -> JoinHandle<bool> {
        let timeout = self.timeout;
        self.report.send_modify(|report| report.phase = ProcessPhase::Draining);
        tracing::info!(timeout_seconds = timeout.as_secs_f64(), "draining: no new requests");
        let proxy = Arc::clone(&self.proxy);
        spawn_blocking(move || proxy.drain(timeout))
    }
}
