//! Resources that the process holds: memory, descriptors, threads, requests.

use std::fmt;
use std::fs;

use anyhow::Result;
use tests::SheaveProcess;

/// Memory that may be added to the baseline: the allocator keeps pages that it has once used.
const MEMORY_GROWTH: f64 = 1.1;
const MEMORY_GROWTH_BYTES: f64 = 8.0 * 1024.0 * 1024.0;

#[derive(Clone, Debug)]
pub(crate) struct ResourceUsage {
    pub(crate) memory_bytes: u64,
    /// Open descriptors without pipes: workers keep some of those that have spliced bodies.
    pub(crate) descriptors: usize,
    pub(crate) threads: usize,
    /// Requests in flight or queued.
    pub(crate) active_requests: u64,
    /// Open connections of clients.
    pub(crate) client_connections: u64,
}

impl ResourceUsage {
    pub(crate) async fn of(sheave: &SheaveProcess) -> Result<Self> {
        let process = sheave.process_id()?.as_raw_pid();
        Ok(Self {
            memory_bytes: sheave.memory_bytes()?,
            descriptors: descriptors(&format!("/proc/{process}/fd"))?,
            threads: fs::read_dir(format!("/proc/{process}/task"))?.count(),
            active_requests: sheave.active_requests().await?,
            client_connections: sheave.metric_sum("sheave_listener_connections_open").await? as u64,
        })
    }

    /// True if nothing is in use that clients have brought.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.active_requests == 0 && self.client_connections == 0
    }

    /// True if it holds less than another.
    pub(crate) fn is_less(&self, other: &Self) -> bool {
        (self.descriptors, self.memory_bytes) < (other.descriptors, other.memory_bytes)
    }

    /// Returns a sentence for each resource of which there is more than before.
    pub(crate) fn compare(&self, before: &Self) -> impl Iterator<Item = String> + use<> {
        let most_memory = before.memory_bytes as f64 * MEMORY_GROWTH + MEMORY_GROWTH_BYTES;
        let checks = [
            ("memory", self.memory_bytes as f64 <= most_memory),
            ("descriptors", self.descriptors <= before.descriptors),
            ("threads", self.threads <= before.threads),
            ("requests in flight or queued", self.active_requests == 0),
            ("client connections", self.client_connections == 0),
        ];
        let grown = checks.into_iter().filter(|(_, holds)| !holds);
        let (now, then) = (self.to_string(), before.to_string());
        grown.map(move |(resource, _)| format!("{resource}: {now}; before: {then}"))
    }
}

/// Returns the number of descriptors in this folder that are no pipes.
fn descriptors(folder: &str) -> Result<usize> {
    let mut count = 0;
    for descriptor in fs::read_dir(folder)? {
        // It may have been closed meanwhile.
        let Ok(target) = fs::read_link(descriptor?.path()) else { continue };
        count += usize::from(!target.to_string_lossy().starts_with("pipe:"));
    }
    Ok(count)
}

impl fmt::Display for ResourceUsage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { memory_bytes, descriptors, threads, active_requests, client_connections } = self;
        let mebibytes = *memory_bytes as f64 / 1024.0 / 1024.0;
        write!(
            formatter,
            "{mebibytes:.1} MiB, {descriptors} descriptors, {threads} threads, \
             {client_connections} client connections, {active_requests} active requests"
        )
    }
}
