//! Connections with other QUIC implementations, over loopback.

/// Connections of clients.
mod clients;
/// Unsolicited traffic: garbage, floods, spoofed addresses.
mod defence;
/// Connections to endpoints.
mod endpoints;

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use gateway::matching::HostPattern;
use gateway::snapshot::{
    ClientSettings, CongestionControl, ListenerTls, PrivateKey, SniRule, TlsCertificate,
    TlsPayload, TlsTermination,
};
use quinn::crypto::rustls::QuicClientConfig;
use rcgen::{CertificateParams, KeyPair, SanType};
use rustls::pki_types::CertificateDer;
use socket2::{Domain, Socket, Type};
use tls::{ClientTlsError, ServerTlsConfigs, SniTable};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use super::*;

/// The index of the only address.
const PLACE: usize = 0;
/// The error code with which the server closes a connection on request.
const GOODBYE: u64 = 0x42;
/// Number of times that a worker yields to other tasks after the last command.
const CLOSE_YIELDS: u32 = 16;

/// Returns the current time.
#[expect(clippy::disallowed_methods, reason = "the crate is handed the time, in tests from here")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Returns a socket that can be bound to the address, dual-stack if it is unspecified.
pub(crate) fn new_socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn bind(address: SocketAddr, workers: usize) -> io::Result<Arc<SocketGroup>> {
    SocketGroup::bind(address, workers, || new_socket(address))
}

fn bind_without_steering(address: SocketAddr, workers: usize) -> io::Result<Arc<SocketGroup>> {
    SocketGroup::bind_without_steering(address, workers, || new_socket(address))
}

/// Runs a test with a time limit.
fn run(fixture: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build_local(tokio::runtime::LocalOptions::default());
    runtime.unwrap().block_on(async {
        tokio::time::timeout(Duration::from_secs(60), fixture)
            .await
            .expect("the test ends in time");
    });
}

/// Returns an address that is not in use.
fn free_address(like: &str) -> SocketAddr {
    std::net::UdpSocket::bind(like).unwrap().local_addr().unwrap()
}

/// A self-signed certificate.
struct Identity {
    certificate: Arc<TlsCertificate>,
}

impl Identity {
    /// Creates a certificate for `name`, with `more` further names that make it long.
    fn new(name: &str, more: usize) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let others = (0..more).map(|number| format!("name-{number}.of.many.example.com"));
        let others = others.map(|name| SanType::DnsName(name.as_str().try_into().unwrap()));
        params.subject_alt_names.extend(others);
        let signed = params.self_signed(&key).unwrap();
        let certificate = TlsCertificate {
            name: name.into(),
            chain: vec![(**signed.der()).into()],
            key: PrivateKey::Pkcs8(key.serialize_der().into()),
        };
        Self { certificate: Arc::new(certificate) }
    }

    fn der(&self) -> CertificateDer<'static> {
        self.certificate.chain[0].to_vec().into()
    }

    /// Returns the configuration of a client that trusts this certificate and speaks `protocol`.
    fn client_config(&self, protocol: &[u8]) -> rustls::ClientConfig {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.der()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider);
        let builder = builder.with_protocol_versions(&[&rustls::version::TLS13]).unwrap();
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![protocol.to_vec()];
        config
    }
}

/// A command to a worker.
enum TestCommand {
    Listen,
    Unlisten,
    Datagram(ReceivedDatagram),
    Stop,
}

#[derive(Default)]
struct TestCounter(AtomicU64);

