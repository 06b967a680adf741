//! Key of affinity tokens.
//!
//! All replicas must have the same key, before and after a restart, and clients must not know it.
//! In a cluster the UID of the Service is such a value: the API server draws it at random, every
//! replica reads it, and no response shows it. Services in files have none: without a key from the
//! operator, a random key lasts as long as the process.

use std::sync::atomic::{AtomicBool, Ordering};

use aws_lc_rs::hmac::{HMAC_SHA256, Key};
use aws_lc_rs::rand;

/// Length in bytes of a random key: that of the hash (RFC 2104 §3).
const KEY_BYTES: usize = 32;

/// Source of the keys of all Services.
pub(crate) struct AffinityKey {
    /// The operator's key, or a random one.
    key: Key,
    is_given: bool,
    has_warned: AtomicBool,
}

impl AffinityKey {
    /// Returns the operator's key; without one, a source that prefers the UIDs of Services.
    pub(crate) fn new(given: Option<&[u8]>) -> Self {
        let mut random = [0; KEY_BYTES];
        rand::fill(&mut random).expect("the system has random numbers");
        let key = Key::new(HMAC_SHA256, given.unwrap_or(&random));
        Self { key, is_given: given.is_some(), has_warned: AtomicBool::new(false) }
    }

    /// Returns the key of a Service's tokens.
    pub(super) fn of_service(&self, uid: Option<&str>) -> Key {
        match uid.filter(|_| !self.is_given) {
            Some(uid) => Key::new(HMAC_SHA256, uid.as_bytes()),
            None => self.key.clone(),
        }
    }

    /// Warns once if tokens of a Service with this UID end with the process.
    pub(crate) fn warn_if_temporary(&self, backend: &str, uid: Option<&str>) {
        let is_temporary = !self.is_given && uid.is_none();
        if is_temporary && !self.has_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                backend,
                "session affinity lasts until this process ends, and at this replica alone: set --affinity-key-file"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use aws_lc_rs::hmac::sign;

    use super::*;

    fn tag(key: &AffinityKey, uid: Option<&str>) -> Vec<u8> {
        sign(&key.of_service(uid), b"10.0.0.1:80").as_ref().to_vec()
    }

    #[test]
    fn key_of_the_operator_or_the_uid_is_the_same_in_every_process() {
        let given = || AffinityKey::new(Some(b"0123456789abcdef"));
        assert_eq!(tag(&given(), None), tag(&given(), Some("uid")));
        let without = || AffinityKey::new(None);
        assert_eq!(tag(&without(), Some("uid")), tag(&without(), Some("uid")));
        assert_ne!(tag(&without(), Some("uid")), tag(&without(), Some("another")));
        assert_ne!(tag(&without(), Some("uid")), tag(&given(), Some("uid")));
        assert_ne!(tag(&without(), None), tag(&without(), None));
    }
}
