//! Resend allowance: requests in flight at an endpoint that dies may be sent elsewhere once, beside
//! the retry budget.
//!
//! A budget for a share of all requests is too small for the moment at which one of three endpoints
//! dies with a third of them. So the first connection that breaks grants as many resends as the
//! endpoint has requests in flight. There is no second grant within the budget's window: an
//! endpoint that breaks its connections all the time draws on the budget.

use crate::atomic::{AtomicU64, Ordering};
use crate::time::Time;

/// Nanoseconds of the time unit of grants: 32 bits of it are 13 years.
const TENTH: u64 = 100_000_000;
/// Time between two grants of one endpoint, in that unit: as long as the window of the retry
/// budget.
const WINDOW: u64 = 100;

/// Resends of one endpoint, shared by all workers and backends.
#[derive(Debug, Default)]
pub struct ResendAllowance {
    /// Time of the last grant, in tenths of a second counted from 1, and the resends left of it,
    /// packed; 0 if there was none.
    packed: AtomicU64,
}

impl ResendAllowance {
    /// True if a request that has lost its connection may be sent elsewhere, beside the budget.
    /// `in_flight` is the number of requests of the endpoint, this one included.
    pub fn takes(&self, in_flight: u32, now: Time) -> bool {
        let now = now.as_nanos() / TENTH + 1;
        let take = |packed: u64| {
            let (granted_at, left) = (packed >> 32, packed as u32);
            let is_over = packed == 0 || now.saturating_sub(granted_at) >= WINDOW;
            let (granted_at, left) =
                if is_over { (now, in_flight.max(1)) } else { (granted_at, left) };
            let left = left.checked_sub(1)?;
            Some(granted_at << 32 | u64::from(left))
        };
        self.packed.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_in_flight_request_is_resent_once_per_window() {
        let allowance = ResendAllowance::default();
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        let granted = |in_flight, now| (0..100).filter(|_| allowance.takes(in_flight, now)).count();
        assert_eq!(granted(14, at(1)), 14);
        assert_eq!(granted(14, at(10)), 0, "the window has not expired");
        assert_eq!(granted(3, at(11)), 3);
    }
}
