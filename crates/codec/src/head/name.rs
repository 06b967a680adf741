//! Field names that this proxy treats specially.

#![expect(clippy::indexing_slicing, reason = "the length is at most that of the array")]

use super::name_table::{self, FoldedName};
use super::proxy_claim;

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
    /// Every name that is known by itself, not as one of a class.
    pub(super) const NAMED: [Self; 25] = [
        Self::Connection,
        Self::KeepAlive,
        Self::ProxyConnection,
        Self::TransferEncoding,
        Self::Te,
        Self::Trailer,
        Self::Upgrade,
        Self::ContentLength,
        Self::Host,
        Self::Expect,
        Self::Via,
        Self::Forwarded,
        Self::XForwardedFor,
        Self::XForwardedProto,
        Self::XForwardedHost,
        Self::XForwardedPort,
        Self::XRequestId,
        Self::Date,
        Self::RetryAfter,
        Self::ProxyAuthenticate,
        Self::ProxyAuthorization,
        Self::ProxyStatus,
        Self::Http2Settings,
        Self::AltSvc,
        Self::XRealIp,
    ];

    /// Returns the known name that `name`, a token (RFC 9110 §5.1), equals without regard to case, else its class.
    pub fn recognise(name: &[u8]) -> Self {
        let folded = FoldedName::new(name);
        match name_table::find(&folded) {
            Self::Other if folded.has_underscore() => Self::classify_with_underscore(name),
            Self::Other if proxy_claim::has_claim_prefix(name) => Self::ProxyClaim,
            known => known,
        }
    }

    /// A name that would be special if it had `-` for `_` is a claim: to a CGI program both are the same.
    #[cold]
    fn classify_with_underscore(name: &[u8]) -> Self {
        // One byte more than any such name has, so that a longer name is not taken for one.
        let mut hyphenated = [b'-'; name_table::MAX_BYTES + 1];
        let length = name.len().min(hyphenated.len());
        for (to, from) in hyphenated.iter_mut().zip(name).filter(|(_, from)| **from != b'_') {
            *to = *from;
        }
        match Self::recognise(&hyphenated[..length]) {
            Self::Other => Self::WithUnderscore,
            _ => Self::ProxyClaim,
        }
    }

    /// True for a class of names; a field of a class is found by its text.
    pub(super) fn is_class(self) -> bool {
        matches!(self, Self::Other | Self::ProxyClaim | Self::WithUnderscore)
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
}
