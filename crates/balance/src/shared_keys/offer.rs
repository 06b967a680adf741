//! The secret of a key, and offers of keys.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;
use std::time::Duration;

use zeroize::Zeroize;

use super::{MAX_SHARED_KEYS, OFFER_TIME};

/// Size of a secret in bytes.
pub const SECRET_BYTES: usize = 32;

/// Secret from which a key is derived. It is overwritten when it is dropped, and never shown.
#[derive(PartialEq, Eq)]
pub struct KeySecret([u8; SECRET_BYTES]);

impl KeySecret {
    /// Returns the secret with these bytes, which must be random.
    pub const fn new(bytes: [u8; SECRET_BYTES]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes.
    pub const fn bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }
}

impl Drop for KeySecret {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl Debug for KeySecret {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str("KeySecret(..)")
    }
}

/// A key that a replica knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyOffer {
    /// Secret.
    pub secret: Arc<KeySecret>,
    /// Time since its creation.
    pub age: Duration,
}

/// All keys that a replica knows and shares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyMessage {
    /// At most [`MAX_SHARED_KEYS`].
    pub keys: Vec<KeyOffer>,
}

impl KeyMessage {
    /// Checks the number of keys, their ages, and that no secret is empty.
    ///
    /// # Errors
    ///
    /// Returns the reason if the message is to be refused as a whole.
    pub fn check(&self) -> Result<(), KeyRefusal> {
        let is_absurd = |offer: &KeyOffer| {
            offer.age >= OFFER_TIME || *offer.secret.bytes() == [0; SECRET_BYTES]
        };
        match self.keys.len() > MAX_SHARED_KEYS || self.keys.iter().any(is_absurd) {
            true => Err(KeyRefusal::Absurd),
            false => Ok(()),
        }
    }
}

/// Reason for which keys of another replica are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRefusal {
    /// An age or a secret is impossible, or there are too many keys. The whole message is refused.
    Absurd,
    /// This replica knows as many keys as it may. Keys of the message that it knows stay.
    Full,
}

impl KeyRefusal {
    /// All reasons.
    pub const ALL: [Self; 2] = [Self::Absurd, Self::Full];

    /// Returns the name, as metrics have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Absurd => "absurd",
            Self::Full => "full",
        }
    }
}
