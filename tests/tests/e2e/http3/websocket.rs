//! WebSockets.

use anyhow::ensure;
use tests::http3::{block, code, frame};
use tests::{Endpoint, EndpointBehaviour, Result, ServeStep, within};

use super::fixture::Http3Fixture;

/// `:status 200` from QPACK's static table (RFC 9204, appendix A), after an empty prefix.
const STATUS_200: [u8; 3] = [0, 0, 0xd9];

/// Returns the field section of an extended CONNECT for `/chat`.
fn websocket_head() -> Vec<u8> {
    block(&[
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":path", "/chat"),
        (":authority", "test"),
        ("sec-websocket-version", "13"),
    ])
}

/// For an HTTP/1.1 endpoint an extended CONNECT (RFC 9220) becomes an upgrade, and the data is the
/// same.
#[tokio::test]
async fn a_websocket_reaches_an_http1_endpoint() -> Result {
    let switch = ServeStep::AcceptWebSocket("");
    let endpoint = Endpoint::start(vec![switch, ServeStep::Tunnel, ServeStep::Close]).await?;
    let site = Http3Fixture::of(&[endpoint.address]).await?;
    let wire = site.raw_connection().await?;
    let head = websocket_head();
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

/// Only a 101 with the answer to the key opens (RFC 9220 §3), never a plain 200.
#[tokio::test]
async fn success_without_a_valid_101_opens_no_websocket() -> Result {
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n\u{1}\u{a}evil frame";
    let endpoint = Endpoint::start(EndpointBehaviour::answering(answer)).await?;
    let site = Http3Fixture::of(&[endpoint.address]).await?;
    let wire = site.raw_connection().await?;
    let (_sending, mut receiving) =
        wire.open_request_stream(&frame(code::HEADERS, &websocket_head())).await?;
    let answered = within("an answer", receiving.read_to_end(10_000)).await??;
    ensure!(!answered.windows(4).any(|piece| piece == b"evil"), "{}", answered.escape_ascii());
    let line = site.sheave.wait_for_access_log(1).await?.remove(0);
    assert_eq!(line["http.response.status_code"], 502);
    assert_eq!(line["error.type"], "websocket_not_opened");
    Ok(())
}
