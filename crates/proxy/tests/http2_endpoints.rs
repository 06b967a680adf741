//! An endpoint that speaks HTTP/2, seen by a client that speaks HTTP/1.1.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use gateway::Snapshot;
use gateway::matching::{Conditions, HostPattern, Match, PathPattern, RouteTable};
use gateway::snapshot::{
    Backend, BackendKey, BackendSettings, ClientSettings, EndpointProtocol, EndpointSpec, Listener,
    Protocol, Rule, Source, Target, Transport, WeightedTarget,
};
use h2::ext::Protocol as Extended;
use h2::server::{self, SendResponse};
use h2::{Reason, RecvStream};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use proxy::{Proxy, Settings};
use tokio::net::TcpListener;

/// Nothing here takes as long.
const PATIENCE: Duration = Duration::from_secs(30);

/// Clients reach a proxy that sends requests to one endpoint.
struct Scene {
    address: SocketAddr,
    _proxy: Proxy,
}

impl Scene {
    fn new() -> Self {
        Self::with(BackendSettings::default())
    }

    fn with(settings: BackendSettings) -> Self {
        let proxy = Proxy::start(Settings {
            workers: NonZeroUsize::new(1).unwrap(),
            access_log: None,
            exemplars: false,
        })
        .unwrap();
        let settings = BackendSettings { protocol: EndpointProtocol::Http2, ..settings };
        proxy.apply(&snapshot(serve(), settings));
        Self { address: proxy.listeners()[0].address, _proxy: proxy }
    }

    fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(self.address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    /// All that is answered to the request, which is the last on its connection.
    fn ask(&self, line: &str, fields: &str, body: &str) -> String {
        let mut socket = self.connect();
        let request = format!(
            "{line} HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n{fields}\r\n{body}"
        );
        socket.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer.to_lowercase()
    }
}

fn snapshot(endpoint: SocketAddr, settings: BackendSettings) -> Snapshot {
    let target = WeightedTarget { target: Target::Backend(0), weight: 1, filters: None };
    let rule = Arc::new(Rule {
        index: 0,
        name: "rule".into(),
        targets: vec![target],
        filters: None,
        request_timeout: None,
        attempt_timeout: None,
        retry: None,
    });
    let mut routes = RouteTable::default();
    let all = Match { path: PathPattern::prefix("/").unwrap(), conditions: Conditions::default() };
    routes.add_rule(&HostPattern::Any, &HostPattern::Any, &Arc::new(all), &rule);
    let listener = Listener {
        address: ([127, 0, 0, 1], 0).into(),
        name: "listener".into(),
        client: Arc::new(ClientSettings::default()),
        protocol: Protocol::Http(routes),
        tls: None,
    };
    let key = BackendKey {
        namespace: "default".into(),
        service: "backend".into(),
        port: 80,
        transport: Transport::Tcp,
    };
    let endpoints = vec![EndpointSpec { address: endpoint, weight: 1, zone: None }];
    let backend = Backend { key, source: Source::Slices, endpoints, settings };
    Snapshot { listeners: vec![listener], rules: vec![rule], backends: vec![backend] }
}

/// An endpoint that does what the path says.
fn serve() -> SocketAddr {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        runtime.block_on(async {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                tokio::spawn(serve_connection(socket));
            }
        });
    });
    address
}

async fn serve_connection(socket: tokio::net::TcpStream) {
    let shaken = server::Builder::new().enable_connect_protocol().handshake(socket).await;
    let mut connection: server::Connection<_, Bytes> = shaken.unwrap();
    while let Some(Ok((request, respond))) = connection.accept().await {
        if request.uri().path() == "/leave" {
            connection.graceful_shutdown();
        }
        tokio::spawn(answer(request, respond));
    }
}

