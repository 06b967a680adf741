//! Budget of messages: what requests pay for. It keeps messages in proportion to requests.

/// Part of a message that a request pays for, in hundredths.
const REQUEST_CREDIT: i64 = 23;

/// Part of a message that a received one pays for, in hundredths, so that a replica with few
/// requests can reply. All replicas together send 23 / (100 - 50) = 0.46 messages for each request,
/// if they only send what is paid for.
const REPLY_CREDIT: i64 = 50;

/// Price of a message, in hundredths.
const PRICE: i64 = 100;

/// Maximum credit: 10 messages. It is what a replica may send beyond its part after a pause.
const MAX_CREDIT: i64 = 10 * PRICE;

/// Maximum debt: 20 messages.
const MAX_DEBT: i64 = 20 * PRICE;

/// Credit of one replica for messages. Without credit messages are sent at longer intervals.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageBudget {
    /// Hundredths of a message; negative if more were sent than paid for.
    credit: i64,
}

impl MessageBudget {
    pub(crate) const FULL: Self = Self { credit: MAX_CREDIT };

    /// True if a message is paid for.
    pub(crate) fn has_credit(&self) -> bool {
        self.credit >= PRICE
    }

    /// Records that requests have begun.
    pub(crate) fn record_requests(&mut self, requests: u32) {
        self.add(i64::from(requests) * REQUEST_CREDIT);
    }

    /// Records that a message was received.
    pub(crate) fn record_received(&mut self) {
        self.add(REPLY_CREDIT);
    }

    /// Records that a message was sent.
    pub(crate) fn record_sent(&mut self) {
        self.add(-PRICE);
    }

    /// Records that a message was sent to a peer that had none for so long that its leases are to be
    /// renewed. It uses up credit and makes no debt: it is sent in any case.
    pub(crate) fn record_renewal(&mut self) {
        if self.credit > 0 {
            self.add(-PRICE.min(self.credit));
        }
    }

    fn add(&mut self, hundredths: i64) {
        self.credit = (self.credit + hundredths).clamp(-MAX_DEBT, MAX_CREDIT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_beyond_the_credit_are_paid_for_by_requests_and_received_messages() {
        let mut budget = MessageBudget::FULL;
        (0..10).for_each(|_| budget.record_sent());
        assert!(!budget.has_credit());
        budget.record_requests(3);
        assert!(!budget.has_credit());
        budget.record_received();
        assert!(budget.has_credit());
        budget.record_sent();
        assert!(!budget.has_credit());
    }

    #[test]
    fn renewals_use_up_credit_and_make_no_debt() {
        let mut budget = MessageBudget::FULL;
        (0..100).for_each(|_| budget.record_renewal());
        assert_eq!(budget.credit, 0);
        budget.record_sent();
        budget.record_renewal();
        assert_eq!(budget.credit, -PRICE);
    }

    #[test]
    fn credit_and_debt_are_bounded() {
        let mut budget = MessageBudget::FULL;
        budget.record_requests(u32::MAX);
        assert_eq!(budget.credit, MAX_CREDIT);
        (0..1_000).for_each(|_| budget.record_sent());
        assert_eq!(budget.credit, -MAX_DEBT);
    }
}
