//! The head of a message of any HTTP version: its bytes, a table of byte spans, and an overlay of edits.
//!
//! A field is never copied out: it is two spans in the bytes that were received, and the known name, which is looked up
//! once. To remove a field sets a flag; to add one appends to the same bytes. A head is cleared and refilled for the next
//! message, so a connection in steady state allocates nothing. This module does not know how a head is parsed or
//! written; see `h1`.

/// Field names that get special treatment.
mod name;
/// Table of the names, found by a hash.
mod name_table;
/// Field names by which proxies describe a client.
mod proxy_claim;
/// Field names that a trailer section may have.
mod trailer;
/// Fields as byte spans, and the edits on top.
mod fields;
/// Cookies in requests and responses.
pub mod cookie;

pub use fields::{ByteSpan, FieldSection, PreparedFieldLine, PreparedFields, list};
pub use name::KnownFieldName;
pub(crate) use trailer::is_trailer;

use crate::h1::BadRequest;
use crate::path::{self, PathRules};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpVersion {
    Http10,
    Http11,
    Http2,
    Http3,
}

impl HttpVersion {
    /// True if each message has a stream of its own and ends with that stream.
    pub fn has_streams(self) -> bool {
        match self {
            Self::Http10 | Self::Http11 => false,
            Self::Http2 | Self::Http3 => true,
        }
    }
}

/// A request's method; the text of `Other` is in the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestMethod {
    Get,
    Head,
    Post,
    Put,
    Delete,
    Options,
    Trace,
    Patch,
    Connect,
    Other,
}

impl RequestMethod {
    /// Returns the method that `text` names. Methods are case-sensitive (RFC 9110 §9.1): `get` is not GET.
    pub fn recognise(text: &[u8]) -> Self {
        match text {
            b"GET" => Self::Get,
            b"HEAD" => Self::Head,
            b"POST" => Self::Post,
            b"PUT" => Self::Put,
            b"DELETE" => Self::Delete,
            b"OPTIONS" => Self::Options,
            b"TRACE" => Self::Trace,
            b"PATCH" => Self::Patch,
            b"CONNECT" => Self::Connect,
            _ => Self::Other,
        }
    }

    /// True for the safe methods of RFC 9110 §9.2.1.
    pub fn is_safe(self) -> bool {
        match self {
            Self::Get | Self::Head | Self::Options | Self::Trace => true,
            Self::Post | Self::Put | Self::Delete | Self::Patch | Self::Connect | Self::Other => {
                false
            }
        }
    }

    /// True for the idempotent methods of RFC 9110 §9.2.2.
    pub fn is_idempotent(self) -> bool {
        match self {
            Self::Put | Self::Delete => true,
            Self::Get
            | Self::Head
            | Self::Options
            | Self::Trace
            | Self::Post
            | Self::Patch
            | Self::Connect
            | Self::Other => self.is_safe(),
        }
    }
}

/// Delimitation of a message body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    /// There is no body.
    None,
    Length(u64),
    Chunked,
    /// Responses only: the body ends where the connection ends.
    UntilClose,
    /// HTTP/2 and HTTP/3: the body ends where the message's own stream ends.
    Stream,
}

impl BodyFraming {
    /// True if no byte of a body follows: there is no body, or its length is 0.
    pub fn is_empty(self) -> bool {
        matches!(self, Self::None | Self::Length(0))
    }
}

/// The framing of a response to a client.
pub struct ResponseFraming {
    /// HTTP version of the request.
    pub version: HttpVersion,
    /// Framing of the body that follows.
    pub framing: BodyFraming,
    /// True if the client may send another request.
    pub keep_alive: bool,
    /// True if the connection carries another protocol after the head.
    pub upgrade: bool,
}

impl ResponseFraming {
    /// Returns the framing of a head without a body, such as an interim response.
    pub fn without_body(version: HttpVersion) -> Self {
        Self { version, framing: BodyFraming::None, keep_alive: true, upgrade: false }
    }
}

/// The checked head of a request: whatever a parser has stored here can be forwarded.
#[derive(Clone, Debug)]
pub struct RequestHead {
    pub fields: FieldSection,
    pub method: RequestMethod,
    pub version: HttpVersion,
    pub framing: BodyFraming,
    /// True if the client wants to reuse the connection.
    pub keep_alive: bool,
    /// True if the client waits for `100 Continue` before it sends the body.
    pub expect_continue: bool,
    /// True if the client asks to switch to the one protocol that the Upgrade field names.
    pub upgrade: bool,
    /// True if the client accepts trailers.
    pub te_trailers: bool,
    pub(crate) method_text: ByteSpan,
    pub(crate) target: ByteSpan,
    pub(crate) path: ByteSpan,
    pub(crate) authority: ByteSpan,
    pub(crate) host: ByteSpan,
    /// The target as the client sent it, if `target` is another form of it.
    received_target: Option<ByteSpan>,
    /// The target before it was rewritten.
    original_target: Option<ByteSpan>,
    /// The target to send to the endpoint, if it differs from the client's.
    sent_target: Option<ByteSpan>,
    sent_authority: Option<ByteSpan>,
}

impl RequestHead {
    pub fn new() -> Self {
        Self {
            fields: FieldSection::new(),
            method: RequestMethod::Other,
            version: HttpVersion::Http11,
            framing: BodyFraming::None,
            keep_alive: false,
            expect_continue: false,
            upgrade: false,
            te_trailers: false,
            method_text: ByteSpan::default(),
            target: ByteSpan::default(),
            path: ByteSpan::default(),
            authority: ByteSpan::default(),
            host: ByteSpan::default(),
            received_target: None,
            original_target: None,
            sent_target: None,
            sent_authority: None,
        }
    }

