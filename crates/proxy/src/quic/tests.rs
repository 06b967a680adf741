//! Connections with other QUIC implementations, over loopback.

/// Connections of clients.
mod clients;
/// Unsolicited traffic: garbage, floods, spoofed addresses.
mod defence;
/// Connections to endpoints.
mod endpoints;

use std::future::{Future, poll_fn};
use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use gateway::matching::{HostPattern, RouteTable};
use gateway::snapshot::{
    ClientSettings, CongestionControl, Http3Settings, ListenerProtocol, ListenerTls, PrivateKey,
    SniRule, TlsCertificate, TlsPayload, TlsTermination, TransportProtocol,
};
use quinn::crypto::rustls::QuicClientConfig;
use rcgen::{CertificateParams, KeyPair, SanType};
use rustls::pki_types::CertificateDer;
use tls::ServerTlsConfigs;
use tokio::sync::mpsc;

use super::*;
use crate::accept::accepted_connection::ConnectionGuard;
use crate::active_config::{ActiveConfig, ActiveListener, ListenerHttp3, ListenerSocket};
use crate::observe::QuicCounters;
use crate::observe::access::AccessLogBuffer;
use crate::worker::{self, ProxyState, Worker, WorkerCommand};

/// The index of the only listener.
const PLACE: usize = 0;
/// The error code with which the server closes a connection on request.
const GOODBYE: u64 = 0x42;

/// Runs a test with a time limit.
fn run(scene: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build_local(tokio::runtime::LocalOptions::default());
    runtime.unwrap().block_on(async {
        tokio::time::timeout(Duration::from_secs(60), scene).await.expect("the test ends in time");
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

/// Workers that accept connections, and echo what they receive.
struct QuicFixture {
    shared: Arc<ProxyState>,
    bound: Arc<ListenerSocket>,
    group: Arc<SocketGroup>,
    address: SocketAddr,
    identity: Identity,
    threads: Vec<JoinHandle<()>>,
}

impl QuicFixture {
    fn new(workers: usize) -> Self {
        Self::with(
            workers,
            ClientSettings::default(),
            Identity::new("a.example.com", 0),
            SocketGroup::bind,
        )
    }

    fn with(
        workers: usize,
        client: ClientSettings,
        identity: Identity,
        bind: fn(SocketAddr, usize) -> std::io::Result<Arc<SocketGroup>>,
    ) -> Self {
        let address = free_address("127.0.0.1:0");
        Self::at(address, workers, client, identity, bind)
    }

    fn at(
        address: SocketAddr,
        workers: usize,
        client: ClientSettings,
        identity: Identity,
        bind: fn(SocketAddr, usize) -> std::io::Result<Arc<SocketGroup>>,
    ) -> Self {
        let (senders, commands): (Vec<_>, Vec<_>) =
            (0..workers).map(|_| mpsc::unbounded_channel()).unzip();
        let shared = Arc::new(ProxyState::new(senders, false));
        let bound =
            Arc::new(ListenerSocket::new(PLACE, TransportProtocol::Tcp, address, address, workers));
        let listener = listener(&bound, client, &identity);
        shared.config.store(Arc::new(ActiveConfig {
            listeners: vec![Some(listener)],
            ..ActiveConfig::default()
        }));
        let threads = commands.into_iter().enumerate().map(|(index, commands)| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || {
                let worker = Worker::new(index, shared, AccessLogBuffer::new(0.0, None));
                worker::run(worker, commands).unwrap();
            })
        });
        let threads = threads.collect();
        let group = bind(address, workers).unwrap();
        let scene = Self { shared, bound, group, address, identity, threads };
        scene.listen();
        scene
    }

    fn listen(&self) {
        for handle in &self.shared.workers {
            let (bound, group) = (Arc::clone(&self.bound), Arc::clone(&self.group));
            handle.send(WorkerCommand::ListenQuic(bound, group, serve));
        }
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
        let ended = self.bound.counters.iter().flat_map(|shard| shard.handshakes.ended());
        ended.filter(|(word, _)| *word == outcome).map(|(_, count)| count).sum()
    }
}

impl Drop for QuicFixture {
    fn drop(&mut self) {
        self.shared.workers.iter().for_each(|handle| handle.send(WorkerCommand::Stop));
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

fn listener(
    bound: &Arc<ListenerSocket>,
    client: ClientSettings,
    identity: &Identity,
) -> ActiveListener {
    let terms =
        TlsTermination { certificates: vec![Arc::clone(&identity.certificate)], clients: None };
    let site = SniRule {
        hosts: HostPattern::parse("a.example.com").unwrap(),
        terminate: Some(Arc::new(terms)),
        payload: TlsPayload::Requests,
    };
    let tls = ListenerTls { sni_rules: vec![site] };
    let settings = Http3Settings {
        max_concurrent_streams: 128,
        zero_rtt: false,
        congestion_control: CongestionControl::Cubic,
        advertised_port: None,
    };
    ActiveListener {
        name: "test".into(),
        public_port: bound.address.port(),
        bound: Arc::clone(bound),
        client: Arc::new(client),
        protocol: ListenerProtocol::Http(RouteTable::default()),
        sni_table: ServerTlsConfigs::default().sni_tables([Some(&tls)].into_iter()).remove(0),
        http3: Some(ListenerHttp3 { settings, alt_svc: "".into() }),
    }
}

/// Echoes each stream; after a `!`, closes the connection.
fn serve(guard: ConnectionGuard, connection: QuicConnection) {
    tokio::task::spawn_local(async move {
        while let Ok((send, recv)) = poll_fn(|cx| connection.poll_accept_bi(cx)).await {
            tokio::task::spawn_local(echo(connection.clone(), send, recv));
        }
        drop(guard);
    });
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
