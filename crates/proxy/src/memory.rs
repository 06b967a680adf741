//! Memory of the process, compared with its limit, and the steps that are taken as it fills.
//!
//! What is compared is the memory that the process really has, as the kernel counts it: it includes what libraries
//! buffer and what the allocator has not returned. So nothing is counted on the path of a request. Each step bounds
//! what further requests may take; the last ones free memory.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Transfers that wait for a slow peer, by the connection whose client they are for.
pub(crate) mod stalled;

/// Text of the kernel with the sizes of the process.
const SIZES: &str = "/proc/self/status";
/// Memory that belongs to the process alone, in that text: not the pages of its program file.
const PRIVATE_MEMORY: &str = "RssAnon:";

/// Step that is in force while the process has this much of its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MemoryPressure {
    Normal,
    /// Flow-control windows are small.
    SmallWindows,
    /// The stalled transfers of the connections that hold the most are reset.
    ResetStalled,
    /// In addition, no new connections are accepted.
    NoConnections,
}

impl MemoryPressure {
    /// All steps, in ascending order.
    pub(crate) const ALL: [Self; 4] =
        [Self::Normal, Self::SmallWindows, Self::ResetStalled, Self::NoConnections];

    /// Returns the metric label and word in the log.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::SmallWindows => "small_windows",
            Self::ResetStalled => "reset_stalled",
            Self::NoConnections => "no_connections",
        }
    }

    /// Returns the percentage of the limit at which the step begins.
    fn begins_at(self) -> u64 {
        match self {
            Self::Normal => 0,
            Self::SmallWindows => 50,
            Self::ResetStalled => 65,
            Self::NoConnections => 80,
        }
    }

    /// Returns the step for a process that has `used` bytes of `limit`, and is in step `self` now: a step ends
    /// [`MARGIN_PERCENT`] below its begin, so that it does not begin and end all the time.
    fn next(self, used: u64, limit: u64) -> Self {
        let is_reached = |step: &Self| {
            let margin = if *step <= self { MARGIN_PERCENT } else { 0 };
            let percent = step.begins_at().saturating_sub(margin);
            u128::from(used) * 100 >= u128::from(limit) * u128::from(percent)
        };
        Self::ALL.into_iter().rev().find(is_reached).unwrap_or(Self::Normal)
    }
}

/// Percentage of the limit by which a step ends below its begin.
const MARGIN_PERCENT: u64 = 5;

/// Flow-control windows that are announced to a peer over HTTP/2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowWindows {
    /// Bytes of one message that may be in flight.
    pub(crate) stream: u32,
    /// Bytes of all messages of the connection.
    pub(crate) connection: u32,
}

impl FlowWindows {
    /// Returns the windows for a process under pressure.
    pub(crate) fn under(self, pressure: MemoryPressure) -> Self {
        let (stream, connection) = match pressure {
            MemoryPressure::Normal => return self,
            MemoryPressure::SmallWindows => (32 * 1024, self.connection / 4),
            MemoryPressure::ResetStalled | MemoryPressure::NoConnections => {
                (16 * 1024, self.connection / 16)
            }
        };
        Self { stream: self.stream.min(stream), connection }
    }

    /// Returns the same window of the connection, and the window of a stream for a process under pressure.
    pub(crate) fn with_stream_under(self, pressure: MemoryPressure) -> Self {
        Self { connection: self.connection, ..self.under(pressure) }
    }
}

/// Memory of the process and its limit. Any thread reads it, one worker updates it.
#[derive(Debug, Default)]
pub(crate) struct MemoryBudget {
    /// Bytes that the process may have; 0: no limit.
    limit: u64,
    used: AtomicU64,
    pressure: AtomicU8,
    /// Number of times that each step has begun, by its place in [`MemoryPressure::ALL`].
    begun: [AtomicU64; MemoryPressure::ALL.len()],
    sizes: Option<File>,
}

impl MemoryBudget {
    /// Creates the budget of a process that may have `limit` bytes; `None`: any number.
    pub(crate) fn new(limit: Option<u64>) -> Self {
        let sizes = File::open(SIZES);
        if let (Err(error), Some(_)) = (&sizes, limit) {
            tracing::error!(%error, "cannot read {SIZES}: memory is not limited");
        }
        Self { limit: limit.unwrap_or(0), sizes: sizes.ok(), ..Self::default() }
    }

    /// Returns the limit in bytes; `None`: there is none.
    pub(crate) fn limit(&self) -> Option<u64> {
        (self.limit > 0).then_some(self.limit)
    }