async fn answer(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    match request.uri().path() {
        "/empty" => {
            let mut head = Response::new(());
            *head.status_mut() = StatusCode::NO_CONTENT;
            respond.send_response(head, true).unwrap();
        }
        "/early" => {
            let hints = Response::builder().status(103).header("link", "</a.css>");
            respond.send_informational(hints.body(()).unwrap()).unwrap();
            echo(request, respond).await;
        }
        "/reset" => respond.send_reset(Reason::INTERNAL_ERROR),
        "/refuse-first" if ASKED.fetch_add(1, Ordering::Relaxed) == 0 => {
            respond.send_reset(Reason::REFUSED_STREAM);
        }
        "/refuse" => respond.send_reset(Reason::REFUSED_STREAM),
        _ => echo(request, respond).await,
    }
}

/// Says what was asked, and sends back what came.
async fn echo(request: Request<RecvStream>, mut respond: SendResponse<Bytes>) {
    let method = request.method().clone();
    let protocol = request.extensions().get::<Extended>().map(|it| it.as_str().to_owned());
    let mut head = Response::builder().header("x-asked", format!("{method} {}", request.uri()));
    for (name, value) in request.headers() {
        head = head.header(format!("x-got-{name}"), value);
    }
    head = head.header("x-protocol", protocol.unwrap_or_default());
    let is_whole = method == Method::HEAD;
    let mut back = respond.send_response(head.body(()).unwrap(), is_whole).unwrap();
    if is_whole {
        return;
    }
    let mut body = request.into_body();
    while let Some(Ok(data)) = body.data().await {
        body.flow_control().release_capacity(data.len()).unwrap();
        back.send_data(data, false).unwrap();
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("x-after", "all".parse().unwrap());
    for (name, value) in body.trailers().await.unwrap().unwrap_or_default() {
        trailers.insert(name.unwrap(), value);
    }
    back.send_trailers(trailers).unwrap();
}

fn has(answer: &str, parts: &[&str]) {
    for part in parts {
        assert!(answer.contains(part), "{part:?} in {answer}");
    }
}

#[test]
fn a_request_without_a_body_is_asked_by_its_head_alone() {
    let scene = Scene::new();
    let answer = scene.ask("GET /a?b", "X-B: 1\r\nTE: trailers\r\nKeep-Alive: 1\r\n", "");
    has(
        &answer,
        &[
            "http/1.1 200 ok\r\n",
            "x-asked: get http://a.example/a?b\r\n",
            "x-got-x-b: 1\r\n",
            "x-got-te: trailers\r\n",
            "x-got-x-forwarded-for: 127.0.0.1\r\n",
            "via: 2 sheave\r\n",
            "transfer-encoding: chunked\r\n",
            "\r\n0\r\nx-after: all\r\n\r\n",
        ],
    );
    assert!(!answer.contains("x-got-keep-alive") && !answer.contains("x-got-connection"));
}

#[test]
fn bodies_with_and_without_length_arrive() {
    let scene = Scene::new();
    let answer = scene.ask("POST /", "Content-Length: 5\r\n", "hello");
    has(&answer, &["x-got-content-length: 5\r\n", "5\r\nhello\r\n"]);
    let chunks = "5\r\nhello\r\n1\r\n!\r\n0\r\nX-Sum: 6\r\n\r\n";
    let answer = scene.ask("POST /", "Transfer-Encoding: chunked\r\nTE: trailers\r\n", chunks);
    has(&answer, &["hello", "!", "x-sum: 6\r\n"]);
    assert!(!answer.contains("x-got-transfer-encoding"), "{answer}");
    let large = "x".repeat(1024 * 1024);
    let answer = scene.ask("PUT /", &format!("Content-Length: {}\r\n", large.len()), &large);
    let got: usize = answer.split("\r\n\r\n").nth(1).unwrap().matches('x').count();
    assert!(got >= large.len(), "{got}");
}

#[test]
fn responses_without_a_body_have_none() {
    let scene = Scene::new();
    let answer = scene.ask("HEAD /", "", "");
    assert!(answer.starts_with("http/1.1 200") && answer.ends_with("\r\n\r\n"), "{answer}");
    let answer = scene.ask("GET /empty", "", "");
    assert!(answer.starts_with("http/1.1 204") && answer.ends_with("\r\n\r\n"), "{answer}");
    assert!(!answer.contains("transfer-encoding"), "{answer}");
}

#[test]
fn interim_responses_pass() {
    let answer = Scene::new().ask("GET /early", "", "");
    has(&answer, &["http/1.1 103 early hints\r\nlink: </a.css>\r\n", "http/1.1 200 ok\r\n"]);
}

#[test]
fn what_the_endpoint_refused_is_sent_again() {
    let scene = Scene::new();
    let answer = scene.ask("POST /refuse-first", "Content-Length: 2\r\n", "hi");
    has(&answer, &["http/1.1 200 ok\r\n", "2\r\nhi\r\n"]);
    let answer = scene.ask("POST /refuse", "Content-Length: 2\r\n", "hi");
    has(&answer, &["http/1.1 503", "error=destination_unavailable"]);
}

#[test]
fn a_request_that_was_reset_is_not_sent_again_unless_that_is_harmless() {
    let answer = Scene::new().ask("POST /reset", "Content-Length: 2\r\n", "hi");
    has(&answer, &["http/1.1 502", "error=connection_terminated"]);
}

#[test]
fn nothing_is_lost_when_the_endpoint_leaves() {
    let scene = Scene::new();
    let asking: Vec<_> = (0..4)
        .map(|_| {
            let mut socket = scene.connect();
            thread::spawn(move || {
                for _ in 0..50 {
                    let request = b"POST /leave HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi";
                    socket.write_all(request).unwrap();
                    let mut answer = Vec::new();
                    while !answer.ends_with(b"x-after: all\r\n\r\n") {
                        let mut byte = [0];
                        socket.read_exact(&mut byte).unwrap();
                        answer.push(byte[0]);
                        assert!(!answer.starts_with(b"HTTP/1.1 5"));
                    }
                }
            })
        })
        .collect();
    asking.into_iter().for_each(|client| client.join().unwrap());
}

#[test]
fn a_websocket_is_opened_by_extended_connect() {
    let scene = Scene::new();
    let mut socket = scene.connect();
    let request = "GET /chat HTTP/1.1\r\nHost: a.example\r\nConnection: upgrade\r\n\
        Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    socket.write_all(request.as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    has(&head, &["Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"]);
    let head = head.to_lowercase();
    has(
        &head,
        &[
            "http/1.1 101 ",
            "upgrade: websocket\r\n",
            "x-asked: connect http://a.example/chat\r\n",
            "x-protocol: websocket\r\n",
            "x-got-sec-websocket-version: 13\r\n",
        ],
    );
    assert!(!head.contains("x-got-sec-websocket-key"), "{head}");
    for message in [b"one", b"two"] {
        socket.write_all(message).unwrap();
        let mut back = [0; 3];
        socket.read_exact(&mut back).unwrap();
        assert_eq!(&back, message);
    }
}

#[test]
fn another_upgrade_is_an_offer_that_is_not_taken() {
    let answer = Scene::new().ask("GET /", "Upgrade: h9\r\nConnection: upgrade\r\n", "");
    has(&answer, &["http/1.1 200 ok\r\n", "x-asked: get "]);
}

#[test]
fn a_cap_counts_streams() {
    let max_in_flight_per_endpoint = std::num::NonZeroU32::new(1);
    let settings =
        BackendSettings { max_in_flight_per_endpoint, queue_max_requests: 0, ..Default::default() };
    let scene = Scene::with(settings);
    // It holds the one slot as long as its body is not whole.
    let mut first = scene.connect();
    first.write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nh").unwrap();
    let mut byte = [0];
    first.read_exact(&mut byte).unwrap();
    has(&scene.ask("GET /", "", ""), &["http/1.1 429"]);
    first.write_all(b"i").unwrap();
    let mut rest = Vec::new();
    while !rest.ends_with(b"x-after: all\r\n\r\n") {
        first.read_exact(&mut byte).unwrap();
        rest.push(byte[0]);
    }
    has(&scene.ask("GET /", "", ""), &["http/1.1 200"]);
}
