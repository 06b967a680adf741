//! What the head of a response means (RFC 9113 §8.3.2, RFC 9114 §4.3.2), and what is said of one that is sent.

use crate::h1::framing::{self, DeclaredLength};
use crate::h1::{BadFraming, BadResponse, write};
use crate::head::{BodyFraming, KnownFieldName, RequestHead, RequestMethod, ResponseHead};
use crate::stream::ResponseFraming;

use super::fields;

/// Answers the key that opens a WebSocket over HTTP/1.1; who has streams has no need of it.
const WEBSOCKET_ACCEPT: &str = "sec-websocket-accept";

/// Completes a head whose version, status and fields are there, and which answers `request`. `is_whole`: no body
/// follows.
///
/// The 2xx of an extended CONNECT is read as the 101 of an upgrade.
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

/// What is sent as `:status`. The 101 of an upgrade is the 200 of its extended CONNECT.
pub(crate) fn status(head: &ResponseHead, manner: &ResponseFraming) -> u16 {
    if manner.upgrade { 200 } else { head.status }
}

/// What is sent as Content-Length, which is never copied.
pub(crate) fn content_length(head: &ResponseHead, manner: &ResponseFraming) -> Option<u64> {
    match manner.framing {
        BodyFraming::Length(length) => Some(length),
        BodyFraming::None => head.length_of_absent_body,
        BodyFraming::Chunked | BodyFraming::UntilClose | BodyFraming::Stream => None,
    }
}

/// Which fields are sent on.
pub(crate) fn is_sent_on(
    manner: &ResponseFraming,
) -> impl Fn(KnownFieldName, &[u8]) -> bool + use<'_> {
    move |name, text| {
        write::is_sent_on(name, manner.framing)
            && !(manner.upgrade && text.eq_ignore_ascii_case(WEBSOCKET_ACCEPT.as_bytes()))
    }
}
