//! Endpoints that HTTP/3 does not reach: their requests fall back to TCP.

use std::future::Future;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use gateway::snapshot::BackendSettings;
use http::Response;
use proxy::clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::endpoint::{Identity, Server};
use crate::fixture::{PATIENCE, ProxyFixture, backend, echo, has};

/// Binds a port that is free for both TCP and UDP.
fn port() -> (TcpListener, UdpSocket) {
    loop {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()) {
            return (tcp, udp);
        }
    }
}

/// Serves TCP with these ALPN protocols; returns the number of connections.
fn serve<F: Future<Output = ()> + Send + 'static>(
    listener: TcpListener,
    identity: &Identity,
    protocols: &[&[u8]],
    serve: fn(TlsStream<TcpStream>) -> F,
) -> Arc<AtomicU32> {
    let acceptor = TlsAcceptor::from(Arc::new(identity.tls(protocols)));
    let connections = Arc::new(AtomicU32::new(0));
    let counting = Arc::clone(&connections);
    listener.set_nonblocking(true).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    thread::spawn(move || {
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                counting.fetch_add(1, Ordering::Relaxed);
                let secured = acceptor.accept(socket);
                tokio::spawn(async move {
                    if let Ok(stream) = secured.await {
                        serve(stream).await;
                    }
                });
            }
        });
    });
    connections
}

/// Responds to each request with 200.
async fn in_http2(stream: TlsStream<TcpStream>) {
    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
    while let Some(Ok((_, mut respond))) = connection.accept().await {
        let mut body = respond.send_response(Response::new(()), false).unwrap();
        body.send_data(Bytes::from_static(b"by http/2"), true).unwrap();
    }
}

/// Sends back the bytes of each request; after an upgrade, all bytes.
async fn in_http1(mut stream: TlsStream<TcpStream>) {
    let mut read = Vec::new();
    loop {
        while !is_whole(&read) {
            if stream.read_buf(&mut read).await.unwrap_or(0) == 0 {
                return;
            }
        }
        let text = std::mem::take(&mut read);
        if String::from_utf8_lossy(&text).to_lowercase().contains("upgrade: websocket") {
            let head = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\
                Upgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
            stream.write_all(head.as_bytes()).await.unwrap();
            let (mut from, mut to) = tokio::io::split(stream);
            drop(tokio::io::copy(&mut from, &mut to).await);
            return;
        }
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", text.len());
        stream.write_all(&[head.as_bytes(), &text].concat()).await.unwrap();
    }
}

/// True if the bytes are one complete request.
fn is_whole(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes).to_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    if head.contains("transfer-encoding: chunked") {
        return body.ends_with("\r\n\r\n") && body.contains("0\r\n");
    }
    let length = head.split_once("content-length: ").map_or("0", |(_, rest)| rest);
    let length: usize = length.split("\r\n").next().unwrap().parse().unwrap();
    body.len() >= length
}

fn proxy_for(address: SocketAddr, settings: BackendSettings) -> ProxyFixture {
    ProxyFixture::with(vec![backend("backend", address, settings)], None)
}

/// Returns the HTTP/3 reachability of the endpoint.
fn http3_state(fixture: &ProxyFixture) -> &'static str {
    fixture.proxy.backends()[0].endpoints[0].http3.unwrap()
}

/// Sends requests until a response contains `part`.
fn ask_until(fixture: &ProxyFixture, part: &str) {
    let begun = clock::now();
    while !fixture.ask("GET /", "", "").contains(part) {
        assert!(clock::now().saturating_since(begun) < PATIENCE, "no response contains {part:?}");
    }
}

#[test]
fn closed_udp_port_falls_back_to_http2() {
    let identity = Identity::new();
    let (tcp, udp) = port();
    let address = tcp.local_addr().unwrap();
    drop(udp);
    let connections = serve(tcp, &identity, &[b"h2", b"http/1.1"], in_http2);
    let fixture = proxy_for(address, identity.settings());
    for _ in 0..3 {
        has(&fixture.ask("GET /", "", ""), &["http/1.1 200", "via: 2 sheave", "by http/2"]);
    }
    assert_eq!(http3_state(&fixture), "avoided");
    assert_eq!(connections.load(Ordering::Relaxed), 1);
}

#[test]
fn blocked_udp_falls_back_to_tcp_before_the_connect_timeout() {
    let identity = Identity::new();
    let (tcp, _unanswered) = port();
    let address = tcp.local_addr().unwrap();
    serve(tcp, &identity, &[b"h2"], in_http2);
    let connect_timeout = Duration::from_secs(3);
    let fixture = proxy_for(address, BackendSettings { connect_timeout, ..identity.settings() });
    let begun = clock::now();
    has(&fixture.ask("GET /", "", ""), &["http/1.1 200", "via: 2 sheave"]);
    assert!(
        clock::now().saturating_since(begun) < connect_timeout,
        "the TCP fallback starts before the connect timeout"
    );
    while http3_state(&fixture) != "avoided" {
        assert!(clock::now().saturating_since(begun) < PATIENCE);
        has(&fixture.ask("GET /", "", ""), &["http/1.1 200"]);
    }
}

