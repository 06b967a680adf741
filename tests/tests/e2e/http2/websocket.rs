//! WebSockets.

use anyhow::ensure;
use bytes::Bytes;
use h2::ext::Protocol;
use http::{Method, Request};
use serde_json::json;
use tests::{Endpoint, EndpointBehaviour, Result, ServeStep, eventually, http2, objects, within};

use super::fixture::Http2Fixture;

/// An extended CONNECT (RFC 8441) to this path.
fn websocket(path: &str) -> Result<Request<()>> {
    let mut request = Request::builder().method(Method::CONNECT);
    request = request.uri(format!("http://test{path}"));
    request = request.header("sec-websocket-version", "13").header("origin", "http://test");
    let mut request = request.body(())?;
    request.extensions_mut().insert(Protocol::from_static("websocket"));
    Ok(request)
}

/// For an HTTP/1.1 endpoint it becomes an upgrade, and the data is the same.
#[tokio::test]
async fn a_websocket_reaches_an_http1_endpoint() -> Result {
    let switch = ServeStep::AcceptWebSocket("Sec-WebSocket-Protocol: chat\r\n");
    let endpoint = Endpoint::start(vec![switch, ServeStep::Tunnel, ServeStep::Close]).await?;
    let site = Http2Fixture::of(&[endpoint.address], &[]).await?;
    let client = site.client().await?;
    let known = async || Ok(client.supports_extended_connect());
    eventually("the setting that allows it", known, |known| *known).await?;

    let (response, mut sending) = client.send_request(websocket("/chat")?, false).await?;
    let response = within("an answer", response).await??;
    ensure!(response.status() == 200, "{response:?}");
    ensure!(response.headers()["sec-websocket-protocol"] == "chat", "{response:?}");
    let mut receiving = response.into_body();
    for text in ["one", "two"] {
        http2::send(&mut sending, Bytes::from(text)).await?;
        let mut echoed = Vec::new();
        while echoed.len() < text.len() {
            let piece = within("an echo", receiving.data()).await?;
            echoed.extend(piece.expect("the tunnel is open")?);
        }
        assert_eq!(echoed, text.as_bytes());
    }
    sending.send_data(Bytes::new(), true)?;
    let rest = within("the end", http2::read(&mut receiving)).await??;
    ensure!(rest.bytes.is_empty(), "{rest:?}");

    let head = endpoint.only_request().head;
    assert_eq!(head.start, "GET /chat HTTP/1.1");
    assert_eq!(head.field("upgrade").as_deref(), Some("websocket"));
    ensure!(
        head.field_lists("connection", "upgrade") && head.has_field("sec-websocket-key"),
        "{head:?}"
    );
    site.sheave.wait_until_idle().await
}

/// If the endpoint refuses, its response passes to the client.
#[tokio::test]
async fn refused_websocket_passes_the_endpoint_response() -> Result {
    let answer = "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno";
    let endpoint = Endpoint::start(EndpointBehaviour::answering(answer)).await?;
    let site = Http2Fixture::of(&[endpoint.address], &[]).await?;
    let client = site.client().await?;
    let known = async || Ok(client.supports_extended_connect());
    eventually("the setting that allows it", known, |known| *known).await?;
    let (response, _sending) = client.send_request(websocket("/")?, false).await?;
    let response = within("an answer", http2::Http2TestClient::response(response)).await??;
    ensure!(response.status() == 403 && response.text() == "no", "{response:?}");
    Ok(())
}

/// To the client any 2xx of an extended CONNECT means that the WebSocket is open (RFC 8441 §5), and it has no key to
/// check the endpoint's response by.
#[tokio::test]
async fn success_without_a_valid_101_opens_no_websocket() -> Result {
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n\u{1}\u{a}evil frame",
        "HTTP/1.1 204 No Content\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
    ] {
        let endpoint = Endpoint::start(EndpointBehaviour::answering(answer)).await?;
        let site = Http2Fixture::of(&[endpoint.address], &[]).await?;
        let client = site.client().await?;
        let known = async || Ok(client.supports_extended_connect());
        eventually("the setting that allows it", known, |known| *known).await?;
        let (response, _sending) = client.send_request(websocket("/")?, false).await?;
        let response = within("an answer", http2::Http2TestClient::response(response)).await??;
        ensure!(response.status() == 502, "{answer}: {response:?}");
        ensure!(!response.text().contains("evil"), "{response:?}");
        let status = response.field("proxy-status").unwrap_or_default();
        ensure!(status.starts_with("sheave; error=http_"), "{status}");
    }
    Ok(())
}

/// At a capped endpoint the rest of the response is read before the connection carries another request.
#[tokio::test]
async fn connection_of_a_refused_websocket_is_drained_before_reuse() -> Result {
    let steps = vec![
        ServeStep::send("HTTP/1.1 200 OK\r\nContent-Length: 45\r\n\r\n"),
        ServeStep::WaitForGate,
        ServeStep::send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong!!"),
    ];
    let endpoint = Endpoint::start(steps).await?;
    let capped = objects::backend_policy("app", json!({ "maxInFlightPerEndpoint": 1 }));
    let site = Http2Fixture::of(&[endpoint.address], &[capped]).await?;
    let client = site.client().await?;
    let known = async || Ok(client.supports_extended_connect());
    eventually("the setting that allows it", known, |known| *known).await?;
    let (response, _sending) = client.send_request(websocket("/")?, false).await?;
    let response = within("an answer", http2::Http2TestClient::response(response)).await??;
    ensure!(response.status() == 502, "{response:?}");
    // The next request waits for the slot, and gets its own response.
    let (next, _sending) = client.send_request(http2::get("/next"), true).await?;
    let queued = async || site.sheave.metric_samples("sheave_backend_queue_length").await;
    let is_one = |(_, length): &(String, f64)| *length == 1.0;
    eventually("a queued request", queued, |samples| samples.iter().any(is_one)).await?;
    endpoint.open_gate(2);
    let response = within("an answer", http2::Http2TestClient::response(next)).await??;
    ensure!(response.status() == 200 && response.body.len() == 45, "{response:?}");
    ensure!(endpoint.counts().requests == 2, "{:?}", endpoint.counts());
    Ok(())
}
