//! Request mirroring: each endpoint receives the request in its own protocol, whatever the primary endpoint speaks.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use gateway::snapshot::{Backend, BackendSettings, MirrorFraction, MirrorPolicy, RouteFilters};
use h2::server;

use crate::endpoint::in_http2;
use crate::fixture::{ProxyFixture, backend};

/// Time limit; no operation here takes as long.
const PATIENCE: Duration = Duration::from_secs(30);

/// An HTTP/2 endpoint that reports the requests it receives.
fn in_h2(requests: Sender<String>) -> SocketAddr {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        runtime.block_on(async {
            let (socket, _) = listener.accept().await.unwrap();
            let mut connection = server::handshake(socket).await.unwrap();
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                let requests = requests.clone();
                tokio::spawn(async move {
                    let (head, mut body) = request.into_parts();
                    let mut text = format!("{} {} ", head.method, head.uri.path());
                    while let Some(Ok(data)) = body.data().await {
                        text.push_str(str::from_utf8(&data).unwrap());
                    }
                    requests.send(text).unwrap();
                    respond.send_response(http::Response::new(()), true).unwrap();
                });
            }
        });
    });
    address
}

/// An HTTP/1.1 endpoint that reports the request it receives.
fn in_h1(requests: Sender<String>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut text = Vec::new();
        let mut read = [0; 4096];
        // The body of every request here ends with this.
        while !text.ends_with(b"hello") && !text.ends_with(b"hello\r\n0\r\n\r\n") {
            let count = socket.read(&mut read).unwrap();
            assert!(count > 0, "{}", text.escape_ascii());
            text.extend_from_slice(&read[..count]);
        }
        requests.send(String::from_utf8(text).unwrap()).unwrap();
        socket.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
        // Waits until the proxy has closed the connection.
        drop(socket.read(&mut read));
    });
    address
}

/// Returns the requests that two endpoints receive if the requests to the first are mirrored to the second.
fn received_requests(
    endpoints: [fn(Sender<String>) -> SocketAddr; 2],
    settings: [BackendSettings; 2],
    request: (&str, &str),
) -> [String; 2] {
    let channels: [(Sender<String>, Receiver<String>); 2] = [channel(), channel()];
    let names = ["first", "mirror"];
    let backends: Vec<Backend> = (0..2)
        .map(|at| backend(names[at], endpoints[at](channels[at].0.clone()), settings[at].clone()))
        .collect();
    let mirrors = vec![MirrorPolicy { backend: 1, share: MirrorFraction::ALL }];
    let fixture =
        ProxyFixture::with(backends, Some(RouteFilters { mirrors, ..RouteFilters::default() }));
    let answer = fixture.ask("POST /a", request.0, request.1);
    assert!(answer.starts_with("http/1.1 20"), "{answer}");
    channels.map(|(_, requests)| requests.recv_timeout(PATIENCE).unwrap())
}

const WITH_LENGTH: (&str, &str) = ("Content-Length: 5\r\n", "hello");
const CHUNKED: (&str, &str) = ("Transfer-Encoding: chunked\r\n", "5\r\nhello\r\n0\r\n\r\n");

#[test]
fn mirrors_from_http1_to_http2() {
    for request in [WITH_LENGTH, CHUNKED] {
        let settings = [BackendSettings::default(), in_http2()];
        let [first, mirror] = received_requests([in_h1, in_h2], settings, request);
        assert!(first.starts_with("POST /a HTTP/1.1\r\n"), "{first}");
        assert_eq!(mirror, "POST /a hello");
    }
}

#[test]
fn mirrors_from_http2_to_http1() {
    for request in [WITH_LENGTH, CHUNKED] {
        let settings = [in_http2(), BackendSettings::default()];
        let [first, mirror] = received_requests([in_h2, in_h1], settings, request);
        assert_eq!(first, "POST /a hello");
        assert!(mirror.starts_with("POST /a HTTP/1.1\r\n"), "{mirror}");
        assert!(mirror.contains("\r\nContent-Length: 5\r\n"), "{mirror}");
    }
}

#[test]
fn mirrors_from_http2_to_http2() {
    let [first, mirror] = received_requests([in_h2, in_h2], [in_http2(), in_http2()], CHUNKED);
    assert_eq!((first.as_str(), mirror.as_str()), ("POST /a hello", "POST /a hello"));
}

#[test]
fn mirrors_from_http1_to_http1() {
    let settings = [BackendSettings::default(), BackendSettings::default()];
    let [first, mirror] = received_requests([in_h1, in_h1], settings, CHUNKED);
    assert_eq!(first, mirror);
}
