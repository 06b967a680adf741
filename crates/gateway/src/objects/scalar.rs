//! Values with a form of their own: durations, networks, names. A value that exists has that form.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration as StdDuration;

use ipnet::IpNet;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny};
use serde::{Serialize, Serializer};

use crate::matching::HostPattern;

/// The longest duration that a policy takes: a day.
const MAX_DURATION: StdDuration = StdDuration::from_secs(24 * 60 * 60);

/// A length of time as Gateway API writes it (GEP-2257): `5s`, `100ms`, `1h30m`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Duration(pub StdDuration);

/// A CIDR block, or an address that stands for the block of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network(pub IpNet);

/// A hostname of Gateway API: a host, or all hosts below one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hostname(pub HostPattern);

/// A field that Gateway API knows and that we do not serve yet: that it is there is reported, whatever it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unserved;

/// A field that means nothing to us and that may hold anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ignored;

/// What is wrong with a text that has a format; `None`: nothing, or the format is not one of ours.
pub(super) fn fault(format: &str, text: &str) -> Option<String> {
    let message = match format {
        "duration" => return check_duration(text, StdDuration::ZERO).err(),
        "positive-duration" => return check_duration(text, StdDuration::from_millis(1)).err(),
        "hostname" => return HostPattern::parse(text).err().map(|fault| fault.to_string()),
        "network" if parse_network(text).is_none() => {
            "must be an IP address or a CIDR block, as in 10.0.0.0/8"
        }
        "label" if !is_name(text, 63, false) => {
            "must be a name of at most 63 characters: lower case letters, digits and `-`, \
             a letter or digit at both ends (RFC 1123)"
        }
        "name" if !is_name(text, 253, true) => {
            "must be a name of at most 253 characters: lower case letters, digits, `-` and `.`, \
             a letter or digit at both ends (RFC 1123)"
        }
        "timestamp" if !is_timestamp(text) => "must be a time in UTC, as in 2026-01-31T12:00:00Z",
        _ => return None,
    };
    Some(message.to_owned())
}

fn check_duration(text: &str, least: StdDuration) -> Result<(), String> {
    let Some(Duration(duration)) = Duration::parse(text) else {
        return Err("must be a duration such as 5s, 100ms or 1h30m".to_owned());
    };
    if duration < least {
        return Err(format!("must be at least {}", Duration(least)));
    }
    if duration > MAX_DURATION {
        return Err(format!("must be at most {}", Duration(MAX_DURATION)));
    }
    Ok(())
}

impl Duration {
    /// So many milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(StdDuration::from_millis(millis))
    }

    /// So many seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(StdDuration::from_secs(seconds))
    }

    /// One to four pairs of at most five digits and a unit (h, m, s, ms).
    pub fn parse(text: &str) -> Option<Self> {
        let mut rest = text;
        let mut millis = 0;
        for _ in 0..4 {
            let (pair, after) = take_pair(rest)?;
            millis += pair;
            rest = after;
            if rest.is_empty() {
                return Some(Self::from_millis(millis));
            }
        }
        None
    }
}

/// The milliseconds of the first pair, and what follows it.
fn take_pair(text: &str) -> Option<(u64, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = text.split_at(digits);
    if digits > 5 {
        return None;
    }
    // `ms` before `m`, of which it is no sequel.
    let units = [("ms", 1), ("h", 3_600_000), ("m", 60_000), ("s", 1000)];
    let (rest, millis) =
        units.iter().find_map(|(unit, millis)| Some((rest.strip_prefix(unit)?, millis)))?;
    Some((number.parse::<u64>().ok()? * millis, rest))
}

