//! Field names that this proxy treats specially.

#![expect(clippy::indexing_slicing, reason = "a length is checked before its bytes are")]

use super::proxy_claim::{self, is_proxy_claim};

/// A field name that this proxy treats specially, recognised once, when the field is parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum KnownFieldName {
    Other,
    Connection,
    KeepAlive,
    ProxyConnection,
    TransferEncoding,
    Te,
    Trailer,
    Upgrade,
    ContentLength,
    Host,
    Expect,
    Via,
    Forwarded,
    XForwardedFor,
    XForwardedProto,
    XForwardedHost,
    XForwardedPort,
    XRequestId,
    Date,
    RetryAfter,
    ProxyAuthenticate,
    ProxyAuthorization,
    ProxyStatus,
    Http2Settings,
    AltSvc,
    XRealIp,
    /// Any other field in which proxies describe the client or the original request, in any spelling.
    ProxyClaim,
    /// Any other name with `_`. CGI and its descendants take `_` and `-` for the same.
    WithUnderscore,
}

impl KnownFieldName {
    /// Returns the known name that `name`, a token (RFC 9110 §5.1), equals without regard to case, else its class.
    pub fn recognise(name: &[u8]) -> Self {
        match Self::exact(name) {
            Self::Other if has_underscore(name) => Self::classify_with_underscore(name),
            Self::Other if is_proxy_claim(name) => Self::ProxyClaim,
            known => known,
        }
    }

    /// A name that would be special if it had `-` for `_` is a claim: to a CGI program both are the same.
    fn classify_with_underscore(name: &[u8]) -> Self {
        // One byte more than any such name has, so that a longer name is not taken for one.
        let mut hyphenated = [b'-'; proxy_claim::MAX_BYTES + 1];
        let length = name.len().min(hyphenated.len());
        for (to, from) in hyphenated.iter_mut().zip(name).filter(|(_, from)| **from != b'_') {
            *to = *from;
        }
        let hyphenated = &hyphenated[..length];
        let is_claim = Self::exact(hyphenated) != Self::Other || is_proxy_claim(hyphenated);
        if is_claim { Self::ProxyClaim } else { Self::WithUnderscore }
    }

    /// True for a class of names; a field of a class is found by its text.
    pub(super) fn is_class(self) -> bool {
        matches!(self, Self::Other | Self::ProxyClaim | Self::WithUnderscore)
    }

    /// Returns the known name that `name` equals without regard to case.
    ///
    /// The length is compared first: most fields are compared with one or two names, many with none.
    fn exact(name: &[u8]) -> Self {
        match name.len() {
            2 => one_of(name, [(b"te", Self::Te)]),
            3 => one_of(name, [(b"via", Self::Via)]),
            4 => one_of(name, [(b"host", Self::Host), (b"date", Self::Date)]),
            6 => one_of(name, [(b"expect", Self::Expect)]),
            7 => one_of(
                name,
                [
                    (b"upgrade", Self::Upgrade),
                    (b"trailer", Self::Trailer),
                    (b"alt-svc", Self::AltSvc),
                ],
            ),
            9 => one_of(name, [(b"forwarded", Self::Forwarded), (b"x-real-ip", Self::XRealIp)]),
            10 => {
                one_of(name, [(b"connection", Self::Connection), (b"keep-alive", Self::KeepAlive)])
            }
            11 => one_of(name, [(b"retry-after", Self::RetryAfter)]),
            12 => one_of(
                name,
                [(b"x-request-id", Self::XRequestId), (b"proxy-status", Self::ProxyStatus)],
            ),
            14 => one_of(
                name,
                [
                    (b"content-length", Self::ContentLength),
                    (b"http2-settings", Self::Http2Settings),
                ],
            ),
            15 => one_of(name, [(b"x-forwarded-for", Self::XForwardedFor)]),
            16 => one_of(
                name,
                [
                    (b"x-forwarded-host", Self::XForwardedHost),
                    (b"x-forwarded-port", Self::XForwardedPort),
                    (b"proxy-connection", Self::ProxyConnection),
                ],
            ),
            17 => one_of(
                name,
                [
                    (b"x-forwarded-proto", Self::XForwardedProto),
                    (b"transfer-encoding", Self::TransferEncoding),
                ],
            ),
            18 => one_of(name, [(b"proxy-authenticate", Self::ProxyAuthenticate)]),
            19 => one_of(name, [(b"proxy-authorization", Self::ProxyAuthorization)]),
            _ => Self::Other,
        }
    }

