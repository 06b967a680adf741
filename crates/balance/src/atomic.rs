//! The atomics of this crate: loom's where a model walks through every interleaving, else std's.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

/// Stands between a `SeqCst` write and a `SeqCst` read whose order in the single total order matters.
///
/// The language promises that order already, so outside of loom nothing is left to do. Loom takes `SeqCst`
/// accesses for `AcqRel` ones and would report interleavings that cannot happen; to a fence it does listen.
#[inline(always)]
pub(crate) fn total_order() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}
