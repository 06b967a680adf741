//! Values with a format of their own: networks, hostnames, names. A value that exists is valid.

use std::borrow::Cow;
use std::net::IpAddr;

use ipnet::IpNet;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny};
use serde::{Serialize, Serializer};

use super::duration::Duration;
use super::secret::decode_base64;
use super::traffic_policy::StatusRange;
use crate::matching::HostPattern;

/// A CIDR block, or an address that stands for a block of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CidrBlock(pub IpNet);

/// A hostname of Gateway API: one host, or all hosts below a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hostname(pub HostPattern);

/// A community of a BGP route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteCommunity {
    /// RFC 1997: an AS and a number.
    Standard(u16, u16),
    /// RFC 8092: an AS and two numbers.
    Large(u32, u32, u32),
}

/// The name of a header field, or another token of HTTP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, serde::Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("format" = "field-name"))]
pub struct FieldName(pub String);

/// An origin in the sense of browsers: scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("format" = "origin"))]
pub struct CorsOrigin(pub String);

/// A field of Gateway API that is not supported yet. Its presence is reported, whatever its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsupportedField;

/// A port of pods. `None` if it is a name, which the cluster resolves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetPort(pub Option<u16>);

/// A field that Sheave ignores. It may have any value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IgnoredField;

/// Returns the error of a text that must have a format, or `None` if the text is valid or the format is unknown.
pub(super) fn fault(format: &str, text: &str) -> Option<String> {
    let message = match format {
        "duration" => return Duration::check(text, Duration::ZERO).err(),
        "positive-duration" => return Duration::check(text, Duration::from_millis(1)).err(),
        "target" if !is_target(text) => {
            "must begin with `/` and hold only characters of a path and a query (RFC 3986)"
        }
        "host" => return host_fault(text),
        "origin" => return origin_fault(text),
        "hostname" => return HostPattern::parse(text).err().map(|fault| fault.to_string()),
        "network" if parse_network(text).is_none() => {
            "must be an IP address or a CIDR block, as in 10.0.0.0/8"
        }
        "ip" if text.parse::<IpAddr>().is_err() => "must be an IP address",
        "community" if RouteCommunity::parse(text).is_none() => {
            "must be a community of BGP, as 65000:100 (RFC 1997) or 4200000000:1:2 (RFC 8092)"
        }
        "label" if !is_name(text, 63, false) => {
            "must be a name of at most 63 characters: lower case letters, digits and `-`, \
             a letter or digit at both ends (RFC 1123)"
        }
        "name" if !is_name(text, 253, true) => {
            "must be a name of at most 253 characters: lower case letters, digits, `-` and `.`, \
             a letter or digit at both ends (RFC 1123)"
        }
        "field-name" if !is_field_name(text) => {
            "must be a name of 1 to 256 letters, digits and !#$%&'*+-.^_`|~ (RFC 9110)"
        }
        "field-value" if !is_field_value(text) => {
            "must hold visible characters, and spaces and tabs between them (RFC 9110)"
        }
        "any-duration" if Duration::parse(text).is_none() => {
            "must be a duration such as 5s, 100ms or 1h30m"
        }
        "cookie-path" if !is_cookie_path(text) => {
            "must begin with `/` and hold only visible characters of ASCII other than `;`"
        }
        "status-range" if StatusRange::parse(text).is_none() => {
            "must be a status from 400 to 599, or a range of them, as in \"500-599\""
        }
        "media-range" if !is_media_range(text) => {
            "must be a media type without parameters, as in text/html, or text/* for all of a type"
        }
        "base64" if decode_base64(text).is_none() => "must be base64 (RFC 4648)",
        "absolute-uri" if !is_absolute_uri(text) => {
            "must be a URI with its scheme, as in spiffe://cluster.local/ns/shop/sa/cart (RFC 3986)"
        }
        "timestamp" if !is_timestamp(text) => "must be a time in UTC, as in 2026-01-31T12:00:00Z",
        _ => return None,
    };
    Some(message.to_owned())
}

/// True if a text is the value of the attribute `Path` of a cookie (RFC 6265 §4.1.1), from the root on.
pub(crate) fn is_cookie_path(text: &str) -> bool {
    text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b';')
}

impl FieldName {
    /// Parses a name.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        fault("field-name", text).map_or_else(|| Ok(Self(text.to_owned())), Err)
    }
}

impl CorsOrigin {
    /// Parses an origin in lower case.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        fault("origin", text).map_or_else(|| Ok(Self(text.to_owned())), Err)
    }
}

