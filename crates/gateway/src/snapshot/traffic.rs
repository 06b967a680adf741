//! Handling of requests, as the data plane does it.

use std::fmt;
use std::sync::Arc;

/// The settings of one target of a TrafficPolicy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrafficSettings {
    /// `namespace/name` of the policy.
    pub policy: Arc<str>,
    /// Maximum size of the body of a request, in bytes, in place of that of the listener. `None`: that of the listener.
    pub max_body_bytes: Option<u64>,
    /// The response in place of that of an endpoint. `None`: requests are forwarded.
    pub direct_response: Option<DirectResponseSettings>,
}

/// The response to every request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectResponseSettings {
    /// A response with this status and content.
    Response {
        /// The status, from 200 to 599.
        status: u16,
        /// The content; `None`: there is no body.
        content: Option<ResponseContent>,
    },
    /// The policy is invalid: requests are answered with 500.
    Invalid,
}

/// The content of a response that the gateway makes.
#[derive(Clone, PartialEq, Eq)]
pub struct ResponseContent {
    /// The value of `Content-Type`.
    pub content_type: Box<str>,
    /// The body.
    pub body: Arc<[u8]>,
}

impl fmt::Debug for ResponseContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of {}", self.body.len(), self.content_type)
    }
}
