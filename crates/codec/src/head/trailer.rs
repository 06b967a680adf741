//! Names that may stand in a trailer section.
//!
//! A recipient may merge trailers into the head (RFC 9110 §6.5.2). So a trailer must not have a name that routing,
//! authentication or a filter has already judged in the head.

use super::KnownFieldName;

/// Names that RFC 9110 §6.5.1 excludes and that are no [`KnownFieldName`]: request modifiers (controls and conditions),
/// authentication, response control, and the content's format.
const HEAD_ONLY: [&[u8]; 36] = [
    b"accept",
    b"accept-encoding",
    b"accept-language",
    b"age",
    b"authorization",
    b"authentication-info",
    b"cache-control",
    b"content-disposition",
    b"content-encoding",
    b"content-language",
    b"content-location",
    b"content-range",
    b"content-security-policy",
    b"content-type",
    b"cookie",
    b"early-data",
    b"expires",
    b"if-match",
    b"if-modified-since",
    b"if-none-match",
    b"if-range",
    b"if-unmodified-since",
    b"location",
    b"max-forwards",
    b"origin",
    b"pragma",
    b"range",
    b"referer",
    b"set-cookie",
    b"strict-transport-security",
    b"user-agent",
    b"vary",
    b"warning",
    b"www-authenticate",
    b"x-http-method-override",
    b"x-method-override",
];

/// Beginnings of names that a browser or a browser's check of a response relies on.
const HEAD_ONLY_PREFIXES: [&[u8]; 2] = [b"access-control-", b"sec-"];

/// True if a field of this name may be forwarded as a trailer. gRPC's names may, and so may all names of applications.
pub(crate) fn is_trailer(known: KnownFieldName, name: &[u8]) -> bool {
    let is_open = matches!(known, KnownFieldName::Other | KnownFieldName::WithUnderscore);
    let begins = |prefix: &&[u8]| {
        name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    };
    is_open
        && !HEAD_ONLY.iter().any(|text| text.eq_ignore_ascii_case(name))
        && !HEAD_ONLY_PREFIXES.iter().any(begins)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_allowed(name: &str) -> bool {
        is_trailer(KnownFieldName::recognise(name.as_bytes()), name.as_bytes())
    }

    #[test]
    fn trailers_that_a_recipient_could_merge_into_the_head_are_excluded() {
        for name in [
            "Cookie",
            "set-cookie",
            "AUTHORIZATION",
            "Content-Type",
            "Host",
            "Content-Length",
            "Transfer-Encoding",
            "X-Real-IP",
            "X-Forwarded-For",
            "X_Forwarded_For",
            "X-Forwarded-Client-Cert",
            "Range",
            "Sec-Fetch-Site",
            "Access-Control-Allow-Origin",
        ] {
            assert!(!is_allowed(name), "{name}");
        }
    }

    #[test]
    fn trailers_of_applications_and_grpc_are_allowed() {
        for name in [
            "grpc-status",
            "Grpc-Message",
            "grpc-status-details-bin",
            "Server-Timing",
            "ETag",
            "Digest",
            "user_id",
        ] {
            assert!(is_allowed(name), "{name}");
        }
    }
}
