//! Authorization of requests by another server, as the data plane asks it.

use std::num::NonZeroU16;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use super::BackendKey;
use super::filter::UrlScheme;

/// Authorization of requests by another server, the authorizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalAuthSettings {
    /// The backend of the authorizer, one of [`Snapshot::backends`](super::Snapshot::backends). `None`: it cannot be
    /// resolved, and no request is served.
    pub backend: Option<BackendKey>,
    /// The protocol of the authorizer.
    pub protocol: AuthorizerProtocol,
    /// Fields of the client's request that the authorizer gets.
    pub request_fields: FieldSelection,
    /// Fields of a positive answer that the endpoint gets.
    pub response_fields: FieldSelection,
    /// The maximum size of a body that the authorizer gets, in bytes; a larger one is rejected with 413. `None`: it gets
    /// no body.
    pub max_body_bytes: Option<NonZeroU16>,
    /// The page to which a client is redirected if the answer is 401.
    pub sign_in: Option<SignInRedirect>,
    /// Time limit of an authorization request.
    pub timeout: Duration,
}

/// The protocol of an authorizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthorizerProtocol {
    /// Requests of HTTP.
    Http(HttpQuestion),
    /// Calls of Envoy's protocol (`envoy.service.auth.v3.Authorization`).
    Grpc {
        /// The host of the calls.
        authority: Box<str>,
    },
}

/// Authorization requests of HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpQuestion {
    /// The target.
    pub target: AuthorizerTarget,
    /// The method; `None`: that of the client's request.
    pub method: Option<&'static str>,
    /// The host; `None`: that of the client's request.
    pub host: Option<Box<str>>,
    /// True if the authorizer gets fields that describe the client and its request, such as `X-Original-URL`.
    pub describes_request: bool,
    /// The statuses of a positive answer.
    pub positive: RangeInclusive<u16>,
    /// The responses that get the cookies of a positive answer.
    pub cookies: CookieScope,
}

/// The target of authorization requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthorizerTarget {
    /// A target that may have parts of the client's request.
    Template(UrlTemplate),
    /// A prefix, without a `/` at its end, before the target of the client's request.
    Prefix(Box<str>),
}

/// Names of header fields, in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldSelection {
    /// All fields that do not belong to the message itself.
    All,
    /// These fields.
    Only(Box<[Box<str>]>),
}

impl FieldSelection {
    /// True if a field is selected; its name is compared without regard to case.
    pub fn contains(&self, name: &[u8]) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.iter().any(|it| it.as_bytes().eq_ignore_ascii_case(name)),
        }
    }
}

/// The responses that get the cookies of the authorizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CookieScope {
    /// None.
    Never,
    /// Responses of success, and redirects.
    OnSuccess,
    /// All.
    Always,
}

impl CookieScope {
    /// True if a response with this status gets the cookies.
    pub const fn includes(self, status: u16) -> bool {
        match self {
            Self::Never => false,
            // Those to which nginx adds fields.
            Self::OnSuccess => {
                matches!(status, 200 | 201 | 204 | 206 | 301 | 302 | 303 | 304 | 307 | 308)
            }
            Self::Always => true,
        }
    }
}

/// The redirect to a page where clients sign in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignInRedirect {
    /// The URL.
    pub url: UrlTemplate,
    /// The query parameter that is added with the URL of the client's request; `None`: nothing is added.
    pub parameter: Option<Box<str>>,
}

/// A URL that may have parts of the client's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlTemplate {
    /// The text as it was written.
    pub text: Arc<str>,
    pieces: Box<[UrlPiece]>,
}

/// A part of a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
enum UrlPiece {
    Text(Box<str>),
    Scheme,
    /// The host without a port.
    Host,
    /// The host as requested, perhaps with a port.
    Authority,
    /// Path and query.
    Target,
    /// Path and query, as the value of a query parameter.
    EscapedTarget,
}

/// The parts of a client's request that a URL may have.
#[derive(Clone, Copy, Debug)]
pub struct OriginalRequest<'a> {
    /// The scheme by which it arrived.
    pub scheme: UrlScheme,
    /// The host, without a port.
    pub host: &'a [u8],
    /// The host, perhaps with a port.
    pub authority: &'a [u8],
    /// Path and query.
    pub target: &'a [u8],
}

