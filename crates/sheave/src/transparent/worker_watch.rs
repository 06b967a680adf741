//! When each worker was last seen to tick. Pure.

use proxy::Time;

/// The last ticks of each worker, and the time at which they were first seen.
#[derive(Debug, Default)]
pub(super) struct WorkerWatch {
    seen: Vec<(u64, Time)>,
}

impl WorkerWatch {
    /// Returns the time since which the slowest worker has not ticked, or `now` if there are no workers.
    pub(super) fn observe(&mut self, now: Time, ticks: &[u64]) -> Time {
        self.seen.resize(ticks.len(), (0, now));
        for (seen, ticks) in self.seen.iter_mut().zip(ticks) {
            if seen.0 != *ticks {
                *seen = (*ticks, now);
            }
        }
        self.seen.iter().map(|(_, since)| *since).min().unwrap_or(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowest_worker_counts() {
        let at = Time::from_nanos;
        let mut watch = WorkerWatch::default();
        assert_eq!(watch.observe(at(5), &[]), at(5));
        assert_eq!(watch.observe(at(10), &[1, 1]), at(10));
        assert_eq!(watch.observe(at(20), &[2, 1]), at(10));
        assert_eq!(watch.observe(at(30), &[2, 2]), at(20));
        assert_eq!(watch.observe(at(40), &[3, 3]), at(40));
    }
}
