//! Body length and Connection options: the parts of a head that request smuggling exploits. The rules are the same for
//! requests and responses.

use crate::head::{FieldSection, HttpVersion, KnownFieldName, list};

use super::error::BadFraming;
use super::syntax::is_token;

/// Body length that Content-Length and Transfer-Encoding together declare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeclaredLength {
    Nothing,
    Length(u64),
    Chunked,
}

impl DeclaredLength {
    pub(crate) fn length(self) -> Option<u64> {
        match self {
            Self::Length(length) => Some(length),
            Self::Nothing | Self::Chunked => None,
        }
    }
}

pub(crate) fn declared_length(
    fields: &FieldSection,
    version: HttpVersion,
) -> Result<DeclaredLength, BadFraming> {
    let encoded = fields.has(KnownFieldName::TransferEncoding);
    match (fields.has(KnownFieldName::ContentLength), encoded) {
        (false, false) => Ok(DeclaredLength::Nothing),
        (true, true) => Err(BadFraming::LengthAndEncoding),
        (true, false) => content_length(fields).map(DeclaredLength::Length),
        (false, true) if version == HttpVersion::Http10 => Err(BadFraming::EncodingInHttp10),
        (false, true) => only_chunked(fields).map(|()| DeclaredLength::Chunked),
    }
}

/// Parses Content-Length: one field with one number. RFC 9110 §8.6 would allow us to collapse equal values; only
/// attackers need that.
fn content_length(fields: &FieldSection) -> Result<u64, BadFraming> {
    let mut values = fields.values(KnownFieldName::ContentLength);
    let value = values.next().unwrap_or_default();
    if values.next().is_some() {
        return Err(BadFraming::LengthRepeated);
    }
    decimal(value).ok_or(BadFraming::LengthNotANumber)
}

/// Parses a number that consists only of digits, up to `i64::MAX`: endpoints parse it as a signed number.
fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    let number = digits.iter().try_fold(0_i64, |number, &digit| {
        let digit = digit.is_ascii_digit().then(|| i64::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })?;
    Some(number.unsigned_abs())
}

/// RFC 9112 §6.1 and §6.3: an unknown coding before the final `chunked` is 501. Anything else that does not end in
/// `chunked`, or contains it twice, is 400. Empty elements are rejected, although RFC 9110 §5.6.1.2 would skip them.
fn only_chunked(fields: &FieldSection) -> Result<(), BadFraming> {
    let mut codings = fields
        .values(KnownFieldName::TransferEncoding)
        .flat_map(|value| value.split(|&b| b == b','))
        .map(<[u8]>::trim_ascii);
    let mut last = codings.next().unwrap_or_default();
    let mut others = 0;
    for coding in codings {
        if is_chunked(last) || last.is_empty() {
            return Err(BadFraming::EncodingNotChunked);
        }
        others += 1;
        last = coding;
    }
    match (is_chunked(last), others) {
        (true, 0) => Ok(()),
        (true, _) => Err(BadFraming::EncodingUnknown),
        (false, _) => Err(BadFraming::EncodingNotChunked),
    }
}

fn is_chunked(coding: &[u8]) -> bool {
    coding.eq_ignore_ascii_case(b"chunked")
}

/// Options of all Connection fields together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ConnectionOptions {
    pub(super) close: bool,
    pub(super) keep_alive: bool,
    pub(super) upgrade: bool,
}

impl ConnectionOptions {
    /// True if the sender wants to reuse the connection (RFC 9112 §9.3).
    pub(super) fn persists(self, version: HttpVersion) -> bool {
        match version {
            HttpVersion::Http11 | HttpVersion::Http2 | HttpVersion::Http3 => !self.close,
            HttpVersion::Http10 => self.keep_alive && !self.close,
        }
    }
}

/// Limit of connection options, more than any sender needs; each option is compared with each field.
const MAX_CONNECTION_OPTIONS: usize = 32;

/// Parses Connection, and removes the fields that it names.
pub(super) fn read_connection_options(
    fields: &mut FieldSection,
) -> Result<ConnectionOptions, BadFraming> {
    let mut connection = ConnectionOptions::default();
    if !fields.has(KnownFieldName::Connection) {
        return Ok(connection);
    }
    let mut count = 0;
    let mut names_fields = false;
    for option in fields.values(KnownFieldName::Connection).flat_map(list) {
        count += 1;
        match option.len() {
            5 if option.eq_ignore_ascii_case(b"close") => connection.close = true,
            7 if option.eq_ignore_ascii_case(b"upgrade") => connection.upgrade = true,
            10 if option.eq_ignore_ascii_case(b"keep-alive") => connection.keep_alive = true,
            _ if is_token(option) => names_fields = true,
            // The intended option is unknown; to close the connection is safe.
            _ => connection.close = true,
        }
    }
    if count > MAX_CONNECTION_OPTIONS {
        return Err(BadFraming::TooManyOptions);
    }
    if names_fields {
        fields.remove_connection_options();
    }
    Ok(connection)
}

/// True if Upgrade names exactly one protocol, and one that client and endpoint may speak through an opaque tunnel.
///
/// HTTP/2 and TLS are rejected: the requests inside would bypass every route and limit.
pub(super) fn names_one_protocol(fields: &FieldSection) -> bool {
    let mut protocols = fields.values(KnownFieldName::Upgrade).flat_map(list);
    let (Some(protocol), None) = (protocols.next(), protocols.next()) else { return false };
    let name = protocol.split(|&b| b == b'/').next().unwrap_or_default();
    !["h2", "h2c", "http", "tls"]
        .iter()
        .any(|refused| name.eq_ignore_ascii_case(refused.as_bytes()))
}
