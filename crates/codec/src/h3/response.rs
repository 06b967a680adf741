//! Response heads of HTTP/3 (RFC 9114 §4.3.2): conversion between field sections and spans.

use crate::binary::response;
use crate::h1::write::digits;
use crate::h1::{BadResponse, HeadLimits};
use crate::head::{FieldSection, HttpVersion, RequestHead, ResponseFraming, ResponseHead};

use super::fields::{self, FieldSectionError, PseudoHeaders};
use super::qpack;

/// Parses the head of a response to `request`. If `is_whole`, no body follows.
pub fn read(
    section: &[u8],
    is_whole: bool,
    limits: &HeadLimits,
    request: &RequestHead,
    head: &mut ResponseHead,
) -> Result<(), FieldSectionError<BadResponse>> {
    head.clear();
    head.version = HttpVersion::Http3;
    let pseudo = fields::read(section, limits, &mut head.fields)?;
    head.status = status(&pseudo, &head.fields).ok_or(FieldSectionError::Malformed)?;
    response::complete(is_whole, request, head).map_err(FieldSectionError::Refused)
}

/// Returns the status; `None` unless `:status` is valid and the only pseudo-header field.
fn status(pseudo: &PseudoHeaders, fields: &FieldSection) -> Option<u16> {
    let PseudoHeaders { status, method, scheme, authority, path, protocol } = *pseudo;
    let others = [method, scheme, authority, path, protocol];
    let &[hundreds @ b'1'..=b'9', tens, ones] = fields.text(status?) else { return None };
    let is_good = tens.is_ascii_digit() && ones.is_ascii_digit();
    let digit = |digit: u8| u16::from(digit - b'0');
    (is_good && others.iter().all(Option::is_none))
        .then(|| 100 * digit(hundreds) + 10 * digit(tens) + digit(ones))
}

/// Appends the field section of a head for a client.
pub fn write(head: &ResponseHead, framing: &ResponseFraming, section: &mut Vec<u8>) {
    let mut space = [0; 20];
    qpack::begin(section);
    let status = response::status(head, framing);
    qpack::write(b":status", digits(u64::from(status), &mut space), section);
    fields::write(&head.fields, response::is_sent_on(framing), section);
    if let Some(length) = response::content_length(head, framing) {
        qpack::write(b"content-length", digits(length, &mut space), section);
    }
}

#[cfg(test)]
mod tests;
