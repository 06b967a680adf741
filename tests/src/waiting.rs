//! Bounded waits for a condition, without an assumption on how long it takes.

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::time::{Instant, interval, timeout};

/// Time limit for an event that must occur at once: long enough for a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Returns the future's result, if it is ready within [`PATIENCE`].
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> Result<T> {
    timeout(PATIENCE, future).await.with_context(|| format!("{what}: timed out after {PATIENCE:?}"))
}

/// Observes until the observation is as wanted. The error contains the last observation.
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
            bail!("{what}: not true after {PATIENCE:?}; last seen: {seen:?}");
        }
    }
}
