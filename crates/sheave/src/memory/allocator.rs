//! mimalloc as the allocator of the process, by its shortest way.
//!
//! The `mimalloc` crate states an alignment with every allocation. For most sizes mimalloc 3 then allocates more than it
//! was asked for and looks for an aligned place within, although its blocks have the usual alignment anyway. Each
//! request over HTTP/1.1 allocates one such block; this took 300 of its 17,000 instructions.
#![expect(unsafe_code, reason = "an allocator is unsafe to implement")]

use std::alloc::{GlobalAlloc, Layout};

use libmimalloc_sys::{mi_malloc, mi_realloc, mi_zalloc};
use mimalloc::MiMalloc;

/// Alignment that every block of at least this size has: `MI_MAX_ALIGN_SIZE` of mimalloc.
const BLOCK_ALIGNMENT: usize = 16;

/// mimalloc, which is told of an alignment only if a block would not have it anyway.
pub(super) struct ProcessAllocator;

/// True if every block of `size` bytes has this alignment.
const fn is_natural(alignment: usize, size: usize) -> bool {
    alignment <= BLOCK_ALIGNMENT && alignment <= size
}

// SAFETY: the calls are mimalloc's own equivalents. Blocks of `mi_malloc`, `mi_zalloc` and `mi_realloc` have the
// alignment that `is_natural` requires, and all of mimalloc's blocks may be freed and reallocated alike.
unsafe impl GlobalAlloc for ProcessAllocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_natural(layout.align(), layout.size()) {
            // SAFETY: any size is allowed.
            return unsafe { mi_malloc(layout.size()) }.cast();
        }
        // SAFETY: the caller's obligations are the same.
        unsafe { MiMalloc.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_natural(layout.align(), layout.size()) {
            // SAFETY: any size is allowed.
            return unsafe { mi_zalloc(layout.size()) }.cast();
        }
        // SAFETY: the caller's obligations are the same.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's obligations are the same.
        unsafe { MiMalloc.dealloc(block, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if is_natural(layout.align(), new_size) {
            // SAFETY: the block is one of mimalloc's, by the caller's obligations.
            return unsafe { mi_realloc(block.cast(), new_size) }.cast();
        }
        // SAFETY: the caller's obligations are the same.
        unsafe { MiMalloc.realloc(block, layout, new_size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_their_alignment_and_keep_their_bytes() {
        for size in [1, 7, 8, 9, 16, 24, 40, 100, 1000, 1025, 2136, 5000, 70_000, 3_000_000] {
            for alignment in [1, 2, 4, 8, 16, 32, 128, 4096] {
                let layout = Layout::from_size_align(size, alignment).unwrap();
                // SAFETY: the layout has a size, and each block is used within its size and freed once.
                unsafe {
                    let block = ProcessAllocator.alloc_zeroed(layout);
                    assert!(!block.is_null() && block.addr().is_multiple_of(alignment));
                    assert!(std::slice::from_raw_parts(block, size).iter().all(|byte| *byte == 0));
                    block.write_bytes(7, size);
                    let larger = ProcessAllocator.realloc(block, layout, 2 * size);
                    assert!(!larger.is_null() && larger.addr().is_multiple_of(alignment));
                    assert!(std::slice::from_raw_parts(larger, size).iter().all(|byte| *byte == 7));
                    let layout = Layout::from_size_align(2 * size, alignment).unwrap();
                    ProcessAllocator.dealloc(larger, layout);
                }
            }
        }
    }
}
