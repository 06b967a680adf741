//! WebSockets.

use anyhow::ensure;
use tests::http3::{block, code, frame};
use tests::{Endpoint, Result, ServeStep, within};

use super::fixture::Http3Fixture;

/// `:status 200` from QPACK's static table (RFC 9204, appendix A), after an empty prefix.
const STATUS_200: [u8; 3] = [0, 0, 0xd9];

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
