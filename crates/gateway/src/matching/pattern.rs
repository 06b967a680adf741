//! Which hosts and paths are meant, parsed once so that what exists is well formed.

use super::condition::{InvalidPattern, RegexPattern};
use super::host::HostName;

/// A Gateway API hostname that a listener or route asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostPattern {
    /// No hostname: every host.
    #[default]
    Any,
    /// `*.example.com`, kept as `example.com`: every host with one label or more before it.
    Wildcard(Box<str>),
    /// Exactly this host.
    Exact(Box<str>),
}

/// What paths a rule asks for.
#[derive(Clone, Debug)]
pub enum PathPattern {
    /// Exactly this path, byte for byte.
    Exact(Box<str>),
    /// This path and all below it, segment by segment: `/a` is `/a`, `/a/` and `/a/b`, not `/ab`.
    Prefix(Box<str>),
    /// Paths that a regular expression matches as a whole.
    Regex(RegexPattern),
}

/// Not a hostname.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be a host name in lower case, or `*.` and one")]
pub struct InvalidHost;

impl HostPattern {
    /// `*.example.com` or `example.com`, in lower case; IP addresses are no hostnames.
    pub fn parse(text: &str) -> Result<Self, InvalidHost> {
        let name = text.strip_prefix("*.").unwrap_or(text);
        if !is_host_name(name) {
            return Err(InvalidHost);
        }
        Ok(if name.len() == text.len() {
            Self::Exact(name.into())
        } else {
            Self::Wildcard(name.into())
        })
    }

    /// The hosts that both ask for; `None`: there are none.
    pub fn intersect(&self, other: &Self) -> Option<Self> {
        if self.covers(other) {
            return Some(other.clone());
        }
        other.covers(self).then(|| self.clone())
    }

    /// Whether a host is meant.
    pub fn matches(&self, host: HostName<'_>) -> bool {
        let host = host.as_bytes();
        match self {
            Self::Any => true,
            Self::Wildcard(name) => {
                host.strip_suffix(name.as_bytes()).is_some_and(|front| front.ends_with(b"."))
            }
            Self::Exact(name) => name.as_bytes() == host,
        }
    }

    /// Greater for a pattern that Gateway API calls more specific: a host, then the hosts below the longest name.
    pub fn specificity(&self) -> impl Ord + Copy + use<> {
        match self {
            Self::Any => (0, 0),
            Self::Wildcard(name) => (1, name.len()),
            Self::Exact(name) => (2, name.len()),
        }
    }

    /// Every host of `other` is one of ours.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (Self::Wildcard(ours), Self::Exact(name)) => is_subdomain(name, ours),
            (Self::Wildcard(ours), Self::Wildcard(name)) => {
                name == ours || is_subdomain(name, ours)
            }
            (Self::Exact(ours), Self::Exact(name)) => name == ours,
            (Self::Wildcard(_) | Self::Exact(_), Self::Any)
            | (Self::Exact(_), Self::Wildcard(_)) => false,
        }
    }
}

/// Not a path that a request can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "must begin with `/`, hold no `//`, no segment `.` or `..` and no `%2f`, and only characters of a \
     path (RFC 3986)"
)]
pub struct InvalidPath;

impl PathPattern {
    /// This path alone.
    pub fn exact(path: &str) -> Result<Self, InvalidPath> {
        if is_path(path) { Ok(Self::Exact(path.into())) } else { Err(InvalidPath) }
    }

    /// This path and all below it; a `/` at its end means nothing.
    pub fn prefix(path: &str) -> Result<Self, InvalidPath> {
        if is_path(path) { Ok(Self::Prefix(path.into())) } else { Err(InvalidPath) }
    }

    /// The paths that a regular expression matches as a whole.
    pub fn regex(text: &str) -> Result<Self, InvalidPattern> {
        RegexPattern::new(text).map(Self::Regex)
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        match self {
            Self::Exact(path) | Self::Prefix(path) => path,
            Self::Regex(pattern) => pattern.text(),
        }
    }

    /// Whether a path is meant.
    pub fn matches(&self, path: &[u8]) -> bool {
        match self {
            Self::Exact(exact) => exact.as_bytes() == path,
            Self::Prefix(prefix) => {
                let rest = path.strip_prefix(prefix.trim_end_matches('/').as_bytes());
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
            }
            Self::Regex(pattern) => pattern.matches(path),
        }
    }

    /// Of regular expressions the longest goes first; other paths of one place are equal.
    pub(super) fn pattern_length(&self) -> usize {
        match self {
            Self::Exact(_) | Self::Prefix(_) => 0,
            Self::Regex(pattern) => pattern.text().len(),
        }
    }

    /// Whole segments with which every path begins that is meant, and all of them for a path that is written out.
    pub(super) fn literal_prefix(&self) -> &[u8] {
        match self {
            Self::Exact(path) => path.as_bytes(),
            Self::Prefix(path) => path.trim_end_matches('/').as_bytes(),
            Self::Regex(pattern) => literal_segments(pattern.text()).as_bytes(),
        }
    }
}

/// The whole segments at the beginning of a regular expression that stand for themselves.
///
/// What follows a plain character may make it optional, so the last one before anything special does not count; an
/// alternative makes all of them optional.
fn literal_segments(pattern: &str) -> &str {
    if pattern.contains('|') {
        return "";
    }
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "/-_~!&',;=:@%".contains(char);
    let plain = pattern.find(|char| !is_plain(char)).map_or(pattern, |end| &pattern[..end]);
    let certain = &plain[..plain.len().saturating_sub(1)];
    // A segment is whole only where the next one begins.
    certain.rfind('/').map_or("", |end| &certain[..end])
}

/// As Gateway API's HTTPPathMatch asks.
fn is_path(path: &str) -> bool {
    let is_segment = |segment: &str| segment != "." && segment != "..";
    path.starts_with('/')
        && !path.contains("//")
        && path.split('/').all(is_segment)
        && !path.to_ascii_lowercase().contains("%2f")
        && is_escaped(path.as_bytes())
}

/// Characters of a path (RFC 3986 §3.3), all others written as `%` and two hexadecimal digits.
fn is_escaped(path: &[u8]) -> bool {
    match path {
        [] => true,
        [b'%', high, low, rest @ ..] => {
            high.is_ascii_hexdigit() && low.is_ascii_hexdigit() && is_escaped(rest)
        }
        [byte, rest @ ..] => {
            (byte.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:@".contains(byte))
                && is_escaped(rest)
        }
    }
}

/// `a.example.com` is below `example.com`.
fn is_subdomain(name: &str, parent: &str) -> bool {
    name.strip_suffix(parent).is_some_and(|front| front.ends_with('.'))
}

/// RFC 1123 in lower case, and no IPv4 address.
fn is_host_name(name: &str) -> bool {
    name.len() <= 253
        && name.split('.').all(is_label)
        && name.parse::<std::net::Ipv4Addr>().is_err()
}

fn is_label(label: &str) -> bool {
    let bytes = label.as_bytes();
    let edge = |byte: Option<&u8>| byte.is_some_and(|byte| *byte != b'-');
    bytes.len() <= 63
        && edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}
