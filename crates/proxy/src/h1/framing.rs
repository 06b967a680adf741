//! How long a body is and what Connection says: the part of a head that smuggling lives on, the same for requests and
//! responses.

use crate::head::{FieldSection, HttpVersion, KnownFieldName, list};

use super::error::BadFraming;
use super::syntax::is_token;

/// What Content-Length and Transfer-Encoding declare between them.
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

/// One field with one number. RFC 9110 §8.6 would allow to collapse equal ones; nobody needs that but attackers.
fn content_length(fields: &FieldSection) -> Result<u64, BadFraming> {
    let mut values = fields.values(KnownFieldName::ContentLength);
    let value = values.next().unwrap_or_default();
    if values.next().is_some() {
        return Err(BadFraming::LengthRepeated);
    }
    decimal(value).ok_or(BadFraming::LengthNotANumber)
}

/// Digits and nothing else. No more than `i64::MAX`: endpoints count in signed numbers.
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

/// RFC 9112 §6.1 and §6.3: a coding before the last that we do not know is 501, anything else that does not end in
/// `chunked`, or holds it twice, is 400. Empty elements are refused although §5.6.1.2 of RFC 9110 would skip them.
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

/// What the Connection fields say, all together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ConnectionOptions {
    pub(super) close: bool,
    pub(super) keep_alive: bool,
    pub(super) upgrade: bool,
}

impl ConnectionOptions {
    /// Whether the sender means to use the connection again (RFC 9112 §9.3).
    pub(super) fn persists(self, version: HttpVersion) -> bool {
        match version {
            HttpVersion::Http11 | HttpVersion::Http2 | HttpVersion::Http3 => !self.close,
            HttpVersion::Http10 => self.keep_alive && !self.close,
        }
    }
}

/// More options than any sender has use for; each is compared with each field.
const MAX_CONNECTION_OPTIONS: usize = 32;

/// Reads Connection, and removes the fields that it names.
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
            // Nobody can tell what was meant; to close is safe.
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

/// Whether Upgrade names one protocol, and one that we can let a client and an endpoint speak over our heads.
///
/// HTTP/2 and TLS are not: requests inside would pass by every route and limit.
pub(super) fn names_one_protocol(fields: &FieldSection) -> bool {
    let mut protocols = fields.values(KnownFieldName::Upgrade).flat_map(list);
    let (Some(protocol), None) = (protocols.next(), protocols.next()) else { return false };
    let name = protocol.split(|&b| b == b'/').next().unwrap_or_default();
    !["h2", "h2c", "http", "tls"]
        .iter()
        .any(|refused| name.eq_ignore_ascii_case(refused.as_bytes()))
}
