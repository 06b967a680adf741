//! Demand of requests that do not pass through this process: their clients choose endpoints
//! themselves, and report what they have in progress.

use super::{DemandTotals, RequestTimeIntegral};
use crate::time::Time;

/// Requests of clients at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProxylessRequests {
    /// Requests in progress.
    pub in_progress: u64,
    /// Requests sent since the last report.
    pub issued: u64,
    /// Requests since the last report that were not sent, because the client has a limit.
    pub dropped: u64,
}

/// Demand of such requests. The number in progress counts until another one is reported.
#[derive(Debug, Default)]
pub struct ProxylessDemand {
    in_progress: RequestTimeIntegral,
    issued: u64,
    dropped: u64,
}

impl ProxylessDemand {
    /// Takes a report.
    pub fn record(&mut self, report: ProxylessRequests, at: Time) {
        let RequestTimeIntegral { count, sum } = self.in_progress;
        let ended = sum.wrapping_add(count.wrapping_mul(at.as_nanos()));
        let begun = report.in_progress.wrapping_mul(at.as_nanos());
        self.in_progress =
            RequestTimeIntegral { count: report.in_progress, sum: ended.wrapping_sub(begun) };
        self.issued = self.issued.wrapping_add(report.issued);
        self.dropped = self.dropped.wrapping_add(report.dropped);
    }

    /// Returns the totals so far. A dropped request is counted, and is no demand: its client may
    /// try again at once, and would count many times.
    pub fn read(&self) -> DemandTotals {
        DemandTotals {
            proxyless: self.in_progress,
            proxyless_requests: self.issued,
            rejected_requests: self.dropped,
            ..DemandTotals::default()
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::demand::{DemandAverager, DemandShard, RequestDemand, RequestRates, WINDOW};

    fn second(seconds: u64) -> Time {
        Time::from_nanos(seconds * 1_000_000_000)
    }

    fn report(in_progress: u64, issued: u64, dropped: u64) -> ProxylessRequests {
        ProxylessRequests { in_progress, issued, dropped }
    }

    #[test]
    fn reported_requests_add_to_those_that_pass_through() {
        let (shard, mut proxyless) = (DemandShard::new(), ProxylessDemand::default());
        let mut averager = DemandAverager::new(second(0));
        shard.take(second(0));
        for now in 0..=30 {
            if now % 2 == 0 {
                proxyless.record(report(3, 8, 2), second(now));
            }
            let mut totals = shard.read().unwrap();
            totals += proxyless.read();
            averager.record(second(now), totals);
        }
        let expected = RequestDemand { in_flight: 4.0, queued: 0.0, rejected: 0.0 };
        assert_eq!((averager.average(WINDOW), averager.present()), (expected, expected));
        // Every 2 s 8 are sent and 2 are dropped.
        let RequestRates { requests, rejected } = averager.rates();
        assert!((4.5..=5.5).contains(&requests) && (0.9..=1.1).contains(&rejected));
        assert_eq!(averager.service_time(), None, "reports say nothing of it");
    }

    #[test]
    fn demand_ends_with_a_report_of_none() {
        let mut proxyless = ProxylessDemand::default();
        let mut averager = DemandAverager::new(second(0));
        for now in 0..=20 {
            // 6 requests for 5 s, and none after.
            proxyless.record(report(if now < 5 { 6 } else { 0 }, 0, 0), second(now));
            averager.record(second(now), proxyless.read());
        }
        assert_eq!(averager.request_seconds().in_flight, 30.0);
        assert_eq!(averager.present(), RequestDemand::default());
        assert!(!averager.is_active(WINDOW, 0.1), "{:?}", averager.average(WINDOW));
    }
}
