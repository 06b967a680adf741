//! CPU contention on the machine: the time for which threads were ready to run and got no CPU.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, getpid};

use crate::SheaveProcess;

/// Measures for how long threads of Sheave and of this process wait for a CPU, so that an upper bound of time can allow
/// for a busy machine.
pub struct CpuWaitMeter {
    processes: [Pid; 2],
    before: HashMap<String, Duration>,
}

impl CpuWaitMeter {
    /// Begins to measure.
    ///
    /// # Errors
    /// If Sheave has ended.
    pub fn start(sheave: &SheaveProcess) -> Result<Self> {
        let processes = [sheave.process_id()?, getpid()];
        Ok(Self { processes, before: thread_waits(processes)? })
    }

    /// Returns the sum of the waits since the start, of the threads that are still there.
    ///
    /// # Errors
    /// If Sheave has ended.
    pub fn waited(&self) -> Result<Duration> {
        let before = |thread| self.before.get(thread).copied().unwrap_or_default();
        let now = thread_waits(self.processes)?;
        Ok(now.iter().map(|(thread, waited)| waited.saturating_sub(before(thread))).sum())
    }
}

/// Returns the total time for which each thread of these processes has waited for a CPU.
fn thread_waits(processes: [Pid; 2]) -> Result<HashMap<String, Duration>> {
    let mut waits = HashMap::new();
    for process in processes {
        for thread in fs::read_dir(format!("/proc/{}/task", process.as_raw_pid()))? {
            let thread = thread?;
            // Nanoseconds on a CPU, nanoseconds in the run queue, and number of time slices. Threads of other tests end
            // at any time.
            let Ok(statistics) = fs::read_to_string(thread.path().join("schedstat")) else {
                continue;
            };
            let queued = statistics.split(' ').nth(1).context("three figures")?;
            let name = thread.file_name().to_string_lossy().into_owned();
            waits.insert(name, Duration::from_nanos(queued.parse()?));
        }
    }
    Ok(waits)
}
