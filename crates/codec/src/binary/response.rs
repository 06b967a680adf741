//! Semantics of response heads (RFC 9113 §8.3.2, RFC 9114 §4.3.2), for parsing and for sending.

use crate::h1::framing::{self, DeclaredLength};
use crate::h1::{BadFraming, BadResponse, write};
use crate::head::{
    BodyFraming, KnownFieldName, RequestHead, RequestMethod, ResponseFraming, ResponseHead,
};

use super::fields;

/// The answer to the WebSocket key of HTTP/1.1; HTTP/2 and HTTP/3 do not use it.
const WEBSOCKET_ACCEPT: &str = "sec-websocket-accept";

/// Completes a head whose version, status and fields are set, of a response to `request`. If `is_whole`, no body
/// follows.
///
/// The 2xx of an extended CONNECT is parsed as the 101 of an upgrade.
pub(crate) fn complete(
    is_whole: bool,
    request: &RequestHead,
    head: &mut ResponseHead,
) -> Result<(), BadResponse> {
    head.keep_alive = true;
    fields::check_connection(&head.fields)?;
    let declared = framing::declared_length(&head.fields, head.version)?;
    match head.status {
        // RFC 9113 §8.6, RFC 9114 §4.5.
        101 => return Err(BadResponse::Upgrade),
        100..200 if declared != DeclaredLength::Nothing => {
            return Err(BadResponse::InterimWithBody);
        }
        100..200 | 204 => {}
        200..300 if request.upgrade => switch_protocol(request, head),
        304 => head.length_of_absent_body = declared.length(),
        _ if request.method == RequestMethod::Head => {
            head.length_of_absent_body = declared.length()
        }
        _ => head.framing = read_framing(declared, is_whole)?,
    }
    Ok(())
}

fn switch_protocol(request: &RequestHead, head: &mut ResponseHead) {
    head.status = 101;
    head.upgrade = true;
    for protocol in request.fields.values(KnownFieldName::Upgrade) {
        head.fields.add(KnownFieldName::Upgrade, protocol);
    }
}

fn read_framing(declared: DeclaredLength, is_whole: bool) -> Result<BodyFraming, BadFraming> {
    match (declared, is_whole) {
        (DeclaredLength::Length(0), _) => Ok(BodyFraming::Length(0)),
        (DeclaredLength::Length(_), true) => Err(BadFraming::LengthWithoutBody),
        (DeclaredLength::Length(length), false) => Ok(BodyFraming::Length(length)),
        (DeclaredLength::Nothing | DeclaredLength::Chunked, true) => Ok(BodyFraming::Length(0)),
        (DeclaredLength::Nothing | DeclaredLength::Chunked, false) => Ok(BodyFraming::Stream),
    }
}

/// Returns the value of `:status`. The 101 of an upgrade becomes the 200 of its extended CONNECT.
pub(crate) fn status(head: &ResponseHead, framing: &ResponseFraming) -> u16 {
    if framing.upgrade { 200 } else { head.status }
}

/// Returns the value of Content-Length, which is never copied from the received fields.
pub(crate) fn content_length(head: &ResponseHead, framing: &ResponseFraming) -> Option<u64> {
    match framing.framing {
        BodyFraming::Length(length) => Some(length),
        BodyFraming::None => head.length_of_absent_body,
        BodyFraming::Chunked | BodyFraming::UntilClose | BodyFraming::Stream => None,
    }
}

/// Returns a predicate for the fields that are forwarded.
pub(crate) fn is_sent_on(
    framing: &ResponseFraming,
) -> impl Fn(KnownFieldName, &[u8]) -> bool + use<'_> {
    move |name, text| {
        write::is_sent_on(name, framing.framing)
            && !(framing.upgrade && text.eq_ignore_ascii_case(WEBSOCKET_ACCEPT.as_bytes()))
    }
}
