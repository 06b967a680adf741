//! Results of a day, by the minute and as a whole.

use std::fmt;
use std::time::Duration;

use balance::Time;

/// Results of the day so far.
#[derive(Default)]
pub(crate) struct DayRecord {
    minutes: Vec<MinuteRow>,
    current: MinuteCounts,
    waits: WaitHistogram,
    served: u64,
    refusing_seconds: u64,
    /// Last second in which a request was rejected.
    refused_at: Option<u64>,
}

/// Counts of the current minute.
#[derive(Default)]
pub(crate) struct MinuteCounts {
    /// Clients that sent their first request.
    pub(crate) arrived: u64,
    /// Rejections.
    refused: u64,
    /// Clients that left without having been served.
    pub(crate) lost: u64,
    waits: WaitHistogram,
}

/// Means over a minute.
#[derive(Clone, Copy)]
pub(crate) struct MinuteMeans {
    /// Share of the minute that lies in a burst.
    pub(crate) burst: f64,
    /// Load of this minute's requests, in pods all of whose slots are busy.
    pub(crate) needed: f64,
    /// Pods that are paid for.
    pub(crate) pods: f64,
    pub(crate) ready: f64,
    /// Pods that no node has room for.
    pub(crate) pending: f64,
    /// Nodes that are paid for.
    pub(crate) nodes: f64,
    /// Demand that the scaler could have read, in requests.
    pub(crate) demand: f64,
}

struct MinuteRow {
    means: MinuteMeans,
    arrived: u64,
    refused: u64,
    lost: u64,
    wait_p99: Duration,
}

impl DayRecord {
    pub(crate) fn current_minute(&mut self) -> &mut MinuteCounts {
        &mut self.current
    }

    pub(crate) fn record_rejection(&mut self, now: Time) {
        self.current.refused += 1;
        let second = now.as_nanos() / 1_000_000_000;
        if self.refused_at != Some(second) {
            self.refusing_seconds += 1;
            self.refused_at = Some(second);
        }
    }

    /// Records that a client has a slot, this long after its first request.
    pub(crate) fn record_served(&mut self, wait: Duration) {
        self.served += 1;
        self.waits.add(wait);
        self.current.waits.add(wait);
    }

    pub(crate) fn end_minute(&mut self, means: MinuteMeans) {
        let MinuteCounts { arrived, refused, lost, waits } = std::mem::take(&mut self.current);
        let wait_p99 = waits.percentile(99.0);
        self.minutes.push(MinuteRow { means, arrived, refused, lost, wait_p99 });
    }

    /// Checks that each client was either served or left.
    pub(crate) fn check_totals(&self) {
        let sum = |of: &dyn Fn(&MinuteRow) -> u64| self.minutes.iter().map(of).sum::<u64>();
        let ended = self.served + sum(&|row| row.lost) + self.current.lost;
        assert_eq!(sum(&|row| row.arrived) + self.current.arrived, ended, "each client ends once");
    }
}

impl fmt::Display for DayRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "minute,burst,needed,pods,ready,pending,nodes,demand,arrived,refused,lost,wait_p99_ms"
        )?;
        for (minute, row) in self.minutes.iter().enumerate() {
            let MinuteMeans { burst, needed, pods, ready, pending, nodes, demand } = row.means;
            let MinuteRow { arrived, refused, lost, wait_p99, .. } = row;
            let wait = millis(*wait_p99);
            writeln!(
                f,
                "{minute},{burst:.2},{needed:.2},{pods:.2},{ready:.2},{pending:.2},{nodes:.2},\
                 {demand:.1},{arrived},{refused},{lost},{wait:.1}"
            )?;
        }
        let hours =
            |of: &dyn Fn(&MinuteRow) -> f64| self.minutes.iter().map(of).sum::<f64>() / 60.0;
        let most = self.minutes.iter().map(|row| row.means.pods).fold(0.0, f64::max);
        let sum = |of: &dyn Fn(&MinuteRow) -> u64| self.minutes.iter().map(of).sum::<u64>();
        let wait = |percent| millis(self.waits.percentile(percent));
        writeln!(
            f,
            "\narrived,served,lost,refused,refusing_seconds,pod_hours,needed_pod_hours,most_pods,\
             node_hours,pending_pod_hours,wait_p50_ms,wait_p99_ms,wait_p999_ms"
        )?;
        writeln!(
            f,
            "{},{},{},{},{},{:.1},{:.1},{most:.0},{:.1},{:.2},{:.1},{:.1},{:.1}",
            sum(&|row| row.arrived),
            self.served,
            sum(&|row| row.lost),
            sum(&|row| row.refused),
            self.refusing_seconds,
            hours(&|row| row.means.pods),
            hours(&|row| row.means.needed),
            hours(&|row| row.means.nodes),
            hours(&|row| row.means.pending),
            wait(50.0),
            wait(99.0),
            wait(99.9),
        )
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Histogram of durations: each bucket is a thirty-second part of a power of two of microseconds.
#[derive(Default)]
struct WaitHistogram {
    counts: Vec<u64>,
    total: u64,
}

const PARTS: u64 = 32;

impl WaitHistogram {
    fn add(&mut self, wait: Duration) {
        let bucket = bucket(wait.as_micros() as u64);
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.total += 1;
    }

    /// Returns the lower bound of the bucket that contains this percentile; zero if there are no
    /// durations.
    fn percentile(&self, percent: f64) -> Duration {
        let wanted = self.total as f64 * percent / 100.0;
        let mut counted = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            counted += count;
            if counted as f64 >= wanted {
                return Duration::from_micros(least(bucket as u64));
            }
        }
        Duration::ZERO
    }
}

/// Returns the bucket of a duration. Below `2 * PARTS` each number has its own.
fn bucket(micros: u64) -> usize {
    let power = u64::from((micros / PARTS).max(1).ilog2());
    (power * PARTS + (micros >> power)) as usize
}

fn least(bucket: u64) -> u64 {
    let power = (bucket / PARTS).saturating_sub(1);
    (bucket - power * PARTS) << power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_bucket_error_is_at_most_one_thirty_second() {
        for micros in [0, 1, 31, 32, 63, 64, 65, 66, 127, 128, 1_000, 340_000, 5_000_000] {
            let found = least(bucket(micros) as u64);
            assert!(found <= micros && micros - found <= micros / PARTS, "{micros}: {found}");
        }
    }

    #[test]
    fn percentile_is_the_value_below_which_that_share_falls() {
        let mut waits = WaitHistogram::default();
        assert_eq!(waits.percentile(99.0), Duration::ZERO);
        (0..60).for_each(|micros| waits.add(Duration::from_micros(micros)));
        assert_eq!(waits.percentile(50.0), Duration::from_micros(29));
        assert_eq!(waits.percentile(100.0), Duration::from_micros(59));
    }
}
