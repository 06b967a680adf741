//! A proxy behind an interceptor that is simulated: it knows the original destinations and marks, and real sockets
//! connect.

use std::collections::HashMap;
use std::future::ready;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::num::{NonZeroU32, NonZeroUsize};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

use gateway::Snapshot;
use gateway::matching::{HostPattern, MatchConditions, PathPattern, RouteMatch, RouteTable};
use gateway::snapshot::{
    Backend, BackendKey, BackendSettings, ClientSettings, EndpointSource, EndpointSpec,
    InterceptionSettings, Listener, ListenerProtocol, PathSettings, Rule, RuleTarget,
    TransportProtocol, WeightedTarget,
};
use proxy::observe::MetricReading;
use proxy::{ClientMark, ClientMarkFuture, ConnectionInterceptor, Proxy, ProxySettings, clock};
use socket2::{Domain, SockRef, Socket, Type};

/// Time limit; no operation here takes as long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// The mark of the proxy's own connections.
pub(crate) const OWN_MARK: u32 = 0x1000;
/// The address of the Service.
pub(crate) const SERVICE: SocketAddr =
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1)), 8080);
/// Addresses of clients.
pub(crate) const ONE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
pub(crate) const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

/// The simulated interception of a node.
#[derive(Default)]
pub(crate) struct SimulatedInterceptor {
    /// Original destinations, by the port at which connections arrive.
    destinations: Mutex<HashMap<u16, SocketAddr>>,
    /// Marks in use. `None`: no client gets a mark.
    marks: Mutex<Option<HashMap<IpAddr, Weak<ClientMark>>>>,
    marks_given: AtomicU32,
}

impl SimulatedInterceptor {
    /// Returns the number of marks that are in use.
    pub(crate) fn marks_in_use(&self) -> usize {
        let marks = self.marks.lock().unwrap();
        marks.iter().flat_map(HashMap::values).filter(|mark| mark.strong_count() > 0).count()
    }
}

impl ConnectionInterceptor for SimulatedInterceptor {
    fn original_destination(&self, socket: BorrowedFd<'_>) -> io::Result<SocketAddr> {
        let local = SockRef::from(&socket).local_addr()?.as_socket().unwrap();
        let destinations = self.destinations.lock().unwrap();
        destinations.get(&local.port()).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn own_mark(&self) -> u32 {
        OWN_MARK
    }

    fn client_mark(&self, address: IpAddr) -> ClientMarkFuture {
        let mut marks = self.marks.lock().unwrap();
        let Some(marks) = marks.as_mut() else { return Box::pin(ready(None)) };
        let mark = marks.get(&address).and_then(Weak::upgrade).unwrap_or_else(|| {
            let value = OWN_MARK + 1 + self.marks_given.fetch_add(1, Ordering::Relaxed);
            Arc::new(ClientMark { value, address })
        });
        marks.insert(address, Arc::downgrade(&mark));
        Box::pin(ready(Some(mark)))
    }
}

/// A proxy with one Service, whose requests go to an HTTP endpoint and whose connections to an echo endpoint.
pub(crate) struct NodeFixture {
    pub(crate) proxy: Proxy,
    pub(crate) interceptor: Arc<SimulatedInterceptor>,
    /// Where intercepted connections to the Service, and to an unknown address, arrive.
    pub(crate) intercepted: SocketAddr,
    pub(crate) unknown: SocketAddr,
    pub(crate) requests: HttpEndpoint,
    pub(crate) consumer: HttpEndpoint,
    connections: SocketAddr,
    settings: BackendSettings,
    /// True if the client's address is appended to `X-Forwarded-For`.
    pub(crate) appends_forwarded_for: bool,
}

/// The protocol of the Service.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServiceProtocol {
    Http,
    Detected,
    /// Detected; connections go to an endpoint that does not speak first.
    SilentConnections,
    /// The Service has been removed.
    Removed,
}

impl NodeFixture {
    pub(crate) fn new() -> Self {
        Self::with(BackendSettings::default(), true)
    }

