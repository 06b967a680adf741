//! `maxInFlightPerEndpoint`: a number, or `auto` for a learned limit.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error};
use serde::{Serialize, Serializer};
use serde_json::Value;

/// Maximum number of requests in flight at one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxInFlight {
    /// A fixed limit.
    Number(u32),
    /// A learned limit: adaptive concurrency.
    Auto,
}

impl MaxInFlight {
    /// The text form of `Auto`.
    pub const AUTO: &str = "auto";
    const MOST: u32 = 1_000_000;
}

impl<'de> Deserialize<'de> for MaxInFlight {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(from)?;
        if value == Self::AUTO {
            return Ok(Self::Auto);
        }
        let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
        let number = number.filter(|number| (1..=Self::MOST).contains(number));
        number.map(Self::Number).ok_or_else(|| D::Error::custom("must be a number or `auto`"))
    }
}

impl Serialize for MaxInFlight {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => to.serialize_u32(*number),
            Self::Auto => to.serialize_str(Self::AUTO),
        }
    }
}

impl JsonSchema for MaxInFlight {
    fn schema_name() -> Cow<'static, str> {
        "MaxInFlight".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "minimum": 1,
            "maximum": Self::MOST,
            "pattern": "^auto$",
        })
    }
}
