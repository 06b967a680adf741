//! The head of a message, whatever protocol it came by: its bytes, a table of spans, an overlay of edits.
//!
//! A field is never copied out and never hashed: it is two spans in the bytes it arrived in. Removing one sets a flag,
//! adding one appends to the same bytes. A head is cleared and filled again for the next message, so a connection in
//! its stride allocates nothing. Nothing here knows how a head is parsed or written; see `h1`.

/// A stretch of a head's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    start: u32,
    len: u32,
}

impl Span {
    /// Heads are bounded far below 4 GiB, so nothing is lost here.
    pub(crate) fn new(start: usize, len: usize) -> Self {
        debug_assert!(start + len <= u32::MAX as usize);
        Self { start: start as u32, len: len as u32 }
    }

    /// Where `part` lies in `whole`, of which it is a slice; an empty part may lie anywhere.
    pub(crate) fn of(part: &[u8], whole: &[u8]) -> Self {
        if part.is_empty() {
            return Self::default();
        }
        let start = part.as_ptr().addr() - whole.as_ptr().addr();
        debug_assert!(start + part.len() <= whole.len(), "the part is a slice of the whole");
        Self::new(start, part.len())
    }

    pub(crate) fn lengthen(self, by: usize) -> Self {
        Self::new(self.start as usize, self.len as usize + by)
    }

    pub(crate) fn shorten(self, len: usize) -> Self {
        debug_assert!(len <= self.len as usize);
        Self::new(self.start as usize, len)
    }

    pub(crate) fn in_bytes(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.start as usize..(self.start + self.len) as usize]
    }

    pub(crate) fn before(self, bytes: &[u8]) -> &[u8] {
        &bytes[..self.start as usize]
    }

    pub(crate) fn is_empty(self) -> bool {
        self.len == 0
    }
}

/// A field name that this proxy treats specially, recognised once, when the field is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Name {
    Other,
    Connection,
    KeepAlive,
    ProxyConnection,
    TransferEncoding,
    Te,
    Trailer,
    Upgrade,
    ContentLength,
    Host,
    Expect,
    Via,
    Forwarded,
    XForwardedFor,
    XForwardedProto,
    XForwardedHost,
    XForwardedPort,
    XRequestId,
    Date,
    RetryAfter,
    ProxyAuthenticate,
    ProxyAuthorization,
    ProxyStatus,
    Http2Settings,
}

impl Name {
    /// Recognised by length first: most fields are compared with one or two names, many with none.
    pub fn recognise(name: &[u8]) -> Self {
        let candidates: &[(&[u8], Self)] = match name.len() {
            2 => &[(b"te", Self::Te)],
            3 => &[(b"via", Self::Via)],
            4 => &[(b"host", Self::Host), (b"date", Self::Date)],
            6 => &[(b"expect", Self::Expect)],
            7 => &[(b"upgrade", Self::Upgrade), (b"trailer", Self::Trailer)],
            9 => &[(b"forwarded", Self::Forwarded)],
            10 => &[(b"connection", Self::Connection), (b"keep-alive", Self::KeepAlive)],
            11 => &[(b"retry-after", Self::RetryAfter)],
            12 => &[(b"x-request-id", Self::XRequestId), (b"proxy-status", Self::ProxyStatus)],
            14 => &[
                (b"content-length", Self::ContentLength),
                (b"http2-settings", Self::Http2Settings),
            ],
            15 => &[(b"x-forwarded-for", Self::XForwardedFor)],
            16 => &[
                (b"x-forwarded-host", Self::XForwardedHost),
                (b"x-forwarded-port", Self::XForwardedPort),
                (b"proxy-connection", Self::ProxyConnection),
            ],
            17 => &[
                (b"x-forwarded-proto", Self::XForwardedProto),
                (b"transfer-encoding", Self::TransferEncoding),
            ],
            18 => &[(b"proxy-authenticate", Self::ProxyAuthenticate)],
            19 => &[(b"proxy-authorization", Self::ProxyAuthorization)],
            _ => &[],
        };
        candidates
            .iter()
            .find(|(text, _)| text[0] == name[0] | 0x20 && name.eq_ignore_ascii_case(text))
            .map_or(Self::Other, |&(_, known)| known)
    }

