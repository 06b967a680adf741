//! A span, in the terms of OpenTelemetry, and the attributes that describe it.

use std::fmt::{self, Display};
use std::time::SystemTime;

use balance::Rng;

use crate::observe::AttributeSink;

/// Maximum length of a text in an attribute: what a client sends is cut there.
const MAX_TEXT_BYTES: usize = 1024;
/// Longest rest of a character in UTF-8 after its first byte.
const MAX_CHARACTER_REST: usize = 3;
/// Approximate memory of a span without its texts: the span itself, and the names and places of its attributes.
const SPAN_BYTES: usize = 1024;
/// Maximum number of texts in one attribute.
const MAX_TEXTS: usize = 8;

/// The identifier of a trace; not all zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId(pub [u8; 16]);

/// The identifier of a span; not all zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanId(pub [u8; 8]);

/// The role of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// A step within the proxy.
    Internal,
    /// A request of a client.
    Server,
    /// An attempt at an endpoint.
    Client,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum AttributeValue {
    Text(String),
    Texts(Vec<String>),
    Integer(u64),
    Number(f64),
}

/// The error with which a span ended; the description may be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanError(pub &'static str);

/// One step of a request.
#[derive(Clone, Debug)]
pub struct RequestSpan {
    pub trace_id: TraceId,
    pub span_id: SpanId,
    pub parent: Option<SpanId>,
    /// `tracestate` of the client.
    pub trace_state: String,
    pub kind: SpanKind,
    pub name: String,
    pub started: SystemTime,
    pub ended: SystemTime,
    /// Names and values.
    pub attributes: Vec<(&'static str, AttributeValue)>,
    pub error: Option<SpanError>,
}

impl RequestSpan {
    /// Returns the approximate number of bytes that the span takes: its texts, and a constant.
    pub fn memory_bytes(&self) -> usize {
        let texts = self.attributes.iter().map(|(_, value)| value.text_bytes());
        SPAN_BYTES + self.name.len() + self.trace_state.len() + texts.sum::<usize>()
    }
}

impl AttributeValue {
    fn text_bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Texts(texts) => texts.iter().map(String::len).sum(),
            Self::Integer(_) | Self::Number(_) => 0,
        }
    }
}

impl TraceId {
    pub(super) fn random(rng: &mut Rng) -> Self {
        let halves = [non_zero(rng), rng.next_u64()].map(u64::to_be_bytes);
        let mut bytes = [0; 16];
        bytes.copy_from_slice(halves.as_flattened());
        Self(bytes)
    }

    /// Returns the part by which requests are sampled: the seven bytes that are random (W3C Trace Context 2, §2.2.3).
    pub(super) fn random_part(self) -> u64 {
        let [.., a, b, c, d, e, f, g] = self.0;
        u64::from_be_bytes([0, a, b, c, d, e, f, g])
    }
}

impl SpanId {
    pub(super) fn random(rng: &mut Rng) -> Self {
        Self(non_zero(rng).to_be_bytes())
    }
}

fn non_zero(rng: &mut Rng) -> u64 {
    rng.next_u64().max(1)
}

impl Display for TraceId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl Display for SpanId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:016x}", u64::from_be_bytes(self.0))
    }
}

/// Attributes that are collected for a span.
#[derive(Default)]
pub(super) struct SpanAttributes(pub(super) Vec<(&'static str, AttributeValue)>);

impl AttributeSink for SpanAttributes {
    fn plain(&mut self, key: &'static str, text: impl Display) {
        self.0.push((key, AttributeValue::Text(text.to_string())));
    }

    fn text(&mut self, key: &'static str, text: &[u8]) {
        self.0.push((key, AttributeValue::Text(bounded(text))));
    }

    fn texts<'t>(&mut self, key: &'static str, texts: impl Iterator<Item = &'t [u8]>) {
        let texts = texts.take(MAX_TEXTS).map(bounded).collect();
        self.0.push((key, AttributeValue::Texts(texts)));
    }

    fn integer(&mut self, key: &'static str, number: impl Into<u64>) {
        self.0.push((key, AttributeValue::Integer(number.into())));
    }

    fn seconds(&mut self, key: &'static str, seconds: f64) {
        self.0.push((key, AttributeValue::Number(seconds)));
    }
}

/// Returns untrusted text, cut to its maximum length; invalid UTF-8 becomes U+FFFD.
pub(super) fn bounded(text: &[u8]) -> String {
    // The last character that may remain is complete in these bytes.
    let start = &text[..text.len().min(MAX_TEXT_BYTES + MAX_CHARACTER_REST)];
    // U+FFFD has three bytes where there was one: cut after the conversion.
    let text = String::from_utf8_lossy(start);
    text[..text.floor_char_boundary(MAX_TEXT_BYTES)].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_written_in_full_length() {
        let mut trace = [0; 16];
        trace[15] = 0xab;
        assert_eq!(TraceId(trace).to_string(), format!("{}ab", "0".repeat(30)));
        assert_eq!(SpanId([0, 0, 0, 0, 0, 0, 1, 2]).to_string(), "0000000000000102");
    }

    #[test]
    fn texts_of_clients_are_cut() {
        let mut attributes = SpanAttributes::default();
        attributes.text("url.path", &[b'a'; 5000]);
        attributes.texts("ids", std::iter::repeat_n(&b"\xff"[..], 100));
        let [(_, AttributeValue::Text(path)), (_, AttributeValue::Texts(ids))] = &attributes.0[..]
        else {
            panic!("{:?}", attributes.0);
        };
        assert_eq!(path.len(), MAX_TEXT_BYTES);
        assert_eq!((ids.len(), ids[0].as_str()), (MAX_TEXTS, "\u{fffd}"));
    }

    #[test]
    fn texts_are_cut_between_characters_after_invalid_bytes_are_replaced() {
        let invalid = bounded(&[0xff; 5000]);
        assert_eq!(invalid, "\u{fffd}".repeat(MAX_TEXT_BYTES / 3));
        for before in 0..8 {
            let text = format!("{}{}", "a".repeat(before), "\u{1f600}".repeat(600));
            let cut = bounded(text.as_bytes());
            assert!(text.starts_with(&cut), "{before}: {cut}");
            assert!((MAX_TEXT_BYTES - 3..=MAX_TEXT_BYTES).contains(&cut.len()), "{before}");
        }
        assert_eq!(bounded("gr\u{fc}n".as_bytes()), "gr\u{fc}n");
    }
}
