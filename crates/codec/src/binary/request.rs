//! Semantics of request heads (RFC 9113 §8.3.1, RFC 9114 §4.3.1), for parsing and for sending.
//!
//! An extended CONNECT for a WebSocket (RFC 8441, RFC 9220) is parsed as the equivalent GET with an upgrade, and
//! written from such a GET: so routes, filters and tunnels handle one kind only.

use std::borrow::Cow;
use std::net::SocketAddr;

use crate::h1::framing::{self, DeclaredLength};
use crate::h1::{BadFraming, BadRequest, HeadLimits, target, write};
use crate::head::{BodyFraming, ByteSpan, KnownFieldName, RequestHead, RequestMethod};

use super::fields;

/// The only protocol that an extended CONNECT may request.
pub const WEBSOCKET: &str = "websocket";
/// The field that opens a WebSocket over HTTP/1.1; HTTP/2 and HTTP/3 do not use it.
const WEBSOCKET_KEY: &str = "sec-websocket-key";

/// A random value for `Sec-WebSocket-Key`: 16 bytes in Base64 (RFC 6455 §4.1).
pub type WebSocketKey = [u8; 24];

/// The pseudo-header fields. The head stores their text.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestPseudoHeaders {
    pub(crate) method: ByteSpan,
    /// Path and query; empty if there is none.
    pub(crate) target: ByteSpan,
    pub(crate) authority: Option<ByteSpan>,
    /// The protocol that an extended CONNECT requests.
    pub(crate) protocol: Option<ByteSpan>,
}

/// Completes a head whose version and fields are set. If `is_whole`, no body follows. If the request opens a WebSocket,
/// `key` returns the key for it.
pub(crate) fn complete(
    pseudo: &RequestPseudoHeaders,
    is_whole: bool,
    limits: &HeadLimits,
    key: impl FnOnce() -> WebSocketKey,
    head: &mut RequestHead,
) -> Result<(), BadRequest> {
    head.keep_alive = true;
    let opens_websocket = opens_websocket(pseudo, head)?;
    read_target(pseudo, opens_websocket, limits, head)?;
    fields::check_connection(&head.fields)?;
    read_host(pseudo, head)?;
    head.te_trailers = head.fields.has(KnownFieldName::Te);
    if opens_websocket {
        set_websocket_upgrade(key(), head);
        return Ok(());
    }
    head.framing = read_framing(is_whole, head)?;
    read_expectation(head)
}

/// True if the request is an extended CONNECT for a WebSocket; any other CONNECT is an error.
fn opens_websocket(pseudo: &RequestPseudoHeaders, head: &RequestHead) -> Result<bool, BadRequest> {
    if head.fields.text(pseudo.method) != b"CONNECT" {
        return Ok(false);
    }
    let protocol = pseudo.protocol.map(|protocol| head.fields.text(protocol));
    match protocol {
        Some(protocol) if protocol.eq_ignore_ascii_case(WEBSOCKET.as_bytes()) => Ok(true),
        Some(_) | None => Err(BadRequest::Connect),
    }
}

fn read_target(
    pseudo: &RequestPseudoHeaders,
    opens_websocket: bool,
    limits: &HeadLimits,
    head: &mut RequestHead,
) -> Result<(), BadRequest> {
    head.method_text = if opens_websocket { head.fields.store(b"GET") } else { pseudo.method };
    head.method = RequestMethod::recognise(head.method_bytes());
    // An endpoint would answer with the request, including fields that scripts in a browser must not read.
    if head.method == RequestMethod::Trace {
        return Err(BadRequest::Trace);
    }
    let text = head.fields.text(pseudo.target);
    if text.len() > limits.target_bytes {
        return Err(BadRequest::TargetTooLong);
    }
    let is_asterisk = head.method == RequestMethod::Options && text == b"*";
    if !text.starts_with(b"/") && !is_asterisk {
        return Err(BadRequest::Target);
    }
    let path_len = target::path_len(text).ok_or(BadRequest::Target)?;
    head.target = pseudo.target;
    head.path = head.target.shorten(path_len);
    Ok(())
}

