//! Connections that have served one request each and stay open, to measure the cost of idle
//! clients.

use anyhow::{Context as _, Result};
use mio::Registry;

use crate::EventSource;
use crate::http1_client::{Http1Client, RequestTemplate};
use crate::job::{HoldJob, HoldReport};

pub(crate) struct HoldRun {
    job: HoldJob,
    script: RequestTemplate,
    connections: Vec<Http1Client>,
    answered: usize,
    errors: u64,
    first_error: Option<String>,
}

impl HoldRun {
    pub(crate) fn start(job: HoldJob, registry: &Registry) -> Result<Self> {
        let script = RequestTemplate::of(&job.request);
        let connections = Vec::with_capacity(job.connections);
        let at_once = job.at_once.min(job.connections);
        let mut hold = Self { job, script, connections, answered: 0, errors: 0, first_error: None };
        for _ in 0..at_once {
            hold.open(registry)?;
        }
        Ok(hold)
    }

    fn open(&mut self, registry: &Registry) -> Result<()> {
        let token = EventSource::Client.token(self.connections.len());
        let exchange = Http1Client::connect(self.job.target, registry, token)
            .with_context(|| format!("cannot connect to {}", self.job.target))?;
        self.connections.push(exchange);
        Ok(())
    }

    /// Advances a connection; true when the last connection has received its response.
    pub(crate) fn advance(
        &mut self,
        index: usize,
        registry: &Registry,
        scratch: &mut [u8],
    ) -> Result<bool> {
        let connection = &mut self.connections[index];
        let was_held = connection.is_idle();
        match connection.advance(&self.script, scratch) {
            Ok(false) => return Ok(false),
            Ok(true) => {}
            Err(fault) => {
                self.errors += 1;
                self.first_error.get_or_insert_with(|| fault.to_string());
            }
        }
        if was_held {
            return Ok(false);
        }
        self.answered += 1;
        if self.connections.len() < self.job.connections {
            self.open(registry)?;
        }
        Ok(self.answered == self.job.connections)
    }

    pub(crate) fn report(&self) -> HoldReport {
        HoldReport {
            held: self.connections.len(),
            errors: self.errors,
            first_error: self.first_error.clone(),
        }
    }
}
