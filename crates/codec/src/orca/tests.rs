//! Tests of load reports, valid and invalid.

use data_encoding::BASE64;

use super::*;

fn report(
    utilization: Option<f64>,
    max_in_flight: Option<u32>,
) -> Result<OrcaLoadReport, LoadReportError> {
    Ok(OrcaLoadReport { utilization, max_in_flight })
}

/// A protobuf message: doubles by field number, then a named metric.
fn message(doubles: &[(u8, f64)], named: Option<(&str, f64)>) -> Vec<u8> {
    let mut message = Vec::new();
    for (field, value) in doubles {
        message.push(field << 3 | 1);
        message.extend(value.to_le_bytes());
    }
    if let Some((name, value)) = named {
        let mut entry = vec![1 << 3 | 2, name.len() as u8];
        entry.extend(name.as_bytes());
        entry.push(2 << 3 | 1);
        entry.extend(value.to_le_bytes());
        message.extend([8 << 3 | 2, entry.len() as u8]);
        message.extend(entry);
    }
    message
}

#[test]
fn load_report_is_read_in_every_format() {
    let all = report(Some(0.5), Some(4));
    let text = "TEXT cpu_utilization=0.9, application_utilization=0.5,named_metrics.sheave_max_in_flight=4";
    assert_eq!(read(false, text.as_bytes()), all);
    let json = r#"JSON {"cpu_utilization": 0.9, "applicationUtilization": 0.5, "rps_fractional": 1e3,
        "named_metrics": {"sheave_max_in_flight": 4, "queue": -1}, "utilization": {"x": 1}}"#;
    assert_eq!(read(false, json.as_bytes()), all);
    let message = message(&[(1, 0.9), (9, 0.5), (6, 1e3)], Some((MAX_IN_FLIGHT, 4.0)));
    let base64 = BASE64.encode(&message);
    assert_eq!(read(true, base64.as_bytes()), all);
    assert_eq!(read(true, base64.trim_end_matches('=').as_bytes()), all);
    assert_eq!(read(false, format!("BIN {base64}").as_bytes()), all);
}

#[test]
fn cpu_utilization_is_used_without_application_utilization() {
    assert_eq!(read(false, b"TEXT cpu_utilization=1.5"), report(Some(1.5), None));
    assert_eq!(read(false, b"TEXT mem_utilization=0.5"), report(None, None));
    assert_eq!(read(false, b"JSON {}"), report(None, None));
    assert_eq!(read(true, b""), report(None, None));
}

#[test]
fn load_report_with_an_out_of_range_value_is_ignored_entirely() {
    for absurd in [
        "TEXT cpu_utilization=-0.1",
        "TEXT cpu_utilization=NaN",
        "TEXT application_utilization=inf",
        "TEXT cpu_utilization=0.5,eps=-1",
        "TEXT cpu_utilization=1e300",
        "TEXT named_metrics.sheave_max_in_flight=0",
        "TEXT named_metrics.sheave_max_in_flight=-4",
        "TEXT named_metrics.sheave_max_in_flight=1e12",
        r#"JSON {"cpu_utilization": "NaN"}"#,
        r#"JSON {"cpu_utilization": -1}"#,
    ] {
        assert_eq!(read(false, absurd.as_bytes()), Err(LoadReportError::OutOfRange), "{absurd}");
    }
    let negative = BASE64.encode(&message(&[(1, -1.0)], None));
    assert_eq!(read(true, negative.as_bytes()), Err(LoadReportError::OutOfRange));
}

#[test]
fn invalid_load_reports_are_malformed() {
    for bad in [
        "",
        "TEXT",
        " TEXT cpu_utilization=1",
        "YAML cpu: 1",
        "TEXT cpu_utilization",
        "TEXT cpu_utilization=half",
        "TEXT cpu_utilization=1,cpu_utilization=1",
        "TEXT odd.name=1",
        "JSON [1]",
        "JSON {\"cpu_utilization\": true}",
        "JSON {",
        "BIN !",
        "BIN CQ==",
    ] {
        assert_eq!(read(false, bad.as_bytes()), Err(LoadReportError::Malformed), "{bad}");
    }
    let wrong_type = BASE64.encode(&[1 << 3, 1]);
    assert_eq!(read(true, wrong_type.as_bytes()), Err(LoadReportError::Malformed));
    let long = format!("TEXT {}", "a=1,".repeat(3000));
    assert_eq!(read(false, long.as_bytes()), Err(LoadReportError::TooLong));
}

#[test]
fn multiple_load_reports_are_ignored() {
    let mut fields = FieldSection::new();
    assert!(report_in(&fields).is_none());
    fields.append("Endpoint-Load-Metrics", "TEXT cpu_utilization=0.5");
    assert_eq!(report_in(&fields), Some(report(Some(0.5), None)));
    fields.append("endpoint-load-metrics-bin", "");
    assert_eq!(report_in(&fields), Some(Err(LoadReportError::Several)));
}
