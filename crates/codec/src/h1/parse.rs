//! Parser of heads. `httparse` splits the lines; this module decides if the fields are valid and what they mean.

#![expect(
    clippy::indexing_slicing,
    reason = "httparse and memchr return positions within the window that they were given"
)]

use std::mem::MaybeUninit;

use crate::head::{
    BodyFraming, ByteSpan, FieldSection, HttpVersion, KnownFieldName, RequestHead, RequestMethod,
    ResponseHead, list,
};

use super::error::{BadRequest, BadResponse, BadSyntax};
use super::framing::{self, DeclaredLength};
use super::syntax::is_token;
use super::target;

/// Size limits of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// The complete head, from the first line to the empty one.
    pub head_bytes: usize,
    /// At most `MAX_FIELDS`.
    pub fields: usize,
    pub target_bytes: usize,
}

/// Largest value of `HeadLimits::fields`: the parser's table is on the stack.
pub const MAX_FIELDS: usize = 1000;
/// Table size that suffices for nearly every head; a larger table takes many pages.
const USUAL_FIELDS: usize = 64;

const MAX_TRAILER_FIELDS: usize = 64;

/// Parses the head of a request at the start of `buffer`.
///
/// `Ok(None)` means that more bytes are needed. `Ok(Some(n))` means that the head took `n` bytes. If a prefix of the
/// bytes gives any result other than `Ok(None)`, the complete bytes give the same result.
pub fn request(
    buffer: &[u8],
    limits: &HeadLimits,
    head: &mut RequestHead,
) -> Result<Option<usize>, BadRequest> {
    match request_of::<USUAL_FIELDS>(buffer, limits, head) {
        Err(BadRequest::Syntax(BadSyntax::TooManyFields)) if limits.fields > USUAL_FIELDS => {
            request_of::<MAX_FIELDS>(buffer, limits, head)
        }
        read => read,
    }
}

/// Parses a head of at most `TABLE` fields.
fn request_of<const TABLE: usize>(
    buffer: &[u8],
    limits: &HeadLimits,
    head: &mut RequestHead,
) -> Result<Option<usize>, BadRequest> {
    head.clear();
    let Some(start) = request_start(buffer)? else { return Ok(None) };
    let window = window(&buffer[start..], limits);
    let mut table = [const { MaybeUninit::uninit() }; TABLE];
    let mut lines = httparse::Request::new(&mut []);
    let len = match lines.parse_with_uninit_headers(window, in_limits(&mut table, limits)) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) => return incomplete_request(window, limits),
        Err(httparse::Error::Version) => match first_line(window) {
            None => return incomplete_request(window, limits),
            Some(line) if asks_for_other_version(line) => return Err(BadRequest::Version),
            Some(_) => return Err(BadSyntax::StartLine.into()),
        },
        Err(error) => return Err(bad_syntax(error).into()),
    };
    let (Some(method), Some(target), Some(minor)) = (lines.method, lines.path, lines.version)
    else {
        return Err(BadSyntax::StartLine.into());
    };
    if target.len() > limits.target_bytes {
        return Err(BadRequest::TargetTooLong);
    }

    let text = &window[..len];
    take_fields(&mut head.fields, text, lines.headers)?;
    head.method = RequestMethod::recognise(method.as_bytes());
    head.method_text = ByteSpan::of(method.as_bytes(), text);
    head.version = version(minor);
    target::read(head, text, target.as_bytes())?;
    read_request_fields(head)?;
    Ok(Some(start + len))
}

/// Returns the start of the request line. RFC 9112 §2.2 allows one empty line before it.
///
/// `httparse` allows any number of empty lines, and bare LFs too.
fn request_start(buffer: &[u8]) -> Result<Option<usize>, BadSyntax> {
    let start = if buffer.starts_with(b"\r\n") { 2 } else { 0 };
    match buffer.get(start) {
        None => Ok(None),
        Some(b'\r') if buffer.len() == 1 => Ok(None),
        Some(&byte) if is_token(&[byte]) => Ok(Some(start)),
        Some(_) => Err(BadSyntax::StartLine),
    }
}

