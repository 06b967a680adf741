//! Host and path patterns. They are parsed once, so that every existing value is well formed.

use std::fmt;

use super::condition::{InvalidPattern, RegexPattern};
use super::host::HostName;

/// A Gateway API hostname of a listener or route.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostPattern {
    /// No hostname: matches every host.
    #[default]
    Any,
    /// `*.example.com`, stored as `example.com`: matches every host with one or more labels before it.
    Wildcard(Box<str>),
    /// Matches exactly this host.
    Exact(Box<str>),
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Wildcard(name) => write!(f, "*.{name}"),
            Self::Exact(name) => f.write_str(name),
        }
    }
}

/// A path match of a rule.
#[derive(Clone, Debug)]
pub enum PathPattern {
    /// Matches exactly this path, byte for byte.
    Exact(Box<str>),
    /// Matches this path and all paths below it, segment by segment: `/a` matches `/a`, `/a/` and `/a/b`, not `/ab`.
    Prefix(Box<str>),
    /// Matches paths that the regular expression matches as a whole.
    Regex(RegexPattern),
}

/// Error: the text is not a hostname.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be a hostname in lower case, optionally with the prefix `*.`")]
pub struct InvalidHost;

impl HostPattern {
    /// Parses `*.example.com` or `example.com`, in lower case; IP addresses are not hostnames.
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

    /// Returns the hosts that both patterns match; `None` if there are none.
    pub fn intersect(&self, other: &Self) -> Option<Self> {
        if self.covers(other) {
            return Some(other.clone());
        }
        other.covers(self).then(|| self.clone())
    }

    /// True if the pattern matches a host.
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

    /// Returns the specificity of the pattern; greater is more specific by Gateway API's order: an exact host first,
    /// then the wildcard with the longest name.
    pub fn specificity(&self) -> impl Ord + Copy + use<> {
        match self {
            Self::Any => (0, 0),
            Self::Wildcard(name) => (1, name.len()),
            Self::Exact(name) => (2, name.len()),
        }
    }

    /// Returns the wildcards that match every host of this pattern, other than itself.
    pub(crate) fn covering_wildcards(&self) -> impl Iterator<Item = Self> + use<'_> {
        let name = match self {
            Self::Any => "",
            Self::Wildcard(name) | Self::Exact(name) => name,
        };
        name.match_indices('.').map(|(dot, _)| Self::Wildcard(name[dot + 1..].into()))
    }

    /// True if the pattern matches every host that `other` matches.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, _) => true,
            (Self::Wildcard(own), Self::Exact(name)) => is_subdomain(name, own),
            (Self::Wildcard(own), Self::Wildcard(name)) => name == own || is_subdomain(name, own),
            (Self::Exact(own), Self::Exact(name)) => name == own,
            (Self::Wildcard(_) | Self::Exact(_), Self::Any)
            | (Self::Exact(_), Self::Wildcard(_)) => false,
        }
    }
}

/// Error: the text is not a path that a request can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "must begin with `/`, hold no `//`, no segment `.` or `..` and no `%2f`, and only characters of a \
     path (RFC 3986)"
)]
pub struct InvalidPath;

impl PathPattern {
    /// Matches this path alone. Escapes of unreserved characters are decoded, as those of requests are: both spellings
    /// are equivalent (RFC 3986 §6.2.2.2).
    pub fn exact(path: &str) -> Result<Self, InvalidPath> {
        Ok(Self::Exact(decoded_path(path)?))
    }

    /// Matches this path and all paths below it; a `/` at its end has no meaning. Escapes of unreserved characters are
    /// decoded.
    pub fn prefix(path: &str) -> Result<Self, InvalidPath> {
        Ok(Self::Prefix(decoded_path(path)?))
    }

    /// Matches the paths that a regular expression matches as a whole.
    pub fn regex(text: &str) -> Result<Self, InvalidPattern> {
        RegexPattern::new(text).map(Self::Regex)
    }

    /// Returns the pattern as it is matched.
    pub fn text(&self) -> &str {
        match self {
            Self::Exact(path) | Self::Prefix(path) => path,
            Self::Regex(pattern) => pattern.text(),
        }
    }

    /// True if the pattern matches a path.
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

    /// Returns the length of a regular expression: the longest has precedence. Other patterns at one path are equal.
    pub(super) fn pattern_length(&self) -> usize {
        match self {
            Self::Exact(_) | Self::Prefix(_) => 0,
            Self::Regex(pattern) => pattern.text().len(),
        }
    }

    /// Returns the whole segments with which every matching path begins; for an exact path or a prefix, all of them.
    pub(super) fn literal_prefix(&self) -> &[u8] {
        match self {
            Self::Exact(path) => path.as_bytes(),
            Self::Prefix(path) => path.trim_end_matches('/').as_bytes(),
            Self::Regex(pattern) => literal_segments(pattern.text()).as_bytes(),
        }
    }
}

/// Returns the whole segments at the beginning of a regular expression that match literally.
///
/// A quantifier after a literal character may make it optional, so the last character before any special one does not
/// count. An alternative makes all of them optional.
fn literal_segments(pattern: &str) -> &str {
    if pattern.contains('|') {
        return "";
    }
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "/-_~!&',;=:@%".contains(char);
    let plain = pattern.find(|char| !is_plain(char)).map_or(pattern, |end| &pattern[..end]);
    let certain = &plain[..plain.len().saturating_sub(1)];
    // A segment is complete only if another one follows.
    certain.rfind('/').map_or("", |end| &certain[..end])
}

/// Decodes the escapes of unreserved characters (RFC 3986 §2.3), and checks the result.
fn decoded_path(path: &str) -> Result<Box<str>, InvalidPath> {
    let mut decoded = String::with_capacity(path.len());
    let mut parts = path.split('%');
    decoded.extend(parts.next());
    for part in parts {
        let digits = part.get(..2).filter(|it| it.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let value =
            u8::from_str_radix(digits.ok_or(InvalidPath)?, 16).map_err(|_error| InvalidPath)?;
        if value.is_ascii_alphanumeric() || b"-._~".contains(&value) {
            decoded.push(char::from(value));
            decoded.push_str(&part[2..]);
        } else {
            decoded.push('%');
            decoded.push_str(part);
        }
    }
    if is_path(&decoded) { Ok(decoded.into()) } else { Err(InvalidPath) }
}

/// True if Gateway API's HTTPPathMatch allows the path.
fn is_path(path: &str) -> bool {
    let is_segment = |segment: &str| segment != "." && segment != "..";
    path.starts_with('/')
        && !path.contains("//")
        && path.split('/').all(is_segment)
        && !path.to_ascii_lowercase().contains("%2f")
        && is_escaped(path.as_bytes())
}

/// True if all characters are those of a path (RFC 3986 §3.3), and all others are written as `%` and two hexadecimal
/// digits.
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

/// True if `name` is a subdomain of `parent`, as `a.example.com` is of `example.com`.
fn is_subdomain(name: &str, parent: &str) -> bool {
    name.strip_suffix(parent).is_some_and(|front| front.ends_with('.'))
}

/// True if the name is valid by RFC 1123, in lower case, and not an IPv4 address.
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
