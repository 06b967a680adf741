//! A writer of one JSON object on one line: no tree of values, no allocation but the line itself.
//!
//! It knows JSON only, not the keys and their meaning.

use std::fmt::Display;
use std::io::Write;

use crate::observe::AttributeSink;

/// A line that is being written; each value is appended at once.
pub(crate) struct JsonLine<'o> {
    out: &'o mut Vec<u8>,
    /// The byte that precedes the next key.
    before: u8,
}

impl<'o> JsonLine<'o> {
    pub(crate) fn begin(out: &'o mut Vec<u8>) -> Self {
        Self { out, before: b'{' }
    }

    pub(crate) fn end(self) {
        self.out.extend_from_slice(if self.before == b'{' { b"{}\n" } else { b"}\n" });
    }

    fn number(&mut self, key: &str, number: impl Display) {
        self.key(key);
        self.display(number);
    }

    fn key(&mut self, key: &str) {
        self.out.push(self.before);
        self.before = b',';
        self.out.push(b'"');
        self.out.extend_from_slice(key.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    fn display(&mut self, value: impl Display) {
        write!(self.out, "{value}").expect("a write to a Vec cannot fail");
    }

    fn quote(&mut self, text: &[u8]) {
        self.out.push(b'"');
        for chunk in text.utf8_chunks() {
            chunk.valid().bytes().for_each(|byte| self.escape(byte));
            if !chunk.invalid().is_empty() {
                self.out.extend_from_slice("\u{fffd}".as_bytes());
            }
        }
        self.out.push(b'"');
    }

    /// Escapes a byte (RFC 8259 §7); the bytes of multi-byte characters are copied.
    fn escape(&mut self, byte: u8) {
        match byte {
            b'"' => self.out.extend_from_slice(b"\\\""),
            b'\\' => self.out.extend_from_slice(b"\\\\"),
            0..b' ' => write!(self.out, "\\u{byte:04x}").expect("a write to a Vec cannot fail"),
            _ => self.out.push(byte),
        }
    }
}

impl AttributeSink for JsonLine<'_> {
    fn plain(&mut self, key: &'static str, text: impl Display) {
        self.key(key);
        self.out.push(b'"');
        self.display(text);
        self.out.push(b'"');
    }

    fn text(&mut self, key: &'static str, text: &[u8]) {
        self.key(key);
        self.quote(text);
    }

    fn texts<'t>(&mut self, key: &'static str, texts: impl Iterator<Item = &'t [u8]>) {
        self.key(key);
        self.out.push(b'[');
        for (place, text) in texts.enumerate() {
            if place > 0 {
                self.out.push(b',');
            }
            self.quote(text);
        }
        self.out.push(b']');
    }

    fn integer(&mut self, key: &'static str, number: impl Into<u64>) {
        self.number(key, number.into());
    }

    fn seconds(&mut self, key: &'static str, seconds: f64) {
        self.number(key, seconds);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn written(fill: impl FnOnce(&mut JsonLine<'_>)) -> String {
        let mut out = Vec::new();
        let mut line = JsonLine::begin(&mut out);
        fill(&mut line);
        line.end();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn access_log_line_is_valid_json() {
        let line = written(|line| {
            line.plain("address", std::net::Ipv4Addr::LOCALHOST);
            line.text("path", b"/\"\\\x01\x7f\xc3\xa4");
            line.texts("ids", [&b"a"[..], b"\"b"].into_iter());
            line.seconds("seconds", 0.000_001);
            line.integer("bytes", u64::MAX);
        });
        assert!(line.ends_with("}\n"), "{line}");
        let expected = json!({
            "address": "127.0.0.1",
            "path": "/\"\\\u{1}\u{7f}ä",
            "ids": ["a", "\"b"],
            "seconds": 0.000_001,
            "bytes": u64::MAX,
        });
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), expected);
    }

    #[test]
    fn invalid_utf8_is_replaced() {
        let any: Vec<u8> = (0..=255).collect();
        let line = written(|line| line.text("any", &any));
        let read: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["any"], String::from_utf8_lossy(&any).as_ref());
        assert_eq!(written(|_| {}), "{}\n");
    }
}