/// If a head exceeds its limit before its first line has ended, the error is a target that is too long.
fn incomplete_request(window: &[u8], limits: &HeadLimits) -> Result<Option<usize>, BadRequest> {
    if window.len() < limits.head_bytes {
        return Ok(None);
    }
    match first_line(window) {
        Some(_) => Err(BadSyntax::TooLarge.into()),
        None => Err(BadRequest::TargetTooLong),
    }
}

fn first_line(window: &[u8]) -> Option<&[u8]> {
    memchr::memchr(b'\r', window).map(|end| &window[..end])
}

/// True if the request line is well-formed except for its version.
fn asks_for_other_version(line: &[u8]) -> bool {
    let mut parts = line.split(|&b| b == b' ');
    let (Some(_), Some(_), Some(version), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    matches!(version, [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
        if major.is_ascii_digit() && minor.is_ascii_digit())
}

fn read_request_fields(head: &mut RequestHead) -> Result<(), BadRequest> {
    head.framing = match framing::declared_length(&head.fields, head.version)? {
        DeclaredLength::Nothing => BodyFraming::None,
        DeclaredLength::Length(length) => BodyFraming::Length(length),
        DeclaredLength::Chunked => BodyFraming::Chunked,
    };
    let has_body = !head.framing.is_empty();
    let is_http11 = head.version == HttpVersion::Http11;

    let connection = framing::read_connection_options(&mut head.fields)?;
    head.keep_alive = connection.persists(head.version);
    // If an upgrade had a body, we would have to wait for its end before we know the protocol of the bytes after it.
    head.upgrade =
        connection.upgrade && is_http11 && !has_body && framing::names_one_protocol(&head.fields);
    head.te_trailers = head
        .fields
        .values(KnownFieldName::Te)
        .flat_map(list)
        .any(|coding| coding.eq_ignore_ascii_case(b"trailers"));

    if head.fields.has(KnownFieldName::Expect) {
        if !head
            .fields
            .values(KnownFieldName::Expect)
            .all(|value| value.eq_ignore_ascii_case(b"100-continue"))
        {
            return Err(BadRequest::Expectation);
        }
        // RFC 9110 §10.1.1: in HTTP/1.0 and without a body, Expect has no meaning and must not be forwarded.
        head.expect_continue = is_http11 && has_body;
        if head.expect_continue {
            head.fields.keep_one_line(KnownFieldName::Expect);
        } else {
            head.fields.remove(KnownFieldName::Expect);
        }
    }
    Ok(())
}

/// Parses the head of a response, to a request with `request_method`, at the start of `buffer`. Returns the same as
/// `request`.
pub fn response(
    buffer: &[u8],
    limits: &HeadLimits,
    request_method: RequestMethod,
    head: &mut ResponseHead,
) -> Result<Option<usize>, BadResponse> {
    match response_of::<USUAL_FIELDS>(buffer, limits, request_method, head) {
        Err(BadResponse::Syntax(BadSyntax::TooManyFields)) if limits.fields > USUAL_FIELDS => {
            response_of::<MAX_FIELDS>(buffer, limits, request_method, head)
        }
        read => read,
    }
}

/// Parses a head of at most `TABLE` fields.
fn response_of<const TABLE: usize>(
    buffer: &[u8],
    limits: &HeadLimits,
    request_method: RequestMethod,
    head: &mut ResponseHead,
) -> Result<Option<usize>, BadResponse> {
    head.clear();
    // `httparse` allows empty lines before the status line.
    if buffer.first().is_some_and(|&byte| byte != b'H') {
        return Err(BadSyntax::StartLine.into());
    }
    let window = window(buffer, limits);
    let mut table = [const { MaybeUninit::uninit() }; TABLE];
    let table = in_limits(&mut table, limits);
    let mut lines = httparse::Response::new(&mut []);
    let parser = httparse::ParserConfig::default();
    let len = match parser.parse_response_with_uninit_headers(&mut lines, window, table) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) if window.len() < limits.head_bytes => return Ok(None),
        Ok(httparse::Status::Partial) => return Err(BadSyntax::TooLarge.into()),
        Err(httparse::Error::Version) => return Err(BadResponse::Version),
        Err(error) => return Err(bad_syntax(error).into()),
    };
    let (Some(status), Some(reason), Some(minor)) = (lines.code, lines.reason, lines.version)
    else {
        return Err(BadSyntax::StartLine.into());
    };
    if status < 100 {
        return Err(BadResponse::Status);
    }

    let text = &window[..len];
    take_fields(&mut head.fields, text, lines.headers)?;
    head.status = status;
    head.reason = ByteSpan::of(reason.as_bytes(), text);
    head.version = version(minor);
    read_response_fields(head, request_method)?;
    Ok(Some(len))
}

