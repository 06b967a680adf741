//! How a request may be sent again, and at whose expense.

use balance::{AttemptResult, Time};

use crate::invariants::{ConfigView, TriedServers};

/// The attempts of one request, and what has paid for those after the first.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestHistory {
    /// Attempts for which there was no connection.
    pub(crate) unsent: u32,
    /// Attempts in which the endpoint may have seen the request.
    pub(crate) sent: u32,
    /// Attempts that the retry budget has paid for.
    pub(crate) budgeted: u32,
}

impl RequestHistory {
    /// An attempt has ended without success.
    pub(crate) fn record_failure(&mut self, end: AttemptResult) {
        match end {
            AttemptResult::ConnectFailed => self.unsent += 1,
            AttemptResult::Success
            | AttemptResult::ServerError
            | AttemptResult::Refused { .. }
            | AttemptResult::TimedOut
            | AttemptResult::ConnectionBroken
            | AttemptResult::Cancelled => self.sent += 1,
        }
    }

    /// The request fails, and its client is still there.
    ///
    /// If it was never sent, it has been tried at every endpoint with a weight, and has not drawn on the retry budget.
    pub(crate) fn check_final_failure(&self, tried: TriedServers, current: &ConfigView) {
        if self.sent > 0 {
            return;
        }
        assert_eq!(current.untried(tried), 0, "a request that was not sent has another endpoint");
        assert_eq!(self.budgeted, 0, "a request that was not sent has drawn on the budget");
    }
}

/// The requests that one endpoint of a balancer lost by its deaths, and those that were resent beside the budget.
#[derive(Debug, Default)]
pub(crate) struct ResendAccount {
    lost: u32,
    resent: u32,
    window: Option<ResendWindow>,
}

/// The time after a resend in which the endpoint grants no others but those of the first grant.
#[derive(Debug)]
struct ResendWindow {
    /// In tenths of a second.
    began: u64,
    /// Requests in flight at the first resend.
    granted: u32,
    resent: u32,
}

impl ResendAccount {
    /// Ten seconds, the window of the retry budget, in tenths of a second.
    const WINDOW: u64 = 100;

    /// The endpoint has died with a request in flight.
    pub(crate) fn record_loss(&mut self) {
        self.lost += 1;
    }

    /// A request is resent beside the budget. `in_flight` are the requests of the endpoint, this one included.
    ///
    /// A request is resent at most once for each death that it was in flight at. All resends within one window are no more
    /// than were in flight when the first one was made.
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