impl TestCounter {
    fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    fn value(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters of a worker.
#[derive(Default)]
struct TestCounters {
    refused: TestCounter,
    quic: QuicCounters,
    /// Words for the ends of handshakes.
    handshakes: Mutex<Vec<&'static str>>,
}

#[derive(Default)]
struct QuicCounters {
    connections: TestCounter,
    dropped: [TestCounter; DatagramDropReason::ALL.len()],
    handed_over: TestCounter,
    retries: TestCounter,
}

/// An address with the settings and counts of its connections.
struct TestListener {
    client: ClientSettings,
    sni_table: Arc<SniTable>,
    open: AtomicU32,
    /// One per worker.
    counters: Box<[TestCounters]>,
}

impl TestListener {
    fn open(&self) -> u32 {
        self.open.load(Ordering::Relaxed)
    }
}

/// The host of the connections of one worker, which echoes what it receives.
struct EchoHost {
    worker: usize,
    bound: Arc<TestListener>,
    workers: Box<[UnboundedSender<TestCommand>]>,
}

impl EchoHost {
    fn counters(&self) -> &TestCounters {
        &self.bound.counters[self.worker]
    }
}

impl ConnectionOwner for EchoHost {
    fn settings(&self) -> Option<ServerSettings> {
        Some(ServerSettings {
            max_concurrent_streams: 128,
            idle_timeout: self.bound.client.connection_idle_timeout,
            handshake_timeout: self.bound.client.head_timeout,
            congestion_control: CongestionControl::Cubic,
        })
    }

    fn sni_source(&self) -> SniSource {
        let sni_table = Arc::clone(&self.bound.sni_table);
        Arc::new(move || Some(SniSettings { sni_table: Arc::clone(&sni_table), early_data: false }))
    }

    fn accepts_handshakes(&self) -> bool {
        true
    }

    fn admit(&self) -> bool {
        let more = |open: u32| (open < self.bound.client.max_connections).then_some(open + 1);
        let open = &self.bound.open;
        if open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
            self.counters().refused.add(1);
            return false;
        }
        self.counters().quic.connections.add(1);
        true
    }

    fn release(&self) {
        self.bound.open.fetch_sub(1, Ordering::Relaxed);
    }

    fn serve(&self, connection: QuicConnection) {
        let bound = Arc::clone(&self.bound);
        tokio::task::spawn_local(async move {
            serve(connection).await;
            bound.open.fetch_sub(1, Ordering::Relaxed);
        });
    }

    fn record_handshake(&self, result: Result<CompletedHandshake, ClientTlsError>) {
        let word = match result {
            Ok(CompletedHandshake::Full) => "full",
            Ok(CompletedHandshake::Resumed) => "resumed",
            Err(error) => error.label(),
        };
        self.counters().handshakes.lock().unwrap().push(word);
    }

    fn record_datagrams(&self, counts: &DatagramCounts) {
        let counters = &self.counters().quic;
        let dropped = counters.dropped.iter().zip(&counts.dropped);
        dropped.for_each(|(counter, count)| counter.add(*count));
        counters.handed_over.add(counts.handed_over);
        counters.retries.add(counts.retries);
    }

    fn hand_over(&self, worker: usize, _: &Arc<SocketGroup>, datagram: ReceivedDatagram) -> bool {
        self.workers[worker].send(TestCommand::Datagram(datagram)).is_ok()
    }
}

/// Workers that accept connections, and echo what they receive.
struct QuicFixture {
    workers: Box<[UnboundedSender<TestCommand>]>,
    bound: Arc<TestListener>,
    address: SocketAddr,
    identity: Identity,
    threads: Vec<JoinHandle<()>>,
}

impl QuicFixture {
    fn new(workers: usize) -> Self {
        Self::with(workers, ClientSettings::default(), Identity::new("a.example.com", 0), bind)
    }

    fn with(
        workers: usize,
        client: ClientSettings,
        identity: Identity,
        bind: fn(SocketAddr, usize) -> io::Result<Arc<SocketGroup>>,
    ) -> Self {
        let address = free_address("127.0.0.1:0");
        Self::at(address, workers, client, identity, bind)
    }

    fn at(
        address: SocketAddr,
        workers: usize,
        client: ClientSettings,
        identity: Identity,
        bind: fn(SocketAddr, usize) -> io::Result<Arc<SocketGroup>>,
    ) -> Self {
        let (senders, commands): (Vec<_>, Vec<_>) =
            (0..workers).map(|_| mpsc::unbounded_channel()).unzip();
        let workers: Box<[_]> = senders.into();
        let bound = Arc::new(TestListener {
            client,
            sni_table: sni_table(&identity),
            open: AtomicU32::new(0),
            counters: workers.iter().map(|_| TestCounters::default()).collect(),
        });
        let group = bind(address, workers.len()).unwrap();
        let keys = QuicTokenKeys::generate();
        let threads = commands.into_iter().enumerate().map(|(worker, commands)| {
            let (group, keys, workers) = (Arc::clone(&group), keys.clone(), workers.clone());
            let bound = Arc::clone(&bound);
            std::thread::spawn(move || {
                let run = run_worker(EchoHost { worker, bound, workers }, &group, &keys, commands);
                let mut runtime = tokio::runtime::Builder::new_current_thread();
                let options = tokio::runtime::LocalOptions::default();
                runtime.enable_all().build_local(options).unwrap().block_on(run);
            })
        });
        let threads = threads.collect();
        let fixture = Self { workers, bound, address, identity, threads };
        fixture.listen();
        fixture
    }