/// The shortest way to write it; what is below a millisecond is left out.
impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        if millis == 0 {
            return f.write_str("0s");
        }
        let parts = [
            (millis / 3_600_000, "h"),
            (millis / 60_000 % 60, "m"),
            (millis / 1000 % 60, "s"),
            (millis % 1000, "ms"),
        ];
        parts
            .iter()
            .filter(|(count, _)| *count > 0)
            .try_for_each(|(n, unit)| write!(f, "{n}{unit}"))
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| D::Error::custom("not a duration"))
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for Duration {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    /// Most durations are timeouts, and a timeout of nothing would fail everything.
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "positive-duration" })
    }
}

fn parse_network(text: &str) -> Option<IpNet> {
    let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
    text.parse().ok().or_else(address)
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        parse_network(&text).map(Self).ok_or_else(|| D::Error::custom("not a network"))
    }
}

impl Serialize for Network {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl JsonSchema for Network {
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

impl JsonSchema for Hostname {
    fn schema_name() -> Cow<'static, str> {
        "Hostname".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "hostname" })
    }
}

impl<'de> Deserialize<'de> for Unserved {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|IgnoredAny| Self)
    }
}

impl JsonSchema for Unserved {
    fn schema_name() -> Cow<'static, str> {
        "Unserved".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({})
    }
}

impl<'de> Deserialize<'de> for Ignored {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|IgnoredAny| Self)
    }
}

impl JsonSchema for Ignored {
    fn schema_name() -> Cow<'static, str> {
        "Ignored".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({})
    }
}

/// RFC 1123 as Kubernetes checks it: labels, joined by dots where `dots` are allowed.
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

/// `2026-01-31T12:00:00Z`, as an API server writes it.
fn is_timestamp(text: &str) -> bool {
    text.len() == 20
        && text.bytes().zip(b"0000-00-00T00:00:00Z").all(|(byte, shape)| match shape {
            b'0' => byte.is_ascii_digit(),
            _ => byte == *shape,
        })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_read_as_gep_2257_says() {
        let cases = [
            ("5s", Some(5_000)),
            ("100ms", Some(100)),
            ("1h30m", Some(5_400_000)),
            ("30m1h", Some(5_400_000)),
            ("0s", Some(0)),
            ("99999h", Some(359_996_400_000)),
            ("1h1m1s1ms", Some(3_661_001)),
            ("1h1m1s1ms1s", None),
            ("100000s", None),
            ("", None),
            ("5", None),
            ("s", None),
            ("1.5s", None),
            ("-5s", None),
            ("5 s", None),
            ("1d", None),
        ];
        for (text, millis) in cases {
            assert_eq!(Duration::parse(text), millis.map(Duration::from_millis), "{text}");
        }
    }

    #[test]
    fn formats_say_what_is_wrong() {
        let cases = [
            ("positive-duration", "0s", "at least 1ms"),
            ("positive-duration", "25h", "at most 24h"),
            ("duration", "0s", ""),
            ("network", "10.0.0.0/8", ""),
            ("network", "::1", ""),
            ("network", "10.0.0.0/33", "CIDR"),
            ("label", "a.b", "63 characters"),
            ("name", "a.b", ""),
            ("name", "a..b", "253 characters"),
            ("name", "A", "lower case"),
            ("name", "-a", "both ends"),
            ("hostname", "*.example.com", ""),
            ("hostname", "10.0.0.1", "host name"),
            ("hostname", "*", "host name"),
            ("timestamp", "2026-01-31T12:00:00Z", ""),
            ("timestamp", "2026-01-31T12:00:00+01:00", "UTC"),
        ];
        for (format, text, expected) in cases {
            let message = fault(format, text).unwrap_or_default();
            assert!(message.contains(expected), "{format} {text}: {message}");
            assert_eq!(message.is_empty(), expected.is_empty(), "{format} {text}: {message}");
        }
    }

    proptest! {
        #[test]
        fn a_duration_that_was_written_is_read_again(millis in 0..=86_400_000_u64) {
            let duration = Duration::from_millis(millis);
            prop_assert_eq!(Duration::parse(&duration.to_string()), Some(duration));
        }
    }
}
