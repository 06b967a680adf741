//! WebSocket over an HTTP/2 or HTTP/3 stream (RFC 8441, RFC 9220) on one side, and the upgrade of HTTP/1.1 on the
//! other.
//!
//! Over HTTP/2 and HTTP/3 WebSocket has no handshake: neither a key nor a response to it. If the client speaks
//! HTTP/1.1, we answer its key in place of the endpoint, once the endpoint has accepted. If the endpoint speaks
//! HTTP/1.1, we check the answer to our key in place of the client.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use codec::h1::BadResponse;
use codec::head::{KnownFieldName, RequestHead, ResponseHead};
use data_encoding::BASE64;

use crate::failure::Failure;

/// The only protocol that extended CONNECT supports here.
const PROTOCOL: &str = "websocket";
/// The GUID that is hashed with the key (RFC 6455 §1.3).
const ACCEPT_GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// True if the requested upgrade can be sent as an extended CONNECT on a stream.
pub(crate) fn is_websocket_upgrade(request: &RequestHead) -> bool {
    request
        .fields
        .first(KnownFieldName::Upgrade)
        .is_some_and(|to| to.eq_ignore_ascii_case(PROTOCOL.as_bytes()))
}

/// Adds the response to the client's key in place of the endpoint, if the endpoint has accepted.
pub(crate) fn add_accept_key(request: &RequestHead, response: &mut ResponseHead) {
    if response.upgrade
        && let Some(key) = request.fields.get("sec-websocket-key")
    {
        response.fields.append("Sec-WebSocket-Accept", accept_key(key));
    }
}

/// Checks the final response to an extended CONNECT. To its client any 2xx means that the WebSocket is open (RFC 8441
/// §5, RFC 9220 §3), and it has no key by which to check that: only a 101 to the key of this request opens.
///
/// A client that speaks HTTP/1.1 checks the response itself.
pub(crate) fn check_opening(request: &RequestHead, response: &ResponseHead) -> Result<(), Failure> {
    if !request.upgrade || !request.version.has_streams() {
        return Ok(());
    }
    match response.status {
        101 if !accepts_key(request, response) => Err(Failure::BadResponse(BadResponse::Upgrade)),
        200..300 => Err(Failure::WebSocketNotOpened),
        _ => Ok(()),
    }
}

/// True if the response names the protocol, and has the answer to the key (RFC 6455 §4.1).
fn accepts_key(request: &RequestHead, response: &ResponseHead) -> bool {
    let protocol = response.fields.first(KnownFieldName::Upgrade).unwrap_or_default();
    let key = request.fields.get("sec-websocket-key");
    let accept = response.fields.get("sec-websocket-accept");
    protocol.eq_ignore_ascii_case(PROTOCOL.as_bytes())
        && key.zip(accept).is_some_and(|(key, accept)| accept_key(key).as_bytes() == accept)
}

/// Returns the Sec-WebSocket-Accept value for a key (RFC 6455 §4.2.2).
fn accept_key(key: &[u8]) -> String {
    BASE64.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key, ACCEPT_GUID].concat()).as_ref())
}

#[cfg(test)]
mod tests {
    use codec::head::HttpVersion;

    use super::*;

    #[test]
    fn websocket_accept_matches_the_rfc_6455_example() {
        assert_eq!(accept_key(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    /// Returns the result for a response with this status, and with this answer to the example's key.
    fn opening(version: HttpVersion, status: u16, accept: &str) -> Result<(), Failure> {
        let (mut request, mut response) = (RequestHead::new(), ResponseHead::new());
        request.version = version;
        request.upgrade = true;
        request.fields.append("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
        response.status = status;
        response.fields.append("upgrade", "WebSocket");
        response.fields.append("sec-websocket-accept", accept);
        check_opening(&request, &response)
    }

    #[test]
    fn only_a_101_with_the_answer_to_the_key_opens_a_websocket() {
        let right = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
        for version in [HttpVersion::Http2, HttpVersion::Http3] {
            assert_eq!(opening(version, 101, right), Ok(()));
            let invalid = Err(Failure::BadResponse(BadResponse::Upgrade));
            assert_eq!(opening(version, 101, ""), invalid);
            assert_eq!(opening(version, 101, "S3pPLMBiTxaQ9kYGzzhZRbK+xOo="), invalid);
            for status in [200, 201, 204, 299] {
                assert_eq!(opening(version, status, right), Err(Failure::WebSocketNotOpened));
            }
            for status in [302, 403, 500] {
                assert_eq!(opening(version, status, ""), Ok(()));
            }
        }
        assert_eq!(opening(HttpVersion::Http11, 200, ""), Ok(()));
    }

    #[test]
    fn websocket_accept_is_added_only_to_an_accepted_upgrade() {
        let (mut request, mut response) = (RequestHead::new(), ResponseHead::new());
        request.fields.append("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
        add_accept_key(&request, &mut response);
        assert_eq!(response.fields.get("sec-websocket-accept"), None);
        response.upgrade = true;
        add_accept_key(&request, &mut response);
        assert!(response.fields.get("sec-websocket-accept").is_some());
    }
}
