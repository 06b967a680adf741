//! Formats of a report: text pairs, JSON, and protobuf (`xds.data.orca.v3.OrcaLoadReport`) in Base64.

use std::collections::BTreeSet;

use data_encoding::BASE64_NOPAD;
use prost::Message;
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
    let message = BASE64_NOPAD
        .decode(text.get(..letters).unwrap_or_default())
        .map_err(|_error| LoadReportError::Malformed)?;
    let message =
        OrcaReportMessage::decode(&*message).map_err(|_error| LoadReportError::Malformed)?;
    let mut report = RawLoadReport::default();
    report.set("cpu_utilization", false, message.cpu_utilization);
    report.set("application_utilization", false, message.application_utilization);
    for other in [message.mem_utilization, message.rps_fractional, message.eps] {
        report.set("another", false, other);
    }
    for NamedMetric { name, value } in &message.named_metrics {
        report.set(name, true, *value);
    }
    Ok(report)
}

/// `xds.data.orca.v3.OrcaLoadReport`, without the fields that are ignored: `rps`, `request_cost` and `utilization`.
#[derive(Message)]
struct OrcaReportMessage {
    #[prost(double, tag = "1")]
    cpu_utilization: f64,
    #[prost(double, tag = "2")]
    mem_utilization: f64,
    /// Requests per second.
    #[prost(double, tag = "6")]
    rps_fractional: f64,
    /// Errors per second.
    #[prost(double, tag = "7")]
    eps: f64,
    /// A map, as its entries: all of them count if a name occurs twice.
    #[prost(message, repeated, tag = "8")]
    named_metrics: Vec<NamedMetric>,
    #[prost(double, tag = "9")]
    application_utilization: f64,
}

/// An entry of a map from string to double.
#[derive(Message)]
struct NamedMetric {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(double, tag = "2")]
    value: f64,
}
