//! Tests of lookups over hours, in virtual time.

use std::cell::RefCell;
use std::io;

use tokio::time::Instant;
use tracing_subscriber::fmt;

use super::lookup::FamilyLookup;
use super::scripted::ScriptedDns;
use super::*;

const NAME: &str = "app.test";
const TTL: Duration = Duration::from_secs(20);

/// A watcher of names, and the DNS that it asks.
struct WatcherFixture {
    dns: ScriptedDns,
    watcher: DnsWatcher,
    report: watch::Receiver<ProcessReport>,
}

impl WatcherFixture {
    /// Watches [`NAME`], which resolves to `10.0.0.1`, and has had the first answer.
    async fn start() -> Self {
        let dns = ScriptedDns::default();
        dns.set_addresses(NAME, &["10.0.0.1"], TTL);
        let mut fixture = Self::of(dns);
        fixture.watch(&[NAME]);
        assert_eq!(fixture.changed().await.0, NAME);
        fixture
    }

    fn of(dns: ScriptedDns) -> Self {
        let (sender, report) = watch::channel(ProcessReport::new());
        Self { watcher: dns.watcher(sender), dns, report }
    }

    fn watch(&mut self, names: &[&str]) {
        self.watcher.watch_hosts(names.iter().map(|&name| name.into()).collect());
    }

    /// Waits for the next change; returns the name, and the time that it took.
    async fn changed(&mut self) -> (String, Duration) {
        let begun = Instant::now();
        let name = self.watcher.changed().await.to_string();
        (name, begun.elapsed())
    }

    /// Lets time pass, in which no address may change.
    async fn pass(&mut self, time: Duration) {
        assert_eq!(timeout(time, self.watcher.changed()).await.ok(), None, "addresses changed");
    }

    fn addresses(&self) -> Vec<String> {
        self.watcher.addresses(NAME).iter().map(ToString::to_string).collect()
    }

    /// Returns the times between lookups of [`NAME`], in whole seconds.
    fn pauses(&self) -> Vec<u64> {
        let times = self.dns.lookup_times(NAME);
        times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs()).collect()
    }

    fn failing_names(&self) -> usize {
        self.report.borrow().names_failing
    }
}

/// Asserts that time has passed, and at most the jitter more.
fn assert_passed(passed: Duration, expected: Duration) {
    let range = expected..=expected + expected / 10 + Duration::from_millis(10);
    assert!(range.contains(&passed), "{passed:?} and not {expected:?}");
}

