//! An HTTP/3 endpoint that can send what no library would: raw bytes over quinn.

use std::future::Future;
use std::io::{Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use quinn::{Connection, RecvStream, SendStream};

use crate::endpoint::Identity;
use crate::fixture::{ProxyFixture, backend, echo, has};

/// A control stream with SETTINGS that announce extended CONNECT.
const HELLO: &[u8] = &[0x00, 0x04, 2, 0x08, 1];
/// HEADERS with only `:status: 200`, from the static table.
const OK: &[u8] = &[0x01, 3, 0x00, 0x00, 0xd9];
/// GOAWAY: the second and all later requests are not processed.
const GOAWAY: &[u8] = &[0x07, 1, 4];

/// Starts an endpoint that runs `serve` for each connection, with its number and our control stream.
fn endpoint<F: Future<Output = ()> + Send + 'static>(
    identity: &Identity,
    serve: fn(u32, Connection, SendStream) -> F,
) -> (SocketAddr, Arc<AtomicU32>) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let quic = {
        let _inside = runtime.enter();
        identity.listen(socket, 100)
    };
    let connections = Arc::new(AtomicU32::new(0));
    let counting = Arc::clone(&connections);
    thread::spawn(move || {
        runtime.block_on(async move {
            while let Some(incoming) = quic.accept().await {
                let number = counting.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(async move {
                    let connection = incoming.await.unwrap();
                    let mut control = connection.open_uni().await.unwrap();
                    control.write_all(HELLO).await.unwrap();
                    serve(number, connection, control).await;
                });
            }
        });
    });
    (address, connections)
}

async fn read_number(stream: &mut RecvStream) -> Option<u64> {
    let mut first = [0];
    stream.read_exact(&mut first).await.ok()?;
    let mut number = u64::from(first[0] & 0x3f);
    for _ in 1..1 << (first[0] >> 6) {
        let mut next = [0];
        stream.read_exact(&mut next).await.ok()?;
        number = number << 8 | u64::from(next[0]);
    }
    Some(number)
}

/// The type and payload of the next frame.
async fn read_frame(stream: &mut RecvStream) -> Option<(u64, Vec<u8>)> {
    let kind = read_number(stream).await?;
    let length = read_number(stream).await?;
    let mut payload = vec![0; usize::try_from(length).unwrap()];
    stream.read_exact(&mut payload).await.ok()?;
    Some((kind, payload))
}

/// On the first connection, waits for a second request and sends GOAWAY before that request; then answers the first
/// one.
async fn rejects_second_request(number: u32, connection: Connection, mut control: SendStream) {
    let mut first = connection.accept_bi().await.unwrap();
    if number == 0 {
        let _second = connection.accept_bi().await.unwrap();
        control.write_all(GOAWAY).await.unwrap();
        first.0.write_all(OK).await.unwrap();
        first.0.finish().unwrap();
        // Neither stream is reset.
        connection.closed().await;
        return;
    }
    first.0.write_all(OK).await.unwrap();
    first.0.finish().unwrap();
    connection.closed().await;
}

#[test]
fn requests_not_covered_by_goaway_are_retried() {
    let identity = Identity::new();
    let (address, connections) = endpoint(&identity, rejects_second_request);
    let fixture = ProxyFixture::with(vec![backend("backend", address, identity.settings())], None);
    let ask = || {
        let mut socket = fixture.connect();
        let request =
            b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi";
        socket.write_all(request).unwrap();
        socket
    };
    for mut socket in [ask(), ask()] {
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        has(&answer, &["HTTP/1.1 200"]);
    }
    assert_eq!(connections.load(Ordering::Relaxed), 2);
}

/// Sends back the payload of DATA frames.
async fn echoes_data(_: u32, connection: Connection, _control: SendStream) {
    let (mut sending, mut receiving) = connection.accept_bi().await.unwrap();
    sending.write_all(OK).await.unwrap();
    while let Some((kind, payload)) = read_frame(&mut receiving).await {
        if kind == 0 && !payload.is_empty() {
            sending.write_all(&[0, u8::try_from(payload.len()).unwrap()]).await.unwrap();
            sending.write_all(&payload).await.unwrap();
        }
    }
    connection.closed().await;
}

#[test]
fn a_websocket_is_opened_by_extended_connect() {
    let identity = Identity::new();
    let (address, _) = endpoint(&identity, echoes_data);
    let fixture = ProxyFixture::with(vec![backend("backend", address, identity.settings())], None);
    let (mut socket, head) = fixture.open_websocket();
    has(&head, &["HTTP/1.1 101 ", "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"]);
    echo(&mut socket, b"one");
    echo(&mut socket, b"two");
}
