//! Load reports of servers: in the trailers of a call (ORCA, gRFC A51), or by refusing it.

use anyhow::ensure;
use http::{HeaderName, HeaderValue};
use serde_json::json;
use tests::http2::{Http2TestEndpoint, ReceivedRequest};
use tests::waiting::eventually;
use tests::{Result, grpc, http2, objects};

use crate::fixture::{GrpcFixture, METHOD};

/// `OrcaLoadReport { named_metrics: { "sheave_max_in_flight": 7.0 } }` in protobuf's wire format,
/// in base64.
const BINARY_REPORT_OF_SEVEN: &str = "Qh8KFHNoZWF2ZV9tYXhfaW5fZmxpZ2h0EQAAAAAAABxA";

/// Starts a server that adds this field to the trailers of each response.
async fn start_reporting_server(
    name: &'static str,
    value: &'static str,
) -> Result<Http2TestEndpoint> {
    Http2TestEndpoint::start(move |call: ReceivedRequest| async move {
        let mut trailers = grpc::trailers(grpc::OK);
        trailers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        call.answer_with(http2::status(200), grpc::message(b"done"), trailers).await
    })
    .await
}

async fn adaptive_limit_fixture(server: &Http2TestEndpoint) -> Result<GrpcFixture> {
    let auto = objects::backend_policy("app", json!({ "maxInFlightPerEndpoint": "auto" }));
    GrpcFixture::of(&[server], &[auto]).await
}

/// RESOURCE_EXHAUSTED means that the server is full, for as long as it says: both in a
/// trailers-only response and after a message.
#[tokio::test]
async fn resource_exhausted_lowers_the_limit_of_the_server() -> Result {
    for after_a_message in [false, true] {
        let server = Http2TestEndpoint::start(move |call: ReceivedRequest| async move {
            let mut fields = grpc::trailers(grpc::RESOURCE_EXHAUSTED);
            fields.insert("grpc-retry-pushback-ms", HeaderValue::from_static("50000"));
            let mut head = http2::status(200);
            if after_a_message {
                return call.answer_with(head, grpc::message(b"half"), fields).await;
            }
            head.headers_mut().extend(fields);
            call.end_with(head)
        })
        .await?;
        let site = GrpcFixture::of(&[&server], &[]).await?;
        let reply = site.client().await?.call(METHOD, b"").await?;
        ensure!(reply.code == grpc::RESOURCE_EXHAUSTED, "{reply:?}");
        assert_eq!(reply.metadata_value("grpc-retry-pushback-ms"), Some("50000"));
        let limits = async || site.sheave.metric_samples("sheave_endpoint_limit").await;
        let one = |limits: &Vec<(String, f64)>| limits.len() == 1 && limits[0].1 == 1.0;
        eventually("a limit", limits, one).await?;
        assert_eq!(site.sheave.metric_sum("sheave_endpoint_refusals_total").await?, 1.0);
        assert_eq!(site.sheave.metric_sum("sheave_endpoint_refusals_cut_total").await?, 0.0);
    }
    Ok(())
}

/// Each format of the report sets the limit, and is forwarded to the client.
#[tokio::test]
async fn load_report_in_a_trailer_sets_the_limit() -> Result {
    for (name, value, limit) in [
        ("endpoint-load-metrics", "TEXT named_metrics.sheave_max_in_flight=5", 5.0),
        ("endpoint-load-metrics", r#"JSON {"named_metrics":{"sheave_max_in_flight":6}}"#, 6.0),
        ("endpoint-load-metrics-bin", BINARY_REPORT_OF_SEVEN, 7.0),
    ] {
        let server = start_reporting_server(name, value).await?;
        let site = adaptive_limit_fixture(&server).await?;
        let reply = site.client().await?.call(METHOD, b"").await?;
        ensure!(reply.code == grpc::OK && reply.exchange.trailer(name) == Some(value), "{reply:?}");
        let reported = |limits: &Vec<(String, f64)>| {
            let is_it = |(labels, value): &(String, f64)| {
                labels.contains("\"reported\"") && *value == limit
            };
            limits.iter().any(is_it)
        };
        let limits = async || site.sheave.metric_samples("sheave_endpoint_limit").await;
        eventually(value, limits, reported).await?;
    }
    Ok(())
}

/// An impossible report is counted, and the call passes unchanged.
#[tokio::test]
async fn invalid_load_report_is_ignored_and_counted() -> Result {
    for (name, value, reason) in [
        ("endpoint-load-metrics", "TEXT named_metrics.sheave_max_in_flight=-1", "out_of_range"),
        ("endpoint-load-metrics", "JSON {", "malformed"),
        ("endpoint-load-metrics-bin", "Qh8K", "malformed"),
    ] {
        let server = start_reporting_server(name, value).await?;
        let site = adaptive_limit_fixture(&server).await?;
        let reply = site.client().await?.call(METHOD, b"").await?;
        ensure!(reply.code == grpc::OK && reply.exchange.trailer(name) == Some(value), "{reply:?}");
        let ignored =
            async || site.sheave.metric_samples("sheave_endpoint_load_reports_ignored_total").await;
        let counted = |samples: &Vec<(String, f64)>| {
            samples.iter().any(|(labels, count)| labels.contains(reason) && *count == 1.0)
        };
        eventually(value, ignored, counted).await?;
    }
    Ok(())
}
