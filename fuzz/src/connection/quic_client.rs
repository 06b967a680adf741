//! A QUIC connection of a client, whose datagrams can be withheld, reordered, repeated and lost.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig,
    StreamId, TransportConfig, VarInt,
};

use super::fixture::{Fixture, SERVER_NAME};
use super::quiescence::Quiescence;

/// Receive window of each stream, in bytes: the worker has to wait in the middle of a response.
const STREAM_WINDOW: u32 = 1024;
/// Largest datagram that is received, in bytes.
const MAX_DATAGRAM: usize = 65_535;

/// How withheld datagrams are delivered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Delivery {
    InOrder,
    Reversed,
    Repeated,
    /// The first one is lost. The timer of the client's loss detection fires at once.
    FirstLost,
}

/// A connection.
pub(super) struct QuicClient {
    server: SocketAddr,
    socket: UdpSocket,
    endpoint: Endpoint,
    handle: ConnectionHandle,
    pub(super) connection: Connection,
    /// Datagrams to send later; `None`: datagrams are sent at once.
    withheld: Option<Vec<Vec<u8>>>,
    /// How far the client's clock is ahead.
    clock_offset: Duration,
    pub(super) reads: bool,
    /// What has been read of each stream.
    pub(super) received: BTreeMap<StreamId, Vec<u8>>,
}

impl QuicClient {
    /// Begins a connection; sends nothing yet.
    pub(super) fn new(fixture: &Fixture, config: ClientConfig, source: SocketAddr) -> Self {
        let mut endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), None, false, None);
        let connection = endpoint.connect(Instant::now(), config, fixture.address, SERVER_NAME);
        let (handle, connection) = connection.expect("the configuration is valid");
        Self {
            server: fixture.address,
            socket: bind(source),
            endpoint,
            handle,
            connection,
            withheld: None,
            clock_offset: Duration::ZERO,
            reads: true,
            received: BTreeMap::new(),
        }
    }

    fn now(&self) -> Instant {
        Instant::now() + self.clock_offset
    }

    /// Sends all that is due, and receives, until neither side has anything to say.
    pub(super) async fn exchange(&mut self, quiescence: &Quiescence) {
        loop {
            self.transmit();
            quiescence.settle().await;
            if !self.receive() {
                return;
            }
            quiescence.note_event();
        }
    }

    fn transmit(&mut self) {
        let (now, mut buffer) = (self.now(), Vec::new());
        if self.connection.poll_timeout().is_some_and(|due| due <= now) {
            self.connection.handle_timeout(now);
        }
        while let Some(transmit) = self.connection.poll_transmit(now, 1, &mut buffer) {
            let datagram = buffer[..transmit.size].to_vec();
            match &mut self.withheld {
                Some(withheld) => withheld.push(datagram),
                None => self.send(&datagram),
            }
            buffer.clear();
        }
    }

    /// Sends a datagram of any bytes.
    pub(super) fn send(&self, datagram: &[u8]) {
        self.socket.send_to(datagram, self.server).expect("loopback takes datagrams");
    }

    /// Receives all datagrams that have arrived. Returns true if there was one.
    fn receive(&mut self) -> bool {
        let mut buffer = vec![0; MAX_DATAGRAM];
        let mut has_any = false;
        while let Ok((length, _)) = self.socket.recv_from(&mut buffer) {
            has_any = true;
            self.handle_datagram(&buffer[..length]);
        }
        while let Some(event) = self.connection.poll_endpoint_events() {
            if let Some(event) = self.endpoint.handle_event(self.handle, event) {
                self.connection.handle_event(event);
            }
        }
        while self.connection.poll().is_some() {}
        if self.reads {
            self.read();
        }
        has_any
    }

    fn handle_datagram(&mut self, datagram: &[u8]) {
        let (now, mut reply) = (self.now(), Vec::new());
        match self.endpoint.handle(now, self.server, None, None, datagram.into(), &mut reply) {
            Some(DatagramEvent::ConnectionEvent(_, event)) => self.connection.handle_event(event),
            Some(DatagramEvent::Response(transmit)) => self.send(&reply[..transmit.size]),
            Some(DatagramEvent::NewConnection(_)) => unreachable!("a client accepts none"),
            None => {}
        }
    }

    /// Reads what has arrived on all streams.
    fn read(&mut self) {
        while let Some(id) = self.connection.streams().accept(Dir::Uni) {
            self.received.entry(id).or_default();
        }
        for (id, received) in &mut self.received {
            let mut stream = self.connection.recv_stream(*id);
            let Ok(mut chunks) = stream.read(true) else { continue };
            while let Ok(Some(chunk)) = chunks.next(usize::MAX) {
                received.extend_from_slice(&chunk.bytes);
            }
            let _is_due = chunks.finalize();
        }
    }

    /// Opens a stream; `None`: the server permits no further one.
    pub(super) fn open(&mut self, dir: Dir) -> Option<StreamId> {
        let id = self.connection.streams().open(dir)?;
        if dir == Dir::Bi {
            self.received.insert(id, Vec::new());
        }
        Some(id)
    }

    /// Writes as much as the server has room for.
    pub(super) fn write(&mut self, id: StreamId, bytes: &[u8]) {
        let _count = self.connection.send_stream(id).write(bytes);
    }

    pub(super) fn withhold(&mut self) {
        self.withheld.get_or_insert_default();
    }

    /// Sends what has been withheld.
    pub(super) fn deliver(&mut self, delivery: Delivery) {
        let mut datagrams = self.withheld.take().unwrap_or_default();
        match delivery {
            Delivery::InOrder => {}
            Delivery::Reversed => datagrams.reverse(),
            Delivery::Repeated => datagrams = [&datagrams[..], &datagrams].concat(),
            Delivery::FirstLost => {
                datagrams.drain(..1.min(datagrams.len()));
                self.advance_clock();
            }
        }
        datagrams.iter().for_each(|datagram| self.send(datagram));
    }

    /// Lets the client's next timer fire.
    fn advance_clock(&mut self) {
        let Some(due) = self.connection.poll_timeout() else { return };
        self.clock_offset += due.saturating_duration_since(self.now());
    }

    /// Goes on from another address.
    pub(super) fn migrate(&mut self, source: SocketAddr) {
        self.socket = bind(source);
        self.connection.local_address_changed();
    }

    pub(super) fn close(&mut self, reason: &[u8]) {
        self.connection.close(self.now(), VarInt::from_u32(0), Bytes::copy_from_slice(reason));
    }
}

fn bind(source: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(source).expect("an address of loopback");
    socket.set_nonblocking(true).expect("an option of sockets");
    socket
}

/// Returns the configuration of all connections, which resume one another's sessions.
pub(super) fn config(fixture: &Fixture) -> ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(fixture.certificate.clone()).expect("a certificate");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("the provider has TLS 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    tls.enable_early_data = true;
    let tls = quinn_proto::crypto::rustls::QuicClientConfig::try_from(tls);
    let mut config = ClientConfig::new(Arc::new(tls.expect("a cipher suite of QUIC")));
    let mut transport = TransportConfig::default();
    // Datagrams that find the largest size have nothing to do with the script.
    transport.stream_receive_window(STREAM_WINDOW.into()).mtu_discovery_config(None);
    config.transport_config(Arc::new(transport));
    config
}