#[tokio::test(start_paused = true)]
async fn name_is_resolved_again_after_its_ttl() {
    let hour = Duration::from_secs(3600);
    for (ttl, pause) in [(TTL, TTL), (Duration::ZERO, Duration::from_secs(1)), (100 * hour, hour)] {
        let mut fixture = WatcherFixture::start().await;
        fixture.dns.set_addresses(NAME, &["10.0.0.2"], ttl);
        let (_, passed) = fixture.changed().await;
        assert_passed(passed, TTL);
        assert_eq!(fixture.addresses(), ["10.0.0.2"]);
        fixture.dns.set_addresses(NAME, &["10.0.0.3", "10.0.0.4"], TTL);
        let (_, passed) = fixture.changed().await;
        assert_passed(passed, pause);
        assert_eq!(fixture.addresses(), ["10.0.0.3", "10.0.0.4"]);
        assert_eq!(fixture.report.borrow().lookups, [3, 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn the_same_answer_is_no_change() {
    let mut fixture = WatcherFixture::start().await;
    fixture.pass(100 * TTL).await;
    let answered = fixture.report.borrow().lookups[0];
    assert!((90..=101).contains(&answered), "{answered}");
}

#[tokio::test(start_paused = true)]
async fn failures_keep_the_addresses_and_back_off() {
    let mut fixture = WatcherFixture::start().await;
    fixture.dns.fail(NAME, "no answer");
    fixture.pass(Duration::from_secs(160)).await;
    assert_eq!(fixture.addresses(), ["10.0.0.1"]);
    assert_eq!(fixture.failing_names(), 1);
    let pauses = fixture.pauses();
    for (pause, expected) in pauses.iter().zip([20, 1, 2, 4, 8, 16, 30, 30]) {
        // With the jitter.
        assert!((expected..=expected + expected / 10).contains(pause), "{pauses:?}");
    }
    assert!(pauses.len() >= 8, "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn recovery_is_seen_at_the_next_lookup_and_ends_the_backoff() {
    let mut fixture = WatcherFixture::start().await;
    // The number of failures, and the delay after the last of them.
    for (failures, delay) in [(1, 1), (3, 4)] {
        fixture.dns.fail(NAME, "no answer");
        let failed = fixture.report.borrow().lookups[1];
        while fixture.report.borrow().lookups[1] < failed + failures {
            fixture.pass(Duration::from_millis(10)).await;
        }
        assert_eq!(fixture.failing_names(), 1);
        fixture.dns.set_addresses(NAME, &["10.0.0.2"], TTL);
        let (_, passed) = fixture.changed().await;
        assert_passed(passed + Duration::from_millis(10), Duration::from_secs(delay));
        assert_eq!(fixture.failing_names(), 0);
        fixture.dns.set_addresses(NAME, &["10.0.0.1"], TTL);
        assert_passed(fixture.changed().await.1, TTL);
    }
}

#[tokio::test(start_paused = true)]
async fn each_change_between_success_and_failure_is_logged_once() {
    CapturedLog::start();
    let mut fixture = WatcherFixture::start().await;
    for reason in ["no such name", "server failure"] {
        fixture.dns.fail(NAME, reason);
        fixture.pass(Duration::from_secs(300)).await;
    }
    fixture.dns.set_addresses(NAME, &["10.0.0.1"], TTL);
    fixture.pass(Duration::from_secs(300)).await;
    let log = CapturedLog::text();
    assert_eq!(log.matches("cannot resolve").count(), 2, "{log}");
    assert_eq!(log.matches("reason=\"no such name\"").count(), 1, "{log}");
    assert_eq!(log.matches("reason=\"server failure\"").count(), 1, "{log}");
    assert_eq!(log.matches("resolves again").count(), 1, "{log}");
}

#[tokio::test(start_paused = true)]
async fn removed_name_is_looked_up_no_more() {
    let mut fixture = WatcherFixture::start().await;
    fixture.watch(&[NAME, "missing.test"]);
    assert_eq!(fixture.changed().await.0, "missing.test");
    assert_eq!(fixture.failing_names(), 1);
    fixture.watch(&[]);
    assert_eq!((fixture.addresses(), fixture.failing_names()), (Vec::new(), 0));
    let lookups = fixture.dns.lookup_count();
    fixture.pass(Duration::from_secs(7200)).await;
    assert_eq!(fixture.dns.lookup_count(), lookups);
    // If it returns, its first answer is awaited again.
    fixture.watch(&[NAME]);
    assert!(fixture.watcher.is_pending(NAME));
    let (_, passed) = fixture.changed().await;
    assert_eq!((passed, fixture.addresses()), (Duration::ZERO, vec!["10.0.0.1".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn first_answers_are_awaited_for_a_limited_time() {
    let dns = ScriptedDns::default();
    dns.set_addresses(NAME, &["10.0.0.1"], TTL);
    let mut fixture = WatcherFixture::of(dns);
    fixture.watch(&[NAME, "failing.test"]);
    let begun = Instant::now();
    fixture.watcher.wait_for_first_answers().await;
    assert_eq!(begun.elapsed(), Duration::ZERO, "both have an answer, one of them a failure");

    fixture.dns.silence("silent.test");
    fixture.watch(&[NAME, "silent.test"]);
    let begun = Instant::now();
    fixture.watcher.wait_for_first_answers().await;
    assert_passed(begun.elapsed(), FIRST_LOOKUP_TIMEOUT);
    assert!(fixture.watcher.is_pending("silent.test"));
    assert_eq!(fixture.addresses(), ["10.0.0.1"]);
}

#[tokio::test(start_paused = true)]
async fn concurrent_lookups_are_bounded() {
    let dns = ScriptedDns::default();
    let names: Vec<String> = (0..40).map(|number| format!("name-{number}.test")).collect();
    names.iter().for_each(|name| dns.silence(name));
    let mut fixture = WatcherFixture::of(dns);
    fixture.watch(&names.iter().map(String::as_str).collect::<Vec<_>>());
    fixture.pass(Duration::from_secs(1)).await;
    assert_eq!(fixture.dns.lookup_count(), MAX_CONCURRENT_LOOKUPS);
}

#[test]
fn dns_failures_back_off() {
    let failed = || FamilyLookup::Failed("no answer".into());
    let lookup = DualStackLookup { v4: failed(), v6: failed() };
    let mut failures = 0;
    let pauses: Vec<u64> =
        (0..7).map(|_| refresh_delay(&lookup, &mut failures).as_secs()).collect();
    assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
}

#[test]
fn refresh_jitter_is_at_most_ten_percent() {
    let pause = Duration::from_secs(10);
    let jitters: BTreeSet<Duration> = (0..100).map(|_| jitter(pause)).collect();
    assert!(jitters.len() > 1, "they differ");
    assert!(jitters.iter().all(|jitter| *jitter < pause / 10), "{jitters:?}");
}

thread_local! {
    static LOG: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The log of this thread.
struct CapturedLog;

impl CapturedLog {
    /// Captures the log of all threads, each for itself. If one thread alone had a subscriber, others that come to an
    /// event first would turn it off for all.
    fn start() {
        let subscriber = fmt().with_ansi(false).with_writer(|| Self).finish();
        tracing::subscriber::set_global_default(subscriber)
            .expect("no other test captures the log");
    }

    fn text() -> String {
        LOG.with_borrow(|log| String::from_utf8_lossy(log).into_owned())
    }
}

impl io::Write for CapturedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.with_borrow_mut(|log| log.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
