//! Closed loop over HTTP/1.1: each connection sends its next request when the previous one is answered.

use std::time::Instant;

use anyhow::{Context as _, Result};
use mio::Registry;

use crate::EventSource;
use crate::http1_client::{Http1Client, RequestTemplate};
use crate::job::{LoadJob, LoadReport};
use crate::progress::RunProgress;

pub(crate) struct Http1LoadRun {
    job: LoadJob,
    script: RequestTemplate,
    connections: Vec<LoadConnection>,
    course: RunProgress,
}

struct LoadConnection {
    exchange: Http1Client,
    began: Instant,
}

impl Http1LoadRun {
    pub(crate) fn start(job: LoadJob, served: &[u64], registry: &Registry) -> Result<Self> {
        let mut connections = (0..job.connections)
            .map(|index| connect(&job, index, registry))
            .collect::<Result<Vec<_>>>()?;
        connections.iter_mut().for_each(|connection| connection.exchange.begin());
        let course =
            RunProgress::begin(job.extent, job.processes.clone(), connections.len(), served)?;
        Ok(Self { script: RequestTemplate::of(&job.request), connections, course, job })
    }

    pub(crate) fn spins(&self) -> bool {
        self.job.spin
    }

    pub(crate) fn counts(&self) -> bool {
        self.course.is_counting()
    }

    /// Advances one connection as far as its socket allows: the response, the next request, its response if available.
    pub(crate) fn advance(
        &mut self,
        index: usize,
        registry: &Registry,
        scratch: &mut [u8],
    ) -> Result<()> {
        loop {
            let connection = &mut self.connections[index];
            match connection.exchange.advance(&self.script, scratch) {
                Ok(false) => return Ok(()),
                Ok(true) => {
                    let now = Instant::now();
                    self.course.record_success(now - connection.began);
                    if !self.course.should_issue() {
                        return Ok(());
                    }
                    if self.script.close {
                        return self.replace(index, registry);
                    }
                    connection.began = now;
                    connection.exchange.begin();
                }
                Err(fault) if self.course.record_failure(&fault) => {
                    return self.replace(index, registry);
                }
                Err(_) => {
                    self.connections[index] = connect(&self.job, index, registry)?;
                    return Ok(());
                }
            }
        }
    }

    /// Replaces a connection by a new one with a request of its own.
    fn replace(&mut self, index: usize, registry: &Registry) -> Result<()> {
        let mut fresh = connect(&self.job, index, registry)?;
        fresh.exchange.begin();
        self.connections[index] = fresh;
        Ok(())
    }

    pub(crate) fn tick(&mut self, now: Instant, served: &[u64]) -> Result<Option<LoadReport>> {
        let connections = &self.connections;
        self.course.tick(now, served, || connections.iter().all(|c| c.exchange.is_idle()))
    }
}

/// Starts to connect, without a request.
fn connect(job: &LoadJob, index: usize, registry: &Registry) -> Result<LoadConnection> {
    let began = Instant::now();
    let target = job.target_of(index);
    let exchange = Http1Client::connect_idle(target, registry, EventSource::Client.token(index))
        .with_context(|| format!("cannot connect to {target}"))?;
    Ok(LoadConnection { exchange, began })
}
