//! The ways of writing a report: pairs of text, JSON, and protobuf (`xds.data.orca.v3.OrcaLoadReport`) in base64.

use std::collections::BTreeSet;

use data_encoding::BASE64_NOPAD;
use serde_json::Value;

use super::{LoadReportError, RawLoadReport};

/// Metrics by a name of their own.
const NAMED: &str = "named_metrics";
/// Other metrics by name, which say nothing here.
const BY_NAME: [&str; 2] = ["request_cost", "utilization"];

/// What its first word says it is.
pub(super) fn parse_tagged(value: &[u8]) -> Result<RawLoadReport, LoadReportError> {
    let (form, rest) = value
        .split_at_checked(value.iter().position(|&byte| byte == b' ').unwrap_or(0))
        .ok_or(LoadReportError::Malformed)?;
    match form {
        b"TEXT" => parse_text(str::from_utf8(rest).map_err(|_error| LoadReportError::Malformed)?),
        b"JSON" => parse_json(rest),
        b"BIN" => parse_binary(rest),
        _ => Err(LoadReportError::Malformed),
    }
}

/// `cpu_utilization=0.3, named_metrics.queue=4`
fn parse_text(text: &str) -> Result<RawLoadReport, LoadReportError> {
    let (mut said, mut seen) = (RawLoadReport::default(), BTreeSet::new());
    for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or(LoadReportError::Malformed)?;
        let (name, value) = (name.trim(), value.trim());
        let value: f64 = value.parse().map_err(|_error| LoadReportError::Malformed)?;
        if !seen.insert(name) {
            return Err(LoadReportError::Malformed);
        }
        match name.split_once('.') {
            Some((NAMED, name)) => said.set(name, true, value),
            Some((kind, _)) if BY_NAME.contains(&kind) => {}
            Some(_) => return Err(LoadReportError::Malformed),
            None => said.set(name, false, value),
        }
    }
    Ok(said)
}

/// As protobuf is written in JSON, with names of either kind.
fn parse_json(text: &[u8]) -> Result<RawLoadReport, LoadReportError> {
    let Ok(Value::Object(fields)) = serde_json::from_slice(text) else {
        return Err(LoadReportError::Malformed);
    };
    let mut said = RawLoadReport::default();
    for (name, value) in &fields {
        let name = snake_case(name);
        match value {
            Value::Object(metrics) if name == NAMED => {
                for (name, value) in metrics {
                    said.set(name, true, value.as_f64().ok_or(LoadReportError::Malformed)?);
                }
            }
            Value::Object(_) if BY_NAME.contains(&name.as_str()) => {}
            // 64-bit numbers and what is no number may be texts.
            Value::String(text) => {
                said.set(&name, false, text.parse().map_err(|_error| LoadReportError::Malformed)?);
            }
            value => said.set(&name, false, value.as_f64().ok_or(LoadReportError::Malformed)?),
        }
    }
    Ok(said)
}

fn snake_case(name: &str) -> String {
    let mut snake = String::with_capacity(name.len() + 4);
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

/// Protobuf in base64, padded or not.
pub(super) fn parse_binary(text: &[u8]) -> Result<RawLoadReport, LoadReportError> {
    let text = text.trim_ascii();
    let letters = text.iter().rposition(|&byte| byte != b'=').map_or(0, |last| last + 1);
    let message =
        BASE64_NOPAD.decode(&text[..letters]).map_err(|_error| LoadReportError::Malformed)?;
    let mut said = RawLoadReport::default();
    let mut message = ProtobufReader(&message);
    while let Some((field, value)) = message.next()? {
        match (field, value) {
            (1, ProtobufValue::Double(value)) => said.set("cpu_utilization", false, value),
            (9, ProtobufValue::Double(value)) => said.set("application_utilization", false, value),
            // Memory, requests per second, errors per second.
            (2 | 6 | 7, ProtobufValue::Double(value)) => said.set("another", false, value),
            (8, ProtobufValue::Bytes(entry)) => parse_named_metric(entry, &mut said)?,
            (1 | 2 | 6..=9, _) => return Err(LoadReportError::Malformed),
            _ => {}
        }
    }
    Ok(said)
}

/// An entry of a map: a text and a number.
fn parse_named_metric(entry: &[u8], said: &mut RawLoadReport) -> Result<(), LoadReportError> {
    let (mut name, mut number) = ("", 0.0);
    let mut entry = ProtobufReader(entry);
    while let Some((field, value)) = entry.next()? {
        match (field, value) {
            (1, ProtobufValue::Bytes(text)) => {
                name = str::from_utf8(text).map_err(|_error| LoadReportError::Malformed)?;
            }
            (2, ProtobufValue::Double(value)) => number = value,
            _ => return Err(LoadReportError::Malformed),
        }
    }
    said.set(name, true, number);
    Ok(())
}

/// What is left of a message of protobuf.
struct ProtobufReader<'m>(&'m [u8]);

enum ProtobufValue<'m> {
    Double(f64),
    Bytes(&'m [u8]),
    Other,
}

impl<'m> ProtobufReader<'m> {
    /// The next field: its number and its value; `None` at the end.
    fn next(&mut self) -> Result<Option<(u64, ProtobufValue<'m>)>, LoadReportError> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => {
                self.varint()?;
                ProtobufValue::Other
            }
            1 => {
                let bytes =
                    self.take(8)?.try_into().map_err(|_error| LoadReportError::Malformed)?;
                ProtobufValue::Double(f64::from_le_bytes(bytes))
            }
            2 => {
                let length =
                    usize::try_from(self.varint()?).map_err(|_error| LoadReportError::Malformed)?;
                ProtobufValue::Bytes(self.take(length)?)
            }
            5 => {
                self.take(4)?;
                ProtobufValue::Other
            }
            _ => return Err(LoadReportError::Malformed),
        };
        Ok(Some((tag >> 3, value)))
    }

    fn take(&mut self, length: usize) -> Result<&'m [u8], LoadReportError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(LoadReportError::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, LoadReportError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            number |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(LoadReportError::Malformed)
    }
}
