//! Times and bounds of slot leases, and the policy of a replica that is cut off.

use std::time::Duration;

/// Time after which a lender takes back the slots of a peer from which it has heard nothing, by the
/// lender's clock. It must be shorter than [`HANDOVER_TIME`](crate::slot_assignment::HANDOVER_TIME):
/// the difference is the time within which replicas must learn of a membership change.
pub const LEASE_TERM: Duration = Duration::from_secs(1);

/// Time by which a holder stops earlier than the lender takes back. A holder counts from the moment
/// at which it sent the message that renewed the lease, and the lender from its receipt, so delays
/// need no margin, and only the rates of the clocks do.
pub const DRIFT_MARGIN: Duration = Duration::from_millis(50);

/// Maximum deviation of a clock's rate, in parts per million, at which no slot is used twice:
/// (term - margin) x (1 + drift) <= term x (1 - drift). NTP slews a clock by 500 at most.
pub const MAX_CLOCK_DRIFT_PPM: u32 = 25_000;

/// Interval at which changes that are not urgent are sent.
pub const TICK: Duration = Duration::from_millis(20);

/// Interval at which slots are moved by demand, and demand is averaged.
pub const REDEAL_INTERVAL: Duration = Duration::from_millis(100);

/// Interval at which a message is sent if nothing has changed; it renews the leases.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_millis(200);

/// Intervals at which messages to one peer are sent, by what they are sent for.
#[derive(Debug)]
pub(crate) struct MessageIntervals {
    /// Since the last message: slots granted or returned, or slots wanted for queued requests.
    pub(crate) urgent: Duration,
    /// Since the last message: demand that has changed.
    pub(crate) news: Duration,
    /// Since a message that needs an acknowledgement, unless another message does it.
    pub(crate) acknowledgement: Duration,
    /// Since the last message: changes that are not acknowledged.
    pub(crate) repeat: Duration,
}

impl MessageIntervals {
    /// While there is credit for messages. News may wait, so that there is credit when requests do.
    pub(crate) const FAST: Self = Self {
        urgent: Duration::ZERO,
        news: Duration::from_millis(40),
        acknowledgement: Duration::from_millis(150),
        repeat: Duration::from_millis(200),
    };

    /// Once more messages were sent than the requests pay for.
    pub(crate) const SLOW: Self = Self {
        urgent: Duration::from_millis(15),
        news: Duration::from_millis(100),
        acknowledgement: Duration::from_millis(150),
        repeat: Duration::from_millis(200),
    };
}

/// Interval at which a greeting is repeated to a peer that does not reply.
pub(crate) const GREETING_INTERVAL: Duration = Duration::from_millis(80);

/// Maximum age of the newest message of ours that a peer has seen, for it to get slots.
pub(crate) const LIVE_TIME: Duration = Duration::from_millis(500);

/// Maximum number of entries of each kind in one message; others follow in the next.
pub const MAX_MESSAGE_ENTRIES: usize = 256;

/// Maximum number of endpoints for which a peer may lend slots to us.
pub const MAX_LENT_ENDPOINTS: usize = 1 << 16;

/// Maximum number of pools of which a peer may tell the demand.
pub const MAX_POOLS: usize = 1 << 14;

/// Maximum number of slots of an endpoint; a higher cap counts as this.
pub const MAX_SLOTS: u32 = 1 << 16;

/// Rule for a replica that has no slot of a pool and hears from no peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CutOffPolicy {
    /// It uses only the slots that it holds.
    #[default]
    Strict,
    /// It uses one slot at one endpoint of each pool. So each replica that is cut off adds at most
    /// one request in flight for each pool to what the caps allow.
    Available,
}
