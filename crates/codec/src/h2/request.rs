//! Request heads: conversion between the types of the `h2` crate and spans.

use std::net::SocketAddr;

use http::header::{self, HeaderValue};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Scheme};

use crate::binary::request::{self, RequestPseudoHeaders, WebSocketKey};
use crate::h1::{BadRequest, BadSyntax, HeadLimits};
use crate::head::{BodyFraming, HttpVersion, RequestHead};

use super::fields;

/// Number of fields that this proxy adds: the pseudo-header fields, and fields that describe the client to the
/// endpoint.
const ADDED_FIELDS: usize = 6;

/// Parses a head. `protocol` is the `:protocol` of an extended CONNECT. If `is_whole`, no body follows. If the request
/// opens a WebSocket, `key` returns the key for it.
pub fn read(
    parts: &Parts,
    protocol: Option<&str>,
    is_whole: bool,
    limits: &HeadLimits,
    key: impl FnOnce() -> WebSocketKey,
    head: &mut RequestHead,
) -> Result<(), BadRequest> {
    head.clear();
    head.version = HttpVersion::Http2;
    // `http` accepts an empty scheme, and leaves the scheme out if there is no authority.
    if parts.uri.scheme_str() == Some("") {
        return Err(BadRequest::Target);
    }
    let target = parts.uri.path_and_query().map_or("", PathAndQuery::as_str);
    let authority = parts.uri.authority().map(Authority::as_str);
    fields::reserve(&parts.headers, ADDED_FIELDS, &mut head.fields);
    let mut keep = |text: &str| head.fields.store(text.as_bytes());
    let pseudo = RequestPseudoHeaders {
        method: keep(parts.method.as_str()),
        target: keep(target),
        authority: authority.map(&mut keep),
        protocol: protocol.map(&mut keep),
    };
    fields::read(&parts.headers, limits, &mut head.fields)?;
    request::complete(&pseudo, is_whole, limits, key, head)
}

/// Writes a head for an endpoint that speaks HTTP/2.
///
/// `otherwise` is the authority for a request without one, which HTTP/1.0 allows. A head that requests an upgrade to a
/// WebSocket becomes an extended CONNECT, to which the caller adds `:protocol`; the endpoint must have announced support
/// for it.
pub fn write(
    head: &RequestHead,
    framing: BodyFraming,
    scheme: Scheme,
    otherwise: SocketAddr,
) -> Result<http::Request<()>, BadRequest> {
    let authority = request::authority(head, otherwise);
    let uri = http::Uri::builder()
        .scheme(scheme)
        .authority(Authority::try_from(&*authority).map_err(|_invalid| BadRequest::Host)?)
        .path_and_query(
            PathAndQuery::try_from(head.sent_target()).map_err(|_invalid| BadRequest::Target)?,
        )
        .build();
    let mut headers = fields::write(&head.fields, 2, request::is_sent_on(head, framing))?;
    if let BodyFraming::Length(length) = framing {
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
        http::Method::CONNECT
    } else {
        http::Method::from_bytes(head.method_bytes()).map_err(|_invalid| BadSyntax::StartLine)?
    };
    Ok(request)
}

#[cfg(test)]
mod tests;