    fn listen(&self) {
        self.broadcast(|| TestCommand::Listen);
    }

    fn broadcast(&self, command: fn() -> TestCommand) {
        self.workers.iter().for_each(|worker| drop(worker.send(command())));
    }

    /// Returns a client that trusts the server.
    fn client(&self) -> quinn::Endpoint {
        self.client_at("127.0.0.1:0")
    }

    fn client_at(&self, address: &str) -> quinn::Endpoint {
        let config = self.identity.client_config(b"h3");
        let config = QuicClientConfig::try_from(config).unwrap();
        let mut endpoint = quinn::Endpoint::client(address.parse().unwrap()).unwrap();
        endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(config)));
        endpoint
    }

    async fn connect(&self) -> (quinn::Endpoint, quinn::Connection) {
        let client = self.client();
        let connection = client.connect(self.address, "a.example.com").unwrap().await.unwrap();
        (client, connection)
    }

    /// Returns the sum of a counter over all workers.
    fn count(&self, of: impl Fn(&QuicCounters) -> u64) -> u64 {
        self.bound.counters.iter().map(|shard| of(&shard.quic)).sum()
    }

    fn handshakes(&self, outcome: &str) -> u64 {
        let of_shard = |shard: &TestCounters| {
            let ended = shard.handshakes.lock().unwrap();
            ended.iter().filter(|word| **word == outcome).count() as u64
        };
        self.bound.counters.iter().map(of_shard).sum()
    }
}

impl Drop for QuicFixture {
    fn drop(&mut self) {
        self.broadcast(|| TestCommand::Stop);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

/// Runs a worker until it is stopped.
async fn run_worker(
    host: EchoHost,
    group: &Arc<SocketGroup>,
    keys: &QuicTokenKeys,
    mut commands: UnboundedReceiver<TestCommand>,
) {
    let drivers = ServerDrivers::new(host.worker, &QuicDialer::new(now));
    let host: Rc<dyn ConnectionOwner> = Rc::new(host);
    while let Some(command) = commands.recv().await {
        match command {
            TestCommand::Listen => drivers.open(PLACE, group, keys, Rc::clone(&host)),
            TestCommand::Unlisten => drivers.close(PLACE),
            TestCommand::Datagram(datagram) => drivers.deliver(group, datagram),
            TestCommand::Stop => break,
        }
    }
    drivers.close_all();
    for _ in 0..CLOSE_YIELDS {
        tokio::task::yield_now().await;
    }
}

fn sni_table(identity: &Identity) -> Arc<SniTable> {
    let terms =
        TlsTermination { certificates: vec![Arc::clone(&identity.certificate)], clients: None };
    let site = SniRule {
        hosts: HostPattern::parse("a.example.com").unwrap(),
        terminate: Some(Arc::new(terms)),
        payload: TlsPayload::Requests,
    };
    let tls = ListenerTls { sni_rules: vec![site] };
    ServerTlsConfigs::default().sni_tables([Some(&tls)].into_iter()).remove(0).unwrap()
}

/// Echoes each stream; after a `!`, closes the connection.
async fn serve(connection: QuicConnection) {
    while let Ok((send, recv)) = poll_fn(|cx| connection.poll_accept_bi(cx)).await {
        tokio::task::spawn_local(echo(connection.clone(), send, recv));
    }
}

async fn echo(connection: QuicConnection, mut send: SendStream, mut recv: RecvStream) {
    while let Ok(Some(mut bytes)) = poll_fn(|cx| recv.poll_read(cx)).await {
        if *bytes == *b"!" {
            return connection.close(GOODBYE, "as you wish");
        }
        while !bytes.is_empty() {
            if poll_fn(|cx| send.poll_write_bytes(cx, &mut bytes)).await.is_err() {
                return;
            }
        }
    }
    send.finish();
}

/// Writes all bytes.
async fn write(send: &mut SendStream, mut bytes: &[u8]) -> Result<(), StreamEnd> {
    while !bytes.is_empty() {
        let count = poll_fn(|cx| send.poll_write(cx, &[IoSlice::new(bytes)])).await?;
        bytes = &bytes[count..];
    }
    Ok(())
}

/// Reads to the end.
async fn read(recv: &mut RecvStream) -> Result<Vec<u8>, StreamEnd> {
    let mut all = Vec::new();
    while let Some(bytes) = poll_fn(|cx| recv.poll_read(cx)).await? {
        all.extend_from_slice(&bytes);
    }
    Ok(all)
}

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at % 251) as u8).collect()
}
