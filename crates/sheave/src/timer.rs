//! Waits until an optional deadline.

use std::future::pending;

use proxy::{Time, clock};
use tokio::time::sleep;

/// Waits until the deadline; `None`: forever. Cancel-safe.
pub(crate) async fn wait_until(due: Option<Time>) {
    match due {
        Some(due) => sleep(due.saturating_since(clock::now())).await,
        None => pending().await,
    }
}
