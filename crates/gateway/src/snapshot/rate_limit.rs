//! Limits of the rate of requests, as the data plane applies them.

use std::sync::Arc;

use balance::rate_limit::RateLimit;

/// The limits of one target of a RateLimitPolicy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimitSettings {
    /// `namespace/name` of the policy: a label in metrics.
    pub policy: Arc<str>,
    /// `Kind/name`, and `/section` if there is one: the other label.
    pub target: Arc<str>,
    /// Status code of a rejected request.
    pub status: u16,
    /// The limits, at least one.
    pub limits: Vec<KeyedRateLimit>,
}

/// A limit for each key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyedRateLimit {
    /// The limit of each key.
    pub limit: RateLimit,
    /// The key.
    pub key: RateLimitKey,
}

/// The part of a request by which requests are counted separately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RateLimitKey {
    /// All requests are counted together.
    All,
    /// The client's address.
    ClientAddress {
        /// Number of bits of an IPv6 address that identify a client.
        ipv6_prefix_length: u8,
    },
    /// The first value of the header field of this name, in lower case.
    Header(Box<str>),
}
