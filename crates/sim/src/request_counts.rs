//! Counts of request results.

use std::fmt;
use std::ops::AddAssign;

/// Counts of request results.
#[derive(Default)]
pub(crate) struct RequestCounts {
    pub(crate) arrived: u64,
    pub(crate) served: u64,
    pub(crate) failed: u64,
    /// Attempts after the first.
    pub(crate) retried: u64,
    pub(crate) refused: u64,
    pub(crate) out_of_patience: u64,
    pub(crate) client_gone: u64,
}

impl fmt::Display for RequestCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { arrived, served, failed, retried, refused, out_of_patience, client_gone } = self;
        write!(
            f,
            "{arrived} requests: {served} served, {failed} failed, {refused} rejected, \
             {out_of_patience} timed out in the queue, {client_gone} disconnected; {retried} retries"
        )
    }
}

impl AddAssign for RequestCounts {
    fn add_assign(&mut self, other: Self) {
        self.arrived += other.arrived;
        self.served += other.served;
        self.failed += other.failed;
        self.retried += other.retried;
        self.refused += other.refused;
        self.out_of_patience += other.out_of_patience;
        self.client_gone += other.client_gone;
    }
}