    /// Returns the name in our spelling; empty for a class, which has no name of its own.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Other | Self::ProxyClaim | Self::WithUnderscore => "",
            Self::Connection => "Connection",
            Self::KeepAlive => "Keep-Alive",
            Self::ProxyConnection => "Proxy-Connection",
            Self::TransferEncoding => "Transfer-Encoding",
            Self::Te => "TE",
            Self::Trailer => "Trailer",
            Self::Upgrade => "Upgrade",
            Self::ContentLength => "Content-Length",
            Self::Host => "Host",
            Self::Expect => "Expect",
            Self::Via => "Via",
            Self::Forwarded => "Forwarded",
            Self::XForwardedFor => "X-Forwarded-For",
            Self::XForwardedProto => "X-Forwarded-Proto",
            Self::XForwardedHost => "X-Forwarded-Host",
            Self::XForwardedPort => "X-Forwarded-Port",
            Self::XRequestId => "X-Request-Id",
            Self::Date => "Date",
            Self::RetryAfter => "Retry-After",
            Self::ProxyAuthenticate => "Proxy-Authenticate",
            Self::ProxyAuthorization => "Proxy-Authorization",
            Self::ProxyStatus => "Proxy-Status",
            Self::Http2Settings => "HTTP2-Settings",
            Self::AltSvc => "Alt-Svc",
            Self::XRealIp => "X-Real-IP",
        }
    }

    /// Returns a distinct bit of a `u32` for each name.
    pub(super) fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// True if the name has a `_`; the scan takes a few instructions for eight bytes.
fn has_underscore(name: &[u8]) -> bool {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const UNDERSCORES: u64 = u64::from_ne_bytes([b'_'; 8]);
    let (words, rest) = name.as_chunks::<8>();
    words.iter().any(|word| {
        let zero_if_found = u64::from_ne_bytes(*word) ^ UNDERSCORES;
        zero_if_found.wrapping_sub(ONES) & !zero_if_found & (ONES << 7) != 0
    }) || rest.contains(&b'_')
}

/// Returns the candidate that equals `name` without regard to case. All candidates have the same length.
#[inline]
fn one_of<const LENGTH: usize, const COUNT: usize>(
    name: &[u8],
    candidates: [(&[u8; LENGTH], KnownFieldName); COUNT],
) -> KnownFieldName {
    let Ok(name) = <&[u8; LENGTH]>::try_from(name) else { return KnownFieldName::Other };
    // Among the bytes of a token, this changes only upper-case letters and `_`; no candidate contains `_` or DEL.
    let lower = words(name).map(|word| word | u64::from_ne_bytes([0x20; 8]));
    let is_name = |text| words(text).map(|word| word | u64::from_ne_bytes([0x20; 8])) == lower;
    candidates
        .iter()
        .find(|(text, _)| is_name(*text))
        .map_or(KnownFieldName::Other, |&(_, known)| known)
}

/// Returns all bytes of a text of up to 24 bytes, some of them twice. The length is a compile-time constant, so a
/// comparison of two names takes a few instructions.
#[inline]
fn words<const LENGTH: usize>(text: &[u8; LENGTH]) -> [u64; 3] {
    const { assert!(LENGTH > 0 && LENGTH <= 24) };
    let eight = |at: usize| text[at..].first_chunk().map_or(0, |word| u64::from_ne_bytes(*word));
    let four = |at: usize| text[at..].first_chunk().map_or(0, |word| u32::from_ne_bytes(*word));
    match LENGTH {
        16.. => [eight(0), eight(8), eight(LENGTH - 8)],
        8.. => [eight(0), eight(LENGTH - 8), 0],
        4.. => [four(0).into(), four(LENGTH - 4).into(), 0],
        _ => [text[0].into(), text[LENGTH / 2].into(), text[LENGTH - 1].into()],
    }
}

