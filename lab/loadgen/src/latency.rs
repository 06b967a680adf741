//! Latency histogram with buckets of 1 %: exact enough to read, small enough to stay in the cache.

use std::time::Duration;

/// Buckets per doubling.
const FINE: u32 = 128;
const FINE_BITS: u32 = FINE.trailing_zeros();

pub(crate) struct LatencyHistogram {
    counts: Vec<u64>,
    total: u64,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self { counts: vec![0; (64 * FINE) as usize], total: 0 }
    }
}

impl LatencyHistogram {
    pub(crate) fn record(&mut self, latency: Duration) {
        let nanoseconds = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(nanoseconds)] += 1;
        self.total += 1;
    }

    /// Returns the upper edge, in microseconds, of the bucket at this quantile.
    pub(crate) fn quantile_us(&self, share: f64) -> f64 {
        let rank = (share * self.total as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return upper_edge(index) / 1000.0;
            }
        }
        0.0
    }
}

fn bucket(nanoseconds: u64) -> usize {
    let value = nanoseconds.max(u64::from(FINE));
    let doubling = value.ilog2();
    let fine = (value >> (doubling - FINE_BITS)) as u32 - FINE;
    ((doubling - FINE_BITS) * FINE + fine) as usize
}

fn upper_edge(index: usize) -> f64 {
    let (doubling, fine) = (index as u32 / FINE, index as u32 % FINE);
    f64::from(FINE + fine + 1) * 2f64.powi(doubling as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_one_bucket() {
        let mut latencies = LatencyHistogram::default();
        for microseconds in 1..=1000 {
            latencies.record(Duration::from_micros(microseconds));
        }
        for (share, expected) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            let found = latencies.quantile_us(share);
            assert!((expected..expected * 1.01).contains(&found), "{share}: {found}");
        }
    }
}
