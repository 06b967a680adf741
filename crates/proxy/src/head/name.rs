//! The field names that this proxy treats specially.

/// A field name that this proxy treats specially, recognised once, when the field is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Name {
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
}

impl Name {
    /// The name of a field, which is a token (RFC 9110 §5.1) in any case of letters.
    ///
    /// Recognised by length first: most fields are compared with one or two names, many with none.
    pub fn recognise(name: &[u8]) -> Self {
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
            9 => one_of(name, [(b"forwarded", Self::Forwarded)]),
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

    /// As we write it; empty for [`Name::Other`], which has no name of its own.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Other => "",
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
        }
    }

    /// A bit of its own in a `u32`.
    pub(super) fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// The candidate that `name` is, in any case of letters. All candidates have the same length.
#[inline]
fn one_of<const LENGTH: usize, const COUNT: usize>(
    name: &[u8],
    candidates: [(&[u8; LENGTH], Name); COUNT],
) -> Name {
    let Ok(name) = <&[u8; LENGTH]>::try_from(name) else { return Name::Other };
    // Of the bytes of a token this changes upper-case letters and `_` alone, and no candidate has that or DEL.
    let lower = words(name).map(|word| word | u64::from_ne_bytes([0x20; 8]));
    let is_name = |text| words(text).map(|word| word | u64::from_ne_bytes([0x20; 8])) == lower;
    candidates.iter().find(|(text, _)| is_name(*text)).map_or(Name::Other, |&(_, known)| known)
}

/// All bytes of a text of up to 24 bytes, some of them twice. The length is known to the compiler, so that two names are
/// compared by a few instructions.
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
    use super::Name;

    #[test]
    fn names_are_recognised_in_any_case() {
        let known = [
            ("Connection", Name::Connection),
            ("Keep-Alive", Name::KeepAlive),
            ("Proxy-Connection", Name::ProxyConnection),
            ("Transfer-Encoding", Name::TransferEncoding),
            ("TE", Name::Te),
            ("Trailer", Name::Trailer),
            ("Upgrade", Name::Upgrade),
            ("Content-Length", Name::ContentLength),
            ("Host", Name::Host),
            ("Expect", Name::Expect),
            ("Via", Name::Via),
            ("Forwarded", Name::Forwarded),
            ("X-Forwarded-For", Name::XForwardedFor),
            ("X-Forwarded-Proto", Name::XForwardedProto),
            ("X-Forwarded-Host", Name::XForwardedHost),
            ("X-Forwarded-Port", Name::XForwardedPort),
            ("X-Request-Id", Name::XRequestId),
            ("Date", Name::Date),
            ("Retry-After", Name::RetryAfter),
            ("Proxy-Authenticate", Name::ProxyAuthenticate),
            ("Proxy-Authorization", Name::ProxyAuthorization),
            ("Proxy-Status", Name::ProxyStatus),
            ("HTTP2-Settings", Name::Http2Settings),
            ("Alt-Svc", Name::AltSvc),
        ];
        for (text, name) in known {
            assert_eq!(name.text(), text);
            for text in [text.to_owned(), text.to_lowercase(), text.to_uppercase()] {
                assert_eq!(Name::recognise(text.as_bytes()), name, "{text}");
            }
            let (first, rest) = text.split_at(1);
            for other in
                [rest.to_owned(), format!("{text}s"), format!("_{rest}"), format!("{first}{first}")]
            {
                assert_eq!(Name::recognise(other.as_bytes()), Name::Other, "{other}");
            }
        }
    }
}
