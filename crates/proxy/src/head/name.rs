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
}

impl Name {
    /// Recognised by length first: most fields are compared with one or two names, many with none.
    pub fn recognise(name: &[u8]) -> Self {
        let candidates: &[(&[u8], Self)] = match name.len() {
            2 => &[(b"te", Self::Te)],
            3 => &[(b"via", Self::Via)],
            4 => &[(b"host", Self::Host), (b"date", Self::Date)],
            6 => &[(b"expect", Self::Expect)],
            7 => &[(b"upgrade", Self::Upgrade), (b"trailer", Self::Trailer)],
            9 => &[(b"forwarded", Self::Forwarded)],
            10 => &[(b"connection", Self::Connection), (b"keep-alive", Self::KeepAlive)],
            11 => &[(b"retry-after", Self::RetryAfter)],
            12 => &[(b"x-request-id", Self::XRequestId), (b"proxy-status", Self::ProxyStatus)],
            14 => &[
                (b"content-length", Self::ContentLength),
                (b"http2-settings", Self::Http2Settings),
            ],
            15 => &[(b"x-forwarded-for", Self::XForwardedFor)],
            16 => &[
                (b"x-forwarded-host", Self::XForwardedHost),
                (b"x-forwarded-port", Self::XForwardedPort),
                (b"proxy-connection", Self::ProxyConnection),
            ],
            17 => &[
                (b"x-forwarded-proto", Self::XForwardedProto),
                (b"transfer-encoding", Self::TransferEncoding),
            ],
            18 => &[(b"proxy-authenticate", Self::ProxyAuthenticate)],
            19 => &[(b"proxy-authorization", Self::ProxyAuthorization)],
            _ => &[],
        };
        candidates
            .iter()
            .find(|(text, _)| text[0] == name[0] | 0x20 && name.eq_ignore_ascii_case(text))
            .map_or(Self::Other, |&(_, known)| known)
    }

    /// As we write it; empty for [`Name::Other`], which has no name of its own.
    pub(crate) fn text(self) -> &'static str {
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
        }
    }

    /// A bit of its own in a `u32`.
    pub(super) fn bit(self) -> u32 {
        1 << self as u32
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
