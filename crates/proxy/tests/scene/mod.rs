//! A proxy with its configuration, and simple clients.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use gateway::Snapshot;
use gateway::matching::{HostPattern, MatchConditions, PathPattern, RouteMatch, RouteTable};
use gateway::snapshot::{
    Backend, BackendKey, BackendSettings, ClientSettings, EndpointSource, EndpointSpec, Listener,
    ListenerProtocol, RouteFilters, Rule, RuleTarget, TransportProtocol, WeightedTarget,
};
use proxy::{Proxy, ProxySettings};

/// Tests that are common to HTTP/2 and HTTP/3 endpoints.
pub(crate) mod either;

/// Time limit; no operation here takes as long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A proxy that sends all requests to the first backend.
pub(crate) struct Scene {
    pub(crate) address: SocketAddr,
    #[allow(dead_code, reason = "most tests only need it to run")]
    pub(crate) proxy: Proxy,
}

impl Scene {
    pub(crate) fn with(backends: Vec<Backend>, filters: Option<RouteFilters>) -> Self {
        let workers = NonZeroUsize::new(1).unwrap();
        let proxy = Proxy::start(ProxySettings {
            workers,
            access_log: None,
            exemplars: false,
            affinity_key: None,
        })
        .unwrap();
        proxy.apply(&snapshot(backends, filters));
        Self { address: proxy.listeners()[0].address, proxy }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(self.address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    /// Sends a request, the last on its connection, and returns everything that is received, in lower case.
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

impl Scene {
    /// Requests a WebSocket; returns the connection and the response head.
    pub(crate) fn open_websocket(&self) -> (TcpStream, String) {
        let mut socket = self.connect();
        let request = "GET /chat HTTP/1.1\r\nHost: a.example\r\nConnection: upgrade\r\n\
            Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
            Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        socket.write_all(request.as_bytes()).unwrap();
        let head = read_until(&mut socket, b"\r\n\r\n");
        (socket, String::from_utf8(head).unwrap())
    }
}

/// Sends a message to an echo service, and checks that it comes back.
pub(crate) fn echo(socket: &mut TcpStream, message: &[u8; 3]) {
    socket.write_all(message).unwrap();
    let mut back = [0; 3];
    socket.read_exact(&mut back).unwrap();
    assert_eq!(&back, message);
}

/// Reads one response of the echo endpoint to its end.
pub(crate) fn read_answer(socket: &mut impl Read) {
    let answer = read_until(socket, b"x-after: all\r\n\r\n");
    assert!(!answer.starts_with(b"HTTP/1.1 5"), "{}", String::from_utf8_lossy(&answer));
}

/// Reads up to and including `ending`, or the head of an error response.
pub(crate) fn read_until(socket: &mut impl Read, ending: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let is_failure =
        |bytes: &[u8]| bytes.starts_with(b"HTTP/1.1 5") && bytes.ends_with(b"\r\n\r\n");
    while !bytes.ends_with(ending) && !is_failure(&bytes) {
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
        bytes.push(byte[0]);
    }
    bytes
}

pub(crate) fn has(answer: &str, parts: &[&str]) {
    for part in parts {
        assert!(answer.contains(part), "{part:?} in {answer}");
    }
}

fn snapshot(backends: Vec<Backend>, filters: Option<RouteFilters>) -> Snapshot {
    let target = WeightedTarget { target: RuleTarget::Backend(0), weight: 1, filters: None };
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
    let all = RouteMatch {
        path: PathPattern::prefix("/").unwrap(),
        conditions: MatchConditions::default(),
    };
    routes.add_rule(&HostPattern::Any, &HostPattern::Any, &Arc::new(all), &rule);
    let listener = Listener {
        address: ([127, 0, 0, 1], 0).into(),
        public_port: None,
        free_bind: false,
        name: "listener".into(),
        client: Arc::new(ClientSettings::default()),
        protocol: ListenerProtocol::Http(routes),
        tls: None,
        http3: None,
    };
    Snapshot { listeners: vec![listener], rules: vec![rule], backends }
}

pub(crate) fn backend(name: &str, address: SocketAddr, settings: BackendSettings) -> Backend {
    let key = BackendKey {
        namespace: "default".into(),
        service: name.into(),
        port: 80,
        transport: TransportProtocol::Tcp,
    };
    let endpoints = vec![EndpointSpec { address, weight: 1, zone: None, node: None }];
    Backend { key, source: EndpointSource::Slices, endpoints, settings }
}
