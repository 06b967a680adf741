//! CPU time of the proxy's processes, from the kernel.

use std::fs;

use anyhow::{Context as _, Result};

/// CPU time of all threads of some processes.
#[derive(Default)]
pub(crate) struct CpuTime {
    pub(crate) run_ns: u64,
    /// Time in which threads were runnable, but not running.
    pub(crate) wait_ns: u64,
}

impl CpuTime {
    pub(crate) fn of(processes: &[u32]) -> Result<Self> {
        let mut sum = Self::default();
        for process in processes {
            let folder = format!("/proc/{process}/task");
            let tasks = fs::read_dir(&folder).with_context(|| format!("cannot read {folder}"))?;
            for task in tasks {
                sum.add(&fs::read_to_string(task?.path().join("schedstat"))?)?;
            }
        }
        Ok(sum)
    }

    fn add(&mut self, schedstat: &str) -> Result<()> {
        let mut fields = schedstat.split_ascii_whitespace().map(str::parse::<u64>);
        self.run_ns += fields.next().context("schedstat is empty")??;
        self.wait_ns += fields.next().context("schedstat has one field")??;
        Ok(())
    }
}