    /// Returns the memory that the process had at the last update, in bytes.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn pressure(&self) -> MemoryPressure {
        MemoryPressure::ALL[usize::from(self.pressure.load(Ordering::Relaxed))]
    }

    /// True if new connections may be accepted.
    pub(crate) fn accepts_connections(&self) -> bool {
        self.pressure() < MemoryPressure::NoConnections
    }

    /// Writes the limit to the log.
    pub(crate) fn log(&self) {
        match self.limit() {
            Some(limit) => tracing::info!(memory.limit = limit, "memory is limited"),
            None => tracing::info!("memory is not limited"),
        }
    }

    /// Returns the number of times that this step has begun.
    pub(crate) fn times_begun(&self, step: MemoryPressure) -> u64 {
        self.begun[step as usize].load(Ordering::Relaxed)
    }

    /// Returns the bytes that must be freed for the step [`MemoryPressure::ResetStalled`] to end; 0 if it is not in
    /// force.
    pub(crate) fn excess(&self) -> u64 {
        if self.pressure() < MemoryPressure::ResetStalled {
            return 0;
        }
        let percent = MemoryPressure::ResetStalled.begins_at() - MARGIN_PERCENT;
        self.used().saturating_sub(self.limit / 100 * percent)
    }

    /// Asks the kernel for the memory of the process. Returns true if another step is in force now.
    pub(crate) fn update(&self) -> bool {
        let Some(used) = self.sizes.as_ref().and_then(private_bytes) else { return false };
        self.used.store(used, Ordering::Relaxed);
        let Some(limit) = self.limit() else { return false };
        let before = self.pressure();
        let pressure = before.next(used, limit);
        if pressure == before {
            return false;
        }
        self.pressure.store(pressure as u8, Ordering::Relaxed);
        self.begun[pressure as usize].fetch_add(1, Ordering::Relaxed);
        let (step, was) = (pressure.label(), before.label());
        if pressure > before {
            tracing::warn!(memory.used = used, memory.limit = limit, step, was, "memory fills");
        } else {
            tracing::info!(memory.used = used, memory.limit = limit, step, was, "memory is freed");
        }
        true
    }
}

/// Returns the resident memory that belongs to the process alone.
fn private_bytes(sizes: &File) -> Option<u64> {
    let mut text = [0; 4096];
    let length = sizes.read_at(&mut text, 0).ok()?;
    let mut lines = str::from_utf8(&text[..length]).ok()?.lines();
    let line = lines.find_map(|line| line.strip_prefix(PRIVATE_MEMORY))?;
    let kibibytes: u64 = line.strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 1000;

    #[test]
    fn step_follows_the_memory_in_use_with_a_margin() {
        use MemoryPressure::{NoConnections, Normal, ResetStalled, SmallWindows};
        let steps = [
            (499, Normal),
            (500, SmallWindows),
            (450, SmallWindows),
            (449, Normal),
            (800, NoConnections),
            (750, NoConnections),
            (749, ResetStalled),
            (600, ResetStalled),
            (599, SmallWindows),
            (0, Normal),
        ];
        let mut step = Normal;
        for (used, expected) in steps {
            step = step.next(used, LIMIT);
            assert_eq!(step, expected, "{used}");
        }
    }

    #[test]
    fn windows_shrink_with_each_step_and_never_grow() {
        let large = FlowWindows { stream: 256 * 1024, connection: 4 << 20 };
        let small = FlowWindows { stream: 8 * 1024, connection: 4 << 20 };
        let mut last = large;
        for step in MemoryPressure::ALL {
            let windows = large.under(step);
            assert!(windows.stream <= last.stream && windows.connection <= last.connection);
            assert_eq!(small.under(step).stream, small.stream);
            last = windows;
        }
        assert_eq!(large.under(MemoryPressure::Normal), large);
    }

    #[test]
    fn memory_of_this_process_is_read() {
        let budget = MemoryBudget::new(Some(1));
        assert!(budget.update(), "a process has more than one byte");
        assert!(budget.used() > 1 << 16, "{}", budget.used());
        assert_eq!(budget.pressure(), MemoryPressure::NoConnections);
        assert_eq!(budget.times_begun(MemoryPressure::NoConnections), 1);
        assert!(budget.excess() > 0);
        assert!(!budget.update());
    }

    #[test]
    fn process_without_a_limit_is_under_no_pressure() {
        let budget = MemoryBudget::new(None);
        assert!(!budget.update());
        assert!(budget.used() > 0);
        assert_eq!((budget.pressure(), budget.excess()), (MemoryPressure::Normal, 0));
    }
}
