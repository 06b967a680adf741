//! Changes to requests and responses, as the filters of a route define them.
//!
//! Everything is precomputed: names in lower case, values as they are written. Changes to a URL are computed here. This
//! module does not know how a head is stored.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::external_auth::ExternalAuthSettings;
use super::security::SecuritySettings;
use super::traffic::TrafficSettings;

/// Changes to requests and responses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteFilters {
    /// The clients that may send requests, which comes before all else.
    pub security: Option<Arc<SecuritySettings>>,
    /// The limits of the rate of requests, which come before the other filters: an index into
    /// [`Snapshot::rate_limits`](super::Snapshot::rate_limits).
    pub rate_limit: Option<usize>,
    /// The handling of requests that a TrafficPolicy sets.
    pub traffic: Option<Arc<TrafficSettings>>,
    /// Authorization by another server, after that of `security`.
    pub external_auth: Option<Arc<ExternalAuthSettings>>,
    /// Cross-origin requests that are allowed (CORS). A preflight request is answered at once.
    pub cors: Option<CorsPolicy>,
    /// The redirect that is sent instead of a response of an endpoint.
    pub redirect: Option<RedirectAction>,
    /// Changes to the host and path of the request to the endpoint.
    pub rewrite: Option<RewriteAction>,
    /// Changes to header fields of the request.
    pub request_headers: HeaderEdits,
    /// Changes to header fields of the response.
    pub response_headers: HeaderEdits,
    /// Backends that also get the request. Their responses are discarded.
    pub mirrors: Vec<MirrorPolicy>,
}

/// Changes to header fields, made in this order. Names are in lower case and never affect message framing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderEdits {
    /// Names of fields to remove.
    pub remove: Vec<Box<str>>,
    /// Fields whose value replaces all existing ones.
    pub set: Vec<HeaderField>,
    /// Fields whose value is added to the existing ones.
    pub add: Vec<HeaderField>,
}

impl HeaderEdits {
    /// True if nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.set.is_empty() && self.add.is_empty()
    }
}

/// A header field and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderField {
    /// The name, in lower case.
    pub name: Box<str>,
    /// The value.
    pub value: Box<str>,
}

/// The scheme of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UrlScheme {
    /// `http`
    Http,
    /// `https`
    Https,
}

impl UrlScheme {
    /// Returns the scheme as it is written.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// Returns the default port.
    pub const fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// The URL of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestUrl<'a> {
    /// The scheme by which the request arrived.
    pub scheme: UrlScheme,
    /// The host, without a port.
    pub host: &'a [u8],
    /// The port of the listener.
    pub port: u16,
    /// The path, without the query.
    pub path: &'a [u8],
    /// The rest after the path: empty, or `?` and the query.
    pub query: &'a [u8],
}

/// A redirect. Parts that are not given stay as in the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedirectAction {
    /// The status code: 301, 302, 303, 307 or 308.
    pub status: u16,
    /// The new scheme.
    pub scheme: Option<UrlScheme>,
    /// The new host.
    pub hostname: Option<Box<str>>,
    /// The new port. If only the scheme is given, its default port, as Gateway API requires.
    pub port: Option<u16>,
    /// The new path.
    pub path: Option<PathRewrite>,
}

impl RedirectAction {
    /// Writes the value of `Location`.
    pub fn location(&self, request: &RequestUrl<'_>, out: &mut Vec<u8>) {
        let scheme = self.scheme.unwrap_or(request.scheme);
        let port = self.port.unwrap_or(request.port);
        out.extend_from_slice(scheme.text().as_bytes());
        out.extend_from_slice(b"://");
        out.extend_from_slice(self.hostname.as_deref().map_or(request.host, str::as_bytes));
        if port != scheme.port() {
            out.extend_from_slice(format!(":{port}").as_bytes());
        }
        match &self.path {
            Some(path) => path.write(request.path, out),
            None => out.extend_from_slice(request.path),
        }
        out.extend_from_slice(request.query);
    }
}

