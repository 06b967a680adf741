//! TLS end to end: a client, a listener `outer`, a TLS connection to a second listener `inner`, and a plain server
//! behind it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::{NonZeroU32, NonZeroUsize};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use gateway::Snapshot;
use gateway::matching::{HostPattern, MatchConditions, PathPattern, RouteMatch, RouteTable};
use gateway::snapshot::{
    Backend, BackendKey, BackendSettings, ClientSettings, EndpointSource, EndpointSpec,
    EndpointTls, Listener, ListenerProtocol, ListenerTls, PrivateKey, Rule, RuleTarget, SniRule,
    TlsCertificate, TlsPayload, TlsTermination, TransportProtocol, TrustAnchors, WeightedTarget,
};
use proxy::observe::MetricReading;
use proxy::{Proxy, ProxySettings};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// Time limit; no operation here takes as long.
const PATIENCE: Duration = Duration::from_secs(30);

/// Clients connect to `outer`, which forwards requests over TLS to `inner`, which forwards them to a plain server.
struct ProxyFixture {
    authority: Authority,
    server: SocketAddr,
    proxy: Proxy,
    outer: SocketAddr,
    client: Arc<ClientConfig>,
}

impl ProxyFixture {
    fn new() -> Self {
        Self::with_settings(&BackendSettings::default())
    }

    /// Starts a proxy that uses these backend settings for `inner`.
    fn with_settings(settings: &BackendSettings) -> Self {
        let (authority, server) = (Authority::new(), serve_plainly());
        let proxy = Proxy::start(ProxySettings {
            workers: NonZeroUsize::new(2).unwrap(),
            access_log: None,
            exemplars: false,
            traces: None,
            memory_limit: None,
            max_descriptors: None,
            affinity_key: None,
            interceptor: None,
            leases_slots: false,
        })
        .unwrap();
        let unknown = SocketAddr::from(([127, 0, 0, 1], 9));
        proxy.apply(&snapshot(&authority, settings, server, unknown));
        let inner = address(&proxy, "inner");
        proxy.apply(&snapshot(&authority, settings, server, inner));
        let mut roots = RootCertStore::empty();
        roots.add((&*authority.der).into()).unwrap();
        let provider = Arc::new(aws_lc_rs::default_provider());
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let (outer, client) = (address(&proxy, "outer"), Arc::new(client));
        Self { authority, server, proxy, outer, client }
    }

    /// Replaces the certificates of all names.
    fn renew(&self) {
        let inner = address(&self.proxy, "inner");
        let settings = BackendSettings::default();
        self.proxy.apply(&snapshot(&self.authority, &settings, self.server, inner));
    }

    fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(self.outer).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket
    }

    fn connect_tls(&self, name: &str) -> StreamOwned<ClientConnection, TcpStream> {
        let name = name.to_owned().try_into().unwrap();
        let session = ClientConnection::new(Arc::clone(&self.client), name).unwrap();
        StreamOwned::new(session, self.connect())
    }

    /// Returns the number of handshakes at a listener, by outcome.
    fn handshakes(&self, listener: &str) -> BTreeMap<String, u64> {
        let mut handshakes = BTreeMap::new();
        self.proxy.collect(&mut |sample| {
            if let ("sheave_tls_handshakes", [name, outcome], MetricReading::Count(count)) =
                (sample.metric.name, sample.labels, &sample.value)
                && *name == listener
                && *count > 0
            {
                handshakes.insert((*outcome).to_owned(), *count);
            }
        });
        handshakes
    }
}

fn address(proxy: &Proxy, name: &str) -> SocketAddr {
    let listeners = proxy.listeners();
    listeners.iter().find(|listener| &*listener.name == name).unwrap().address
}

struct Authority {
    der: Vec<u8>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let der = params.self_signed(&key).unwrap().der().to_vec();
        Self { der, issuer: Issuer::new(params, key) }
    }

    fn termination(&self, names: &[&str]) -> Arc<TlsTermination> {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate().unwrap();
        let signed = CertificateParams::new(names).unwrap().signed_by(&key, &self.issuer).unwrap();
        let certificate = TlsCertificate {
            name: "Secret test".into(),
            chain: vec![(**signed.der()).into()],
            key: PrivateKey::Pkcs8(key.serialize_der().into()),
        };
        Arc::new(TlsTermination { certificates: vec![Arc::new(certificate)], clients: None })
    }
}

