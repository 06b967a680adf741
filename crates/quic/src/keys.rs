//! Keys that all workers share, so that each worker recognises the tokens of the others. They are generated at each
//! start, when they are first needed: the library's first random bytes take some 400 million instructions.

use std::sync::Arc;

use aws_lc_rs::{hkdf, hmac, rand};
use quinn_proto::crypto::{HandshakeTokenKey, HmacKey};

/// Keys that all workers share.
#[derive(Clone)]
pub struct QuicTokenKeys {
    /// For stateless reset tokens, which end a connection that is no longer known (RFC 9000 §10.3).
    pub(super) reset: Arc<dyn HmacKey>,
    /// For address validation tokens, by which a client proves its address (RFC 9000 §8.1).
    pub(super) token: Arc<dyn HandshakeTokenKey>,
}

impl QuicTokenKeys {
    /// Generates keys.
    pub fn generate() -> Self {
        let token = hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(&random::<64>());
        Self { reset: reset_key(), token: Arc::new(token) }
    }
}

pub(super) fn reset_key() -> Arc<dyn HmacKey> {
    Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &random::<64>()))
}

/// Returns unpredictable random bytes.
pub(super) fn random<const COUNT: usize>() -> [u8; COUNT] {
    let mut bytes = [0; COUNT];
    rand::fill(&mut bytes).expect("the library's generator seeds itself from the kernel");
    bytes
}
