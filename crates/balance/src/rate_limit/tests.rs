//! Buckets, their parts and their table.

use std::num::NonZeroU32;
use std::time::Duration;

use super::*;
use crate::time::Time;

fn number(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).unwrap()
}

fn limit(requests: u32, period: Duration, burst: u32) -> RateLimit {
    RateLimit { requests: number(requests), period, burst: number(burst) }
}

fn at(millis: u64) -> Time {
    Time::ZERO + Duration::from_millis(millis)
}

#[test]
fn bucket_admits_its_burst_and_then_its_rate() {
    let limit = limit(10, Duration::from_secs(1), 3);
    let mut table = BucketTable::new(1);
    let mut take = |millis| table.take(&limit, ReplicaPart::WHOLE, 0, at(millis));
    assert_eq!([take(0), take(0), take(0)], [Ok(()); 3]);
    assert_eq!(take(0), Err(Duration::from_millis(100)));
    assert_eq!(take(99), Err(Duration::from_millis(1)));
    assert_eq!(take(100), Ok(()));
    assert_eq!(take(100), Err(Duration::from_millis(100)));
    // It fills up to the burst, not beyond.
    assert_eq!([take(9000), take(9000), take(9000)], [Ok(()); 3]);
    assert!(take(9000).is_err());
}

#[test]
fn third_of_a_second_is_exact_over_a_day() {
    let limit = limit(3, Duration::from_secs(1), 1);
    let mut table = BucketTable::new(1);
    let (mut now, mut admitted) = (Time::ZERO, 0_u64);
    for _ in 0..200_000 {
        if let Err(wait) = table.take(&limit, ReplicaPart::WHOLE, 0, now) {
            now = now + wait;
            continue;
        }
        admitted += 1;
    }
    // One at once, and three for each second since.
    let nanos = u128::from(now.as_nanos());
    assert!(u128::from(admitted - 1) * 1_000_000_000 <= 3 * nanos);
    assert!(u128::from(admitted + 1) * 1_000_000_000 > 3 * nanos);
}

#[test]
fn token_of_a_request_refused_elsewhere_is_put_back() {
    let limit = limit(1, Duration::from_secs(1), 1);
    let mut table = BucketTable::new(1);
    assert!(table.take(&limit, ReplicaPart::WHOLE, 0, at(0)).is_ok());
    table.put_back(&limit, ReplicaPart::WHOLE, 0);
    table.put_back(&limit, ReplicaPart::WHOLE, 0);
    assert!(table.take(&limit, ReplicaPart::WHOLE, 0, at(0)).is_ok());
    assert!(table.take(&limit, ReplicaPart::WHOLE, 0, at(0)).is_err());
}

#[test]
fn parts_of_replicas_add_up_to_the_burst() {
    for (burst, replicas) in [(1, 1), (3, 3), (7, 3), (100, 3), (1000, 7), (2, 5)] {
        let limit = limit(1, Duration::from_secs(1), burst);
        for key in 0..50 {
            let parts = (0..replicas).map(|it| ReplicaPart::new(it, number(replicas)));
            let tokens: Vec<_> = parts.map(|part| part.of(&limit, key).tokens).collect();
            assert_eq!(tokens.iter().sum::<u32>(), burst.max(replicas));
            assert!(tokens.iter().max().unwrap() - tokens.iter().min().unwrap() <= 1);
        }
    }
}

#[test]
fn full_bucket_is_evicted_before_any_other() {
    let limit = limit(1, Duration::from_secs(1), 2);
    let mut table = BucketTable::new(8);
    for key in 0..8 {
        table.take(&limit, ReplicaPart::WHOLE, key, at(0)).unwrap();
    }
    // All but one have filled up again.
    table.take(&limit, ReplicaPart::WHOLE, 5, at(900)).unwrap();
    for key in 100..107 {
        table.take(&limit, ReplicaPart::WHOLE, key, at(1100)).unwrap();
    }
    assert_eq!((table.len(), table.forgotten()), (8, 0));
    assert!(table.take(&limit, ReplicaPart::WHOLE, 5, at(1100)).is_ok());
    assert!(table.take(&limit, ReplicaPart::WHOLE, 5, at(1100)).is_err());
    assert_eq!(table.forgotten(), 0);
    // No full bucket is left: the table stays bounded, and the emptiest stays longest.
    for key in 200..230 {
        table.take(&limit, ReplicaPart::WHOLE, key, at(1100)).unwrap();
    }
    assert_eq!((table.len(), table.forgotten()), (8, 30));
    assert!(table.take(&limit, ReplicaPart::WHOLE, 5, at(1100)).is_err());
}