fn read_response_fields(
    head: &mut ResponseHead,
    request_method: RequestMethod,
) -> Result<(), BadResponse> {
    let declared = framing::declared_length(&head.fields, head.version)?;
    let connection = framing::read_connection_options(&mut head.fields)?;
    head.keep_alive = connection.persists(head.version);

    match head.status {
        100..200 if declared != DeclaredLength::Nothing => {
            return Err(BadResponse::InterimWithBody);
        }
        101 if !switches_protocol(head, connection.upgrade) => return Err(BadResponse::Upgrade),
        101 => head.upgrade = true,
        100..200 => {}
        // These never have a body. An endpoint that declares one may still send it, in the place of the next response:
        // the connection is not reused.
        204 => {
            head.keep_alive &=
                matches!(declared, DeclaredLength::Nothing | DeclaredLength::Length(0))
        }
        304 => {
            head.length_of_absent_body = declared.length();
            head.keep_alive &= declared != DeclaredLength::Chunked;
        }
        _ if request_method == RequestMethod::Head => {
            head.length_of_absent_body = declared.length()
        }
        _ => {
            head.framing = response_framing(declared);
            head.keep_alive &= head.framing != BodyFraming::UntilClose;
        }
    }
    Ok(())
}

fn switches_protocol(head: &ResponseHead, connection_says_upgrade: bool) -> bool {
    head.version == HttpVersion::Http11
        && connection_says_upgrade
        && framing::names_one_protocol(&head.fields)
}

fn response_framing(declared: DeclaredLength) -> BodyFraming {
    match declared {
        DeclaredLength::Nothing => BodyFraming::UntilClose,
        DeclaredLength::Length(length) => BodyFraming::Length(length),
        DeclaredLength::Chunked => BodyFraming::Chunked,
    }
}

/// Returns the part of the buffer that the head may occupy.
fn window<'b>(buffer: &'b [u8], limits: &HeadLimits) -> &'b [u8] {
    &buffer[..buffer.len().min(limits.head_bytes)]
}

fn in_limits<'t, 'b>(
    table: &'t mut [MaybeUninit<httparse::Header<'b>>],
    limits: &HeadLimits,
) -> &'t mut [MaybeUninit<httparse::Header<'b>>] {
    let most = limits.fields.min(table.len());
    &mut table[..most]
}

