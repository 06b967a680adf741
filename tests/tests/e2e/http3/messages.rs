//! Messages over HTTP/3: gRPC calls, congestion control and the access log.

use anyhow::ensure;
use http::HeaderValue;
use serde_json::json;
use tests::endpoint::refusing_address;
use tests::payload::BodyDigest;
use tests::{Endpoint, EndpointBehaviour, Result, ServeStep, grpc, http2, http3};

use super::fixture::Http3Fixture;

/// The access log names the version, TLS and the client.
#[tokio::test]
async fn http3_request_is_logged() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let site = Http3Fixture::of(&[endpoint.address]).await?;
    ensure!(site.client().await?.post("/", "hello").await?.text() == "ok");
    let line = site.sheave.wait_for_access_log(1).await?.remove(0);
    assert_eq!(line["network.protocol.version"], "3");
    assert_eq!(line["tls.protocol.version"], "1.3");
    assert_eq!(line["client.address"], "127.0.0.1");
    Ok(())
}

/// A gRPC call over HTTP/3 ends with its status: the server's in a trailer, Sheave's own in a
/// trailers-only response.
#[tokio::test]
async fn grpc_call_over_http3_ends_with_its_status() -> Result {
    let call = || {
        let mut head = http3::post("/test.Echo/Say");
        head.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
        (head, grpc::message(b"hello"))
    };
    let server = http2::Http2TestEndpoint::start(|call: http2::ReceivedRequest| async {
        call.reply(b"said").await
    })
    .await?;
    let site = Http3Fixture::of_http2(&[server.address]).await?;
    let (head, message) = call();
    let answer = site.client().await?.exchange(head, message).await?;
    ensure!(answer.status() == 200 && answer.trailer("grpc-status") == Some("0"), "{answer:?}");
    assert_eq!(grpc::messages(answer.body)?, ["said"]);

    let site = Http3Fixture::of_http2(&[refusing_address().await?]).await?;
    let (head, message) = call();
    let answer = site.client().await?.exchange(head, message).await?;
    ensure!(answer.status() == 200 && answer.field("grpc-status") == Some("14"), "{answer:?}");
    Ok(())
}

/// Responses pass with every congestion control that a policy can choose.
#[tokio::test]
async fn large_bodies_pass_with_cubic_and_bbr() -> Result {
    const LENGTH: u64 = 3_000_000;
    for control in ["Cubic", "Bbr"] {
        let endpoint = Endpoint::start(vec![ServeStep::AnswerPattern(LENGTH)]).await?;
        let policy = json!({ "http3": { "congestionControl": control } });
        let site = Http3Fixture::with_client_policy(&[endpoint.address], policy).await?;
        let response = site.client().await?.get("/").await?;
        ensure!(BodyDigest::of(&response.body) == BodyDigest::of_pattern(LENGTH), "{control}");
    }
    Ok(())
}
