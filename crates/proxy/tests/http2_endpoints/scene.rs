//! A proxy, its configuration, and endpoints that speak HTTP/2.

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
    Backend, BackendKey, BackendSettings, ClientSettings, EndpointProtocol, EndpointSpec, Filters,
    Listener, Protocol, Rule, Source, Target, Transport, WeightedTarget,
};
use h2::ext::Protocol as Extended;
use h2::server::{self, SendResponse};
use h2::{Reason, RecvStream};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use proxy::{Proxy, Settings};
use tokio::net::TcpListener;

/// Nothing here takes as long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Clients reach a proxy that sends requests to the first backend.
pub(crate) struct Scene {
    pub(crate) address: SocketAddr,
    _proxy: Proxy,
}

impl Scene {
    pub(crate) fn new() -> Self {
        Self::with(vec![backend("backend", serve(), in_http2())], None)
    }

    pub(crate) fn with(backends: Vec<Backend>, filters: Option<Filters>) -> Self {
        let workers = NonZeroUsize::new(1).unwrap();
        let proxy = Proxy::start(Settings { workers, access_log: None, exemplars: false }).unwrap();
        proxy.apply(&snapshot(backends, filters));
        Self { address: proxy.listeners()[0].address, _proxy: proxy }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(self.address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    /// All that is answered to the request, which is the last on its connection.
    pub(crate) fn ask(&self, line: &str, fields: &str, body: &str) -> String {
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

fn snapshot(backends: Vec<Backend>, filters: Option<Filters>) -> Snapshot {
    let target = WeightedTarget { target: Target::Backend(0), weight: 1, filters: None };
    let rule = Arc::new(Rule {
        index: 0,
        name: "rule".into(),
        targets: vec![target],
        filters: filters.map(Box::new),
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
        http3: None,
    };
    Snapshot { listeners: vec![listener], rules: vec![rule], backends }
}

pub(crate) fn in_http2() -> BackendSettings {
    BackendSettings { protocol: EndpointProtocol::Http2, ..BackendSettings::default() }
}

pub(crate) fn backend(name: &str, address: SocketAddr, settings: BackendSettings) -> Backend {
    let key = BackendKey {
        namespace: "default".into(),
        service: name.into(),
        port: 80,
        transport: Transport::Tcp,
    };
    let endpoints = vec![EndpointSpec { address, weight: 1, zone: None }];
    Backend { key, source: Source::Slices, endpoints, settings }
}

/// An endpoint that does what the path says.
pub(crate) fn serve() -> SocketAddr {
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

/// Requests whose bodies were reset, of all endpoints.
static RESETS: AtomicU32 = AtomicU32::new(0);

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
        "/resets" => {
            let resets = RESETS.load(Ordering::Relaxed);
            let head = Response::builder().header("x-resets", resets).body(()).unwrap();
            respond.send_response(head, true).unwrap();
        }
        "/break" => {
            let mut body = respond.send_response(Response::new(()), false).unwrap();
            body.send_data("half".into(), false).unwrap();
            // The client says that it has got it.
            request.into_body().data().await.unwrap().unwrap();
            body.send_reset(Reason::INTERNAL_ERROR);
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
    while let Some(data) = body.data().await {
        let Ok(data) = data else {
            RESETS.fetch_add(1, Ordering::Relaxed);
            return;
        };
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
