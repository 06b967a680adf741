//! Conversion between HTTP/2 fields and spans; no decision about their meaning.

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};

use crate::binary::fields::{FieldBudget, LINE_BYTES, check_value};
use crate::h1::syntax::is_token;
use crate::h1::{BadSyntax, HeadLimits};
use crate::head::{FieldSection, KnownFieldName, is_trailer};

/// Approximate size of a field that this proxy adds to a head.
const ADDED_BYTES: usize = 40;

/// Reserves memory for the fields of a message and for `added` more. All fields are known at once; without the
/// reservation, the memory of many messages that begin together would be allocated piece by piece.
pub(super) fn reserve(map: &HeaderMap, added: usize, fields: &mut FieldSection) {
    let bytes = map.iter().map(|(name, value)| name.as_str().len() + value.len() + LINE_BYTES);
    fields.reserve(map.len() + added, bytes.sum::<usize>() + added * ADDED_BYTES);
}

/// Appends the fields of a head. Cookie fields are joined into one (RFC 9113 §8.2.3).
pub(super) fn read(
    map: &HeaderMap,
    limits: &HeadLimits,
    fields: &mut FieldSection,
) -> Result<(), BadSyntax> {
    let mut budget = FieldBudget::new(limits);
    let mut seen_cookie = false;
    for (name, value) in map {
        let (text, value) = (name.as_str().as_bytes(), value.as_bytes());
        if *name == header::COOKIE {
            budget.take_cookie(!std::mem::replace(&mut seen_cookie, true), value)?;
        } else {
            budget.take(text, value)?;
        }
        // `http` accepts more than the characters of a token.
        if !is_token(text) {
            return Err(BadSyntax::FieldName);
        }
        check_value(value)?;
    }
    seen_cookie = false;
    for (name, value) in map {
        if *name != header::COOKIE {
            fields.append(name, value);
        } else if !std::mem::replace(&mut seen_cookie, true) {
            let cookies = map.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes);
            // An empty cookie at the end would leave a trailing blank.
            let cookies = cookies.filter(|cookie| !cookie.is_empty());
            fields.append_pieces(b"cookie", cookies, b"; ");
        }
    }
    Ok(())
}

/// Returns the fields for which `is_sent_on` is true, with capacity for `more`. Their values share one copy of the
/// head's bytes.
pub(super) fn write(
    fields: &FieldSection,
    more: usize,
    is_sent_on: impl Fn(KnownFieldName, &[u8]) -> bool,
) -> Result<HeaderMap, BadSyntax> {
    let bytes = Bytes::copy_from_slice(fields.bytes());
    let mut map = HeaderMap::with_capacity(fields.iter().count() + more);
    for (known, text, value) in fields.iter_ranges() {
        if !is_sent_on(known, text) {
            continue;
        }
        let value = HeaderValue::from_maybe_shared(bytes.slice(value));
        map.append(name(known, text)?, value.map_err(|_invalid| BadSyntax::FieldValue)?);
    }
    Ok(map)
}

/// Returns the crate's constant for a known name, without parsing the text.
fn name(known: KnownFieldName, text: &[u8]) -> Result<HeaderName, BadSyntax> {
    Ok(match known {
        KnownFieldName::Via => header::VIA,
        KnownFieldName::Date => header::DATE,
        KnownFieldName::Forwarded => header::FORWARDED,
        KnownFieldName::RetryAfter => header::RETRY_AFTER,
        KnownFieldName::XForwardedFor => const { HeaderName::from_static("x-forwarded-for") },
        KnownFieldName::XForwardedProto => const { HeaderName::from_static("x-forwarded-proto") },
        KnownFieldName::XForwardedHost => const { HeaderName::from_static("x-forwarded-host") },
        KnownFieldName::XRequestId => const { HeaderName::from_static("x-request-id") },
        KnownFieldName::XRealIp => const { HeaderName::from_static("x-real-ip") },
        KnownFieldName::Other | KnownFieldName::ProxyClaim | KnownFieldName::WithUnderscore => {
            return other_name(text);
        }
        KnownFieldName::Connection
        | KnownFieldName::KeepAlive
        | KnownFieldName::ProxyConnection
        | KnownFieldName::TransferEncoding
        | KnownFieldName::Te
        | KnownFieldName::Trailer
        | KnownFieldName::Upgrade
        | KnownFieldName::ContentLength
        | KnownFieldName::Host
        | KnownFieldName::Expect
        | KnownFieldName::XForwardedPort
        | KnownFieldName::ProxyAuthenticate
        | KnownFieldName::ProxyAuthorization
        | KnownFieldName::ProxyStatus
        | KnownFieldName::Http2Settings
        | KnownFieldName::AltSvc => {
            HeaderName::from_bytes(text).map_err(|_invalid| BadSyntax::FieldName)?
        }
    })
}

/// The names that every gRPC call carries are not in the crate's table; without constants, each would be a copy of its
/// text.
fn other_name(text: &[u8]) -> Result<HeaderName, BadSyntax> {
    Ok(match text {
        b"grpc-timeout" => const { HeaderName::from_static("grpc-timeout") },
        b"grpc-encoding" => const { HeaderName::from_static("grpc-encoding") },
        b"grpc-accept-encoding" => const { HeaderName::from_static("grpc-accept-encoding") },
        b"grpc-status" => const { HeaderName::from_static("grpc-status") },
        b"grpc-message" => const { HeaderName::from_static("grpc-message") },
        _ => return HeaderName::from_bytes(text).map_err(|_invalid| BadSyntax::FieldName),
    })
}

/// Returns the trailers of a message; `None` if it has none that may be forwarded.
pub fn read_trailers(map: &HeaderMap) -> Option<Box<FieldSection>> {
    let mut fields = FieldSection::new();
    reserve(map, 0, &mut fields);
    for (name, value) in map {
        let text = name.as_str().as_bytes();
        if is_token(text) && is_trailer(KnownFieldName::recognise(text), text) {
            fields.append(name, value.as_bytes().trim_ascii());
        }
    }
    let has_any = fields.iter().next().is_some();
    has_any.then(|| Box::new(fields))
}

/// Returns the trailers to send; `None` if there are none. Leaves out the same names as `read_trailers`.
pub fn write_trailers(fields: &FieldSection) -> Option<HeaderMap> {
    // If a trailer is not valid in HTTP/2, no trailers are sent: the message is complete without them.
    let map = write(fields, 0, is_trailer).ok()?;
    (!map.is_empty()).then_some(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trailers_round_trip_without_head_only_fields() {
        let mut fields = FieldSection::new();
        for (name, value) in [("Grpc-Status", "0"), ("Via", "1.1 a"), ("grpc-message", "")] {
            fields.append(name, value);
        }
        let map = write_trailers(&fields).unwrap();
        assert_eq!(map.len(), 2);
        assert_eq!(map["grpc-status"], "0");
        let back = read_trailers(&map).unwrap();
        assert_eq!(back.get("grpc-status"), Some(b"0".as_slice()));
        assert_eq!(back.get("grpc-message"), Some(b"".as_slice()));
        assert!(read_trailers(&HeaderMap::new()).is_none());
        assert!(write_trailers(&FieldSection::new()).is_none());
    }
}
