//! Handling of requests, as the data plane does it.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::BackendKey;
use super::request_rule::RequestRules;

/// The settings of one target of a TrafficPolicy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrafficSettings {
    /// `namespace/name` of the policy.
    pub policy: Arc<str>,
    /// Maximum size of the body of a request, in bytes, in place of that of the listener. `None`: that of the listener.
    pub max_body_bytes: Option<u64>,
    /// Rules that rewrite, redirect or answer requests; `None`: there are none.
    pub request_rules: Option<RequestRules>,
    /// The response in place of that of an endpoint. `None`: requests are forwarded.
    pub direct_response: Option<DirectResponseSettings>,
    /// Pages in place of the bodies of error responses. The first that is for a response replaces it.
    pub error_pages: Vec<ErrorPageSettings>,
    /// Compression of responses; `None`: there is none.
    pub compression: Option<CompressionSettings>,
}

/// Compression of responses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompressionSettings {
    /// The content codings, at least one, in order of preference.
    pub codings: Vec<ContentCoding>,
    /// The media types that are compressed, in lower case. One that ends with `/` stands for all of its type.
    pub media_types: Vec<Box<str>>,
    /// Minimum size of a body, in bytes.
    pub min_bytes: u64,
}

impl CompressionSettings {
    /// True if responses of this media type, in lower case and without parameters, are compressed.
    pub fn has_type(&self, media_type: &[u8]) -> bool {
        self.media_types.iter().any(|it| {
            let known = it.as_bytes();
            known == media_type || known.ends_with(b"/") && media_type.starts_with(known)
        })
    }
}

/// A content coding (RFC 9110 §8.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentCoding {
    /// gzip.
    Gzip,
    /// Brotli.
    Brotli,
    /// Zstandard.
    Zstd,
}

impl ContentCoding {
    /// All codings.
    pub const ALL: [Self; 3] = [Self::Gzip, Self::Brotli, Self::Zstd];

    /// Returns the name of the coding in header fields.
    pub const fn token(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Brotli => "br",
            Self::Zstd => "zstd",
        }
    }
}

/// A page in place of the body of an error response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorPageSettings {
    /// The statuses that get the page.
    pub statuses: Vec<RangeInclusive<u16>>,
    /// True if requests for a Service that has no ready endpoint get the page.
    pub no_endpoint: bool,
    /// The status of the response. `None`: that of the error, or of the answer of a backend.
    pub response_status: Option<u16>,
    /// The source of the page.
    pub source: ErrorPageSource,
}

/// The source of an error page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorPageSource {
    /// The page itself.
    Content(ResponseContent),
    /// A backend that is asked for each page.
    Backend(BackendKey),
}

impl TrafficSettings {
    /// Returns the page for a response with this status, as an index into the pages.
    pub fn error_page(&self, status: u16, has_no_endpoint: bool) -> Option<usize> {
        let is_for = |page: &ErrorPageSettings| {
            page.statuses.iter().any(|it| it.contains(&status))
                || page.no_endpoint && has_no_endpoint
        };
        self.error_pages.iter().position(is_for)
    }
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