#[cfg(test)]
mod tests {
    use super::KnownFieldName;

    #[test]
    fn names_are_recognised_in_any_case() {
        let known = [
            ("Connection", KnownFieldName::Connection),
            ("Keep-Alive", KnownFieldName::KeepAlive),
            ("Proxy-Connection", KnownFieldName::ProxyConnection),
            ("Transfer-Encoding", KnownFieldName::TransferEncoding),
            ("TE", KnownFieldName::Te),
            ("Trailer", KnownFieldName::Trailer),
            ("Upgrade", KnownFieldName::Upgrade),
            ("Content-Length", KnownFieldName::ContentLength),
            ("Host", KnownFieldName::Host),
            ("Expect", KnownFieldName::Expect),
            ("Via", KnownFieldName::Via),
            ("Forwarded", KnownFieldName::Forwarded),
            ("X-Forwarded-For", KnownFieldName::XForwardedFor),
            ("X-Forwarded-Proto", KnownFieldName::XForwardedProto),
            ("X-Forwarded-Host", KnownFieldName::XForwardedHost),
            ("X-Forwarded-Port", KnownFieldName::XForwardedPort),
            ("X-Request-Id", KnownFieldName::XRequestId),
            ("Date", KnownFieldName::Date),
            ("Retry-After", KnownFieldName::RetryAfter),
            ("Proxy-Authenticate", KnownFieldName::ProxyAuthenticate),
            ("Proxy-Authorization", KnownFieldName::ProxyAuthorization),
            ("Proxy-Status", KnownFieldName::ProxyStatus),
            ("HTTP2-Settings", KnownFieldName::Http2Settings),
            ("Alt-Svc", KnownFieldName::AltSvc),
            ("X-Real-IP", KnownFieldName::XRealIp),
        ];
        for (text, name) in known {
            assert_eq!(name.text(), text);
            for text in [text.to_owned(), text.to_lowercase(), text.to_uppercase()] {
                assert_eq!(KnownFieldName::recognise(text.as_bytes()), name, "{text}");
            }
            let (first, rest) = text.split_at(1);
            for other in
                [rest.to_owned(), format!("{text}s"), format!("_{rest}"), format!("{first}{first}")]
            {
                assert!(KnownFieldName::recognise(other.as_bytes()).is_class(), "{other}");
            }
        }
    }

    #[test]
    fn other_names_are_classified() {
        for (name, class) in [
            ("Accept", KnownFieldName::Other),
            ("x-forwarded-server", KnownFieldName::ProxyClaim),
            ("X_Forwarded_For", KnownFieldName::ProxyClaim),
            ("X-Forwarded_For", KnownFieldName::ProxyClaim),
            ("x_real_ip", KnownFieldName::ProxyClaim),
            ("Content_Length", KnownFieldName::ProxyClaim),
            ("ssl_client_subject_dn_of_the_certificate", KnownFieldName::ProxyClaim),
            ("x_envoy_external_address", KnownFieldName::ProxyClaim),
            ("x_envoy_external_address_", KnownFieldName::WithUnderscore),
            ("user_id", KnownFieldName::WithUnderscore),
            ("_", KnownFieldName::WithUnderscore),
            ("a-name-of-some_length", KnownFieldName::WithUnderscore),
        ] {
            assert_eq!(KnownFieldName::recognise(name.as_bytes()), class, "{name}");
        }
    }

    #[test]
    fn underscores_are_found_at_every_place() {
        for length in 1..30 {
            let name = vec![b'a'; length];
            assert!(!super::has_underscore(&name));
            for place in 0..length {
                let mut name = name.clone();
                name[place] = b'_';
                assert!(super::has_underscore(&name), "{place} of {length}");
                name[place] = b'^';
                assert!(!super::has_underscore(&name), "{place} of {length}");
            }
        }
    }
}