impl RouteCommunity {
    /// Parses the notation with colons.
    pub fn parse(text: &str) -> Option<Self> {
        let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        let parts: Vec<_> = text.split(':').collect();
        if !parts.iter().all(|part| is_number(part)) {
            return None;
        }
        match parts[..] {
            [asn, number] => Some(Self::Standard(asn.parse().ok()?, number.parse().ok()?)),
            [asn, first, second] => {
                Some(Self::Large(asn.parse().ok()?, first.parse().ok()?, second.parse().ok()?))
            }
            _ => None,
        }
    }
}

impl<'de> Deserialize<'de> for RouteCommunity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        Self::parse(&text)
            .ok_or_else(|| D::Error::custom(fault("community", &text).unwrap_or_default()))
    }
}

impl Serialize for RouteCommunity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Standard(asn, number) => serializer.collect_str(&format_args!("{asn}:{number}")),
            Self::Large(asn, first, second) => {
                serializer.collect_str(&format_args!("{asn}:{first}:{second}"))
            }
        }
    }
}

impl JsonSchema for RouteCommunity {
    fn schema_name() -> Cow<'static, str> {
        "RouteCommunity".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "format": "community",
            "description": "A community of a BGP route.",
        })
    }
}

/// Checks a host name. A trailing dot makes no difference.
fn host_fault(text: &str) -> Option<String> {
    let name = text.strip_suffix('.').unwrap_or(text);
    let is_one = !name.starts_with('*') && HostPattern::parse(name).is_ok();
    (!is_one).then(|| "must be a host name in lower case".to_owned())
}

/// Checks an origin: `https://www.example.com:8443`, optionally with `*.` before the host, or `*`.
fn origin_fault(text: &str) -> Option<String> {
    let is_origin = |text: &str| {
        let (scheme, rest) = text.split_once("://")?;
        let (host, port) = rest.split_once(':').unwrap_or((rest, "1"));
        let is_host = HostPattern::parse(host).is_ok() || host.parse::<IpAddr>().is_ok();
        (["http", "https"].contains(&scheme) && is_host && port.parse::<u16>().is_ok())
            .then_some(())
    };
    (text != "*" && is_origin(text).is_none()).then(|| {
        "must be an origin such as https://www.example.com or https://*.example.com:8443, or `*`"
            .to_owned()
    })
}

/// True for a path with an optional query.
fn is_target(text: &str) -> bool {
    let is_inner =
        |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:@?".contains(&byte);
    text.starts_with('/') && text.bytes().all(is_inner)
}

/// True for a scheme, a colon, and a non-empty rest.
fn is_absolute_uri(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    text.split_once(':').is_some_and(|(scheme, rest)| {
        scheme.starts_with(|char: char| char.is_ascii_alphabetic())
            && scheme.bytes().all(is_inner)
            && !rest.is_empty()
            && rest.bytes().all(|byte| byte.is_ascii_graphic())
    })
}

/// True for a token (RFC 9110 §5.6.2).
fn is_field_name(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    (1..=256).contains(&text.len()) && text.bytes().all(is_inner)
}

/// True for a type and a subtype, or `*` in place of the latter (RFC 9110 §8.3.1).
fn is_media_range(text: &str) -> bool {
    let is_part = |part: &str| is_field_name(part) && !part.contains('*');
    text.split_once('/').is_some_and(|(of, sub)| is_part(of) && (sub == "*" || is_part(sub)))
}

/// True for a field value of RFC 9110 §5.5, without obsolete forms.
fn is_field_value(text: &str) -> bool {
    let is_inner = |char: char| char == '\t' || (' '..='~').contains(&char);
    text.chars().all(is_inner) && text.trim_matches([' ', '\t']) == text
}

fn parse_network(text: &str) -> Option<IpNet> {
    let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
    text.parse().ok().or_else(address)
}

impl CidrBlock {
    /// Parses a CIDR block, or an address.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        parse_network(text).map(Self)
    }
}

impl<'de> Deserialize<'de> for CidrBlock {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        parse_network(&text).map(Self).ok_or_else(|| D::Error::custom("not a network"))
    }
}

impl Serialize for CidrBlock {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl JsonSchema for CidrBlock {
    fn schema_name() -> Cow<'static, str> {
        "Network".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "network" })
    }
}

impl<'de> Deserialize<'de> for Hostname {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        HostPattern::parse(&text).map(Self).map_err(D::Error::custom)
    }
}

