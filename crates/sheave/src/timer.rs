//! Waiting for what may be due some time.

use std::future::pending;

use proxy::{Time, clock};
use tokio::time::sleep;

/// Waits until then; `None`: for ever. May be dropped and called again.
pub(crate) async fn wait_until(due: Option<Time>) {
    match due {
        Some(due) => sleep(due.saturating_since(clock::now())).await,
        None => pending().await,
    }
}
