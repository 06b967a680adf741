//! Rates of requests that each client may send.
//!
//! ingress-nginx: `limit_req_zone $binary_remote_addr rate=N` for each Ingress, in its locations `limit_req burst=N*M
//! nodelay`. The rewrite phase comes first, so that redirects are not counted.

use super::value::parse_number;
use crate::objects::{Duration, RateLimitKeySpec, RateLimitKeyType, RequestRateLimit};

/// Largest number of requests that a RateLimitPolicy allows.
const MAX_REQUESTS: u32 = 1_000_000;
/// `limit-burst-multiplier` of ingress-nginx if it is not given.
const BURST_MULTIPLIER: u32 = 5;

/// An annotation about rates of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum RateAnnotation {
    /// Requests per second; 0 means no limit.
    PerSecond,
    /// Requests per minute; 0 means no limit.
    PerMinute,
    /// The burst is this number times the rate.
    BurstMultiplier,
}

/// The rates of an Ingress.
#[derive(Default)]
pub(super) struct RateAnnotations {
    per_second: u32,
    per_minute: u32,
    multiplier: Option<u32>,
}

impl RateAnnotations {
    pub(super) fn add(&mut self, setting: RateAnnotation, value: &str) -> Result<(), String> {
        match setting {
            RateAnnotation::PerSecond => self.per_second = parse_number(value, 0, MAX_REQUESTS)?,
            RateAnnotation::PerMinute => self.per_minute = parse_number(value, 0, MAX_REQUESTS)?,
            RateAnnotation::BurstMultiplier => {
                self.multiplier = Some(parse_number(value, 1, MAX_REQUESTS)?)
            }
        }
        Ok(())
    }

    /// Returns the limits. A request must be within both, as with nginx.
    pub(super) fn into_limits(self) -> Vec<RequestRateLimit> {
        let multiplier = self.multiplier.unwrap_or(BURST_MULTIPLIER);
        let rates = [(self.per_second, 1), (self.per_minute, 60)];
        let limit = |(requests, seconds): (u32, u64)| RequestRateLimit {
            requests,
            period: Duration::from_secs(seconds),
            // nginx admits one request and as many more as the burst.
            burst: Some(requests.saturating_mul(multiplier).saturating_add(1).min(MAX_REQUESTS)),
            key: Some(RateLimitKeySpec {
                kind: RateLimitKeyType::ClientAddress,
                name: None,
                ipv6_prefix_length: None,
            }),
        };
        rates.into_iter().filter(|(requests, _)| *requests > 0).map(limit).collect()
    }
}