    /// Starts a proxy whose backends have these settings. If `has_marks` is false, no client gets a mark.
    pub(crate) fn with(settings: BackendSettings, has_marks: bool) -> Self {
        let interceptor = Arc::new(SimulatedInterceptor::default());
        *interceptor.marks.lock().unwrap() = has_marks.then(HashMap::new);
        let proxy = Proxy::start(ProxySettings {
            workers: NonZeroUsize::new(2).unwrap(),
            access_log: None,
            exemplars: false,
            traces: None,
            memory_limit: None,
            max_descriptors: None,
            affinity_key: None,
            interceptor: Some(Arc::clone(&interceptor) as Arc<dyn ConnectionInterceptor>),
            leases_slots: false,
        })
        .unwrap();
        let sockets = [(); 2].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        let [intercepted, unknown] = sockets.each_ref().map(|it| it.local_addr().unwrap());
        let elsewhere = SocketAddr::new(SERVICE.ip(), 9);
        let destinations = [(intercepted.port(), SERVICE), (unknown.port(), elsewhere)];
        *interceptor.destinations.lock().unwrap() = destinations.into();
        let fixture = Self {
            proxy,
            interceptor,
            intercepted,
            unknown,
            requests: HttpEndpoint::start("default"),
            consumer: HttpEndpoint::start("consumer"),
            connections: echo_endpoint(),
            settings,
            appends_forwarded_for: false,
        };
        fixture.apply(ServiceProtocol::Detected);
        fixture.proxy.accept_intercepted(sockets.into()).unwrap();
        fixture
    }

    /// Puts a configuration with this protocol of the Service in force.
    pub(crate) fn apply(&self, protocol: ServiceProtocol) {
        let rules: Vec<_> = (0..3).map(rule).collect();
        let requests = routes(&rules[0]);
        let protocol = match protocol {
            ServiceProtocol::Http => Some(ListenerProtocol::Http(requests)),
            ServiceProtocol::Detected => Some(detected(requests, &rules[1])),
            ServiceProtocol::SilentConnections => Some(detected(requests, &rules[2])),
            ServiceProtocol::Removed => None,
        };
        let consumer_routes = [("consumer".into(), routes(&rules[2]))];
        let appends_forwarded_for = self.appends_forwarded_for;
        let client = ClientSettings { appends_forwarded_for, ..client_settings() };
        let listener = |protocol| Listener {
            address: SERVICE,
            public_port: None,
            free_bind: false,
            name: "default/app/http".into(),
            client: Arc::new(client.clone()),
            protocol,
            tls: None,
            http3: None,
            interception: Some(InterceptionSettings { keep_client_address: true }),
            consumer_routes: consumer_routes.clone().into(),
            sources: None,
        };
        let addresses = [self.requests.address, self.connections, self.consumer.address];
        let backends = addresses.into_iter().enumerate();
        let backends = backends.map(|(port, it)| backend(port, it, &self.settings)).collect();
        let listeners = protocol.map(listener).into_iter().collect();
        let errors =
            self.proxy.apply(&Snapshot { listeners, rules, backends, ..Snapshot::default() });
        assert!(errors.is_empty(), "{errors:?}");
    }

    /// Connects to the Service as the client with this address.
    pub(crate) fn connect(&self, client: Ipv4Addr) -> TcpStream {
        connect(client, self.intercepted).unwrap()
    }

    /// Returns the sum of all values of a metric.
    pub(crate) fn count(&self, name: &str, label: &str) -> u64 {
        let mut total = 0;
        self.proxy.collect(&mut |sample| {
            let has_label = label.is_empty() || sample.labels.contains(&label);
            if let MetricReading::Count(count) = sample.value
                && sample.metric.name == name
                && has_label
            {
                total += count;
            }
        });
        total
    }
}

fn detected(requests: RouteTable, connections: &Arc<Rule>) -> ListenerProtocol {
    ListenerProtocol::Detected { requests, connections: Some(Arc::clone(connections)) }
}

