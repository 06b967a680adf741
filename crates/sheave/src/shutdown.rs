//! Graceful shutdown: new connections are still accepted for a while, then requests in flight may
//! complete.
//!
//! Everything else continues meanwhile: queued and retried requests need the endpoints of that time.

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
use crate::transparent::{self, AgentHandle};

/// Progress of the graceful shutdown.
pub(crate) struct Shutdown {
    proxy: Arc<Proxy>,
    /// Time during which new connections are still accepted.
    delay: Duration,
    /// Time that requests in flight have after that.
    timeout: Duration,
    report: watch::Sender<ProcessReport>,
    /// Transparent mode, whose rules end first and go last.
    agent: Option<AgentHandle>,
    stage: ShutdownPhase,
}

enum ShutdownPhase {
    /// No shutdown has been requested.
    Running,
    /// Clients are told to reconnect, until this time.
    Leaving(Instant),
    /// New connections are no longer accepted. The result is true if all connections closed in
    /// time.
    Draining(JoinHandle<bool>),
}

impl Shutdown {
    pub(crate) fn new(
        proxy: Arc<Proxy>,
        delay: Duration,
        timeout: Duration,
        report: watch::Sender<ProcessReport>,
        agent: Option<AgentHandle>,
    ) -> Self {
        Self { proxy, delay, timeout, report, agent, stage: ShutdownPhase::Running }
    }

    /// Begins the shutdown after a signal. A second signal is an error: connections with requests
    /// in flight are closed.
    pub(crate) fn begin(&mut self) -> Result<(), Failure> {
        if !matches!(self.stage, ShutdownPhase::Running) {
            tracing::warn!("second signal: closing connections with requests in flight");
            return Err(Failure::CutOff);
        }
        if let Some(agent) = &self.agent {
            agent.withdraw();
            self.delay = self.delay.max(transparent::ARRIVAL_TIME);
        }
        if !self.delay.is_zero() {
            let delay_seconds = self.delay.as_secs_f64();
            tracing::info!(
                delay_seconds,
                "shutting down: new connections are still accepted during the drain delay"
            );
            self.proxy.announce_shutdown();
        }
        self.report.send_modify(|report| report.phase = ProcessPhase::Leaving);
        self.stage = ShutdownPhase::Leaving(Instant::now() + self.delay);
        Ok(())
    }

    /// Begins to drain at once: another process serves in place of this one.
    pub(crate) fn begin_handover(&mut self) {
        tracing::info!("a new process serves: this one drains");
        self.proxy.leave_datagrams();
        self.report.send_modify(|report| report.phase = ProcessPhase::Leaving);
        self.stage = ShutdownPhase::Leaving(Instant::now());
    }

    /// Waits for the end of the shutdown, or forever if none has begun. Cancel-safe.
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
                        "the drain timeout has passed: closing connections with requests in flight"
                    );
                    return Err(Failure::CutOff);
                }
            }
        }
    }

    fn drain(&self) -> JoinHandle<bool> {
        let timeout = self.timeout;
        self.report.send_modify(|report| report.phase = ProcessPhase::Draining);
        tracing::info!(
            timeout_seconds = timeout.as_secs_f64(),
            "draining: new requests are no longer accepted"
        );
        let (proxy, agent) = (Arc::clone(&self.proxy), self.agent.clone());
        spawn_blocking(move || {
            if let Some(agent) = &agent {
                agent.wait_until_withdrawn();
            }
            let is_drained = proxy.drain(timeout);
            if let Some(agent) = agent {
                agent.end();
            }
            is_drained
        })
    }
}
