//! The head of a message, whatever protocol it came by: its bytes, a table of spans, an overlay of edits.
//!
//! A field is never copied out and never hashed: it is two spans in the bytes it arrived in. Removing one sets a flag,
//! adding one appends to the same bytes. A head is cleared and filled again for the next message, so a connection in
//! its stride allocates nothing. Nothing here knows how a head is parsed or written; see `h1`.

/// The names that are treated specially.
mod name;
/// Fields as spans, and the edits on top.
mod fields;
/// Cookies, in requests and for responses.
pub(crate) mod cookie;

pub use fields::{FieldSection, list};
pub use name::KnownFieldName;

pub(crate) use fields::{ByteSpan, PreparedFieldLine};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpVersion {
    Http10,
    Http11,
    Http2,
    Http3,
}

impl HttpVersion {
    /// A message has a stream to itself, and ends with it.
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
    /// Methods are case-sensitive (RFC 9110 §9.1): `get` is not GET.
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

    /// RFC 9110 §9.2.1.
    pub fn is_safe(self) -> bool {
        match self {
            Self::Get | Self::Head | Self::Options | Self::Trace => true,
            Self::Post | Self::Put | Self::Delete | Self::Patch | Self::Connect | Self::Other => {
                false
            }
        }
    }

    /// RFC 9110 §9.2.2.
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

/// How the body of a message is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    /// There is no body.
    None,
    Length(u64),
    Chunked,
    /// Responses only: all that comes before the connection ends.
    UntilClose,
    /// HTTP/2 and HTTP/3: the message has a stream to itself, and ends with it.
    Stream,
}

impl BodyFraming {
    /// No byte of a body follows, be it that there is none or that it is empty.
    pub fn is_empty(self) -> bool {
        matches!(self, Self::None | Self::Length(0))
    }
}

/// The head of a request, checked: what a parser has filled in here can be sent on.
#[derive(Clone, Debug)]
pub struct RequestHead {
    pub fields: FieldSection,
    pub method: RequestMethod,
    pub version: HttpVersion,
    pub framing: BodyFraming,
    /// Whether the client means to use the connection again.
    pub keep_alive: bool,
    /// The client waits for `100 Continue` before it sends the body.
    pub expect_continue: bool,
    /// The client asks to leave HTTP for the one protocol that the Upgrade field names.
    pub upgrade: bool,
    /// The client takes trailers.
    pub te_trailers: bool,
    pub(crate) method_text: ByteSpan,
    pub(crate) target: ByteSpan,
    pub(crate) path: ByteSpan,
    pub(crate) authority: ByteSpan,
    pub(crate) host: ByteSpan,
    /// What the endpoint is asked for, where that is not what the client asked for.
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
            sent_target: None,
            sent_authority: None,
        }
    }

    /// Back to `new`, with the memory kept.
    pub fn clear(&mut self) {
        let mut fields = std::mem::take(&mut self.fields);
        fields.clear();
        *self = Self { fields, ..Self::new() };
    }

    pub fn method_bytes(&self) -> &[u8] {
        self.fields.text(self.method_text)
    }

    /// Path and query as they were asked for, or `*`.
    pub fn target(&self) -> &[u8] {
        self.fields.text(self.target)
    }

    /// The target without its query.
    pub fn path(&self) -> &[u8] {
        self.fields.text(self.path)
    }

    /// Host and port asked for: of an absolute target, else of Host, else empty.
    pub fn authority(&self) -> &[u8] {
        self.fields.text(self.authority)
    }

    /// Path and query as they are sent on, or `*`.
    pub fn sent_target(&self) -> &[u8] {
        self.fields.text(self.sent_target.unwrap_or(self.target))
    }

    /// What Host is written from.
    pub fn sent_authority(&self) -> &[u8] {
        self.fields.text(self.sent_authority.unwrap_or(self.authority))
    }

    /// The endpoint is to be asked for this.
    pub(crate) fn set_sent_target(&mut self, target: &[u8]) {
        self.sent_target = Some(self.fields.store(target));
    }

    /// The endpoint is to be asked for something of this host.
    pub(crate) fn set_sent_authority(&mut self, authority: &[u8]) {
        self.sent_authority = Some(self.fields.store(authority));
    }

    /// Adds a field that says the authority that was asked for.
    pub(crate) fn add_authority(&mut self, known: KnownFieldName) {
        self.fields.add_from_span(known, self.authority);
    }

    /// The authority without its port.
    pub fn host(&self) -> &[u8] {
        self.fields.text(self.host)
    }
}

impl gateway::matching::RequestAttributes for RequestHead {
    fn method(&self) -> &[u8] {
        self.method_bytes()
    }

    fn host(&self) -> &[u8] {
        self.host()
    }

    fn path(&self) -> &[u8] {
        self.path()
    }

    fn query(&self) -> &[u8] {
        self.target().get(self.path().len() + 1..).unwrap_or_default()
    }

    fn headers<'r>(&'r self, name: &'r str) -> impl Iterator<Item = &'r [u8]> {
        let is_named = |text: &[u8]| text.eq_ignore_ascii_case(name.as_bytes());
        self.fields.iter().filter(move |(_, text, _)| is_named(text)).map(|(_, _, value)| value)
    }
}

impl Default for RequestHead {
    fn default() -> Self {
        Self::new()
    }
}

/// The head of a response: of an endpoint, checked, or one of ours.
#[derive(Clone, Debug)]
pub struct ResponseHead {
    pub fields: FieldSection,
    pub version: HttpVersion,
    pub status: u16,
    pub framing: BodyFraming,
    /// The Content-Length of a response that has no body: HEAD and 304 say how long it would be.
    pub length_of_absent_body: Option<u64>,
    /// Whether the endpoint means to use the connection again.
    pub keep_alive: bool,
    /// The endpoint has left HTTP: a 101 that names its protocol.
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

    /// Back to `new`, with the memory kept.
    pub fn clear(&mut self) {
        let mut fields = std::mem::take(&mut self.fields);
        fields.clear();
        *self = Self { fields, ..Self::new() };
    }

    /// The reason phrase that came with the status, else the usual one.
    pub fn reason(&self) -> &[u8] {
        if self.reason.is_empty() {
            return usual_reason(self.status).as_bytes();
        }
        self.fields.text(self.reason)
    }

    /// A 1xx that a final response follows.
    pub fn is_interim(&self) -> bool {
        (100..200).contains(&self.status) && self.status != 101
    }
}

impl Default for ResponseHead {
    fn default() -> Self {
        Self::new()
    }
}

/// The phrases of RFC 9110 §15 and RFC 6585 for what endpoints and we answer most.
fn usual_reason(status: u16) -> &'static str {
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
