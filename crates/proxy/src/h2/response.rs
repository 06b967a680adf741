//! Heads of responses: as the `h2` crate gives them to spans, and back.

use http::StatusCode;
use http::header::{self, HeaderValue};
use http::response::Parts;

use crate::binary::response;
use crate::h1::{BadResponse, HeadLimits};
use crate::head::{HttpVersion, RequestHead, ResponseHead};
use crate::stream::ResponseFraming;

use super::fields;

/// Reads a head that answers `request`. `is_whole`: it says that no body follows.
pub(crate) fn read(
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
pub(crate) fn write(
    head: &ResponseHead,
    manner: &ResponseFraming,
) -> Result<http::Response<()>, BadResponse> {
    let mut headers = fields::write(&head.fields, 1, response::is_sent_on(manner))?;
    if let Some(length) = response::content_length(head, manner) {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    let status = StatusCode::from_u16(response::status(head, manner));
    let mut said = http::Response::new(());
    *said.status_mut() = status.map_err(|_invalid| BadResponse::Status)?;
    *said.headers_mut() = headers;
    *said.version_mut() = http::Version::HTTP_2;
    Ok(said)
}

#[cfg(test)]
mod tests;