/// Changes to the host and path of the request to the endpoint. Parts that are not given stay as in the request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RewriteAction {
    /// The new `Host`.
    pub hostname: Option<Box<str>>,
    /// The new path. The query stays.
    pub path: Option<PathRewrite>,
}

/// A change to a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathRewrite {
    /// A whole new path.
    Full(Box<str>),
    /// The replacement of a prefix of the path.
    Prefix {
        /// The number of bytes of the path that the rule's prefix matched, without a trailing `/`.
        length: usize,
        /// The new prefix, without a trailing `/`.
        replacement: Box<str>,
    },
}

impl PathRewrite {
    /// Writes the replacement of `path`, which the rule has matched.
    pub fn write(&self, path: &[u8], out: &mut Vec<u8>) {
        match self {
            Self::Full(path) => out.extend_from_slice(path.as_bytes()),
            Self::Prefix { length, replacement } => {
                let rest = path.get(*length..).unwrap_or_default();
                out.extend_from_slice(replacement.as_bytes());
                out.extend_from_slice(rest);
                if replacement.is_empty() && rest.is_empty() {
                    out.push(b'/');
                }
            }
        }
    }
}

/// A backend that gets copies of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorPolicy {
    /// An index into [`Snapshot::backends`](super::Snapshot::backends).
    pub backend: usize,
    /// The fraction of requests that are copied.
    pub share: MirrorFraction,
}

/// A fraction of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirrorFraction {
    /// The numerator, at most the denominator.
    pub numerator: u32,
    /// The denominator.
    pub denominator: NonZeroU32,
}

impl MirrorFraction {
    /// All requests.
    pub const ALL: Self = Self { numerator: 1, denominator: NonZeroU32::MIN };

    /// True if a request with this random number is in the fraction.
    pub fn samples(self, random: u64) -> bool {
        random % u64::from(self.denominator.get()) < u64::from(self.numerator)
    }
}

/// Cross-origin requests that are allowed (the Fetch standard, CORS protocol).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorsPolicy {
    /// Allowed origins.
    pub origins: AllowList<Vec<OriginPattern>>,
    /// True if requests may carry cookies and credentials. Responses then never contain `*`: they repeat the requested
    /// value.
    pub credentials: bool,
    /// Allowed methods: the value of `Access-Control-Allow-Methods`.
    pub methods: AllowList<Box<str>>,
    /// Allowed request header fields: the value of `Access-Control-Allow-Headers`.
    pub headers: AllowList<Box<str>>,
    /// Response header fields that scripts may read: the value of `Access-Control-Expose-Headers`. Empty: only those
    /// that the Fetch standard always allows.
    pub expose_headers: Box<str>,
    /// The number of seconds for which a browser may cache the response to a preflight request: the value of
    /// `Access-Control-Max-Age`.
    pub max_age: Box<str>,
}

/// A list of allowed values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowList<T> {
    /// Every value: `*`.
    Any,
    /// These values. Empty: only what needs no permission.
    Only(T),
}

impl CorsPolicy {
    /// True if requests from an origin, the value of `Origin`, are allowed.
    pub fn allows(&self, origin: &[u8]) -> bool {
        match &self.origins {
            AllowList::Any => true,
            AllowList::Only(patterns) => patterns.iter().any(|pattern| pattern.matches(origin)),
        }
    }
}

/// An origin, or all hosts below one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OriginPattern {
    /// One origin, in lower case: `https://www.example.com:8443`.
    Exact(Box<str>),
    /// `https://*.example.com:8443`: every host with one label or more in place of the `*`.
    Wildcard {
        /// The part before the `*`: `https://`.
        start: Box<str>,
        /// The part after the `*`: `.example.com:8443`.
        end: Box<str>,
    },
}

