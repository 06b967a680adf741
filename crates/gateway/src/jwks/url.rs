//! URLs of key sets.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// The URL of a key set, in its parts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JwksUrl {
    /// The text as it was written.
    pub text: Arc<str>,
    /// True if the server has to show a certificate.
    pub is_encrypted: bool,
    /// The server.
    pub host: JwksHost,
    /// Its port.
    pub port: u16,
    /// Host and port, as `Host` has them.
    pub authority: Box<str>,
    /// Path and query.
    pub target: Box<str>,
}

/// The server of a key set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum JwksHost {
    /// A name in DNS.
    Name(Arc<str>),
    /// An IP address.
    Address(IpAddr),
}

/// A key set to fetch. Policies with different values for the same URL do not affect each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JwksSubscription {
    /// The URL.
    pub url: JwksUrl,
    /// Interval between two fetches.
    pub refresh_interval: Duration,
    /// Time that a fetched key set stays in use while the URL cannot be fetched.
    pub max_age: Duration,
    /// True if the address of the server is filtered: objects of a cluster name it.
    pub is_filtered: bool,
}

impl JwksSubscription {
    /// True if both fetch the same URL by the same rule.
    pub fn has_url_of(&self, other: &Self) -> bool {
        self.url == other.url && self.is_filtered == other.is_filtered
    }
}

impl JwksUrl {
    /// Parses a URL.
    ///
    /// # Errors
    /// If it is none, or if it has a part that a URL of a key set does not have.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if !text.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"<>\\^`{|}#".contains(&byte)) {
            return Err("must have only characters of a URL, and no fragment");
        }
        let (scheme, rest) = text.split_once("://").ok_or(NO_URL)?;
        let is_encrypted = match scheme {
            "https" => true,
            "http" => false,
            _ => return Err(NO_URL),
        };
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        if authority.contains('@') {
            return Err("must have no user name");
        }
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                let is_number = port.bytes().all(|byte| byte.is_ascii_digit());
                let port = port.parse().ok().filter(|port| is_number && *port != 0);
                (host, port.ok_or("has no valid port")?)
            }
            Some(_) | None => (authority, if is_encrypted { 443 } else { 80 }),
        };
        let host = match host.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
            Some(address) => JwksHost::Address(IpAddr::V6(address.parse().ok().ok_or(NO_HOST)?)),
            None => match host.parse() {
                Ok(address) => JwksHost::Address(IpAddr::V4(address)),
                Err(_) if is_name(host) => {
                    JwksHost::Name(host.trim_end_matches('.').to_ascii_lowercase().into())
                }
                Err(_) => return Err(NO_HOST),
            },
        };
        let slash = if target.starts_with('/') { "" } else { "/" };
        Ok(Self {
            text: text.into(),
            is_encrypted,
            host,
            port,
            authority: authority.into(),
            target: format!("{slash}{target}").into(),
        })
    }
}

const NO_URL: &str = "must be a URL with the scheme https or http";
const NO_HOST: &str = "has no valid host";

/// True if a text is a name in DNS. A last part of digits alone would be read as an address by some resolvers.
fn is_name(host: &str) -> bool {
    let host = host.strip_suffix('.').unwrap_or(host);
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    let last = host.rsplit('.').next().unwrap_or_default();
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit())
        || last.get(..2).is_some_and(|it| it.eq_ignore_ascii_case("0x"));
    host.len() <= 253 && host.split('.').all(is_label) && !is_number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        let name = |name: &str| JwksHost::Name(name.into());
        let address = |text: &str| JwksHost::Address(text.parse().unwrap());
        for (text, host, port, authority, target) in [
            ("https://a.test/keys?x=1", name("a.test"), 443, "a.test", "/keys?x=1"),
            ("http://A.test.:8080", name("a.test"), 8080, "A.test.:8080", "/"),
            ("https://a.test?x", name("a.test"), 443, "a.test", "/?x"),
            ("http://192.0.2.1/", address("192.0.2.1"), 80, "192.0.2.1", "/"),
            ("https://[2001:db8::1]:1/a", address("2001:db8::1"), 1, "[2001:db8::1]:1", "/a"),
            ("https://[2001:db8::1]/a", address("2001:db8::1"), 443, "[2001:db8::1]", "/a"),
        ] {
            let url = JwksUrl::parse(text).unwrap();
            assert_eq!(url.is_encrypted, text.starts_with("https"));
            assert_eq!((url.host, url.port), (host, port), "{text}");
            assert_eq!((&*url.authority, &*url.target), (authority, target), "{text}");
        }
    }

    #[test]
    fn other_urls_are_errors() {
        for text in [
            "",
            "a.test/keys",
            "ftp://a.test/keys",
            "HTTPS://a.test/keys",
            "https://",
            "https:///keys",
            "https://user@a.test/",
            "https://a.test:/",
            "https://a.test:0/",
            "https://a.test:+1/",
            "https://a.test:65536/",
            "https://a.test/#x",
            "https://a.test/\r\nX: y",
            "https://a b/",
            "https://a..test/",
            "https://[::1/",
            "https://[192.0.2.1]/",
            "https://2130706433/",
            "https://127.1/",
            "https://0x7f000001/",
        ] {
            assert!(JwksUrl::parse(text).is_err(), "{text}");
        }
    }
}
