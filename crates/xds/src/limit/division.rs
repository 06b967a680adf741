//! The division of one limit among clients, without the clients.

use std::num::NonZeroU32;

/// Returns the part of a limit that the clients of this replica have together, where they demand `own` requests, and
/// other clients and proxies `others`. If all demand more than the limit, it is divided in proportion; else the replicas
/// have equal parts of what is left.
pub(crate) fn available(limit: u32, own: u64, others: u64, replicas: NonZeroU32) -> u32 {
    let (own, demand) = (own.min(1 << 31), own.saturating_add(others).min(1 << 32));
    let part = match u64::from(limit).checked_sub(demand) {
        Some(left) => own + left / u64::from(replicas.get()),
        None => u64::from(limit) * own / demand,
    };
    u32::try_from(part).unwrap_or(limit).min(limit)
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

/// Returns the share that a client gets: less at once, more only if it is an eighth, so that demand that varies a little
/// causes no updates. The sum of such shares is at most that of what was divided.
pub(crate) fn settled(former: Option<u32>, divided: u32) -> u32 {
    match former {
        Some(former) if former <= divided && divided <= former.saturating_add(former / 8) => former,
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
    fn replicas_divide_in_proportion_to_demand_and_the_rest_evenly() {
        assert_eq!(available(16, 0, 0, of(1)), 16);
        assert_eq!(available(16, 0, 0, of(2)), 8);
        assert_eq!(available(16, 8, 4, of(2)), 10);
        assert_eq!(available(16, 4, 8, of(2)), 6);
        assert_eq!(available(16, 24, 8, of(2)), 12);
        assert_eq!(available(16, 8, 24, of(2)), 4);
        assert_eq!(available(16, 0, 99, of(2)), 0);
        assert_eq!(available(u32::MAX, u64::MAX, u64::MAX, of(1)), u32::MAX / 2);
    }

    #[test]
    fn share_shrinks_at_once_and_grows_by_an_eighth() {
        assert_eq!(settled(None, 16), 16);
        assert_eq!(settled(Some(16), 15), 15);
        assert_eq!(settled(Some(16), 18), 16);
        assert_eq!(settled(Some(16), 19), 19);
        assert_eq!(settled(Some(4), 5), 5);
    }
}