impl Serialize for Hostname {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl JsonSchema for Hostname {
    fn schema_name() -> Cow<'static, str> {
        "Hostname".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "hostname" })
    }
}

impl<'de> Deserialize<'de> for UnsupportedField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|IgnoredAny| Self)
    }
}

// An object that uses such a field is reported; the value is not known any more.
impl Serialize for UnsupportedField {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

impl JsonSchema for UnsupportedField {
    fn schema_name() -> Cow<'static, str> {
        "Unserved".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({})
    }
}

impl<'de> Deserialize<'de> for TargetPort {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        Ok(Self(value.as_u64().and_then(|number| u16::try_from(number).ok())))
    }
}

impl JsonSchema for TargetPort {
    fn schema_name() -> Cow<'static, str> {
        "TargetPort".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({})
    }
}

impl<'de> Deserialize<'de> for IgnoredField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|IgnoredAny| Self)
    }
}

impl Serialize for IgnoredField {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

impl JsonSchema for IgnoredField {
    fn schema_name() -> Cow<'static, str> {
        "Ignored".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({})
    }
}

/// True for a name of RFC 1123 as Kubernetes checks it: labels, joined by dots if `dots` are allowed.
fn is_name(text: &str, longest: usize, dots: bool) -> bool {
    let is_inner = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    let is_label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(is_inner)
    };
    text.len() <= longest && (dots || !text.contains('.')) && text.split('.').all(is_label)
}

/// True for a time such as `2026-01-31T12:00:00Z`, the form that an API server writes.
fn is_timestamp(text: &str) -> bool {
    text.len() == 20
        && text.bytes().zip(b"0000-00-00T00:00:00Z").all(|(byte, shape)| match shape {
            b'0' => byte.is_ascii_digit(),
            _ => byte == *shape,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_errors_name_the_violated_rule() {
        let cases = [
            ("positive-duration", "0s", "at least 1ms"),
            ("positive-duration", "25h", "at most 24h"),
            ("duration", "0s", ""),
            ("network", "10.0.0.0/8", ""),
            ("network", "::1", ""),
            ("network", "10.0.0.0/33", "CIDR"),
            ("ip", "::1", ""),
            ("ip", "10.0.0.1/32", "IP address"),
            ("community", "65000:100", ""),
            ("community", "65536:100", "RFC 1997"),
            ("community", "4200000000:1:2", ""),
            ("community", "no-export", "RFC 1997"),
            ("community", "1:+2", "RFC 1997"),
            ("label", "a.b", "63 characters"),
            ("name", "a.b", ""),
            ("name", "a..b", "253 characters"),
            ("name", "A", "lower case"),
            ("name", "-a", "both ends"),
            ("hostname", "*.example.com", ""),
            ("hostname", "10.0.0.1", "hostname"),
            ("hostname", "*", "hostname"),
            ("host", "a.example.com.", ""),
            ("host", "*.example.com", "host name"),
            ("host", "10.0.0.1", "host name"),
            ("origin", "*", ""),
            ("origin", "https://*.example.com:8443", ""),
            ("origin", "https://www.example.com/", "origin"),
            ("origin", "www.example.com", "origin"),
            ("media-range", "image/svg+xml", ""),
            ("media-range", "text/*", ""),
            ("media-range", "*/*", "media type"),
            ("media-range", "text", "media type"),
            ("media-range", "text/html; charset=utf-8", "media type"),
            ("base64", "aHVudGVyMg==", ""),
            ("base64", "hunter2", "base64"),
            ("status-range", "404", ""),
            ("status-range", "500-599", ""),
            ("status-range", "500-499", "400 to 599"),
            ("status-range", "399", "400 to 599"),
            ("status-range", "4xx", "400 to 599"),
            ("status-range", "+404", "400 to 599"),
            ("absolute-uri", "spiffe://a/b", ""),
            ("absolute-uri", "a/b", "scheme"),
            ("field-name", "X-User", ""),
            ("field-name", "X User", "1 to 256"),
            ("field-value", "a b", ""),
            ("field-value", "a\r\nb", "visible"),
            ("field-value", " a", "visible"),
            ("timestamp", "2026-01-31T12:00:00Z", ""),
            ("timestamp", "2026-01-31T12:00:00+01:00", "UTC"),
        ];
        for (format, text, expected) in cases {
            let message = fault(format, text).unwrap_or_default();
            assert!(message.contains(expected), "{format} {text}: {message}");
            assert_eq!(message.is_empty(), expected.is_empty(), "{format} {text}: {message}");
        }
    }
}
