//! What the head of a request means (RFC 9113 §8.3.1, RFC 9114 §4.3.1), and what is said of one that is sent.
//!
//! An extended CONNECT for a WebSocket (RFC 8441, RFC 9220) is read as the GET that asks to upgrade, and written from it:
//! so routes, filters and tunnels know one kind only.

use std::borrow::Cow;
use std::net::SocketAddr;

use crate::h1::framing::{self, DeclaredLength};
use crate::h1::{BadFraming, BadRequest, HeadLimits, target, write};
use crate::head::{BodyFraming, ByteSpan, KnownFieldName, RequestHead, RequestMethod};

use super::fields;

/// The one protocol that an extended CONNECT may ask for.
pub(crate) const WEBSOCKET: &str = "websocket";
/// Opens a WebSocket over HTTP/1.1; who has streams has no need of it.
const WEBSOCKET_KEY: &str = "sec-websocket-key";

/// A random value for `Sec-WebSocket-Key`: 16 bytes in Base64 (RFC 6455 §4.1).
pub(crate) type WebSocketKey = [u8; 24];

/// What the pseudo-fields say. The text is kept by the head.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestPseudoHeaders {
    pub(crate) method: ByteSpan,
    /// Path and query; empty: there is none.
    pub(crate) target: ByteSpan,
    pub(crate) authority: Option<ByteSpan>,
    /// What an extended CONNECT asks for.
    pub(crate) protocol: Option<ByteSpan>,
}

/// Completes a head whose version and fields are there. `is_whole`: no body follows. `key` is asked for a key if a
/// WebSocket is to be opened.
pub(crate) fn complete(
    said: &RequestPseudoHeaders,
    is_whole: bool,
    limits: &HeadLimits,
    key: impl FnOnce() -> WebSocketKey,
    head: &mut RequestHead,
) -> Result<(), BadRequest> {
    head.keep_alive = true;
    let opens_websocket = opens_websocket(said, head)?;
    read_target(said, opens_websocket, limits, head)?;
    fields::check_connection(&head.fields)?;
    read_host(said, head)?;
    head.te_trailers = head.fields.has(KnownFieldName::Te);
    if opens_websocket {
        set_websocket_upgrade(key(), head);
        return Ok(());
    }
    head.framing = read_framing(is_whole, head)?;
    read_expectation(head)
}

/// Whether the request is an extended CONNECT; any other CONNECT is refused.
fn opens_websocket(said: &RequestPseudoHeaders, head: &RequestHead) -> Result<bool, BadRequest> {
    if head.fields.text(said.method) != b"CONNECT" {
        return Ok(false);
    }
    let protocol = said.protocol.map(|protocol| head.fields.text(protocol));
    match protocol {
        Some(protocol) if protocol.eq_ignore_ascii_case(WEBSOCKET.as_bytes()) => Ok(true),
        Some(_) | None => Err(BadRequest::Connect),
    }
}

fn read_target(
    said: &RequestPseudoHeaders,
    opens_websocket: bool,
    limits: &HeadLimits,
    head: &mut RequestHead,
) -> Result<(), BadRequest> {
    head.method_text = if opens_websocket { head.fields.store(b"GET") } else { said.method };
    head.method = RequestMethod::recognise(head.method_bytes());
    let text = head.fields.text(said.target);
    if text.len() > limits.target_bytes {
        return Err(BadRequest::TargetTooLong);
    }
    let is_asterisk = head.method == RequestMethod::Options && text == b"*";
    if !text.starts_with(b"/") && !is_asterisk {
        return Err(BadRequest::Target);
    }
    let path_len = target::path_len(text).ok_or(BadRequest::Target)?;
    head.target = said.target;
    head.path = head.target.shorten(path_len);
    Ok(())
}

/// The authority is what `:authority` says, else Host; one that says something else makes the request malformed.
fn read_host(said: &RequestPseudoHeaders, head: &mut RequestHead) -> Result<(), BadRequest> {
    let host = {
        let mut hosts = head.fields.value_spans(KnownFieldName::Host);
        let host = hosts.next();
        if hosts.next().is_some() {
            return Err(BadRequest::HostRepeated);
        }
        host
    };
    let Some(authority) = said.authority else {
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
    // Many servers want to be told of a body that is not there, where there usually is one.
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
    if !head.expect_continue {
        head.fields.remove(KnownFieldName::Expect);
    }
    Ok(())
}

/// What is sent as `:authority`. `otherwise` is that of a request that names none, as one of HTTP/1.0 may be.
pub(crate) fn authority(head: &RequestHead, otherwise: SocketAddr) -> Cow<'_, [u8]> {
    match head.sent_authority() {
        [] => otherwise.to_string().into_bytes().into(),
        said => said.into(),
    }
}

/// Which fields are sent on with a request whose body goes by `framing`.
pub(crate) fn is_sent_on(
    head: &RequestHead,
    framing: BodyFraming,
) -> impl Fn(KnownFieldName, &[u8]) -> bool + use<'_> {
    move |name, text| {
        write::is_sent_on(name, framing)
            && !(head.upgrade && text.eq_ignore_ascii_case(WEBSOCKET_KEY.as_bytes()))
    }
}