    fn bit(self) -> u32 {
        1 << self as u32
    }
}

#[derive(Clone, Copy, Debug)]
struct Field {
    name: Span,
    value: Span,
    known: Name,
    removed: bool,
}

/// The fields of a head, in their order, over the bytes they came in.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    /// The head as it was received, then what was appended.
    bytes: Vec<u8>,
    table: Vec<Field>,
    /// One bit for each `Name` that may still be in the table: most questions end here.
    present: u32,
}

impl Fields {
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps the memory for the next message.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.table.clear();
        self.present = 0;
    }

    /// The fields that were not removed: which name it is, its text, its value.
    pub fn iter(&self) -> impl Iterator<Item = (Name, &[u8], &[u8])> {
        self.table.iter().filter(|field| !field.removed).map(|field| {
            (field.known, field.name.in_bytes(&self.bytes), field.value.in_bytes(&self.bytes))
        })
    }

    /// The values of every field of this name, in their order. Not for `Name::Other`.
    pub fn values(&self, name: Name) -> impl Iterator<Item = &[u8]> {
        self.value_spans(name).map(|span| span.in_bytes(&self.bytes))
    }

    pub(crate) fn value_spans(&self, name: Name) -> impl Iterator<Item = Span> {
        debug_assert!(name != Name::Other, "other fields are found by their text");
        let table = if self.has(name) { self.table.as_slice() } else { &[] };
        table
            .iter()
            .filter(move |field| field.known == name && !field.removed)
            .map(|field| field.value)
    }

    pub fn first(&self, name: Name) -> Option<&[u8]> {
        self.values(name).next()
    }

    pub fn count(&self, name: Name) -> usize {
        self.values(name).count()
    }

    pub fn has(&self, name: Name) -> bool {
        self.present & name.bit() != 0
    }

    /// The first value of the field called so, in any case of letters.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.iter()
            .find(|(_, text, _)| text.eq_ignore_ascii_case(name.as_bytes()))
            .map(|(_, _, value)| value)
    }

    pub fn len(&self) -> usize {
        self.iter().count()
    }

    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    pub fn remove(&mut self, name: Name) {
        debug_assert!(name != Name::Other, "other fields are removed by their text");
        if !self.has(name) {
            return;
        }
        for field in &mut self.table {
            field.removed |= field.known == name;
        }
        self.present &= !name.bit();
    }

    /// Removes every field called so, in any case of letters.
    pub fn remove_named(&mut self, name: &[u8]) {
        let known = Name::recognise(name);
        if known != Name::Other {
            return self.remove(known);
        }
        for field in &mut self.table {
            field.removed |= field.known == Name::Other
                && field.name.in_bytes(&self.bytes).eq_ignore_ascii_case(name);
        }
    }

    /// Removes what Connection names (RFC 9110 §7.6.1), of the names that are not treated specially.
    ///
    /// Those that are have rules of their own: what belongs to the connection is never sent on, framing and Host are
    /// written anew, and a client that names X-Forwarded-For here must not make us drop what a proxy before us wrote.
    pub(crate) fn remove_connection_options(&mut self) {
        for at in 0..self.table.len() {
            if self.table[at].known != Name::Connection {
                continue;
            }
            for option in list(self.table[at].value.in_bytes(&self.bytes)) {
                for field in &mut self.table {
                    field.removed |= field.known == Name::Other
                        && field.name.in_bytes(&self.bytes).eq_ignore_ascii_case(option);
                }
            }
        }
    }

    /// Adds a field at the end. Name and value are ours or checked: neither may hold CR, LF or NUL.
    pub fn append(&mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        let (name, value) = (name.as_ref(), value.as_ref());
        debug_assert!(!name.is_empty() && name.iter().chain(value).all(|b| !b"\r\n\0".contains(b)));
        let (name_span, value_span) = (self.keep(name), self.keep(value));
        self.push(name_span, value_span);
    }

    /// Takes over the bytes of a head, or text that belongs to it; spans point into what was taken over so.
    pub(crate) fn keep(&mut self, text: &[u8]) -> Span {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(text);
        Span::new(start, text.len())
    }

    /// Enters a field whose name and value lie in the bytes already.
    pub(crate) fn push(&mut self, name: Span, value: Span) {
        let known = Name::recognise(name.in_bytes(&self.bytes));
        self.present |= known.bit();
        self.table.push(Field { name, value, known, removed: false });
    }

    pub(crate) fn text(&self, span: Span) -> &[u8] {
        span.in_bytes(&self.bytes)
    }
}

