//! Metrics of the deployment over the last seconds, as old as a scaler reads them.

use std::collections::VecDeque;
use std::time::Duration;

use balance::demand::{RequestDemand, WINDOW};

/// Metrics, averaged over the window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct MetricReading {
    /// Requests in flight, queued and rejected.
    pub(crate) demand: f64,
    /// Requests in flight.
    pub(crate) in_flight: f64,
    /// Share of the slots of ready pods that is in use.
    pub(crate) utilization: f64,
}

pub(crate) struct MetricHistory {
    /// Age of the metrics that a scaler reads, in seconds.
    age: usize,
    /// Ready pods in each second of the window.
    ready: VecDeque<u32>,
    /// One reading a second.
    readings: VecDeque<MetricReading>,
}

impl MetricHistory {
    pub(crate) fn new(age: Duration) -> Self {
        let (ready, readings) = (VecDeque::new(), VecDeque::new());
        Self { age: age.as_secs() as usize, ready, readings }
    }

    /// Records the readings of a second.
    pub(crate) fn record(&mut self, ready: u32, slots: u32, demand: RequestDemand) {
        self.ready.push_back(ready);
        if self.ready.len() > WINDOW.as_secs() as usize {
            self.ready.pop_front();
        }
        let pods = f64::from(self.ready.iter().sum::<u32>()) / self.ready.len() as f64;
        let utilization =
            if pods > 0.0 { demand.in_flight / (pods * f64::from(slots)) } else { 0.0 };
        let (total, in_flight) = (demand.total(), demand.in_flight);
        self.readings.push_back(MetricReading { demand: total, in_flight, utilization });
        if self.readings.len() > self.age + 1 {
            self.readings.pop_front();
        }
    }

    /// Returns the reading that a scaler gets now.
    pub(crate) fn read(&self) -> MetricReading {
        self.readings.front().copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scaler_reads_metrics_of_that_age() {
        let mut history = MetricHistory::new(Duration::from_secs(2));
        for second in 0..5_u32 {
            let demand =
                RequestDemand { in_flight: second.into(), queued: 1.0, ..RequestDemand::default() };
            history.record(second.min(1), 4, demand);
        }
        let reading = history.read();
        assert_eq!((reading.demand, reading.in_flight), (3.0, 2.0));
        assert!(
            (reading.utilization - 2.0 / (4.0 * 2.0 / 3.0)).abs() < 1e-9,
            "no pod was ready at first"
        );
    }
}
