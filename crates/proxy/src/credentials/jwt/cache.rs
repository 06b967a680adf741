//! Tokens that were right, by their SHA-256. They are few enough that a hash of the token needs no key: no client can
//! find another token with the same hash.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};

use super::VerifiedToken;

/// Maximum number of tokens in each of two generations.
const GENERATION: usize = 512;
/// Maximum size of the header fields of a token that is remembered.
const MAX_FIELDS: usize = 4096;

/// SHA-256 of a token.
type TokenHash = [u8; 32];

/// Tokens that were right. If a generation is full, the one before it is forgotten.
#[derive(Default)]
pub(super) struct TokenCache {
    recent: HashMap<TokenHash, Arc<VerifiedToken>>,
    older: HashMap<TokenHash, Arc<VerifiedToken>>,
}

/// Returns the hash of a token.
pub(super) fn key(token: &[u8]) -> TokenHash {
    let mut key = [0; 32];
    key.copy_from_slice(digest(&SHA256, token).as_ref());
    key
}

impl TokenCache {
    /// Returns a token. One that is still in use outlives its generation.
    pub(super) fn get(&mut self, key: &TokenHash) -> Option<Arc<VerifiedToken>> {
        if let Some(found) = self.recent.get(key) {
            return Some(Arc::clone(found));
        }
        let found = Arc::clone(self.older.get(key)?);
        self.insert(*key, &found);
        Some(found)
    }

    pub(super) fn insert(&mut self, key: TokenHash, token: &Arc<VerifiedToken>) {
        let size: usize = token.fields.iter().map(|(_, value)| value.len()).sum();
        if size > MAX_FIELDS {
            return;
        }
        if self.recent.len() >= GENERATION {
            self.older = mem::take(&mut self.recent);
        }
        self.recent.insert(key, Arc::clone(token));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(value: &str) -> Arc<VerifiedToken> {
        let fields = [(0, value.into())].into();
        Arc::new(VerifiedToken { valid_from: 0., valid_until: 1., fields, issuer: 0 })
    }

    #[test]
    fn tokens_in_use_are_kept_and_others_forgotten() {
        let mut cache = TokenCache::default();
        let used = key(b"used");
        cache.insert(used, &token("x"));
        for number in 0..10 * GENERATION {
            cache.insert(key(&number.to_be_bytes()), &token("x"));
            assert!(cache.get(&used).is_some());
        }
        assert!(cache.recent.len() + cache.older.len() <= 2 * GENERATION);
        assert!(cache.get(&key(&0_usize.to_be_bytes())).is_none());
    }

    #[test]
    fn a_token_with_large_fields_is_not_kept() {
        let mut cache = TokenCache::default();
        cache.insert(key(b"large"), &token(&"x".repeat(MAX_FIELDS + 1)));
        assert!(cache.get(&key(b"large")).is_none());
    }
}
