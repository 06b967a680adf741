//! Heads of requests: as HTTP/2 says them (RFC 9113 §8.3.1) to spans, and back.
//!
//! What is refused in HTTP/1.1 is refused here, in the same words. An extended CONNECT for a WebSocket (RFC 8441) is
//! read as the GET that asks to upgrade, and written from it: so routes, filters and tunnels know one kind only.

use std::net::SocketAddr;

use http::header::{self, HeaderValue};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Scheme};

use crate::h1::framing::{self, Declared};
use crate::h1::{BadFraming, BadRequest, BadSyntax, HeadLimits, target, write};
use crate::head::{Framing, Method, Name, RequestHead, Span, Version};

use super::fields::{self, FieldLimits};

/// The one protocol that an extended CONNECT may ask for.
const WEBSOCKET: &str = "websocket";
/// Opens a WebSocket over HTTP/1.1; HTTP/2 has no need of it.
const WEBSOCKET_KEY: &str = "sec-websocket-key";

/// A random value for `Sec-WebSocket-Key`: 16 bytes in Base64 (RFC 6455 §4.1).
pub(crate) type WebSocketKey = [u8; 24];

/// Reads a head. `is_whole`: it says that no body follows. `key` is asked for a key if a WebSocket is to be opened.
pub(crate) fn read(
    parts: &Parts,
    is_whole: bool,
    limits: &HeadLimits,
    key: impl FnOnce() -> WebSocketKey,
    head: &mut RequestHead,
) -> Result<(), BadRequest> {
    head.clear();
    head.version = Version::Http2;
    head.keep_alive = true;
    let opens_websocket = opens_websocket(parts)?;
    read_target(parts, opens_websocket, limits, head)?;
    let limits = FieldLimits { bytes: limits.head_bytes, count: limits.fields };
    fields::read(&parts.headers, limits, &mut head.fields)?;
    fields::check_connection(&head.fields)?;
    read_host(parts, head)?;
    head.te_trailers = head.fields.has(Name::Te);
    if opens_websocket {
        ask_for_websocket(key(), head);
        return Ok(());
    }
    head.framing = read_framing(is_whole, head)?;
    read_expectation(head)
}

/// Whether the request is an extended CONNECT; any other CONNECT is refused.
fn opens_websocket(parts: &Parts) -> Result<bool, BadRequest> {
    if parts.method != http::Method::CONNECT {
        return Ok(false);
    }
    let protocol = parts.extensions.get::<::h2::ext::Protocol>();
    match protocol {
        Some(protocol) if protocol.as_str().eq_ignore_ascii_case(WEBSOCKET) => Ok(true),
        Some(_) | None => Err(BadRequest::Connect),
    }
}

fn read_target(
    parts: &Parts,
    opens_websocket: bool,
    limits: &HeadLimits,
    head: &mut RequestHead,
) -> Result<(), BadRequest> {
    let method = if opens_websocket { "GET" } else { parts.method.as_str() };
    head.method = Method::recognise(method.as_bytes());
    head.method_text = head.fields.keep(method.as_bytes());
    let text = parts.uri.path_and_query().map_or("", PathAndQuery::as_str).as_bytes();
    if text.len() > limits.target_bytes {
        return Err(BadRequest::TargetTooLong);
    }
    let is_asterisk = head.method == Method::Options && text == b"*";
    if !text.starts_with(b"/") && !is_asterisk {
        return Err(BadRequest::Target);
    }
    let path_len = target::path_len(text).ok_or(BadRequest::Target)?;
    head.target = head.fields.keep(text);
    head.path = head.target.shorten(path_len);
    Ok(())
}

/// The authority is what `:authority` says, else Host; one that says something else makes the request malformed.
fn read_host(parts: &Parts, head: &mut RequestHead) -> Result<(), BadRequest> {
    let host = {
        let mut hosts = head.fields.value_spans(Name::Host);
        let host = hosts.next();
        if hosts.next().is_some() {
            return Err(BadRequest::HostRepeated);
        }
        host
    };
    let Some(authority) = parts.uri.authority() else {
        let host = host.ok_or(BadRequest::HostMissing)?;
        return take_authority(host, BadRequest::Host, head);
    };
    let authority = authority.as_str().as_bytes();
    if host.is_some_and(|host| !head.fields.text(host).eq_ignore_ascii_case(authority)) {
        return Err(BadRequest::HostDiffers);
    }
    let authority = head.fields.keep(authority);
    take_authority(authority, BadRequest::Target, head)
}

