//! Durations in the format of Gateway API.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration as StdDuration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error};
use serde::{Serialize, Serializer};

/// The maximum in a policy: one day.
const MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// A duration in the format of Gateway API (GEP-2257): `5s`, `100ms`, `1h30m`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Duration(pub StdDuration);

impl Duration {
    /// Zero.
    pub const ZERO: Self = Self(StdDuration::ZERO);

    /// Returns a duration in milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(StdDuration::from_millis(millis))
    }

    /// Returns a duration in seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self(StdDuration::from_secs(seconds))
    }

    /// Parses one to four pairs of at most five digits and a unit (h, m, s, ms).
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

    /// Checks a text that must be a duration of at least `least`, and returns the reason if it is not.
    pub(super) fn check(text: &str, least: Self) -> Result<(), String> {
        let Some(duration) = Self::parse(text) else {
            return Err("must be a duration such as 5s, 100ms or 1h30m".to_owned());
        };
        if duration < least {
            return Err(format!("must be at least {least}"));
        }
        if duration > MAX {
            return Err(format!("must be at most {MAX}"));
        }
        Ok(())
    }
}

/// Returns the milliseconds of the first pair, and the rest of the text.
fn take_pair(text: &str) -> Option<(u64, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = text.split_at(digits);
    if digits > 5 {
        return None;
    }
    // `ms` comes before `m`, because `m` is a prefix of it.
    let units = [("ms", 1), ("h", 3_600_000), ("m", 60_000), ("s", 1000)];
    let (rest, millis) =
        units.iter().find_map(|(unit, millis)| Some((rest.strip_prefix(unit)?, millis)))?;
    Some((number.parse::<u64>().ok()? * millis, rest))
}

/// Writes the shortest form; fractions of a millisecond are dropped.
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

    /// A format with a positive minimum: most durations are timeouts, and a timeout of zero would fail every request.
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "positive-duration" })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_are_parsed_per_gep_2257() {
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

    proptest! {
        #[test]
        fn duration_round_trips_through_text(millis in 0..=86_400_000_u64) {
            let duration = Duration::from_millis(millis);
            prop_assert_eq!(Duration::parse(&duration.to_string()), Some(duration));
        }
    }
}
