//! Wire form of learned limits.

use balance::leases::PoolKey;
use balance::limit::{
    LIMITS_VERSION, LimitEntry, LimitMessage, LimitReason, MAX_LIMIT_ENTRIES, ObservationSums,
    SharedLimit,
};
use balance::time::Time;
use prost::Message;

use super::{WireAddress, WireError, WireIdentity, address, identity};

#[derive(Clone, PartialEq, Message)]
pub(crate) struct WireLimits {
    #[prost(uint32, tag = "1")]
    version: u32,
    #[prost(message, optional, tag = "2")]
    from: Option<WireIdentity>,
    #[prost(uint64, tag = "3")]
    sent_nanos: u64,
    #[prost(message, repeated, tag = "4")]
    endpoints: Vec<WireLimit>,
}

#[derive(Clone, PartialEq, Message)]
struct WireLimit {
    /// A hash: its bytes are rarely zero.
    #[prost(fixed64, tag = "1")]
    pool: u64,
    #[prost(message, optional, tag = "2")]
    endpoint: Option<WireAddress>,
    #[prost(uint64, tag = "3")]
    in_flight_milli: u64,
    #[prost(uint64, tag = "4")]
    demand_milli: u64,
    #[prost(uint32, tag = "5")]
    total: u32,
    #[prost(uint32, tag = "6")]
    claim: u32,
    /// [`REASONS`].
    #[prost(uint32, tag = "7")]
    reason: u32,
    #[prost(bool, tag = "8")]
    preferred: bool,
    #[prost(uint32, tag = "9")]
    reported: u32,
    #[prost(uint64, tag = "10")]
    observed_nanos: u64,
    #[prost(uint64, tag = "11")]
    in_flight_nanos: u64,
    #[prost(uint64, tag = "12")]
    limited_nanos: u64,
    #[prost(uint64, tag = "13")]
    finished: u64,
    #[prost(uint64, tag = "14")]
    held_nanos: u64,
    #[prost(uint64, tag = "15")]
    squares: u64,
    #[prost(uint64, tag = "16")]
    begun_nanos: u64,
}

/// Reasons by their number. Numbers are never reused; one that is not known counts as `Growing`.
const REASONS: [LimitReason; 5] = [
    LimitReason::Growing,
    LimitReason::Start,
    LimitReason::Saturation,
    LimitReason::Reported,
    LimitReason::Probing,
];

impl From<&LimitMessage> for WireLimits {
    fn from(message: &LimitMessage) -> Self {
        Self {
            version: u32::from(message.version),
            from: Some(message.from.into()),
            sent_nanos: message.sent.as_nanos(),
            endpoints: message.endpoints.iter().map(WireLimit::from).collect(),
        }
    }
}

impl TryFrom<WireLimits> for LimitMessage {
    type Error = WireError;

    /// Returns the message. [`LimitSharing`](balance::limit::LimitSharing) judges the numbers.
    fn try_from(wire: WireLimits) -> Result<Self, WireError> {
        if wire.version != u32::from(LIMITS_VERSION) {
            return Err(WireError::Version);
        }
        if wire.endpoints.len() > MAX_LIMIT_ENTRIES {
            return Err(WireError::Absurd);
        }
        Ok(Self {
            version: LIMITS_VERSION,
            from: identity(wire.from)?,
            sent: Time::from_nanos(wire.sent_nanos),
            endpoints: wire
                .endpoints
                .into_iter()
                .map(LimitEntry::try_from)
                .collect::<Result<_, _>>()?,
        })
    }
}

impl From<&LimitEntry> for WireLimit {
    fn from(&LimitEntry { pool, endpoint, state, sums }: &LimitEntry) -> Self {
        let reason = REASONS.iter().position(|&reason| reason == state.reason).unwrap_or(0);
        Self {
            pool: pool.0,
            endpoint: Some(endpoint.into()),
            in_flight_milli: state.in_flight_milli,
            demand_milli: state.demand_milli,
            total: state.total,
            claim: state.claim,
            reason: reason as u32,
            preferred: state.preferred,
            reported: state.reported,
            observed_nanos: sums.observed_nanos,
            in_flight_nanos: sums.in_flight_nanos,
            limited_nanos: sums.limited_nanos,
            finished: sums.finished,
            held_nanos: sums.held_nanos,
            squares: sums.squares,
            begun_nanos: sums.begun_nanos,
        }
    }
}

impl TryFrom<WireLimit> for LimitEntry {
    type Error = WireError;

    fn try_from(wire: WireLimit) -> Result<Self, WireError> {
        let reason = REASONS.get(wire.reason as usize).copied().unwrap_or(LimitReason::Growing);
        let state = SharedLimit {
            in_flight_milli: wire.in_flight_milli,
            demand_milli: wire.demand_milli,
            total: wire.total,
            claim: wire.claim,
            reason,
            preferred: wire.preferred,
            reported: wire.reported,
        };
        let sums = ObservationSums {
            begun_nanos: wire.begun_nanos,
            observed_nanos: wire.observed_nanos,
            in_flight_nanos: wire.in_flight_nanos,
            limited_nanos: wire.limited_nanos,
            finished: wire.finished,
            held_nanos: wire.held_nanos,
            squares: wire.squares,
        };
        Ok(Self { pool: PoolKey(wire.pool), endpoint: address(wire.endpoint)?, state, sums })
    }
}
