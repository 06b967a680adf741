//! Handling of requests, as the data plane does it.

use std::sync::Arc;

/// The settings of one target of a TrafficPolicy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrafficSettings {
    /// `namespace/name` of the policy.
    pub policy: Arc<str>,
    /// Maximum size of the body of a request, in bytes, in place of that of the listener. `None`: that of the listener.
    pub max_body_bytes: Option<u64>,
}
