//! Wire form of shared keys. Secrets are never shown.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;
use std::time::Duration;

use balance::shared_keys::{KeyMessage, KeyOffer, KeySecret, MAX_SHARED_KEYS};
use prost::Message;

use crate::wire::WireError;

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub(crate) struct WireKeyMessage {
    #[prost(message, repeated, tag = "1")]
    keys: Vec<WireKey>,
}

#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
struct WireKey {
    /// Bytes of the secret; another number of them is refused.
    #[prost(bytes = "vec", tag = "1")]
    secret: Vec<u8>,
    /// Time since the creation of the key.
    #[prost(uint64, tag = "2")]
    age_millis: u64,
}

impl Debug for WireKeyMessage {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("WireKeyMessage").finish_non_exhaustive()
    }
}

impl Debug for WireKey {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("WireKey").finish_non_exhaustive()
    }
}

impl From<&KeyMessage> for WireKeyMessage {
    fn from(message: &KeyMessage) -> Self {
        // The age is rounded down, and the receiver adds it to its own time.
        let key = |offer: &KeyOffer| WireKey {
            secret: offer.secret.bytes().to_vec(),
            age_millis: u64::try_from(offer.age.as_millis()).unwrap_or(u64::MAX),
        };
        Self { keys: message.keys.iter().map(key).collect() }
    }
}

impl TryFrom<WireKeyMessage> for KeyMessage {
    type Error = WireError;

    /// Returns the message. The receiver judges the ages.
    fn try_from(wire: WireKeyMessage) -> Result<Self, WireError> {
        if wire.keys.len() > MAX_SHARED_KEYS {
            return Err(WireError::Absurd);
        }
        let offer = |wire: WireKey| {
            let secret = wire.secret.try_into().map_err(|_wrong_length| WireError::Absurd)?;
            Ok(KeyOffer {
                secret: Arc::new(KeySecret::new(secret)),
                age: Duration::from_millis(wire.age_millis),
            })
        };
        Ok(Self { keys: wire.keys.into_iter().map(offer).collect::<Result<_, _>>()? })
    }
}
