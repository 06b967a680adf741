//! WebSocket over an HTTP/2 or HTTP/3 stream (RFC 8441, RFC 9220), for clients that use the upgrade of HTTP/1.1.
//!
//! Over HTTP/2 and HTTP/3 WebSocket has no handshake: neither a key nor a response to it. Once the endpoint has
//! accepted, we answer the client's key in its place.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use codec::head::{KnownFieldName, RequestHead, ResponseHead};
use data_encoding::BASE64;

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

/// Returns the Sec-WebSocket-Accept value for a key (RFC 6455 §4.2.2).
fn accept_key(key: &[u8]) -> String {
    BASE64.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key, ACCEPT_GUID].concat()).as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn websocket_accept_matches_the_rfc_6455_example() {
        assert_eq!(accept_key(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
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
