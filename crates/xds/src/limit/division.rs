//! The division of one limit among clients, without the clients.

use std::num::NonZeroU32;

use super::CompetingDemand;

/// Returns the part of a limit that the clients of this replica have together: what others leave, and in any case an equal
/// part beside the clients of other replicas and beside this replica's proxy, if requests pass through it.
pub(crate) fn available(limit: u32, others: CompetingDemand, replicas: NonZeroU32) -> u32 {
    let parts = replicas.get().saturating_add(u32::from(others.local > 0));
    let left = u64::from(limit).saturating_sub(others.local.saturating_add(others.peers));
    (limit / parts).max(u32::try_from(left).unwrap_or(limit))
}

/// Divides a limit among clients by their demand: each has what it demands, unless the others need a part of that
/// (max-min fairness), and what is left is divided evenly. None has less than one.
pub(crate) fn divide(limit: u32, demands: &[u64]) -> Vec<u32> {
    let mut order: Vec<usize> = (0..demands.len()).collect();
    order.sort_by_key(|client| demands[*client]);
    let mut shares = vec![0; demands.len()];
    let mut left = limit;
    for (done, client) in order.iter().enumerate() {
        let clients_left = u32::try_from(demands.len() - done).unwrap_or(u32::MAX);
        let demand = u32::try_from(demands[*client]).unwrap_or(u32::MAX);
        shares[*client] = demand.clamp(1, left.div_ceil(clients_left).max(1));
        left = left.saturating_sub(shares[*client]);
    }
    let count = u32::try_from(demands.len()).unwrap_or(u32::MAX).max(1);
    let (each, one_more) = (left / count, left % count);
    for (client, share) in (0..).zip(&mut shares) {
        *share += each + u32::from(client < one_more);
    }
    shares
}

/// Returns the share that a client gets. It is the former one if that is enough for the client's demand and not much less
/// than what was divided, so that demand that varies a little causes no updates. The sum of such shares is at most that of
/// what was divided.
pub(crate) fn settled(former: Option<u32>, divided: u32, demand: u64) -> u32 {
    match former {
        Some(former)
            if former <= divided
                && divided <= former.saturating_add(former / 8)
                && demand < u64::from(former) =>
        {
            former
        }
        Some(_) | None => divided,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(replicas: u32) -> NonZeroU32 {
        NonZeroU32::new(replicas).unwrap()
    }

    #[test]
    fn clients_have_what_they_demand_and_an_even_part_of_the_rest() {
        assert_eq!(divide(16, &[]), [0_u32; 0]);
        assert_eq!(divide(16, &[0]), [16]);
        assert_eq!(divide(16, &[0, 0, 0]), [6, 5, 5]);
        assert_eq!(divide(16, &[4, 0]), [10, 6], "4 and 1 are needed, and 11 are left");
        assert_eq!(divide(16, &[60, 0, 1]), [14, 1, 1]);
        assert_eq!(divide(16, &[60, 60, 3]), [7, 6, 3]);
        assert_eq!(divide(16, &[u64::MAX, u64::MAX]), [8, 8]);
        assert_eq!(divide(2, &[5, 5, 0]), [1, 1, 1], "none has less than one");
        assert_eq!(divide(0, &[5]), [1]);
    }

    #[test]
    fn sum_is_the_limit_if_there_are_not_more_clients() {
        let demands = [0, 1, 2, 3, 5, 8, 13, 21, 34, 55];
        for clients in 1..=demands.len() {
            for limit in [10, 11, 64, 100, 4_000] {
                let sum: u32 = divide(limit, &demands[..clients]).iter().sum();
                assert_eq!(sum, limit, "{clients} clients");
            }
        }
    }

    #[test]
    fn clients_have_what_others_leave_and_a_fair_part_in_any_case() {
        let part = |limit, local, peers, replicas| {
            available(limit, CompetingDemand { local, peers }, of(replicas))
        };
        assert_eq!([part(16, 0, 0, 1), part(16, 0, 0, 2), part(16, 0, 0, 4)], [16, 16, 16]);
        assert_eq!([part(16, 0, 5, 2), part(16, 0, 99, 2)], [11, 8]);
        assert_eq!([part(16, 4, 0, 1), part(16, 99, 0, 1), part(16, 99, 99, 3)], [12, 8, 4]);
        assert_eq!(part(u32::MAX, u64::MAX, u64::MAX, u32::MAX), 1);
        assert_eq!(part(2, 9, 9, 3), 0);
    }

    /// Each replica knows the requests in flight of the other's client a round late.
    #[test]
    fn two_replicas_whose_clients_want_more_keep_to_the_limit() {
        for begun in [[0, 0], [16, 0], [16, 16]] {
            let mut in_flight: [u64; 2] = begun;
            for _ in 0..10 {
                let share = |peers| available(16, CompetingDemand { local: 0, peers }, of(2));
                in_flight = [share(in_flight[1]), share(in_flight[0])].map(u64::from);
            }
            assert_eq!(in_flight, [8, 8], "{begun:?}");
        }
    }

    #[test]
    fn share_shrinks_at_once_and_grows_when_it_is_needed() {
        assert_eq!(settled(None, 16, 0), 16);
        assert_eq!(settled(Some(16), 15, 0), 15);
        assert_eq!([settled(Some(16), 18, 3), settled(Some(16), 18, 16)], [16, 18]);
        assert_eq!(settled(Some(16), 19, 3), 19);
        assert_eq!(settled(Some(4), 5, 0), 5);
    }
}
