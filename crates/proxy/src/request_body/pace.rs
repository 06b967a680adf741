//! The minimum rate of a request body: how much longer the proxy waits for a client that sends one slowly.
//!
//! The client has a credit of time, at most `patience` and full at the start. Waiting for the client uses it up, and
//! each byte adds what the byte takes at the minimum rate. So the credit is the average over the last `patience`, a
//! pause up to that length is allowed, and a body of n bytes takes at most `patience` + n / rate of waiting. Time for
//! which the endpoint, the queue or the proxy itself holds up the body uses up nothing. This module is told the time.

use std::num::NonZeroU32;
use std::time::Duration;

use balance::Time;

use super::connection_share::ConnectionShare;

/// The pace of one request body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UploadPace {
    /// Minimum rate in bytes per second.
    rate: NonZeroU32,
    /// Maximum of the credit.
    patience: Duration,
    /// Time for which we still wait for the client.
    credit: Duration,
    /// Start of the present wait for the client; `None`: we do not wait for it.
    waiting_since: Option<Time>,
    /// Bytes of the body that have been counted.
    counted: u64,
    /// Bytes that had arrived on the whole connection then: bodies that share a line wait for one another.
    received: u64,
}

impl UploadPace {
    /// Starts with a full credit, when `body_bytes` of the body have arrived.
    pub(crate) fn new(
        rate: NonZeroU32,
        patience: Duration,
        body_bytes: u64,
        share: Option<&ConnectionShare>,
    ) -> Self {
        let received = share.map_or(body_bytes, |share| share.count_received(0));
        let (credit, waiting_since) = (patience, None);
        Self { rate, patience, credit, waiting_since, counted: body_bytes, received }
    }

    /// Updates the credit, when `body_bytes` of the body have arrived. `waits` is true if we wait for the client from
    /// `now` on.
    pub(crate) fn observe(
        &mut self,
        now: Time,
        body_bytes: u64,
        share: Option<&ConnectionShare>,
        waits: bool,
    ) {
        let own = body_bytes.saturating_sub(self.counted);
        let received = share.map_or(body_bytes, |share| share.count_received(own));
        let nanoseconds = received.saturating_sub(self.received).saturating_mul(1_000_000_000);
        let earned = Duration::from_nanos(nanoseconds / u64::from(self.rate.get()));
        let waited = self.waiting_since.map_or(Duration::ZERO, |since| now.saturating_since(since));
        let left = self.credit.saturating_sub(waited);
        self.credit = left.saturating_add(earned).min(self.patience);
        self.waiting_since = waits.then_some(now);
        (self.counted, self.received) = (body_bytes, received);
    }

    /// Returns the time at which the credit is used up if nothing arrives.
    pub(crate) fn due(&self) -> Time {
        self.waiting_since.map_or(Time::MAX, |since| since + self.credit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    fn pace() -> UploadPace {
        let mut pace = UploadPace::new(NonZeroU32::new(240).unwrap(), PATIENCE, 0, None);
        pace.observe(at(0), 0, None, true);
        pace
    }

    /// Returns the time at which a client that sends `bytes` each `interval` ms is given up; `None`: not in an hour.
    fn given_up(bytes: u64, interval: u64) -> Option<u64> {
        let mut pace = pace();
        (1..3_600_000 / interval).find_map(|step| {
            let now = at(step * interval);
            let is_late = pace.due() <= now;
            pace.observe(now, step * bytes, None, true);
            is_late.then_some(step * interval)
        })
    }

    #[test]
    fn silent_client_has_the_whole_patience() {
        assert_eq!(pace().due(), at(30_000));
    }

    #[test]
    fn trickle_is_given_up_and_the_minimum_rate_is_not() {
        assert_eq!(given_up(1, 2000), Some(32_000));
        assert!(given_up(200, 1000).is_some());
        assert_eq!(given_up(240, 1000), None);
        assert_eq!(given_up(24, 100), None);
    }

    #[test]
    fn fast_start_buys_no_more_than_the_patience() {
        let mut pace = pace();
        pace.observe(at(10), 1_000_000, None, true);
        assert_eq!(pace.due(), at(30_010));
    }

    #[test]
    fn pauses_of_a_client_that_is_fast_otherwise_are_allowed() {
        assert_eq!(given_up(7200, 29_000), None);
    }

    #[test]
    fn back_pressure_uses_up_nothing() {
        let mut pace = pace();
        pace.observe(at(10_000), 0, None, false);
        assert_eq!(pace.due(), Time::MAX);
        pace.observe(at(500_000), 0, None, true);
        assert_eq!(pace.due(), at(520_000));
    }

    #[test]
    fn late_observation_counts_the_bytes_that_came_meanwhile() {
        let mut pace = pace();
        pace.observe(at(30_000), 2400, None, true);
        assert_eq!(pace.due(), at(40_000));
    }

    #[test]
    fn bodies_of_one_connection_share_its_pace() {
        let share = ConnectionShare::default();
        let start = || UploadPace::new(NonZeroU32::new(240).unwrap(), PATIENCE, 0, Some(&share));
        let (mut busy, mut waiting) = (start(), start());
        for pace in [&mut busy, &mut waiting] {
            pace.observe(at(0), 0, Some(&share), true);
        }
        busy.observe(at(10_000), 2400, Some(&share), true);
        waiting.observe(at(30_000), 0, Some(&share), true);
        assert_eq!(waiting.due(), at(40_000));
        waiting.observe(at(40_000), 0, Some(&share), true);
        assert_eq!(waiting.due(), at(40_000));
    }
}