/// Sets the authority from `:authority`, else from Host. If both exist and differ, the request is malformed.
fn read_host(pseudo: &RequestPseudoHeaders, head: &mut RequestHead) -> Result<(), BadRequest> {
    let host = {
        let mut hosts = head.fields.value_spans(KnownFieldName::Host);
        let host = hosts.next();
        if hosts.next().is_some() {
            return Err(BadRequest::HostRepeated);
        }
        host
    };
    let Some(authority) = pseudo.authority else {
        let host = host.ok_or(BadRequest::HostMissing)?;
        return take_authority(host, BadRequest::Host, head);
    };
    let text = head.fields.text(authority);
    if host.is_some_and(|host| !head.fields.text(host).eq_ignore_ascii_case(text)) {
        return Err(BadRequest::HostDiffers);
    }
    take_authority(authority, BadRequest::Target, head)
}

fn take_authority(
    authority: ByteSpan,
    otherwise: BadRequest,
    head: &mut RequestHead,
) -> Result<(), BadRequest> {
    let host_len = target::host_len(head.fields.text(authority)).ok_or(otherwise)?;
    head.authority = authority;
    head.host = authority.shorten(host_len);
    Ok(())
}

fn set_websocket_upgrade(key: WebSocketKey, head: &mut RequestHead) {
    head.upgrade = true;
    head.fields.add(KnownFieldName::Upgrade, WEBSOCKET);
    head.fields.remove_named(WEBSOCKET_KEY.as_bytes());
    head.fields.append(WEBSOCKET_KEY, key);
    head.fields.remove(KnownFieldName::ContentLength);
    head.fields.remove(KnownFieldName::Expect);
}

fn read_framing(is_whole: bool, head: &RequestHead) -> Result<BodyFraming, BadFraming> {
    // Many servers expect `Content-Length: 0` for methods that usually have a body.
    let has_body_usually =
        matches!(head.method, RequestMethod::Post | RequestMethod::Put | RequestMethod::Patch);
    match (framing::declared_length(&head.fields, head.version)?, is_whole) {
        (DeclaredLength::Length(0), _) => Ok(BodyFraming::Length(0)),
        (DeclaredLength::Length(_), true) => Err(BadFraming::LengthWithoutBody),
        (DeclaredLength::Length(length), false) => Ok(BodyFraming::Length(length)),
        (DeclaredLength::Nothing | DeclaredLength::Chunked, true) if has_body_usually => {
            Ok(BodyFraming::Length(0))
        }
        (DeclaredLength::Nothing | DeclaredLength::Chunked, true) => Ok(BodyFraming::None),
        (DeclaredLength::Nothing | DeclaredLength::Chunked, false) => Ok(BodyFraming::Stream),
    }
}

fn read_expectation(head: &mut RequestHead) -> Result<(), BadRequest> {
    if !head.fields.has(KnownFieldName::Expect) {
        return Ok(());
    }
    let is_known = |value: &[u8]| value.eq_ignore_ascii_case(b"100-continue");
    if !head.fields.values(KnownFieldName::Expect).all(is_known) {
        return Err(BadRequest::Expectation);
    }
    head.expect_continue = !head.framing.is_empty();
    if head.expect_continue {
        head.fields.keep_one_line(KnownFieldName::Expect);
    } else {
        head.fields.remove(KnownFieldName::Expect);
    }
    Ok(())
}

/// Returns the value of `:authority`. `otherwise` is used for a request without an authority, which HTTP/1.0 allows.
pub(crate) fn authority(head: &RequestHead, otherwise: SocketAddr) -> Cow<'_, [u8]> {
    match head.sent_authority() {
        [] => otherwise.to_string().into_bytes().into(),
        authority => authority.into(),
    }
}

/// Returns a predicate for the fields that are forwarded with a request whose body uses `framing`.
pub(crate) fn is_sent_on(
    head: &RequestHead,
    framing: BodyFraming,
) -> impl Fn(KnownFieldName, &[u8]) -> bool + use<'_> {
    move |name, text| {
        write::is_sent_on(name, framing)
            && !(head.upgrade && text.eq_ignore_ascii_case(WEBSOCKET_KEY.as_bytes()))
    }
}
