//! The allocator, and when it gives back what a change has left over.
//!
//! A configuration is built beside the one in force, which then goes; its memory is kept for the thread's next
//! allocations, and on a thread that has nothing to do there are none. With 5,000 routes that was as much again as is in
//! use.

use std::time::Duration;

use proxy::{Time, clock};

use crate::timer;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// After the last change; while changes go on, the next needs the memory at once.
const QUIET_PERIOD: Duration = Duration::from_secs(1);

/// What changes have left over on this thread.
#[derive(Debug, Default)]
pub(crate) struct MemoryTrim {
    due: Option<Time>,
}

impl MemoryTrim {
    /// There has been a change.
    pub(crate) fn schedule(&mut self) {
        self.due = Some(clock::now() + QUIET_PERIOD);
    }

    /// Gives them back to the system when all is calm. May be dropped and called again.
    #[expect(unsafe_code, reason = "the allocator's own call, which takes no pointer")]
    pub(crate) async fn trim(&mut self) {
        timer::wait_until(self.due).await;
        self.due = None;
        // SAFETY: it takes nothing, may be called at any time, and frees only what nobody has.
        unsafe { libmimalloc_sys::mi_collect(true) };
    }
}
