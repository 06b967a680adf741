//! Waiting for something to become true: with a bound, and without guessing how long it takes.

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::time::{Instant, interval, timeout};

/// How long a test waits for what must come at once: long enough for a machine that is busy.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The future's result, if it comes within [`PATIENCE`].
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> Result<T> {
    timeout(PATIENCE, future).await.with_context(|| format!("{what}: nothing for {PATIENCE:?}"))
}

/// Observes until the observation is as wanted. The last observation is part of the error.
pub async fn eventually<T: Debug>(
    what: &str,
    mut observe: impl AsyncFnMut() -> Result<T>,
    wanted: impl Fn(&T) -> bool,
) -> Result<T> {
    let end = Instant::now() + PATIENCE;
    let mut ticks = interval(Duration::from_millis(2));
    loop {
        ticks.tick().await;
        let seen = observe().await?;
        if wanted(&seen) {
            return Ok(seen);
        }
        if Instant::now() > end {
            bail!("{what}: not after {PATIENCE:?}; last seen: {seen:?}");
        }
    }
}
