//! `maxInFlightPerEndpoint`: a number, or a word that asks for what can be learned.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error};
use serde::{Serialize, Serializer};
use serde_json::Value;

/// Requests in flight at one endpoint, at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxInFlight {
    /// So many.
    Number(u32),
    /// As many as the endpoint is found to bear.
    Auto,
}

impl MaxInFlight {
    /// What stands for `Auto`.
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