fn client_settings() -> ClientSettings {
    let path =
        PathSettings { normalise: false, merge_slashes: false, reject_escaped_slashes: false };
    ClientSettings { forwards_unchanged: true, path, ..ClientSettings::default() }
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

fn routes(rule: &Arc<Rule>) -> RouteTable {
    let path = PathPattern::prefix("/").unwrap();
    let all = Arc::new(RouteMatch { path, conditions: MatchConditions::default() });
    let mut routes = RouteTable::default();
    routes.add_rule(&HostPattern::Any, &HostPattern::Any, &all, rule);
    routes
}

fn backend(port: usize, address: SocketAddr, settings: &BackendSettings) -> Backend {
    let key = BackendKey {
        namespace: "default".into(),
        service: "app".into(),
        port: u16::try_from(port).unwrap(),
        transport: TransportProtocol::Tcp,
        node: None,
    };
    let endpoints = vec![EndpointSpec::new(address)];
    Backend {
        key,
        source: EndpointSource::Slices,
        endpoints,
        elsewhere: Vec::new(),
        settings: settings.clone(),
    }
}

/// Settings of a backend with this many slots for each endpoint.
pub(crate) fn capped(slots: u32) -> BackendSettings {
    let max_in_flight_per_endpoint = NonZeroU32::new(slots);
    BackendSettings {
        max_in_flight_per_endpoint,
        queue_max_requests: 16,
        ..BackendSettings::default()
    }
}

/// Connects from this address.
pub(crate) fn connect(client: Ipv4Addr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((client, 0)).into())?;
    socket.connect(&to.into())?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Sends a request on a connection that is kept, and returns the body of the response.
pub(crate) fn ask(stream: &mut TcpStream, head: &str) -> String {
    stream.write_all(head.as_bytes()).unwrap();
    read_answer(stream)
}

/// Reads one response with a length, and returns its body.
pub(crate) fn read_answer(stream: &mut TcpStream) -> String {
    let head = read_until(stream, b"\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let length = head.to_lowercase();
    let (_, length) = length.split_once("content-length: ").unwrap();
    let length = length.split_once("\r\n").unwrap().0.parse().unwrap();
    let mut body = vec![0; length];
    stream.read_exact(&mut body).unwrap();
    String::from_utf8(body).unwrap()
}

fn read_until(stream: &mut TcpStream, ending: &[u8]) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(ending) {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        bytes.push(byte[0]);
    }
    String::from_utf8(bytes).unwrap()
}

/// An HTTP/1.1 endpoint that answers each request with its own name, the number and the port of the connection, and the
/// head of the request.
pub(crate) struct HttpEndpoint {
    pub(crate) address: SocketAddr,
    /// Connections that it has accepted.
    pub(crate) connections: Arc<AtomicU32>,
}

impl HttpEndpoint {
    fn start(name: &'static str) -> Self {
        Self::start_at(name, Ipv4Addr::LOCALHOST.into())
    }

    pub(crate) fn start_at(name: &'static str, host: IpAddr) -> Self {
        let listener = TcpListener::bind((host, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&connections);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let number = count.fetch_add(1, Ordering::Relaxed);
                thread::spawn(move || answer_all(stream.unwrap(), name, number));
            }
        });
        Self { address, connections }
    }

    pub(crate) fn connections(&self) -> u32 {
        self.connections.load(Ordering::Relaxed)
    }
}

fn answer_all(mut stream: TcpStream, name: &str, number: u32) {
    let port = stream.peer_addr().unwrap().port();
    let mut received = Vec::new();
    loop {
        while !received.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            match stream.read(&mut byte) {
                Ok(1) => received.push(byte[0]),
                Ok(_) | Err(_) => return,
            }
        }
        let head = String::from_utf8_lossy(&received).into_owned();
        let body = format!("{name} {number} {port}\n{head}");
        let length = body.len();
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}");
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
        received.clear();
    }
}

/// Starts an endpoint that speaks first, then sends back what it gets.
fn echo_endpoint() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || {
                let mut stream = stream.unwrap();
                stream.write_all(GREETING)?;
                io::copy(&mut stream.try_clone()?, &mut stream)
            });
        }
    });
    address
}

/// Starts an endpoint that speaks HTTP/2 alone, and answers 200.
pub(crate) fn http2_endpoint() -> SocketAddr {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    let listener = listener.unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        runtime.block_on(async {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                tokio::spawn(async {
                    let mut connection = h2::server::handshake(socket).await.unwrap();
                    while let Some(Ok((_, mut respond))) = connection.accept().await {
                        respond.send_response(http::Response::new(()), true).unwrap();
                    }
                });
            }
        });
    });
    address
}

/// The first bytes of the echo endpoint.
pub(crate) const GREETING: &[u8] = b"220 ready\r\n";

/// Waits until the condition holds.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = clock::now() + PATIENCE;
    while !condition() {
        assert!(clock::now() < deadline, "{what}");
        thread::yield_now();
    }
}

/// Returns the namespaces of clients.
pub(crate) fn namespaces(entries: &[(Ipv4Addr, &str)]) -> HashMap<IpAddr, Arc<str>> {
    entries.iter().map(|(address, name)| (IpAddr::V4(*address), (*name).into())).collect()
}
