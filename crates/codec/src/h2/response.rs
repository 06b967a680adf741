//! Response heads: conversion between the types of the `h2` crate and spans.

use http::StatusCode;
use http::header::{self, HeaderValue};
use http::response::Parts;

use crate::binary::response;
use crate::h1::{BadResponse, HeadLimits};
use crate::head::{HttpVersion, RequestHead, ResponseFraming, ResponseHead};

use super::fields;

/// Parses the head of a response to `request`. If `is_whole`, no body follows.
pub fn read(
    parts: &Parts,
    is_whole: bool,
    limits: &HeadLimits,
    request: &RequestHead,
    head: &mut ResponseHead,
) -> Result<(), BadResponse> {
    head.clear();
    head.version = HttpVersion::Http2;
    head.status = parts.status.as_u16();
    fields::reserve(&parts.headers, 1, &mut head.fields);
    fields::read(&parts.headers, limits, &mut head.fields)?;
    response::complete(is_whole, request, head)
}

/// Writes a head for a client that speaks HTTP/2.
pub fn write(
    head: &ResponseHead,
    framing: &ResponseFraming,
) -> Result<http::Response<()>, BadResponse> {
    let mut headers = fields::write(&head.fields, 1, response::is_sent_on(framing))?;
    if let Some(length) = response::content_length(head, framing) {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    let status = StatusCode::from_u16(response::status(head, framing));
    let mut response = http::Response::new(());
    *response.status_mut() = status.map_err(|_invalid| BadResponse::Status)?;
    *response.headers_mut() = headers;
    *response.version_mut() = http::Version::HTTP_2;
    Ok(response)
}

#[cfg(test)]
mod tests;