/// The elements of a comma-separated field value, without the empty ones (RFC 9110 §5.6.1.2).
pub fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&b| b == b',').map(<[u8]>::trim_ascii).filter(|element| !element.is_empty())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    Http10,
    Http11,
}

/// A request's method; the text of `Other` is in the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
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

impl Method {
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
pub enum Framing {
    /// There is no body.
    None,
    Length(u64),
    Chunked,
    /// Responses only: all that comes before the connection ends.
    UntilClose,
}

/// The head of a request, checked: what a parser has filled in here can be sent on.
#[derive(Clone, Debug)]
pub struct RequestHead {
    pub fields: Fields,
    pub method: Method,
    pub version: Version,
    pub framing: Framing,
    /// Whether the client means to use the connection again.
    pub keep_alive: bool,
    /// The client waits for `100 Continue` before it sends the body.
    pub expect_continue: bool,
    /// The client asks to leave HTTP for the one protocol that the Upgrade field names.
    pub upgrade: bool,
    /// The client takes trailers.
    pub te_trailers: bool,
    pub(crate) method_text: Span,
    pub(crate) target: Span,
    pub(crate) path: Span,
    pub(crate) authority: Span,
    pub(crate) host: Span,
}

impl RequestHead {
    pub fn new() -> Self {
        Self {
            fields: Fields::new(),
            method: Method::Other,
            version: Version::Http11,
            framing: Framing::None,
            keep_alive: false,
            expect_continue: false,
            upgrade: false,
            te_trailers: false,
            method_text: Span::default(),
            target: Span::default(),
            path: Span::default(),
            authority: Span::default(),
            host: Span::default(),
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

    /// Path and query as they are sent on, or `*`.
    pub fn target(&self) -> &[u8] {
        self.fields.text(self.target)
    }

    /// The target without its query.
    pub fn path(&self) -> &[u8] {
        self.fields.text(self.path)
    }

    /// Host and port asked for: of an absolute target, else of Host, else empty. Host is written from it.
    pub fn authority(&self) -> &[u8] {
        self.fields.text(self.authority)
    }

    /// Appends a field that says the authority.
    pub(crate) fn append_authority(&mut self, name: &str) {
        let name = self.fields.keep(name.as_bytes());
        self.fields.push(name, self.authority);
    }

    /// The authority without its port.
    pub fn host(&self) -> &[u8] {
        self.fields.text(self.host)
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
    pub fields: Fields,
    pub version: Version,
    pub status: u16,
    pub framing: Framing,
    /// The Content-Length of a response that has no body: HEAD and 304 say how long it would be.
    pub length_of_absent_body: Option<u64>,
    /// Whether the endpoint means to use the connection again.
    pub keep_alive: bool,
    /// The endpoint has left HTTP: a 101 that names its protocol.
    pub upgrade: bool,
    pub(crate) reason: Span,
}

impl ResponseHead {
    pub fn new() -> Self {
        Self {
            fields: Fields::new(),
            version: Version::Http11,
            status: 0,
            framing: Framing::None,
            length_of_absent_body: None,
            keep_alive: false,
            upgrade: false,
            reason: Span::default(),
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
