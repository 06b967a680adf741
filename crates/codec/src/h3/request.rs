//! Request heads of HTTP/3 (RFC 9114 §4.3.1): conversion between field sections and spans.

use std::net::SocketAddr;

use crate::binary::WebSocketKey;
use crate::binary::request::{self, RequestPseudoHeaders, WEBSOCKET};
use crate::h1::syntax::is_token;
use crate::h1::write::digits;
use crate::h1::{BadRequest, HeadLimits};
use crate::head::{BodyFraming, FieldSection, HttpVersion, KnownFieldName, RequestHead};

use super::fields::{self, FieldSectionError, PseudoHeaders};
use super::qpack;

/// Parses a head. If `is_whole`, no body follows. If the request opens a WebSocket, `key` returns the key for it.
pub fn read(
    section: &[u8],
    is_whole: bool,
    limits: &HeadLimits,
    key: impl FnOnce() -> WebSocketKey,
    head: &mut RequestHead,
) -> Result<(), FieldSectionError<BadRequest>> {
    head.clear();
    head.version = HttpVersion::Http3;
    let pseudo = fields::read(section, limits, &mut head.fields)?;
    let pseudo =
        request_pseudo_headers(&pseudo, &head.fields).ok_or(FieldSectionError::Malformed)?;
    request::complete(&pseudo, is_whole, limits, key, head).map_err(FieldSectionError::Refused)
}

/// Checks the pseudo-header fields; `None` if one is missing or not allowed.
fn request_pseudo_headers(
    pseudo: &PseudoHeaders,
    fields: &FieldSection,
) -> Option<RequestPseudoHeaders> {
    let PseudoHeaders { method, scheme, authority, path, protocol, status } = *pseudo;
    let method = method.filter(|method| is_token(fields.text(*method)))?;
    let is_connect = fields.text(method) == b"CONNECT";
    let is_extended = is_connect && protocol.is_some();
    let is_authority_empty = authority.is_some_and(|authority| authority.is_empty())
        || fields.values(KnownFieldName::Host).any(<[u8]>::is_empty);
    if status.is_some() || protocol.is_some() != is_extended || is_authority_empty {
        return None;
    }
    if is_connect && !is_extended {
        let is_good = scheme.is_none() && path.is_none() && authority.is_some();
        return is_good.then(|| RequestPseudoHeaders {
            method,
            authority,
            ..RequestPseudoHeaders::default()
        });
    }
    scheme.filter(|scheme| !scheme.is_empty())?;
    let target = path.filter(|path| !path.is_empty())?;
    Some(RequestPseudoHeaders { method, target, authority, protocol })
}

/// Appends the field section of a head for an endpoint.
///
/// `otherwise` is the authority for a request without one, which HTTP/1.0 allows. A head that requests an upgrade to a
/// WebSocket becomes an extended CONNECT; the endpoint must have announced support for it.
pub fn write(
    head: &RequestHead,
    framing: BodyFraming,
    otherwise: SocketAddr,
    section: &mut Vec<u8>,
) {
    qpack::begin(section);
    let method = if head.upgrade { b"CONNECT".as_slice() } else { head.method_bytes() };
    qpack::write(b":method", method, section);
    qpack::write(b":scheme", b"https", section);
    qpack::write(b":authority", &request::authority(head, otherwise), section);
    qpack::write(b":path", head.sent_target(), section);
    if head.upgrade {
        qpack::write(b":protocol", WEBSOCKET.as_bytes(), section);
    }
    fields::write(&head.fields, request::is_sent_on(head, framing), section);
    if let BodyFraming::Length(length) = framing {
        qpack::write(b"content-length", digits(length, &mut [0; 20]), section);
    }
    if head.te_trailers {
        qpack::write(b"te", b"trailers", section);
    }
}

#[cfg(test)]
mod tests;
