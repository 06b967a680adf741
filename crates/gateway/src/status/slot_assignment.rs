//! Status messages on how the replicas of Sheave share the limit of a policy for each endpoint.

use super::{ConditionReason, ConditionType, ResourceStatus, StatusCondition, StatusDetail};

/// The sharing of fixed limits by replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotSharing {
    /// The number of replicas.
    pub replicas: u32,
    /// True if they lease slots to one another; otherwise each has a static part.
    pub is_leased: bool,
}

/// Adds to the status of each BackendPolicy with a number for `maxInFlightPerEndpoint` how the replicas share it.
/// Together their shares make that number.
pub fn report_slot_assignment(statuses: &mut [ResourceStatus], sharing: SlotSharing) {
    let kind = ConditionType::CapAssigned;
    for status in statuses {
        let StatusDetail::Policy(targets) = &mut status.detail else { continue };
        for target in targets {
            let Some(slots) = target.slots else { continue };
            let message = shares(slots, sharing);
            let assigned =
                StatusCondition { kind, holds: true, reason: ConditionReason::Assigned, message };
            target.conditions.retain(|condition| condition.kind != kind);
            target.conditions.push(assigned);
        }
    }
}

fn shares(slots: u32, SlotSharing { replicas, is_leased }: SlotSharing) -> String {
    let (least, left_over) = (slots / replicas.max(1), slots % replicas.max(1));
    let requests = if slots == 1 { "request" } else { "requests" };
    let all = format!("{slots} {requests} in flight per endpoint");
    match (replicas, least, left_over) {
        (0 | 1, ..) => format!("{all}, all for the only replica"),
        _ if is_leased => {
            format!("{all}, of all {replicas} replicas together: slots are leased by demand")
        }
        (_, _, 0) => format!("{all}, divided among {replicas} replicas: {least} each"),
        (_, 0, _) => format!(
            "{all}, divided among {replicas} replicas: 1 for {left_over} of them, which differ from endpoint to \
             endpoint; the others send it nothing"
        ),
        _ => format!(
            "{all}, divided among {replicas} replicas: {least} each, and 1 more for {left_over} of them, which differ \
             from endpoint to endpoint"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::SlotSharing;

    fn shares(slots: u32, replicas: u32) -> String {
        super::shares(slots, SlotSharing { replicas, is_leased: false })
    }

    #[test]
    fn slot_shares_are_described_in_plain_text() {
        let all = "4 requests in flight per endpoint";
        assert_eq!(shares(4, 1), format!("{all}, all for the only replica"));
        assert_eq!(shares(4, 2), format!("{all}, divided among 2 replicas: 2 each"));
        let differ = "of them, which differ from endpoint to endpoint";
        assert_eq!(
            shares(4, 3),
            format!("{all}, divided among 3 replicas: 1 each, and 1 more for 1 {differ}")
        );
        let one = "1 request in flight per endpoint, divided among 5 replicas: 1 for 1";
        assert_eq!(shares(1, 5), format!("{one} {differ}; the others send it nothing"));
        let leased = super::shares(4, SlotSharing { replicas: 3, is_leased: true });
        assert_eq!(
            leased,
            format!("{all}, of all 3 replicas together: slots are leased by demand")
        );
    }
}
