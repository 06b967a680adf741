//! One handshake step at a time.

use tokio::sync::Semaphore;

/// Semaphore that serialises the handshake steps of a worker.
pub(crate) struct HandshakeLimiter(Semaphore);

impl HandshakeLimiter {
    pub(crate) fn new() -> Self {
        Self(Semaphore::new(1))
    }

    /// Runs one step of one handshake.
    pub(super) async fn run_step<T>(&self, work: impl FnOnce() -> T) -> T {
        let permit = self.0.acquire().await;
        let output = work();
        // All other ready tasks run before the next step.
        tokio::task::yield_now().await;
        drop(permit);
        output
    }
}
