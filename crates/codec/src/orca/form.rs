//! Formats of a report: text pairs, JSON, and protobuf (`xds.data.orca.v3.OrcaLoadReport`) in Base64.

use std::collections::BTreeSet;

use data_encoding::BASE64_NOPAD;
use serde_json::Value;

use super::{LoadReportError, RawLoadReport};

/// Map of the metrics that are named by the endpoint.
const NAMED: &str = "named_metrics";
/// Other maps of metrics, which are ignored.
const BY_NAME: [&str; 2] = ["request_cost", "utilization"];

/// Parses a report whose first word names its format.
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

/// Parses pairs such as `cpu_utilization=0.3, named_metrics.queue=4`.
fn parse_text(text: &str) -> Result<RawLoadReport, LoadReportError> {
    let (mut report, mut seen) = (RawLoadReport::default(), BTreeSet::new());
    for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or(LoadReportError::Malformed)?;
        let (name, value) = (name.trim(), value.trim());
        let value: f64 = value.parse().map_err(|_error| LoadReportError::Malformed)?;
        if !seen.insert(name) {
            return Err(LoadReportError::Malformed);
        }
        match name.split_once('.') {
            Some((NAMED, name)) => report.set(name, true, value),
            Some((kind, _)) if BY_NAME.contains(&kind) => {}
            Some(_) => return Err(LoadReportError::Malformed),
            None => report.set(name, false, value),
        }
    }
    Ok(report)
}

/// Parses the JSON form of protobuf, with names in snake case or camel case.
fn parse_json(text: &[u8]) -> Result<RawLoadReport, LoadReportError> {
    let Ok(Value::Object(fields)) = serde_json::from_slice(text) else {
        return Err(LoadReportError::Malformed);
    };
    let mut report = RawLoadReport::default();
    for (name, value) in &fields {
        let name = snake_case(name);
        match value {
            Value::Object(metrics) if name == NAMED => {
                for (name, value) in metrics {
                    report.set(name, true, value.as_f64().ok_or(LoadReportError::Malformed)?);
                }
            }
            Value::Object(_) if BY_NAME.contains(&name.as_str()) => {}
            // 64-bit integers and non-finite numbers may be strings.
            Value::String(text) => {
                report.set(
                    &name,
                    false,
                    text.parse().map_err(|_error| LoadReportError::Malformed)?,
                );
            }
            value => report.set(&name, false, value.as_f64().ok_or(LoadReportError::Malformed)?),
        }
    }
    Ok(report)
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

/// Parses protobuf in Base64, padded or not.
pub(super) fn parse_binary(text: &[u8]) -> Result<RawLoadReport, LoadReportError> {
    let text = text.trim_ascii();
    let letters = text.iter().rposition(|&byte| byte != b'=').map_or(0, |last| last + 1);
    let message =
        BASE64_NOPAD.decode(&text[..letters]).map_err(|_error| LoadReportError::Malformed)?;
    let mut report = RawLoadReport::default();
    let mut message = ProtobufReader(&message);
    while let Some((field, value)) = message.next()? {
        match (field, value) {
            (1, ProtobufValue::Double(value)) => report.set("cpu_utilization", false, value),
            (9, ProtobufValue::Double(value)) => {
                report.set("application_utilization", false, value)
            }
            // Memory utilization, requests per second, errors per second.
            (2 | 6 | 7, ProtobufValue::Double(value)) => report.set("another", false, value),
            (8, ProtobufValue::Bytes(entry)) => parse_named_metric(entry, &mut report)?,
            (1 | 2 | 6..=9, _) => return Err(LoadReportError::Malformed),
            _ => {}
        }
    }
    Ok(report)
}

/// Parses an entry of a map from string to double.
fn parse_named_metric(entry: &[u8], report: &mut RawLoadReport) -> Result<(), LoadReportError> {
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
    report.set(name, true, number);
    Ok(())
}

/// The unread rest of a protobuf message.
struct ProtobufReader<'m>(&'m [u8]);

enum ProtobufValue<'m> {
    Double(f64),
    Bytes(&'m [u8]),
    Other,
}

impl<'m> ProtobufReader<'m> {
    /// Returns the next field, as number and value; `None` at the end.
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