/// Copies the bytes of a section, and adds its fields as spans of them.
///
/// `httparse` accepts a bare LF as the end of a line; the next hop may not. `httparse` rejects a CR anywhere except at
/// the end of a line, so the two bytes before each name, and the last four of the section, show whether it accepted a
/// bare LF.
fn take_fields(
    fields: &mut FieldSection,
    text: &[u8],
    lines: &[httparse::Header<'_>],
) -> Result<(), BadSyntax> {
    if !text.ends_with(b"\r\n\r\n") {
        return Err(BadSyntax::LineEnd);
    }
    fields.store(text);
    for line in lines {
        let (name, value) = (line.name.as_bytes(), line.value);
        if !follows_line_end(name, text) {
            return Err(BadSyntax::LineEnd);
        }
        fields.push_received(name, value, text);
    }
    Ok(())
}

/// True if a line that begins with `name` is the first of `text`, or follows CR LF. `httparse` accepts a bare LF; what it
/// accepts before the name ends with LF.
fn follows_line_end(name: &[u8], text: &[u8]) -> bool {
    match name.as_ptr().addr() - text.as_ptr().addr() {
        0 => true,
        start => text.get(start.wrapping_sub(2)) == Some(&b'\r'),
    }
}

/// `httparse` accepts no minor versions other than 0 and 1.
fn version(minor: u8) -> HttpVersion {
    if minor == 0 { HttpVersion::Http10 } else { HttpVersion::Http11 }
}

fn bad_syntax(error: httparse::Error) -> BadSyntax {
    match error {
        httparse::Error::HeaderName => BadSyntax::FieldName,
        httparse::Error::HeaderValue => BadSyntax::FieldValue,
        httparse::Error::NewLine => BadSyntax::LineEnd,
        httparse::Error::TooManyHeaders => BadSyntax::TooManyFields,
        httparse::Error::Status | httparse::Error::Token | httparse::Error::Version => {
            BadSyntax::StartLine
        }
    }
}

/// Parses the lines of a trailer section, which ends with an empty line.
pub(super) fn trailers(text: &[u8], fields: &mut FieldSection) -> Result<(), BadSyntax> {
    let mut table = [httparse::EMPTY_HEADER; MAX_TRAILER_FIELDS];
    let lines = httparse::parse_headers(text, &mut table).map_err(bad_syntax)?;
    let httparse::Status::Complete((_, lines)) = lines else { return Err(BadSyntax::LineEnd) };
    take_fields(fields, text, lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HeadLimits = HeadLimits { head_bytes: 300, fields: 5, target_bytes: 40 };

    #[test]
    fn request_head_is_parsed_into_its_parts() {
        let mut head = RequestHead::new();
        let bytes =
            b"PATCH http://[::1]:8080/a/b?c HTTP/1.1\r\nHost: x\r\nTE: trailers\r\n\r\nbody";
        assert_eq!(request(bytes, &LIMITS, &mut head), Ok(Some(bytes.len() - 4)));
        assert_eq!(head.method, RequestMethod::Patch);
        assert_eq!(head.method_bytes(), b"PATCH");
        assert_eq!(head.target(), b"/a/b?c");
        assert_eq!(head.path(), b"/a/b");
        assert_eq!(head.authority(), b"[::1]:8080");
        assert_eq!(head.host(), b"[::1]");
        assert!(head.te_trailers);
    }

    #[test]
    fn reused_request_head_keeps_nothing_of_the_previous_request() {
        let mut head = RequestHead::new();
        let first =
            b"POST /a HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
        request(first, &LIMITS, &mut head).unwrap();
        request(b"GET / HTTP/1.0\r\n\r\n", &LIMITS, &mut head).unwrap();
        assert_eq!((head.target(), head.authority()), (b"/".as_slice(), b"".as_slice()));
        assert_eq!((head.framing, head.expect_continue), (BodyFraming::None, false));
        assert_eq!(head.fields.iter().count(), 0);
    }

    #[test]
    fn bad_request_errors_name_the_exact_cause() {
        let why = |bytes: &[u8]| request(bytes, &LIMITS, &mut RequestHead::new()).unwrap_err();
        let long = [b"GET /".as_slice(), &[b'a'; 300]].concat();
        assert_eq!(why(&long), BadRequest::TargetTooLong);
        let long = [b"GET / HTTP/1.1\r\nX: ".as_slice(), &[b'a'; 300]].concat();
        assert_eq!(why(&long), BadRequest::Syntax(BadSyntax::TooLarge));
        assert_eq!(why(b"GET / HTTP/1.1\n\r\n").to_string(), "line not ended by CRLF");
        assert_eq!(
            why(b"GET / HTTP/1.1\r\nX : a\r\n").to_string(),
            "malformed field name, or a folded line"
        );
        assert_eq!(why(b"GET / HTTP/1.1\r\n\r\n").to_string(), "no host");
    }

    #[test]
    fn response_reason_phrase_is_kept() {
        let mut head = ResponseHead::new();
        response(b"HTTP/1.1 200 Fine\r\n\r\n", &LIMITS, RequestMethod::Get, &mut head).unwrap();
        assert_eq!(head.reason(), b"Fine");
        response(b"HTTP/1.1 200 \r\n\r\n", &LIMITS, RequestMethod::Get, &mut head).unwrap();
        assert_eq!(head.reason(), b"OK");
    }
}