    /// Resets the head to the state of `new`; keeps the memory.
    pub fn clear(&mut self) {
        let mut fields = std::mem::take(&mut self.fields);
        fields.clear();
        *self = Self { fields, ..Self::new() };
    }

    pub fn method_bytes(&self) -> &[u8] {
        self.fields.text(self.method_text)
    }

    /// Brings the path to its normal form, for routes and for the endpoint; the query stays as it is.
    pub fn normalise_path(&mut self, rules: PathRules) -> Result<(), BadRequest> {
        // `*` is no path (RFC 9112 §3.2.4).
        let is_path = self.path().starts_with(b"/");
        let normal = if is_path { path::normalise(self.path(), rules)? } else { None };
        let Some(mut target) = normal else { return Ok(()) };
        let path_len = target.len();
        target.extend_from_slice(self.target().get(self.path().len()..).unwrap_or_default());
        self.received_target.get_or_insert(self.target);
        self.target = self.fields.store(&target);
        self.path = self.target.shorten(path_len);
        Ok(())
    }

    /// Replaces path and query, for routes and for the endpoint.
    pub fn rewrite_target(&mut self, target: &[u8]) {
        self.received_target.get_or_insert(self.target);
        self.original_target.get_or_insert(self.target);
        self.target = self.fields.store(target);
        let path_len = target.iter().position(|byte| *byte == b'?').unwrap_or(target.len());
        self.path = self.target.shorten(path_len);
    }

    /// Returns path and query, or `*`, as the client sent them.
    pub fn received_target(&self) -> &[u8] {
        self.fields.text(self.received_target.unwrap_or(self.target))
    }

    /// Returns path and query, or `*`, in normal form, before they were rewritten.
    pub fn original_target(&self) -> &[u8] {
        self.fields.text(self.original_target.unwrap_or(self.target))
    }

    /// Returns path and query, or `*`: as the client sent them, unless the path has been normalised or rewritten.
    pub fn target(&self) -> &[u8] {
        self.fields.text(self.target)
    }

    /// Returns the target without its query.
    pub fn path(&self) -> &[u8] {
        self.fields.text(self.path)
    }

    /// Returns the query without its `?`; may be empty.
    pub fn query(&self) -> &[u8] {
        self.target().get(self.path().len() + 1..).unwrap_or_default()
    }

    /// Returns the requested host and port: from an absolute target, else from Host, else empty.
    pub fn authority(&self) -> &[u8] {
        self.fields.text(self.authority)
    }

    /// Returns path and query as sent to the endpoint, or `*`.
    pub fn sent_target(&self) -> &[u8] {
        self.fields.text(self.sent_target.unwrap_or(self.target))
    }

    /// Returns the authority sent to the endpoint, for the Host field or `:authority`.
    pub fn sent_authority(&self) -> &[u8] {
        self.fields.text(self.sent_authority.unwrap_or(self.authority))
    }

    /// Replaces the target sent to the endpoint.
    pub fn set_sent_target(&mut self, target: &[u8]) {
        self.sent_target = Some(self.fields.store(target));
    }

    /// Replaces the authority sent to the endpoint.
    pub fn set_sent_authority(&mut self, authority: &[u8]) {
        self.sent_authority = Some(self.fields.store(authority));
    }

    /// Adds a field whose value is the requested authority.
    pub fn add_authority(&mut self, known: KnownFieldName) {
        self.fields.add_from_span(known, self.authority);
    }

    /// Returns the authority without its port.
    pub fn host(&self) -> &[u8] {
        self.fields.text(self.host)
    }
}

impl Default for RequestHead {
    fn default() -> Self {
        Self::new()
    }
}

/// The head of a response: one received from an endpoint, checked, or one that this proxy generates.
#[derive(Clone, Debug)]
pub struct ResponseHead {
    pub fields: FieldSection,
    pub version: HttpVersion,
    pub status: u16,
    pub framing: BodyFraming,
    /// The Content-Length of a response without a body: for HEAD and 304, the length that the body would have.
    pub length_of_absent_body: Option<u64>,
    /// True if the endpoint wants to reuse the connection.
    pub keep_alive: bool,
    /// True if the endpoint has left HTTP with a 101 that names the new protocol.
    pub upgrade: bool,
    pub(crate) reason: ByteSpan,
}

impl ResponseHead {
    pub fn new() -> Self {
        Self {
            fields: FieldSection::new(),
            version: HttpVersion::Http11,
            status: 0,
            framing: BodyFraming::None,
            length_of_absent_body: None,
            keep_alive: false,
            upgrade: false,
            reason: ByteSpan::default(),
        }
    }

    /// Resets the head to the state of `new`; keeps the memory.
    pub fn clear(&mut self) {
        let mut fields = std::mem::take(&mut self.fields);
        fields.clear();
        *self = Self { fields, ..Self::new() };
    }

    /// Returns the reason phrase received with the status, else the standard one.
    pub fn reason(&self) -> &[u8] {
        if self.reason.is_empty() {
            return standard_reason(self.status).as_bytes();
        }
        self.fields.text(self.reason)
    }

    /// True for a 1xx response that a final response follows.
    pub fn is_interim(&self) -> bool {
        (100..200).contains(&self.status) && self.status != 101
    }
}

impl Default for ResponseHead {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the reason phrase of RFC 9110 §15 or RFC 6585, for the statuses that endpoints and this proxy send most.
fn standard_reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        101 => "Switching Protocols",
        103 => "Early Hints",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        206 => "Partial Content",
        301 => "Moved Permanently",
        302 => "Found",
        303 => "See Other",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        411 => "Length Required",
        413 => "Content Too Large",
        414 => "URI Too Long",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        425 => "Too Early",
        426 => "Upgrade Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "",
    }
}
