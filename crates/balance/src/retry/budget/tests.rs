//! Tests of the budget over time, and under concurrency.

use super::*;

/// Returns the number of retries allowed after this many requests at two workers, at these moments,
/// in milliseconds.
fn allowed(requests: u32, requested_at: u64, retried_at: u64) -> u64 {
    let (budget, settings) = (RetryBudget::new(2), RetrySettings::default());
    for request in 0..requests {
        budget.request(settings.budget_window, request as usize % 2, millis(requested_at));
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

#[test]
fn retry_window_is_as_long_as_configured() {
    for (seconds, before, after) in
        [(1, 899, 1_000), (60, 59_999, 60_000), (3600, 3_599_999, 3_600_000)]
    {
        let budget_window = RetryWindow::new(Duration::from_secs(seconds));
        let settings = RetrySettings { budget_window, budget_floor: 3, ..RetrySettings::default() };
        let budget = RetryBudget::new(1);
        let allowed = |at| (0..100).filter(|_| budget.allows(&settings, millis(at))).count();
        assert_eq!([0, before, after].map(allowed), [3, 0, 3], "{seconds} s");
        (0..50).for_each(|_| budget.request(budget_window, 0, millis(after)));
        assert_eq!(allowed(after), 10, "20 % of the requests, {seconds} s");
    }
}

#[test]
fn retry_window_is_kept_within_its_bounds() {
    let length = |millis| RetryWindow::new(Duration::from_millis(millis)).duration().as_secs();
    assert_eq!([0, 999, 2_000, 7_200_000].map(length), [1, 1, 2, 3600]);
}

#[test]
fn floor_per_second_is_rounded_up() {
    let floor = |seconds, budget_floor| {
        let budget_window = RetryWindow::new(Duration::from_secs(seconds));
        let settings = RetrySettings { budget_window, budget_floor, ..RetrySettings::default() };
        settings.budget_floor_per_second()
    };
    assert_eq!([floor(10, 100), floor(10, 1), floor(10, 0), floor(1, 7)], [10, 1, 0, 7]);
}
