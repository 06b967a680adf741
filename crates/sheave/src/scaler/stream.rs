//! A stream of a value: it is sent at once, and again when it has changed.
//!
//! It knows neither the value nor where it comes from.

use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use tonic::Status;

use crate::report::{ProcessPhase, ProcessReport};

/// A value, as it is now.
pub(super) struct ObservedValue<T, C> {
    pub(super) value: T,
    /// True if the value is sent even if it has not changed.
    pub(super) is_repeated: bool,
    /// Ends when the value may have changed.
    pub(super) changed: C,
}

/// Sends the value that `observe` returns, at once and on each change, until the client disconnects, the process drains,
/// or there is an error instead of a value. `observe` is called at this interval, or as soon as the future ends that it
/// returned with the last value.
pub(super) async fn stream_changes<T: Clone + PartialEq, C: Future<Output = ()>>(
    sender: mpsc::Sender<Result<T, Status>>,
    poll_interval: Duration,
    mut report: watch::Receiver<ProcessReport>,
    mut observe: impl FnMut() -> Result<ObservedValue<T, C>, Status>,
) {
    let mut sent = None;
    loop {
        let ObservedValue { value, is_repeated, changed } = match observe() {
            Ok(observed) => observed,
            Err(status) => return drop(sender.send(Err(status)).await),
        };
        if is_repeated || sent.as_ref() != Some(&value) {
            sent = Some(value.clone());
            if sender.send(Ok(value)).await.is_err() {
                return;
            }
        }
        tokio::select! {
            () = changed => {}
            () = sleep(poll_interval) => {}
            () = sender.closed() => return,
            () = wait_for_drain(&mut report) => return,
        }
    }
}

/// Waits for the drain; the client then asks another replica or the successor of this one. The stream ends without an
/// error: after an error KEDA waits twice as long as the last time, up to a minute, and never less again.
async fn wait_for_drain(report: &mut watch::Receiver<ProcessReport>) {
    // The sender of the report lives as long as the process.
    drop(
        report
            .wait_for(|report| {
                matches!(report.phase, ProcessPhase::Leaving | ProcessPhase::Draining)
            })
            .await,
    );
}

#[cfg(test)]
mod tests {
    use tokio::sync::watch::Sender;
    use tokio::time::{Instant, timeout};

    use super::*;

    const POLL_INTERVAL: Duration = Duration::from_millis(500);

    /// A stream of a number that the test sets.
    struct StreamFixture {
        value: Sender<Result<u32, Status>>,
        /// Ends the wait before the next poll.
        risen: Sender<()>,
        report: Sender<ProcessReport>,
        stream: mpsc::Receiver<Result<u32, Status>>,
    }

    impl StreamFixture {
        fn start() -> Self {
            let (value, observed) = watch::channel(Ok(0));
            let (risen, rises) = watch::channel(());
            let (report, reported) = watch::channel(ProcessReport::new());
            let (sender, stream) = mpsc::channel(1);
            let observe = move || {
                let mut rises = rises.clone();
                rises.mark_unchanged();
                let risen =
                    async move { rises.changed().await.expect("the test holds the sender") };
                let value = observed.borrow().clone()?;
                Ok(ObservedValue { value, is_repeated: false, changed: risen })
            };
            tokio::spawn(stream_changes(sender, POLL_INTERVAL, reported, observe));
            Self { value, risen, report, stream }
        }

        fn set(&self, value: u32) {
            self.value.send_modify(|current| *current = Ok(value));
        }

        /// Returns the next value, and the time that it took.
        async fn next(&mut self) -> (u32, Duration) {
            let begun = Instant::now();
            let value = self.stream.recv().await.expect("the stream goes on");
            (value.expect("a value"), begun.elapsed())
        }

        /// Returns the error at the end of the stream.
        async fn end(&mut self) -> Status {
            let status = self.stream.recv().await.expect("the stream goes on");
            assert!(self.stream.recv().await.is_none());
            status.expect_err("an error")
        }
    }

    #[tokio::test(start_paused = true)]
    async fn value_is_sent_at_once_and_then_only_if_it_changes() {
        let mut fixture = StreamFixture::start();
        assert_eq!(fixture.next().await, (0, Duration::ZERO));
        let hour = Duration::from_secs(3600);
        assert!(timeout(hour, fixture.stream.recv()).await.is_err(), "nothing has changed");
        fixture.set(1);
        assert_eq!(fixture.next().await.0, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn announced_change_is_sent_at_once() {
        let mut fixture = StreamFixture::start();
        fixture.next().await;
        sleep(POLL_INTERVAL / 4).await;
        fixture.set(1);
        fixture.risen.send_replace(());
        assert_eq!(fixture.next().await, (1, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn unannounced_change_is_sent_after_the_poll_interval() {
        let mut fixture = StreamFixture::start();
        fixture.next().await;
        sleep(POLL_INTERVAL / 4).await;
        fixture.set(1);
        let (value, passed) = fixture.next().await;
        assert_eq!(value, 1);
        // Timers have a granularity of a millisecond.
        let left = POLL_INTERVAL - POLL_INTERVAL / 4;
        assert!((left..=left + Duration::from_millis(2)).contains(&passed), "{passed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn error_ends_the_stream() {
        let mut fixture = StreamFixture::start();
        fixture.next().await;
        fixture.value.send_modify(|value| *value = Err(Status::not_found("gone")));
        assert_eq!(fixture.end().await.message(), "gone");
    }

    #[tokio::test(start_paused = true)]
    async fn drain_ends_the_stream_at_once() {
        for phase in [ProcessPhase::Leaving, ProcessPhase::Draining] {
            let mut fixture = StreamFixture::start();
            fixture.next().await;
            fixture.report.send_modify(|report| report.phase = phase);
            let begun = Instant::now();
            assert!(fixture.stream.recv().await.is_none());
            assert_eq!(begun.elapsed(), Duration::ZERO);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn disconnect_ends_the_observation_at_once() {
        let StreamFixture { value, risen: _risen, report: _report, mut stream } =
            StreamFixture::start();
        stream.recv().await;
        let begun = Instant::now();
        drop(stream);
        // The stream holds the only receiver of the value.
        value.closed().await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}
