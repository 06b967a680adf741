//! Heads of responses: as HTTP/2 says them (RFC 9113 §8.3.2) to spans, and back.

use http::StatusCode;
use http::header::{self, HeaderValue};
use http::response::Parts;

use crate::h1::framing::{self, Declared};
use crate::h1::{BadFraming, BadResponse, HeadLimits, write};
use crate::head::{Framing, Method, Name, RequestHead, ResponseHead, Version};
use crate::stream::Manner;

use super::fields::{self, FieldLimits};

/// Answers the key that opens a WebSocket over HTTP/1.1; HTTP/2 has no need of it.
const WEBSOCKET_ACCEPT: &str = "sec-websocket-accept";

/// Reads a head that answers `request`. `is_whole`: it says that no body follows.
///
/// The 2xx of an extended CONNECT is read as the 101 of an upgrade.
pub(crate) fn read(
    parts: &Parts,
    is_whole: bool,
    limits: &HeadLimits,
    request: &RequestHead,
    head: &mut ResponseHead,
) -> Result<(), BadResponse> {
    head.clear();
    head.version = Version::Http2;
    head.keep_alive = true;
    head.status = parts.status.as_u16();
    let limits = FieldLimits { bytes: limits.head_bytes, count: limits.fields };
    fields::read(&parts.headers, limits, &mut head.fields)?;
    fields::check_connection(&head.fields)?;
    let declared = framing::declared(&head.fields, head.version)?;
    match head.status {
        // RFC 9113 §8.6.
        101 => return Err(BadResponse::Upgrade),
        100..200 if declared != Declared::Nothing => return Err(BadResponse::InterimWithBody),
        100..200 | 204 => {}
        200..300 if request.upgrade => switch_protocol(request, head),
        304 => head.length_of_absent_body = declared.length(),
        _ if request.method == Method::Head => head.length_of_absent_body = declared.length(),
        _ => head.framing = read_framing(declared, is_whole)?,
    }
    Ok(())
}

fn switch_protocol(request: &RequestHead, head: &mut ResponseHead) {
    head.status = 101;
    head.upgrade = true;
    for protocol in request.fields.values(Name::Upgrade) {
        head.fields.add(Name::Upgrade, protocol);
    }
}

fn read_framing(declared: Declared, is_whole: bool) -> Result<Framing, BadFraming> {
    match (declared, is_whole) {
        (Declared::Length(0), _) => Ok(Framing::Length(0)),
        (Declared::Length(_), true) => Err(BadFraming::LengthWithoutBody),
        (Declared::Length(length), false) => Ok(Framing::Length(length)),
        (Declared::Nothing | Declared::Chunked, true) => Ok(Framing::Length(0)),
        (Declared::Nothing | Declared::Chunked, false) => Ok(Framing::Stream),
    }
}

/// Writes a head for a client that speaks HTTP/2. The 101 of an upgrade is the 200 of its extended CONNECT.
pub(crate) fn write(
    head: &ResponseHead,
    manner: &Manner,
) -> Result<http::Response<()>, BadResponse> {
    let is_sent_on = |name: Name, text: &[u8]| {
        write::is_sent_on(name, manner.framing)
            && !(manner.upgrade && text.eq_ignore_ascii_case(WEBSOCKET_ACCEPT.as_bytes()))
    };
    let mut headers = fields::write(&head.fields, 1, is_sent_on)?;
    let length = match manner.framing {
        Framing::Length(length) => Some(length),
        Framing::None => head.length_of_absent_body,
        Framing::Chunked | Framing::UntilClose | Framing::Stream => None,
    };
    if let Some(length) = length {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    let status = if manner.upgrade { 200 } else { head.status };
    let mut response = http::Response::new(());
    *response.status_mut() =
        StatusCode::from_u16(status).map_err(|_invalid| BadResponse::Status)?;
    *response.headers_mut() = headers;
    *response.version_mut() = http::Version::HTTP_2;
    Ok(response)
}

#[cfg(test)]
mod tests;