fn snapshot(
    authority: &Authority,
    settings: &BackendSettings,
    server: SocketAddr,
    inner: SocketAddr,
) -> Snapshot {
    let to_inner = EndpointTls {
        server_name: "inner.example".into(),
        subject_names: Vec::new(),
        roots: TrustAnchors::Given(vec![authority.der.clone().into()]),
        client: None,
    };
    let secured = BackendSettings { tls: Some(Arc::new(to_inner)), ..settings.clone() };
    let backends = vec![
        backend("plain", server, BackendSettings::default()),
        backend("secured", inner, secured),
        backend("passed", inner, BackendSettings::default()),
    ];
    let rules: Vec<_> = (0..backends.len()).map(rule).collect();
    let requests = |name: &str, names: &[&str]| SniRule {
        hosts: if name.is_empty() { HostPattern::Any } else { HostPattern::parse(name).unwrap() },
        terminate: Some(authority.termination(names)),
        payload: TlsPayload::Requests,
    };
    let outer_rules = vec![
        requests("requests.example", &["requests.example", "other.example"]),
        requests("other.example", &["other.example"]),
        SniRule {
            hosts: HostPattern::parse("passed.example").unwrap(),
            terminate: None,
            payload: TlsPayload::Connections(Some(Arc::clone(&rules[2]))),
        },
        SniRule {
            hosts: HostPattern::parse("ended.example").unwrap(),
            terminate: Some(authority.termination(&["ended.example"])),
            payload: TlsPayload::Connections(Some(Arc::clone(&rules[0]))),
        },
    ];
    let inner_rules = vec![requests("", &["inner.example", "passed.example"])];
    let listeners = vec![
        listener("outer", &rules[1], outer_rules),
        // A distinct IP address, because both listeners bind port 0.
        Listener {
            address: ([127, 0, 0, 2], 0).into(),
            ..listener("inner", &rules[0], inner_rules)
        },
    ];
    Snapshot { listeners, rules, backends, ..Snapshot::default() }
}

fn listener(name: &str, rule: &Arc<Rule>, sni_rules: Vec<SniRule>) -> Listener {
    let mut routes = RouteTable::default();
    let any_path = RouteMatch {
        path: PathPattern::prefix("/").unwrap(),
        conditions: MatchConditions::default(),
    };
    routes.add_rule(&HostPattern::Any, &HostPattern::Any, &Arc::new(any_path), rule);
    Listener {
        address: ([127, 0, 0, 1], 0).into(),
        public_port: None,
        free_bind: false,
        name: name.into(),
        client: Arc::new(ClientSettings::default()),
        protocol: ListenerProtocol::Http(routes),
        tls: Some(Arc::new(ListenerTls { sni_rules })),
        http3: None,
        interception: None,
        consumer_routes: Default::default(),
        sources: None,
    }
}

fn rule(index: usize) -> Arc<Rule> {
    let target = WeightedTarget { target: RuleTarget::Backend(index), weight: 1, filters: None };
    Arc::new(Rule {
        index,
        name: format!("rule-{index}").into(),
        targets: vec![target],
        filters: None,
        request_timeout: None,
        attempt_timeout: None,
        retry: None,
        affinity: None,
    })
}

fn backend(name: &str, address: SocketAddr, settings: BackendSettings) -> Backend {
    let key = BackendKey {
        namespace: "default".into(),
        service: name.into(),
        port: 80,
        transport: TransportProtocol::Tcp,
        node: None,
    };
    let endpoints = vec![EndpointSpec::new(address)];
    Backend { key, source: EndpointSource::Slices, endpoints, elsewhere: Vec::new(), settings }
}

/// A server that sends back the head of each request.
fn serve_plainly() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            thread::spawn(move || {
                while let Some(head) = read_head(&mut socket) {
                    let length = head.len();
                    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
                    socket.write_all((answer + &head).as_bytes()).unwrap();
                }
            });
        }
    });
    address
}

/// Reads up to and including the first empty line; `None` if the peer has closed.
fn read_head(source: &mut impl Read) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if source.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    Some(String::from_utf8(head).unwrap())
}

/// Sends one request, and returns the head and body of its response.
fn ask(stream: &mut (impl Read + Write), host: &str) -> (String, String) {
    stream.write_all(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).unwrap();
    let head = read_head(stream).unwrap().to_lowercase();
    let length = head.split("content-length: ").nth(1).unwrap().split("\r\n").next().unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    (head, String::from_utf8(body).unwrap().to_lowercase())
}

#[test]
fn requests_are_encrypted_on_both_sides() {
    let fixture = ProxyFixture::new();
    let mut stream = fixture.connect_tls("requests.example");
    for _ in 0..3 {
        let (head, body) = ask(&mut stream, "requests.example");
        assert!(head.starts_with("http/1.1 200"), "{head}");
        assert!(body.contains("x-forwarded-proto: https"), "{body}");
        assert_eq!(body.matches("via: 1.1 sheave").count(), 2, "{body}");
    }
    for listener in ["outer", "inner"] {
        assert_eq!(fixture.handshakes(listener), [("full".to_owned(), 1)].into());
    }
}