impl OriginPattern {
    /// True if the pattern matches this origin, which browsers write in lower case.
    pub fn matches(&self, origin: &[u8]) -> bool {
        match self {
            Self::Exact(exact) => exact.as_bytes() == origin,
            Self::Wildcard { start, end } => origin
                .strip_prefix(start.as_bytes())
                .and_then(|rest| rest.strip_suffix(end.as_bytes()))
                .is_some_and(is_labels),
        }
    }
}

/// True if the text consists of host labels, so that it contains neither a port nor a path.
fn is_labels(text: &[u8]) -> bool {
    let is_inner = |byte: &u8| byte.is_ascii_alphanumeric() || b"-.".contains(byte);
    !text.is_empty() && text.iter().all(is_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(length: usize, replacement: &str) -> PathRewrite {
        PathRewrite::Prefix { length, replacement: replacement.into() }
    }

    /// Checks the table of Gateway API's HTTPPathModifier; the translation removes the `/` at the end of both.
    #[test]
    fn path_prefix_is_replaced_per_gateway_api() {
        let cases = [
            ("/foo/bar", 4, "/xyz", "/xyz/bar"),
            ("/foo", 4, "/xyz", "/xyz"),
            ("/foo/", 4, "/xyz", "/xyz/"),
            ("/foo/bar", 4, "", "/bar"),
            ("/foo/", 4, "", "/"),
            ("/foo", 4, "", "/"),
            ("/foo", 0, "/xyz", "/xyz/foo"),
        ];
        for (path, length, replacement, expected) in cases {
            let mut out = Vec::new();
            prefix(length, replacement).write(path.as_bytes(), &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), expected, "{path}");
        }
    }

    #[test]
    fn redirect_location_keeps_unspecified_parts() {
        let nothing =
            RedirectAction { status: 302, scheme: None, hostname: None, port: None, path: None };
        let request = |port| RequestUrl {
            scheme: UrlScheme::Http,
            host: b"a.example.com",
            port,
            path: b"/old/x",
            query: b"?q=1",
        };
        let https =
            RedirectAction { scheme: Some(UrlScheme::Https), port: Some(443), ..nothing.clone() };
        let host = RedirectAction { hostname: Some("b.example.com".into()), ..nothing.clone() };
        let port = RedirectAction { port: Some(80), ..nothing.clone() };
        let path = RedirectAction { path: Some(prefix(4, "/new")), ..nothing.clone() };
        let cases = [
            (nothing, 80, "http://a.example.com/old/x?q=1"),
            (https, 8080, "https://a.example.com/old/x?q=1"),
            (host, 8080, "http://b.example.com:8080/old/x?q=1"),
            (port, 8080, "http://a.example.com/old/x?q=1"),
            (path, 80, "http://a.example.com/new/x?q=1"),
        ];
        for (redirect, port, expected) in cases {
            let mut out = Vec::new();
            redirect.location(&request(port), &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }

    #[test]
    fn cors_origin_is_matched_as_a_whole() {
        let below =
            OriginPattern::Wildcard { start: "https://".into(), end: ".example.com".into() };
        for origin in ["https://a.example.com", "https://a.b.example.com"] {
            assert!(below.matches(origin.as_bytes()), "{origin}");
        }
        for origin in [
            "https://example.com",
            "https://.example.com",
            "http://a.example.com",
            "https://a.example.com:8443",
            "https://evil.com/.example.com",
            "https://evil.com:1.example.com",
            "null",
        ] {
            assert!(!below.matches(origin.as_bytes()), "{origin}");
        }
    }

    #[test]
    fn fraction_selects_numerator_of_denominator_requests() {
        let share = MirrorFraction { numerator: 25, denominator: NonZeroU32::new(100).unwrap() };
        assert_eq!((0..1000).filter(|&random| share.samples(random)).count(), 250);
        assert!((0..10).all(|random| MirrorFraction::ALL.samples(random)));
    }
}
