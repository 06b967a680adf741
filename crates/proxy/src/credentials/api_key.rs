//! Keys of clients: finds the key of a request, and its client by a keyed hash of the key.
//!
//! Without the key of the hash, no guess can be chosen whose hash is close to that of a key: the time of a look-up
//! tells nothing about keys.

use std::collections::HashMap;
use std::sync::Arc;

use aws_lc_rs::hmac::{self, HMAC_SHA256};
use aws_lc_rs::rand;
use codec::head::RequestHead;
use gateway::snapshot::{ApiKeySettings, CredentialSource};

use super::source::{find, remove};
use crate::failure::Failure;

/// The clients of a policy by their keys.
pub(crate) struct ApiKeyTable {
    pub(crate) settings: Arc<ApiKeySettings>,
    key: hmac::Key,
    clients: HashMap<[u8; 32], Arc<str>>,
}

impl ApiKeyTable {
    pub(crate) fn new(settings: &Arc<ApiKeySettings>) -> Self {
        let mut key = [0; 32];
        rand::fill(&mut key).expect("the system has random numbers");
        let key = hmac::Key::new(HMAC_SHA256, &key);
        let clients = settings.clients.iter();
        let clients = clients.map(|(secret, id)| (keyed_hash(&key, &secret.0), Arc::clone(id)));
        let clients = clients.collect();
        Self { settings: Arc::clone(settings), key, clients }
    }

    /// Checks the key of a request, and changes what the endpoint gets of it.
    pub(super) fn check(&self, request: &mut RequestHead) -> Result<(), Failure> {
        let sources = &self.settings.sources;
        let key = find(sources, request).and_then(|(_, key)| key);
        let client = key.and_then(|key| self.clients.get(&keyed_hash(&self.key, &key)));
        let client = Arc::clone(client.ok_or(Failure::Unauthenticated)?);
        if self.settings.removes_key {
            sources.iter().for_each(|source| remove(source, request));
        }
        if let Some(name) = &self.settings.client_header {
            request.fields.remove_spellings(name.as_bytes());
            request.fields.append(&**name, &*client);
        }
        Ok(())
    }
}

fn keyed_hash(key: &hmac::Key, text: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(hmac::sign(key, text).as_ref());
    hash
}

/// Returns the challenge of a policy (RFC 9110 §11.6.1). Keys outside of Authorization have no registered scheme.
pub(super) fn challenge(settings: &ApiKeySettings) -> &'static str {
    let is_bearer =
        |source: &CredentialSource| *source == CredentialSource::Header("authorization".into());
    if settings.sources.iter().any(is_bearer) { "Bearer" } else { "ApiKey" }
}
