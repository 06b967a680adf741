//! Interim (1xx) responses and WebSockets.

use anyhow::{Context, ensure};
use bytes::Bytes;
use http::HeaderValue;
use tests::http3::{block, code, frame};
use tests::{Endpoint, EndpointBehaviour, Result, ServeStep, http3, within};

use super::fixture::Http3Fixture;

/// `:status 200` from QPACK's static table (RFC 9204, appendix A), after an empty prefix.
const STATUS_200: [u8; 3] = [0, 0, 0xd9];

#[tokio::test]
async fn early_hints_pass_before_the_response() -> Result {
    let steps = vec![
        ServeStep::send("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"),
        ServeStep::ReadBody,
        ServeStep::Answer,
    ];
    let endpoint = Endpoint::start(steps).await?;
    let site = Http3Fixture::of(&[endpoint.address]).await?;
    let response = site.client().await?.get("/").await?;
    ensure!(response.status() == 200, "{response:?}");
    let hints = response.informational.first().context("hints")?;
    ensure!(hints.status() == 103 && hints.headers()["link"] == "</a>", "{response:?}");
    Ok(())
}

/// If a client sends `Expect: 100-continue`, the endpoint sends 100, and then the client sends the
/// body.
#[tokio::test]
async fn expect_continue_is_answered_100() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let site = Http3Fixture::of(&[endpoint.address]).await?;
    let client = site.client().await?;
    let mut request = http3::post("/");
    request.headers_mut().insert("expect", HeaderValue::from_static("100-continue"));
    let (mut sending, mut receiving) = client.send_request(request).await?;
    ensure!(within("100", receiving.recv_response()).await??.status() == 100);
    sending.send_data(Bytes::from_static(b"hello")).await?;
    sending.finish().await?;
    let response = within("an answer", http3::Http3TestClient::response(receiving)).await??;
    ensure!(response.status() == 200, "{response:?}");
    Ok(())
}

/// For an HTTP/1.1 endpoint an extended CONNECT (RFC 9220) becomes an upgrade, and the data is the
/// same.
#[tokio::test]
async fn a_websocket_reaches_an_http1_endpoint() -> Result {
    let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\
        Upgrade: websocket\r\n\r\n";
    let endpoint =
        Endpoint::start(vec![ServeStep::send(switch), ServeStep::Tunnel, ServeStep::Close]).await?;
    let site = Http3Fixture::of(&[endpoint.address]).await?;
    let wire = site.raw_connection().await?;
    let head = block(&[
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":path", "/chat"),
        (":authority", "test"),
        ("sec-websocket-version", "13"),
    ]);
    let (mut sending, mut receiving) =
        wire.open_request_stream(&frame(code::HEADERS, &head)).await?;
    let mut read = async |count: usize| -> Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        within("bytes", receiving.read_exact(&mut bytes)).await??;
        Ok(bytes)
    };
    // HEADERS of less than 64 bytes or of less than 16 KiB: the length takes one byte or two.
    let start = read(2).await?;
    ensure!(u64::from(start[0]) == code::HEADERS, "{start:?}");
    let length = match start[1] {
        short @ 0..64 => usize::from(short),
        long => usize::from(long & 0x3f) << 8 | usize::from(read(1).await?[0]),
    };
    let answered = read(length).await?;
    ensure!(answered.starts_with(&STATUS_200), "{answered:?}");
    for text in ["one", "two"] {
        sending.write_all(&frame(code::DATA, text.as_bytes())).await?;
        let echoed = read(2 + text.len()).await?;
        assert_eq!(echoed[2..], *text.as_bytes());
    }
    sending.finish()?;
    ensure!(within("the end", receiving.read_to_end(100)).await??.is_empty());

    let head = endpoint.only_request().head;
    assert_eq!(head.start, "GET /chat HTTP/1.1");
    assert_eq!(head.field("upgrade").as_deref(), Some("websocket"));
    ensure!(
        head.field_lists("connection", "upgrade") && head.has_field("sec-websocket-key"),
        "{head:?}"
    );
    site.sheave.wait_until_idle().await
}