#[test]
fn fallback_uses_http1_if_tcp_negotiates_only_that() {
    let identity = Identity::new();
    let (tcp, udp) = port();
    let address = tcp.local_addr().unwrap();
    drop(udp);
    let connections = serve(tcp, &identity, &[b"http/1.1"], in_http1);
    let fixture = proxy_for(address, identity.settings());
    for _ in 0..3 {
        let answer = fixture.ask("GET /a?b", "X-B: 1\r\n", "");
        has(&answer, &["http/1.1 200", "get /a?b http/1.1\r\n"]);
    }
    // One connection negotiates the protocol; a second one is kept.
    assert_eq!(connections.load(Ordering::Relaxed), 2);
    let answer = fixture.ask("POST /", "Content-Length: 5\r\n", "hello");
    has(&answer, &["content-length: 5\r\n", "\r\n\r\nhello"]);
    let chunks = "5\r\nhello\r\n1\r\n!\r\n0\r\nX-Sum: 6\r\n\r\n";
    let answer = fixture.ask("POST /", "Transfer-Encoding: chunked\r\nTE: trailers\r\n", chunks);
    has(&answer, &["transfer-encoding: chunked\r\n", "hello", "!\r\n", "0\r\nx-sum: 6\r\n\r\n"]);
    let large = "x".repeat(1024 * 1024);
    let answer = fixture.ask("PUT /", &format!("Content-Length: {}\r\n", large.len()), &large);
    assert!(answer.ends_with(&large), "{} bytes", answer.len());
}

#[test]
fn grpc_call_fails_on_http1_fallback() {
    let identity = Identity::new();
    let (tcp, udp) = port();
    let address = tcp.local_addr().unwrap();
    drop(udp);
    serve(tcp, &identity, &[b"http/1.1"], in_http1);
    let fixture = proxy_for(address, identity.settings());
    let fields = "Content-Type: application/grpc\r\nTE: trailers\r\nContent-Length: 5\r\n";
    let answer = fixture.ask("POST /a.B/C", fields, "\0\0\0\0\0");
    has(&answer, &["grpc-status: 14"]);
}

#[test]
fn websocket_uses_http1_without_http3_extended_connect() {
    let (tcp, udp) = port();
    // The endpoint does not support extended CONNECT.
    let server = Server::at(udp, Identity::new(), 100);
    serve(tcp, &server.identity, &[b"http/1.1"], in_http1);
    let fixture = proxy_for(server.address, server.identity.settings());
    has(&fixture.ask("GET /", "", ""), &["via: 3 sheave"]);
    let (mut socket, head) = fixture.open_websocket();
    has(&head, &["HTTP/1.1 101 "]);
    echo(&mut socket, b"one");
}

#[test]
fn http3_is_retried_after_the_backoff() {
    let identity = Identity::new();
    let (tcp, udp) = port();
    let address = tcp.local_addr().unwrap();
    drop(udp);
    serve(tcp, &identity, &[b"h2"], in_http2);
    let fixture = proxy_for(address, identity.settings());
    has(&fixture.ask("GET /", "", ""), &["via: 2 sheave"]);
    assert_eq!(http3_state(&fixture), "avoided");
    let _server = Server::at(UdpSocket::bind(address).unwrap(), identity, 100);
    ask_until(&fixture, "via: 3 sheave");
    assert_eq!(http3_state(&fixture), "open");
}

#[test]
fn http3_is_used_once_an_unreachable_endpoint_comes_up() {
    let identity = Identity::new();
    let (tcp, udp) = port();
    let address = tcp.local_addr().unwrap();
    drop((tcp, udp));
    let fixture = proxy_for(address, identity.settings());
    has(&fixture.ask("GET /", "", ""), &["http/1.1 502", "error=connection_refused"]);
    let _server = Server::at(UdpSocket::bind(address).unwrap(), identity, 100);
    ask_until(&fixture, "via: 3 sheave");
}

#[test]
fn certificate_is_verified_on_tcp_fallback() {
    let (tcp, udp) = port();
    let address = tcp.local_addr().unwrap();
    drop(udp);
    serve(tcp, &Identity::new(), &[b"h2"], in_http2);
    let fixture = proxy_for(address, Identity::new().settings());
    has(&fixture.ask("GET /", "", ""), &["http/1.1 502", "error=tls_certificate_error"]);
}
