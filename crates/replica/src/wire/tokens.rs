//! Wire form of tokens of rate limits.

use balance::rate_limit::{LimitId, MAX_TOKEN_ENTRIES, TOKENS_VERSION, TokenAmount, TokenMessage};
use balance::time::Time;
use prost::Message;

use super::{WireError, WireIdentity, identity};

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WireTokens {
    #[prost(uint32, tag = "1")]
    version: u32,
    #[prost(message, optional, tag = "2")]
    from: Option<WireIdentity>,
    #[prost(message, optional, tag = "3")]
    to: Option<WireIdentity>,
    #[prost(uint64, tag = "4")]
    sent_nanos: u64,
    #[prost(uint64, tag = "5")]
    gift: u64,
    #[prost(uint64, tag = "6")]
    gift_seen: u64,
    #[prost(message, repeated, tag = "7")]
    gifts: Vec<WireTokenAmount>,
    #[prost(message, repeated, tag = "8")]
    wishes: Vec<WireTokenAmount>,
}

#[derive(Clone, PartialEq, Message)]
struct WireTokenAmount {
    /// A hash: its bytes are rarely zero.
    #[prost(fixed64, tag = "1")]
    limit: u64,
    /// Halves of the key.
    #[prost(fixed64, tag = "2")]
    key_high: u64,
    #[prost(fixed64, tag = "3")]
    key_low: u64,
    #[prost(uint64, tag = "4")]
    micros: u64,
}

impl From<&TokenMessage> for WireTokens {
    fn from(message: &TokenMessage) -> Self {
        let amounts = |of: &[TokenAmount]| of.iter().map(WireTokenAmount::from).collect();
        Self {
            version: u32::from(message.version),
            from: Some(message.from.into()),
            to: Some(message.to.into()),
            sent_nanos: message.sent.as_nanos(),
            gift: message.gift,
            gift_seen: message.gift_seen,
            gifts: amounts(&message.gifts),
            wishes: amounts(&message.wishes),
        }
    }
}

impl TryFrom<WireTokens> for TokenMessage {
    type Error = WireError;

    /// Returns the message. [`TokenExchange`](balance::rate_limit::TokenExchange) judges the numbers.
    fn try_from(wire: WireTokens) -> Result<Self, WireError> {
        if wire.version != u32::from(TOKENS_VERSION) {
            return Err(WireError::Version);
        }
        if wire.gifts.len() > MAX_TOKEN_ENTRIES || wire.wishes.len() > MAX_TOKEN_ENTRIES {
            return Err(WireError::Absurd);
        }
        Ok(Self {
            version: TOKENS_VERSION,
            from: identity(wire.from)?,
            to: identity(wire.to)?,
            sent: Time::from_nanos(wire.sent_nanos),
            gift: wire.gift,
            gift_seen: wire.gift_seen,
            gifts: wire.gifts.into_iter().map(TokenAmount::from).collect(),
            wishes: wire.wishes.into_iter().map(TokenAmount::from).collect(),
        })
    }
}

impl From<&TokenAmount> for WireTokenAmount {
    fn from(&TokenAmount { limit, key, micros }: &TokenAmount) -> Self {
        Self { limit: limit.0, key_high: (key >> 64) as u64, key_low: key as u64, micros }
    }
}

impl From<WireTokenAmount> for TokenAmount {
    fn from(wire: WireTokenAmount) -> Self {
        let key = u128::from(wire.key_high) << 64 | u128::from(wire.key_low);
        Self { limit: LimitId(wire.limit), key, micros: wire.micros }
    }
}
