//! A read-mostly value that is replaced as a whole.
//!
//! A frequent reader keeps a copy with its version. As long as that version is current, a read costs one atomic load
//! and touches no shared reference count.
//!
//! Not `arc_swap`: with it a GET takes 1.4 % more instructions and a POST 1.9 % (medians of six paired counts by
//! callgrind: 15,981 to 16,206 and 17,182 to 17,510). `is_current` is asked up to three times for a request, also about
//! values that must not be renewed: one that a request holds, and one to drop. `ArcSwap::load` answers that by a guard,
//! at the cost of an atomic exchange; its `Cache` renews its copy in place and does not report that it did, although a
//! worker derives an `Rc` and per-backend caches from each value. Lock-free loads gain nothing here: only control
//! threads, and readers whose copy is outdated, take the lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::mutex::lock;

pub(crate) struct ConfigCell<T> {
    version: AtomicU64,
    value: Mutex<Arc<T>>,
}

impl<T> ConfigCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { version: AtomicU64::new(0), value: Mutex::new(Arc::new(value)) }
    }

    /// Returns the current value.
    pub(crate) fn load(&self) -> Arc<T> {
        Arc::clone(&lock(&self.value))
    }

    /// Replaces the value.
    pub(crate) fn store(&self, value: Arc<T>) {
        let mut current = lock(&self.value);
        let before = std::mem::replace(&mut *current, value);
        self.version.fetch_add(1, Ordering::Release);
        drop(current);
        // Dropped outside the lock: freeing it may take long.
        drop(before);
    }

    /// Returns the current value with its version, for a reader that caches it.
    pub(crate) fn load_versioned(&self) -> CachedConfig<T> {
        // Read under the lock, so that version and value belong together.
        let value = lock(&self.value);
        CachedConfig { version: self.version.load(Ordering::Relaxed), value: Arc::clone(&value) }
    }
}

/// A cached value with the version at which it was read.
pub(crate) struct CachedConfig<T> {
    version: u64,
    value: Arc<T>,
}

impl<T> CachedConfig<T> {
    /// True if the value has not been replaced since.
    pub(crate) fn is_current(&self, published: &ConfigCell<T>) -> bool {
        self.version == published.version.load(Ordering::Acquire)
    }
}

impl<T> std::ops::Deref for CachedConfig<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_version_is_current_until_the_next_store() {
        let published = ConfigCell::new(1);
        let first = published.load_versioned();
        assert!(first.is_current(&published));
        published.store(Arc::new(2));
        assert!(!first.is_current(&published));
        let second = published.load_versioned();
        assert!(second.is_current(&published));
        assert_eq!((*first, *second, *published.load()), (1, 2, 2));
    }
}