#[test]
fn returning_client_resumes_its_session() {
    let fixture = ProxyFixture::new();
    for _ in 0..8 {
        // Connections alternate between both workers.
        ask(&mut fixture.connect_tls("requests.example"), "requests.example");
    }
    let expected = [("full".to_owned(), 1), ("resumed".to_owned(), 7)];
    assert_eq!(fixture.handshakes("outer"), expected.into());
}

#[test]
fn tls_connection_is_passed_through() {
    let fixture = ProxyFixture::new();
    let (head, body) = ask(&mut fixture.connect_tls("passed.example"), "passed.example");
    assert!(head.starts_with("http/1.1 200"), "{head}");
    assert_eq!(body.matches("via: 1.1 sheave").count(), 1, "{body}");
    assert_eq!(fixture.handshakes("outer")["passed_through"], 1);
}

#[test]
fn terminated_tls_connection_is_proxied_as_tcp() {
    let fixture = ProxyFixture::new();
    let (_, body) = ask(&mut fixture.connect_tls("ended.example"), "ended.example");
    assert_eq!(body, "get / http/1.1\r\nhost: ended.example\r\n\r\n");
}

#[test]
fn request_for_another_site_is_answered_421() {
    let fixture = ProxyFixture::new();
    let mut stream = fixture.connect_tls("requests.example");
    let (head, _) = ask(&mut stream, "other.example");
    assert!(head.starts_with("http/1.1 421"), "{head}");
    let (head, _) = ask(&mut stream, "requests.example");
    assert!(head.starts_with("http/1.1 200"), "{head}");
}

#[test]
fn plain_http_client_is_answered_400() {
    let fixture = ProxyFixture::new();
    let mut socket = fixture.connect();
    let (head, body) = ask(&mut socket, "requests.example");
    assert!(head.starts_with("http/1.1 400"), "{head}");
    assert_eq!(body, "this port speaks tls: use https\n");
    assert_eq!(socket.read(&mut [0]).unwrap(), 0);
    assert_eq!(fixture.handshakes("outer"), [("plain_http".to_owned(), 1)].into());
}

#[test]
fn unknown_server_name_is_refused() {
    let fixture = ProxyFixture::new();
    let mut stream = fixture.connect_tls("unknown.example");
    let error = stream.write_all(b"x").unwrap_err();
    assert!(error.to_string().contains("UnrecognisedName"), "{error}");
    // The handshake is counted before the connection is closed.
    stream.sock.read_to_end(&mut Vec::new()).unwrap();
    assert_eq!(fixture.handshakes("outer"), [("unknown_name".to_owned(), 1)].into());
}

#[test]
fn non_tls_bytes_are_refused() {
    let fixture = ProxyFixture::new();
    let mut socket = fixture.connect();
    socket.write_all(&[0xff; 100]).unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).unwrap();
    assert_eq!(fixture.handshakes("outer"), [("protocol".to_owned(), 1)].into());
}

#[test]
fn pooled_connection_moves_between_workers_with_its_slot() {
    let settings = BackendSettings {
        max_in_flight_per_endpoint: NonZeroU32::new(1),
        queue_max_requests: 64,
        ..BackendSettings::default()
    };
    let fixture = ProxyFixture::with_settings(&settings);
    // Connections alternate between both workers.
    let mut clients: Vec<_> = (0..4).map(|_| fixture.connect_tls("requests.example")).collect();
    for _ in 0..5 {
        for client in &mut clients {
            let (head, _) = ask(client, "requests.example");
            assert!(head.starts_with("http/1.1 200"), "{head}");
        }
    }
    assert_eq!(fixture.handshakes("inner"), [("full".to_owned(), 1)].into());
}

#[test]
fn certificate_rotation_disturbs_no_connection() {
    let fixture = ProxyFixture::new();
    let mut kept = fixture.connect_tls("requests.example");
    for _ in 0..50 {
        let mut before = fixture.connect_tls("requests.example");
        before.write_all(b"GET / HT").unwrap();
        fixture.renew();
        before.write_all(b"TP/1.1\r\nHost: requests.example\r\n\r\n").unwrap();
        assert!(read_head(&mut before).unwrap().starts_with("HTTP/1.1 200"));
        for client in [&mut kept, &mut fixture.connect_tls("requests.example")] {
            let (head, _) = ask(client, "requests.example");
            assert!(head.starts_with("http/1.1 200"), "{head}");
        }
    }
    assert_eq!(fixture.handshakes("outer").keys().collect::<Vec<_>>(), ["full", "resumed"]);
}
