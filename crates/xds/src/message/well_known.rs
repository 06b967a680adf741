//! `google.protobuf` and `google.rpc`.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use prost::Message;

/// `Any`: a message with the name of its type.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AnyMessage {
    #[prost(string, tag = "1")]
    pub(crate) type_url: String,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) value: Bytes,
}

impl AnyMessage {
    /// Encodes a message. `name` is that of its type, with its package.
    pub(crate) fn of(name: &str, message: &impl Message) -> Self {
        let type_url = format!("type.googleapis.com/{name}");
        Self { type_url, value: message.encode_to_vec().into() }
    }
}

/// `UInt32Value`: a number that may be absent.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct UInt32Value {
    #[prost(uint32, tag = "1")]
    pub(crate) value: u32,
}

impl From<u32> for UInt32Value {
    fn from(value: u32) -> Self {
        Self { value }
    }
}

/// `BoolValue`: a truth value that may be absent.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct BoolValue {
    #[prost(bool, tag = "1")]
    pub(crate) value: bool,
}

/// `UInt64Value`: a number that may be absent.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct UInt64Value {
    #[prost(uint64, tag = "1")]
    pub(crate) value: u64,
}

/// `Duration`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct TimeSpan {
    #[prost(int64, tag = "1")]
    pub(crate) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(crate) nanos: i32,
}

impl From<Duration> for TimeSpan {
    /// Converts a time; one of more than 10,000 years is 10,000 years, the maximum of the type.
    fn from(time: Duration) -> Self {
        const MAX_SECONDS: i64 = 315_576_000_000;
        let seconds = i64::try_from(time.as_secs()).unwrap_or(MAX_SECONDS).min(MAX_SECONDS);
        let nanos = i32::try_from(time.subsec_nanos()).expect("less than a second");
        Self { seconds, nanos }
    }
}

/// `Struct`, as far as it has texts.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TextFields {
    #[prost(map = "string, message", tag = "1")]
    pub(crate) fields: HashMap<String, TextValue>,
}

/// `Value`, if it is a text.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TextValue {
    #[prost(string, tag = "3")]
    pub(crate) string_value: String,
}

/// A message without fields.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct EmptyMessage {}
