//! Sessions over sockets: bytes arrive as they were sent, and no memory is kept.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// Returns both ends of a connection after the handshake.
async fn connected() -> (TlsStream, TlsStream) {
    let authority = TestAuthority::new();
    let certificate = authority.certificate(&["a.example.com"]);
    let sites = sites(&mut ServerTlsConfigs::default(), vec![site("", &[&certificate])]);
    let trust = authority.trust("a.example.com", &[], None);
    let (mut client, mut server) = connected_sessions(&trust, config(&sites, "a.example.com"));
    // Read the rest of the handshake: the tickets.
    client.advance_handshake().unwrap();
    server.advance_handshake().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (theirs, ours) =
        tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    (
        TlsStream::new(theirs.unwrap(), Box::new(client)),
        TlsStream::new(ours.unwrap().0, Box::new(server)),
    )
}

#[tokio::test]
async fn bytes_arrive_as_they_were_sent() {
    for count in [1, 100, 16 * 1024, 64 * 1024 + 1, 3 * 1024 * 1024] {
        let (mut client, mut server) = connected().await;
        let sent = bytes(count);
        let mut received = Vec::new();
        let send = async {
            client.write_all(&sent).await.unwrap();
            client.shutdown().await.unwrap();
        };
        let (_, read) = tokio::join!(send, server.read_to_end(&mut received));
        assert_eq!(read.unwrap(), count);
        assert!(received == sent, "{count}");
        assert!(client.session.outgoing.capacity() == 0 && server.session.plaintext.is_empty());
        assert_eq!(server.session.incoming.bytes.capacity(), 0);
    }
}

#[tokio::test]
async fn a_small_reader_gets_all_of_a_large_record() {
    let (mut client, mut server) = connected().await;
    let sent = bytes(16 * 1024);
    client.write_all(&sent).await.unwrap();
    let mut received = Vec::new();
    while received.len() < sent.len() {
        let mut part = [0; 1000];
        let count = server.read(&mut part).await.unwrap();
        received.extend_from_slice(&part[..count]);
    }
    assert!(received == sent);
    // No unread plaintext is left.
    let ready = poll_fn(|cx| Poll::Ready(server.poll_read_ready(cx).is_ready()));
    assert!(!ready.await || server.is_quiet());
}

#[tokio::test]
async fn written_count_covers_only_bytes_accepted_by_the_kernel() {
    let (mut client, mut server) = connected().await;
    let sent = bytes(8 * 1024 * 1024);
    let mut written = 0;
    // Write until the kernel accepts no more, as the other side does not read.
    while written < sent.len() {
        let once =
            poll_fn(|cx| Poll::Ready(Pin::new(&mut client).poll_write(cx, &sent[written..])));
        match once.await {
            Poll::Ready(count) => written += count.unwrap(),
            Poll::Pending => break,
        }
    }
    assert!(written > 0 && written < sent.len());
    let (rest, mut received) = (&sent[written..], vec![0; sent.len()]);
    let (wrote, read) = tokio::join!(client.write_all(rest), server.read_exact(&mut received));
    wrote.unwrap();
    read.unwrap();
    assert!(received == sent);
}

#[tokio::test]
async fn vectored_write_sends_all_slices() {
    let (mut client, mut server) = connected().await;
    let (head, body) = (bytes(100), bytes(5000));
    let slices = [&head, &body].map(|part| std::io::IoSlice::new(part));
    let count = poll_fn(|cx| Pin::new(&mut client).poll_write_vectored(cx, &slices)).await.unwrap();
    assert_eq!(count, 5100);
    let mut received = [0; 5100];
    assert_eq!(server.read(&mut received).await.unwrap(), 5100);
    assert!(received[..100] == head && received[100..] == body);
}

#[tokio::test]
async fn end_without_close_notify_is_an_error() {
    let (client, mut server) = connected().await;
    drop(client);
    let error = server.read(&mut [0; 10]).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn idle_connection_is_quiet_until_bytes_arrive() {
    let (mut client, mut server) = connected().await;
    assert!(client.is_quiet() && server.is_quiet());
    client.write_all(b"x").await.unwrap();
    server.socket.readable().await.unwrap();
    assert!(!server.is_quiet());
    let (mut client, mut server) = connected().await;
    client.shutdown().await.unwrap();
    server.socket.readable().await.unwrap();
    assert!(!server.is_quiet());
}
