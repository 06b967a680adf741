//! CPU contention on the machine: the time for which a process was ready to run and got no CPU.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Pid;

/// Returns the total time for which threads of this process waited for a CPU.
pub fn cpu_wait_time(process: Pid) -> Result<Duration> {
    let mut waited = Duration::ZERO;
    for thread in fs::read_dir(format!("/proc/{}/task", process.as_raw_pid()))? {
        // Nanoseconds on a CPU, nanoseconds in the run queue, and number of time slices. Threads of
        // other tests end at any time.
        let Ok(statistics) = fs::read_to_string(thread?.path().join("schedstat")) else { continue };
        let queued = statistics.split(' ').nth(1).context("three figures")?;
        waited += Duration::from_nanos(queued.parse()?);
    }
    Ok(waited)
}
