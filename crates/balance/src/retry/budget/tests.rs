//! Tests of the budget over time, and under concurrency.

use super::*;

/// Returns the number of retries allowed after this many requests at two workers, at these moments,
/// in milliseconds.
fn allowed(requests: u32, requested_at: u64, retried_at: u64) -> u64 {
    let (budget, settings) = (RetryBudget::new(2), RetrySettings::default());
    for request in 0..requests {
        budget.request(request as usize % 2, millis(requested_at));
    }
    (0..10_000).filter(|_| budget.allows(&settings, millis(retried_at))).count() as u64
}

fn millis(millis: u64) -> Time {
    Time::from_nanos(millis * 1_000_000)
}

#[test]
fn retry_budget_is_a_share_of_requests_or_a_floor() {
    assert_eq!(allowed(0, 0, 0), 100);
    assert_eq!(allowed(1000, 500, 700), 300);
}

#[test]
fn requests_count_in_the_retry_budget_for_ten_seconds() {
    assert_eq!(allowed(1000, 500, 9_999), 300);
    assert_eq!(allowed(1000, 500, 10_000), 100);
    assert_eq!(allowed(1000, 500, 16_500), 100, "after its place is reused");
}

#[test]
fn retry_floor_is_restored_after_ten_seconds() {
    let (budget, settings) = (RetryBudget::new(1), RetrySettings::default());
    let allowed = |at| (0..1000).filter(|_| budget.allows(&settings, millis(at))).count();
    assert_eq!([0, 9_000, 10_000, 19_000, 20_000].map(allowed), [100, 0, 100, 0, 100]);
}

#[test]
fn concurrent_workers_never_exceed_the_retry_budget() {
    let (budget, settings) = (RetryBudget::new(1), RetrySettings::default());
    let ask = || (0..1000).filter(|_| budget.allows(&settings, Time::ZERO)).count();
    let allowed = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
    });
    assert!(allowed <= 100, "{allowed}");
}
