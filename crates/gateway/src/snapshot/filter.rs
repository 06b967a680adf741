//! What is changed in requests and responses on their way, as the filters of a route ask for it.
//!
//! Everything is precomputed: names in lower case, values as they are written. What a filter does to a URL is decided
//! here; it must not know how a head is kept.

use std::num::NonZeroU32;

/// What is changed in requests and responses on their way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteFilters {
    /// Which requests of browsers from elsewhere are allowed; a preflight is answered at once.
    pub cors: Option<CorsPolicy>,
    /// The answer, in place of any endpoint's.
    pub redirect: Option<RedirectAction>,
    /// What the endpoint is asked for in place of what the client asked for.
    pub rewrite: Option<RewriteAction>,
    /// Changes in the fields of the request.
    pub request_headers: HeaderEdits,
    /// Changes in the fields of the response.
    pub response_headers: HeaderEdits,
    /// Who else gets the request; their answers are dropped.
    pub mirrors: Vec<MirrorPolicy>,
}

/// Changes in header fields, made in this order. Names are in lower case and never frame a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderEdits {
    /// These fields are taken out.
    pub remove: Vec<Box<str>>,
    /// These fields get one value in place of all they had.
    pub set: Vec<HeaderField>,
    /// These fields get one value more.
    pub add: Vec<HeaderField>,
}

impl HeaderEdits {
    /// Nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.set.is_empty() && self.add.is_empty()
    }
}

/// A header field and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderField {
    /// Its name, in lower case.
    pub name: Box<str>,
    /// Its value.
    pub value: Box<str>,
}

/// A scheme of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UrlScheme {
    /// `http`
    Http,
    /// `https`
    Https,
}

impl UrlScheme {
    /// How it is written.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// The port that need not be written.
    pub const fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// What a request asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestUrl<'a> {
    /// How it came.
    pub scheme: UrlScheme,
    /// The host, without a port.
    pub host: &'a [u8],
    /// The listener's port.
    pub port: u16,
    /// The path, without the query.
    pub path: &'a [u8],
    /// What follows the path: empty, or `?` and the query.
    pub query: &'a [u8],
}

/// The answer that sends a client elsewhere. What is not given stays as the request had it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedirectAction {
    /// 301, 302, 303, 307 or 308.
    pub status: u16,
    /// Another scheme.
    pub scheme: Option<UrlScheme>,
    /// Another host.
    pub hostname: Option<Box<str>>,
    /// Another port; that of the new scheme where only the scheme is given, as Gateway API asks.
    pub port: Option<u16>,
    /// Another path.
    pub path: Option<PathRewrite>,
}

impl RedirectAction {
    /// Writes the value of `Location`.
    pub fn location(&self, asked: &RequestUrl<'_>, out: &mut Vec<u8>) {
        let scheme = self.scheme.unwrap_or(asked.scheme);
        let port = self.port.unwrap_or(asked.port);
        out.extend_from_slice(scheme.text().as_bytes());
        out.extend_from_slice(b"://");
        out.extend_from_slice(self.hostname.as_deref().map_or(asked.host, str::as_bytes));
        if port != scheme.port() {
            out.extend_from_slice(format!(":{port}").as_bytes());
        }
        match &self.path {
            Some(path) => path.write(asked.path, out),
            None => out.extend_from_slice(asked.path),
        }
        out.extend_from_slice(asked.query);
    }
}

/// What an endpoint is asked for in place of what the client asked for. What is not given stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RewriteAction {
    /// `Host`.
    pub hostname: Option<Box<str>>,
    /// The path; the query stays.
    pub path: Option<PathRewrite>,
}

/// Another path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathRewrite {
    /// This one.
    Full(Box<str>),
    /// The old one with another beginning.
    Prefix {
        /// How many bytes of the path the rule's prefix matched, a `/` at its end left out.
        length: usize,
        /// What takes their place, without a `/` at its end.
        replacement: Box<str>,
    },
}

impl PathRewrite {
    /// Writes what takes the place of `path`, which the rule has matched.
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

/// Somebody who gets a copy of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorPolicy {
    /// An index into [`Snapshot::backends`](super::Snapshot::backends).
    pub backend: usize,
    /// How many requests are copied.
    pub share: MirrorFraction,
}

/// A share of requests: so many of so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MirrorFraction {
    /// At most the denominator.
    pub numerator: u32,
    /// Of how many.
    pub denominator: NonZeroU32,
}

impl MirrorFraction {
    /// Every request.
    pub const ALL: Self = Self { numerator: 1, denominator: NonZeroU32::MIN };

    /// Whether a request is of the share, for a random number.
    pub fn samples(self, random: u64) -> bool {
        random % u64::from(self.denominator.get()) < u64::from(self.numerator)
    }
}

/// Which requests of browsers from elsewhere are allowed (the Fetch standard, CORS protocol).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CorsPolicy {
    /// From where.
    pub origins: AllowList<Vec<OriginPattern>>,
    /// Whether cookies and credentials may come with them. Then no answer says `*`: what was asked for is repeated.
    pub credentials: bool,
    /// By which methods: the value of `Access-Control-Allow-Methods`.
    pub methods: AllowList<Box<str>>,
    /// With which fields: the value of `Access-Control-Allow-Headers`.
    pub headers: AllowList<Box<str>>,
    /// Which fields of a response scripts may see: the value of `Access-Control-Expose-Headers`; empty: none more.
    pub expose_headers: Box<str>,
    /// How long the answer to a preflight holds: the value of `Access-Control-Max-Age`.
    pub max_age: Box<str>,
}

/// What is allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowList<T> {
    /// Whatever is asked for: `*`.
    Any,
    /// This; empty: nothing beyond what needs no leave.
    Only(T),
}

impl CorsPolicy {
    /// Whether requests from an origin, the value of `ObjectOrigin`, are allowed.
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
    /// This one, in lower case: `https://www.example.com:8443`.
    Exact(Box<str>),
    /// `https://*.example.com:8443`: every host with one label or more in place of the `*`.
    Wildcard {
        /// Up to the `*`: `https://`.
        start: Box<str>,
        /// From after the `*` on: `.example.com:8443`.
        end: Box<str>,
    },
}

impl OriginPattern {
    /// Whether it means this origin, which browsers write in lower case.
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

/// Of a host, so that neither a port nor a path slips in.
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

    /// The table of Gateway API's HTTPPathModifier; a translation cuts the `/` at the end of both.
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
        let asked = |port| RequestUrl {
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
            redirect.location(&asked(port), &mut out);
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
