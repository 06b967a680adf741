//! What a proxy adds to a request: who the client is, which way it came, and an id.
//!
//! What a client says about this itself is believed from trusted proxies only; from others it is dropped.

use std::net::{IpAddr, SocketAddr};

use balance::Rng;
use gateway::snapshot::ClientSettings;

use crate::head::{Fields, Name, RequestHead};

/// How we call ourselves in `Via` and `Proxy-Status` (RFC 9110 §7.6.3, RFC 9209 §2).
pub(crate) const PSEUDONYM: &str = "sheave";
/// The `Via` element of a message that came by HTTP/1.1.
pub(crate) const VIA: &str = "1.1 sheave";

/// Where a request comes from.
pub(crate) struct Origin {
    address: IpAddr,
    text: Box<str>,
}

impl Origin {
    pub(crate) fn new(peer: SocketAddr) -> Self {
        // A client that reaches a socket of both families by IPv4 has an IPv4 address.
        let address = peer.ip().to_canonical();
        Self { address, text: address.to_string().into() }
    }

    /// The client's address.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    fn is_trusted(&self, settings: &ClientSettings) -> bool {
        settings.trusted_proxies.iter().any(|block| block.contains(&self.address))
    }
}

/// Adds `X-Forwarded-*`, `Forwarded`, `X-Request-Id` and `Via`.
pub(crate) fn describe(
    request: &mut RequestHead,
    origin: &Origin,
    settings: &ClientSettings,
    rng: &mut Rng,
) {
    let trusted = origin.is_trusted(settings);
    if !trusted {
        forget_claims(&mut request.fields);
    }
    append_forwarded_for(&mut request.fields, origin);
    if !request.fields.has(Name::XForwardedProto) {
        request.fields.add(Name::XForwardedProto, "http");
    }
    if !request.fields.has(Name::XForwardedHost) {
        request.add_authority(Name::XForwardedHost);
    }
    // Somebody before us speaks RFC 7239: go on with it, beside the older fields.
    if request.fields.has(Name::Forwarded) {
        request.fields.add(Name::Forwarded, forwarded_element(origin));
    }
    if !request.fields.has(Name::XRequestId) {
        request.fields.add(Name::XRequestId, request_id(rng));
    }
    request.fields.add(Name::Via, VIA);
}

fn forget_claims(fields: &mut Fields) {
    for name in [
        Name::Forwarded,
        Name::XForwardedFor,
        Name::XForwardedProto,
        Name::XForwardedHost,
        Name::XForwardedPort,
        Name::XRequestId,
    ] {
        fields.remove(name);
    }
}

/// One field with every hop so far: many servers read the first or the last field only.
fn append_forwarded_for(fields: &mut Fields, origin: &Origin) {
    if !fields.has(Name::XForwardedFor) {
        fields.add(Name::XForwardedFor, origin.text());
        return;
    }
    let before: Vec<&[u8]> = fields.values(Name::XForwardedFor).collect();
    let mut all = before.join(&b", "[..]);
    all.extend_from_slice(b", ");
    all.extend_from_slice(origin.text().as_bytes());
    fields.remove(Name::XForwardedFor);
    fields.add(Name::XForwardedFor, all);
}

fn forwarded_element(origin: &Origin) -> String {
    match origin.address {
        IpAddr::V4(address) => format!("for={address};proto=http"),
        IpAddr::V6(address) => format!("for=\"[{address}]\";proto=http"),
    }
}

/// 128 random bits in hexadecimal, as `traceparent` writes a trace id.
fn request_id(rng: &mut Rng) -> [u8; 32] {
    let mut id = [0; 32];
    for half in id.chunks_exact_mut(16) {
        let bits = rng.next_u64();
        for (place, digit) in half.iter_mut().enumerate() {
            *digit = b"0123456789abcdef"[(bits >> (60 - 4 * place)) as usize & 15];
        }
    }
    id
}
