//! Atomics of this crate: loom's where a model explores every interleaving, else std's.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

/// Separates a `SeqCst` write from a `SeqCst` read whose order in the single total order matters.
///
/// Rust guarantees that order already, so outside of loom this function does nothing. Loom treats
/// `SeqCst` accesses as `AcqRel` and would report interleavings that cannot happen; it does honour
/// a fence.
#[inline(always)]
pub(crate) fn total_order() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}