fn take_authority(
    authority: Span,
    otherwise: BadRequest,
    head: &mut RequestHead,
) -> Result<(), BadRequest> {
    let host_len = target::host_len(head.fields.text(authority)).ok_or(otherwise)?;
    head.authority = authority;
    head.host = authority.shorten(host_len);
    Ok(())
}

fn ask_for_websocket(key: WebSocketKey, head: &mut RequestHead) {
    head.upgrade = true;
    head.fields.add(Name::Upgrade, WEBSOCKET);
    head.fields.remove_named(WEBSOCKET_KEY.as_bytes());
    head.fields.append(WEBSOCKET_KEY, key);
    head.fields.remove(Name::ContentLength);
    head.fields.remove(Name::Expect);
}

fn read_framing(is_whole: bool, head: &RequestHead) -> Result<Framing, BadFraming> {
    // Many servers want to be told of a body that is not there, where there usually is one.
    let has_body_usually = matches!(head.method, Method::Post | Method::Put | Method::Patch);
    match (framing::declared(&head.fields, head.version)?, is_whole) {
        (Declared::Length(0), _) => Ok(Framing::Length(0)),
        (Declared::Length(_), true) => Err(BadFraming::LengthWithoutBody),
        (Declared::Length(length), false) => Ok(Framing::Length(length)),
        (Declared::Nothing | Declared::Chunked, true) if has_body_usually => Ok(Framing::Length(0)),
        (Declared::Nothing | Declared::Chunked, true) => Ok(Framing::None),
        (Declared::Nothing | Declared::Chunked, false) => Ok(Framing::Stream),
    }
}

fn read_expectation(head: &mut RequestHead) -> Result<(), BadRequest> {
    if !head.fields.has(Name::Expect) {
        return Ok(());
    }
    let is_known = |value: &[u8]| value.eq_ignore_ascii_case(b"100-continue");
    if !head.fields.values(Name::Expect).all(is_known) {
        return Err(BadRequest::Expectation);
    }
    head.expect_continue = !head.framing.is_empty();
    if !head.expect_continue {
        head.fields.remove(Name::Expect);
    }
    Ok(())
}

/// Writes a head for an endpoint that speaks HTTP/2.
///
/// `otherwise` is the authority of a request that names none, as one of HTTP/1.0 may be. A head that asks for an upgrade
/// to a WebSocket becomes an extended CONNECT, which the endpoint must have said that it takes.
pub(crate) fn write(
    head: &RequestHead,
    framing: Framing,
    scheme: Scheme,
    otherwise: SocketAddr,
) -> Result<http::Request<()>, BadRequest> {
    let authority = match head.sent_authority() {
        [] => Authority::try_from(otherwise.to_string()),
        said => Authority::try_from(said),
    };
    let uri = http::Uri::builder()
        .scheme(scheme)
        .authority(authority.map_err(|_invalid| BadRequest::Host)?)
        .path_and_query(
            PathAndQuery::try_from(head.sent_target()).map_err(|_invalid| BadRequest::Target)?,
        )
        .build();
    let is_sent_on = |name: Name, text: &[u8]| {
        write::is_sent_on(name, framing)
            && !(head.upgrade && text.eq_ignore_ascii_case(WEBSOCKET_KEY.as_bytes()))
    };
    let mut headers = fields::write(&head.fields, 2, is_sent_on)?;
    if let Framing::Length(length) = framing {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    if head.te_trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    let mut request = http::Request::new(());
    *request.uri_mut() = uri.map_err(|_invalid| BadRequest::Target)?;
    *request.headers_mut() = headers;
    *request.version_mut() = http::Version::HTTP_2;
    *request.method_mut() = if head.upgrade {
        request.extensions_mut().insert(::h2::ext::Protocol::from_static(WEBSOCKET));
        http::Method::CONNECT
    } else {
        http::Method::from_bytes(head.method_bytes()).map_err(|_invalid| BadSyntax::StartLine)?
    };
    Ok(request)
}

#[cfg(test)]
mod tests;