impl UrlTemplate {
    /// Parses a text with variables.
    ///
    /// # Errors
    /// If a variable is unknown, or if a character cannot be in a URL.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(bad) =
            text.chars().find(|char| !char.is_ascii_graphic() || "\"<>\\^`{|}#".contains(*char))
        {
            return Err(format!("must not contain {bad:?}"));
        }
        let mut parts = text.split('$');
        let mut pieces = Vec::from_iter(parts.next().and_then(text_piece));
        for part in parts {
            let is_name = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
            let end = part.bytes().position(|byte| !is_name(byte)).unwrap_or(part.len());
            let (name, rest) = part.split_at(end);
            pieces.push(match name {
                "scheme" | "pass_access_scheme" => UrlPiece::Scheme,
                "host" | "best_http_host" => UrlPiece::Host,
                "http_host" => UrlPiece::Authority,
                "request_uri" => UrlPiece::Target,
                "escaped_request_uri" => UrlPiece::EscapedTarget,
                _ => {
                    let known = "$scheme, $host, $http_host, $request_uri, $escaped_request_uri";
                    return Err(format!("must have no variable but {known}, has ${name}"));
                }
            });
            pieces.extend(text_piece(rest));
        }
        Ok(Self { text: text.into(), pieces: pieces.into() })
    }

    /// Writes the URL for a request.
    pub fn write(&self, request: &OriginalRequest<'_>, out: &mut Vec<u8>) {
        for piece in &self.pieces {
            match piece {
                UrlPiece::Text(text) => out.extend_from_slice(text.as_bytes()),
                UrlPiece::Scheme => out.extend_from_slice(request.scheme.text().as_bytes()),
                UrlPiece::Host => out.extend_from_slice(request.host),
                UrlPiece::Authority => out.extend_from_slice(request.authority),
                UrlPiece::Target => out.extend_from_slice(request.target),
                UrlPiece::EscapedTarget => escape_query(request.target, out),
            }
        }
    }
}

impl SignInRedirect {
    /// Writes the value of `Location` for a request.
    pub fn location(&self, request: &OriginalRequest<'_>, out: &mut Vec<u8>) {
        self.url.write(request, out);
        let Some(parameter) = &self.parameter else { return };
        out.push(if self.url.text.contains('?') { b'&' } else { b'?' });
        out.extend_from_slice(parameter.as_bytes());
        out.push(b'=');
        out.extend_from_slice(request.scheme.text().as_bytes());
        out.extend_from_slice(b"://");
        out.extend_from_slice(request.authority);
        escape_query(request.target, out);
    }
}

fn text_piece(text: &str) -> Option<UrlPiece> {
    (!text.is_empty()).then(|| UrlPiece::Text(text.into()))
}

/// Writes a text as the value of a query parameter: all but unreserved characters (RFC 3986 §2.3) are escaped.
pub fn escape_query(text: &[u8], out: &mut Vec<u8>) {
    for byte in text {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
            out.push(*byte);
        } else {
            out.extend_from_slice(format!("%{byte:02X}").as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: OriginalRequest<'_> = OriginalRequest {
        scheme: UrlScheme::Https,
        host: b"app.test",
        authority: b"app.test:8443",
        target: b"/a b&c?q=1",
    };

    #[test]
    fn url_has_parts_of_the_request() {
        for (text, url) in [
            ("/oauth2/auth", "/oauth2/auth"),
            ("https://$host/start", "https://app.test/start"),
            ("$scheme://$http_host/x", "https://app.test:8443/x"),
            ("/check$request_uri", "/check/a b&c?q=1"),
            ("/start?rd=$escaped_request_uri&x", "/start?rd=%2Fa%20b%26c%3Fq%3D1&x"),
        ] {
            let mut out = Vec::new();
            UrlTemplate::parse(text).unwrap().write(&REQUEST, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), url, "{text}");
        }
        for text in ["/a$", "/a$hosts", "/$arg_x", "/a b", "/a\r\nX: y", "/ä"] {
            assert!(UrlTemplate::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sign_in_page_gets_the_url_of_the_request() {
        for (text, location) in [
            ("/start", "/start?rd=https://app.test:8443%2Fa%20b%26c%3Fq%3D1"),
            ("/start?x=1", "/start?x=1&rd=https://app.test:8443%2Fa%20b%26c%3Fq%3D1"),
        ] {
            let url = UrlTemplate::parse(text).unwrap();
            let mut out = Vec::new();
            SignInRedirect { url, parameter: Some("rd".into()) }.location(&REQUEST, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), location);
        }
    }
}
