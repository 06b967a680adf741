//! Checks of retries and resends, and of the budgets that they are charged to.

use balance::{AttemptResult, Time};

use crate::invariants::{ConfigView, TriedServers};

/// Attempts of one request, and the budget charged for those after the first.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestHistory {
    /// Attempts for which no connection was made.
    pub(crate) unsent: u32,
    /// Attempts in which the endpoint may have seen the request.
    pub(crate) sent: u32,
    /// Attempts charged to the retry budget.
    pub(crate) budgeted: u32,
}

impl RequestHistory {
    /// Records an attempt that has ended without success.
    pub(crate) fn record_failure(&mut self, end: AttemptResult) {
        match end {
            AttemptResult::ConnectFailed => self.unsent += 1,
            AttemptResult::Success
            | AttemptResult::ServerError
            | AttemptResult::Refused { .. }
            | AttemptResult::RateLimited { .. }
            | AttemptResult::TimedOut
            | AttemptResult::ConnectionBroken
            | AttemptResult::Cancelled => self.sent += 1,
        }
    }

    /// Checks a request that fails while its client is still there.
    ///
    /// If it was never sent, it has been tried at every endpoint with a weight, and was not charged
    /// to the retry budget.
    pub(crate) fn check_final_failure(&self, tried: TriedServers, current: &ConfigView) {
        if self.sent > 0 {
            return;
        }
        assert_eq!(current.untried(tried), 0, "a request that was not sent has another endpoint");
        assert_eq!(self.budgeted, 0, "a request that was not sent was charged to the budget");
    }
}

/// Requests that one endpoint of a balancer lost when it died, and those that were resent beside
/// the budget.
#[derive(Debug, Default)]
pub(crate) struct ResendAccount {
    lost: u32,
    resent: u32,
    window: Option<ResendWindow>,
}

/// Time after a resend in which the endpoint grants no resends beyond those of the first grant.
#[derive(Debug)]
struct ResendWindow {
    /// Begin in tenths of a second.
    began: u64,
    /// Requests in flight at the first resend.
    granted: u32,
    resent: u32,
}

impl ResendAccount {
    /// Ten seconds, the window of the retry budget, in tenths of a second.
    const WINDOW: u64 = 100;

    /// Records a request that was in flight when the endpoint died.
    pub(crate) fn record_loss(&mut self) {
        self.lost += 1;
    }

    /// Checks a request that is resent beside the budget. `in_flight` is the number of requests of
    /// the endpoint, this one included.
    ///
    /// A request is resent at most once for each death at which it was in flight. All resends
    /// within one window are no more than were in flight when the first one was made.
    pub(crate) fn check_resend(&mut self, in_flight: u32, now: Time) {
        self.resent += 1;
        assert!(self.resent <= self.lost, "more resends than requests were lost");
        let tenth = now.as_nanos() / 100_000_000;
        let is_over = |window: &ResendWindow| tenth - window.began >= Self::WINDOW;
        if self.window.as_ref().is_none_or(is_over) {
            self.window = Some(ResendWindow { began: tenth, granted: in_flight, resent: 0 });
        }
        if let Some(window) = &mut self.window {
            window.resent += 1;
            assert!(window.resent <= window.granted, "a second grant within the window");
        }
    }
}
