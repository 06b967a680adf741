//! Properties of gRPC's parsers: timeouts, statuses, health checks, gRPC-Web, and load reports.

use std::time::Duration;

use codec::grpc::authorization::{AuthorizationAnswer, FieldChange, parse_check_response};
use codec::grpc::message::{ServingStatus, parse_health_check_response};
use codec::grpc::web::GrpcWebTranslator;
use codec::grpc::{GrpcCallStatus, GrpcCode, RetryPushback, timeout};
use codec::head::FieldSection;
use codec::orca;
use prost::Message;

use super::is_storable;

/// `grpc.health.v1.HealthCheckResponse`, for the reference parser.
#[derive(Message)]
struct HealthCheckResponse {
    #[prost(uint64, tag = "1")]
    status: u64,
}

/// A timeout has the value that its digits and unit name, and is written again with little loss.
pub fn timeout(text: &[u8]) {
    let parsed = timeout::parse(text);
    assert_eq!(parsed, simple_timeout(text));
    let Some(parsed) = parsed else { return };
    let again = timeout::parse(timeout::write(parsed).as_bytes()).unwrap();
    assert!(again <= parsed.max(Duration::from_nanos(1)));
    assert!(parsed.saturating_sub(again) <= parsed / 100_000, "{parsed:?} became {again:?}");
}

fn simple_timeout(text: &[u8]) -> Option<Duration> {
    let text = str::from_utf8(text).ok()?;
    let unit = text.chars().last()?;
    let digits = text.strip_suffix(unit)?;
    let nanoseconds = match unit {
        'n' => 1,
        'u' => 1_000,
        'm' => 1_000_000,
        'S' => 1_000_000_000,
        'M' => 60_000_000_000,
        'H' => 3_600_000_000_000_u128,
        _ => return None,
    };
    if !(1..=8).contains(&digits.len()) || digits.contains('+') {
        return None;
    }
    let number: u128 = digits.parse().ok()?;
    let total = u64::try_from(nanoseconds * number).unwrap_or(u64::MAX);
    Some(Duration::from_nanos(total))
}

/// A status is found if and only if there is one, and a pushback is a time or forbids retries.
pub fn call_status(bytes: &[u8]) {
    if !is_storable(bytes) {
        return;
    }
    let mut pieces = bytes.splitn(2, |&byte| byte == b'|');
    let mut fields = FieldSection::new();
    fields.append("grpc-status", pieces.next().unwrap_or_default());
    let pushback = pieces.next();
    if let Some(pushback) = pushback {
        fields.append("Grpc-Retry-Pushback-Ms", pushback);
    }
    let status = GrpcCallStatus::of(&fields).unwrap();
    assert_eq!(GrpcCode::parse(status.code.number().to_string().as_bytes()), status.code);
    assert_eq!(status.pushback == RetryPushback::Unspecified, pushback.is_none());
}

/// A response is read like the library for Protocol Buffers reads it, if both accept it.
pub fn health_check(body: &[u8]) {
    let Some(status) = parse_health_check_response(body) else { return };
    let Ok(reference) = HealthCheckResponse::decode(&body[5..]) else { return };
    let expected = match reference.status {
        1 => ServingStatus::Serving,
        2 => ServingStatus::NotServing,
        3 => ServingStatus::ServiceUnknown,
        _ => ServingStatus::Unknown,
    };
    assert_eq!(status, expected);
}

/// The changes of an authorizer's answer can be written into a head, and a byte less or more is no answer.
pub fn authorization(body: &[u8]) {
    let Some(answer) = parse_check_response(body) else { return };
    let changes: Vec<&FieldChange> = match &answer {
        AuthorizationAnswer::Allowed(allowed) => {
            allowed.request_fields.iter().chain(&allowed.response_fields).collect()
        }
        AuthorizationAnswer::Denied(denied) => {
            assert!((200..600).contains(&denied.status), "{}", denied.status);
            denied.fields.iter().collect()
        }
    };
    let mut fields = FieldSection::new();
    for change in changes {
        assert!(is_storable(&change.value), "{change:?}");
        assert!(!change.name.is_empty() && change.name.bytes().all(is_token_byte), "{change:?}");
        change.apply(&mut fields);
    }
    assert_eq!(parse_check_response(&body[..body.len() - 1]), None);
    assert_eq!(parse_check_response(&[body, &[0]].concat()), None);
}

/// RFC 9110 §5.6.2.
fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Decoding of text does not depend on the step size, and what was decoded is encoded and decoded again.
pub fn web(bytes: &[u8], step: usize) {
    let whole = decode(bytes.chunks(bytes.len().max(1)));
    assert_eq!(decode(bytes.chunks(step.max(1))), whole, "in steps of {step}");
    let Some(data) = whole else { return };
    assert!(data.len() <= bytes.len());
    let mut encoder = GrpcWebTranslator::of_response(true);
    let mut text = Vec::new();
    for piece in data.chunks(step.max(1)) {
        encoder.translate(piece).unwrap();
        text.extend_from_slice(&encoder.out);
    }
    assert_eq!(decode([&text[..]].into_iter()), Some(data));
}

fn decode<'p>(pieces: impl Iterator<Item = &'p [u8]>) -> Option<Vec<u8>> {
    let (mut decoder, mut data) = (GrpcWebTranslator::from_text(), Vec::new());
    for piece in pieces {
        decoder.translate(piece).ok()?;
        data.extend_from_slice(&decoder.out);
    }
    decoder.finish(None).ok()?;
    Some(data)
}

/// The values of a report are within their bounds, and a report in one format has one value in all of its fields.
pub fn load_report(value: &[u8]) {
    if !is_storable(value) {
        return;
    }
    for name in ["endpoint-load-metrics", "Endpoint-Load-Metrics-Bin"] {
        let mut fields = FieldSection::new();
        fields.append(name, value);
        let report = orca::report_in(&fields).unwrap();
        if let Ok(report) = report {
            assert!(report.utilization.is_none_or(|it| it > 0.0 && it <= 1000.0), "{report:?}");
            assert!(
                report.max_in_flight.is_none_or(|it| (1..=1_000_000).contains(&it)),
                "{report:?}"
            );
        }
        fields.append(name, value);
        assert_eq!(orca::report_in(&fields), Some(Err(orca::LoadReportError::Several)));
    }
}
