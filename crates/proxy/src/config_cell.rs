//! A value that is replaced whole now and then, and looked at all the time.
//!
//! Who looks often keeps what it has seen, with its edition: as long as that is the edition in force, a look costs one
//! load and no shared count.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::dial::pool::lock;

pub(crate) struct ConfigCell<T> {
    version: AtomicU64,
    value: Mutex<Arc<T>>,
}

impl<T> ConfigCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { version: AtomicU64::new(0), value: Mutex::new(Arc::new(value)) }
    }

    /// What is in force now.
    pub(crate) fn load(&self) -> Arc<T> {
        Arc::clone(&lock(&self.value))
    }

    /// From now on `value` is in force.
    pub(crate) fn store(&self, value: Arc<T>) {
        let mut current = lock(&self.value);
        let before = std::mem::replace(&mut *current, value);
        self.version.fetch_add(1, Ordering::Release);
        drop(current);
        // Outside the lock: it may be much.
        drop(before);
    }

    /// What is in force now, to be kept and looked at again.
    pub(crate) fn load_versioned(&self) -> VersionedConfig<T> {
        // Under the lock, so that number and value are of one edition.
        let value = lock(&self.value);
        VersionedConfig { version: self.version.load(Ordering::Relaxed), value: Arc::clone(&value) }
    }
}

/// What was in force when somebody looked.
pub(crate) struct VersionedConfig<T> {
    version: u64,
    value: Arc<T>,
}

impl<T> VersionedConfig<T> {
    /// It is in force still.
    pub(crate) fn is_current(&self, published: &ConfigCell<T>) -> bool {
        self.version == published.version.load(Ordering::Acquire)
    }
}

impl<T> std::ops::Deref for VersionedConfig<T> {
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
