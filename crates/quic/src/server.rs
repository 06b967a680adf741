//! Client connections, from the first datagram to the end of the handshake.
//!
//! A handshake costs far more than a request. So its steps wait in a queue, and a driver takes one in each turn: a
//! flood of handshakes delays requests by one step at a time, as over TCP. When many handshakes are in progress, each
//! new client has to validate its address first (Retry, RFC 9000 §8.1.2), which costs us nearly nothing. Beyond that,
//! the queue and the buffers are bounded; datagrams that do not fit are dropped and counted.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn_proto::{
    AcceptError, ConnectionEvent, ConnectionHandle, Endpoint, EndpointConfig, Incoming,
    ServerConfig,
};
use rustls::pki_types::CertificateDer;
use tls::{ClientIdentity, ClientTlsError, SniEntry, TlsInfo};

use crate::amplification::AmplificationLimit;
use crate::close_reason::client_tls_error;
use crate::connection::QuicConnectionState;
use crate::connection_id::WorkerCidGenerator;
use crate::driver::{DriverRole, EndpointDriver};
use crate::driver_handle::DriverHandle;
use crate::flood_detector::FloodDetector;
use crate::host::ConnectionPermit;
use crate::session::{QuicHandshakeData, SniServerConfig, VERSION};
use crate::socket::{QuicSocket, SocketBuffers};
use crate::{
    CompletedHandshake, ConnectionOwner, DatagramCounts, DatagramDropReason, QuicConnection,
    QuicDialer, QuicTokenKeys, ReceivedDatagram, ServerSettings, SocketGroup, transport,
};

/// Added to the idle timeout of QUIC, so that the task that serves the connection times out first, and closes the
/// connection with a message to the client.
const IDLE_TIMEOUT_MARGIN: Duration = Duration::from_secs(3);
/// Handshakes in progress on a worker from which on new clients have to validate their address.
const RETRY_FROM: usize = 256;
/// Handshake steps that may wait on a worker.
const MAX_HANDSHAKE_STEPS: usize = 1024;
/// Bytes of one connection, and of all, that may be buffered before it is accepted.
const INCOMING_BUFFER_BYTES: u64 = 16 * 1024;
const TOTAL_INCOMING_BUFFER_BYTES: u64 = 4 * 1024 * 1024;

/// The drivers of a worker for client connections.
pub struct ServerDrivers {
    /// The index of the worker.
    worker: usize,
    buffers: Rc<SocketBuffers>,
    now: fn() -> Instant,
    entries: Rc<RefCell<Vec<ServerDriverEntry>>>,
}

struct ServerDriverEntry {
    /// The caller's index of the address.
    place: usize,
    group: Arc<SocketGroup>,
    driver_handle: Rc<DriverHandle>,
}

impl ServerDrivers {
    /// Creates the drivers of the worker with this index, which share the buffers of its `dialer`.
    pub fn new(worker: usize, dialer: &QuicDialer) -> Self {
        let (buffers, now) = (Rc::clone(&dialer.buffers), dialer.now);
        Self { worker, buffers, now, entries: Rc::default() }
    }

    /// Accepts connections at the group's address for `host`, until the place is closed.
    pub fn open(
        &self,
        place: usize,
        group: &Arc<SocketGroup>,
        keys: &QuicTokenKeys,
        host: Rc<dyn ConnectionOwner>,
    ) {
        if self.worker >= group.workers() {
            return;
        }
        let entries = &mut *self.entries.borrow_mut();
        // The driver may still be running, for older connections.
        if let Some(open) = entries.iter_mut().find(|open| Arc::ptr_eq(&open.group, group)) {
            open.place = place;
            open.driver_handle.set_host(Some(host));
            return;
        }
        let socket = match group.socket(self.worker).and_then(QuicSocket::new) {
            Ok(socket) => socket,
            Err(error) => {
                tracing::error!(listener.address = %group.address, %error, "cannot open the QUIC socket of the listener");
                return;
            }
        };
        let driver_handle = Rc::new(DriverHandle::new(Some(Rc::clone(&host)), self.now));
        let driver = self.new_driver(host, group, keys, &driver_handle, socket);
        entries.push(ServerDriverEntry { place, group: Arc::clone(group), driver_handle });
        let (entries, group) = (Rc::clone(&self.entries), Arc::clone(group));
        tokio::task::spawn_local(async move {
            driver.run().await;
            entries.borrow_mut().retain(|open| !Arc::ptr_eq(&open.group, &group));
        });
    }

    /// Stops accepting connections for the place; existing ones continue.
    pub fn close(&self, place: usize) {
        for open in self.entries.borrow().iter().filter(|open| open.place == place) {
            open.driver_handle.set_host(None);
        }
    }

    /// Delivers a datagram that arrived at another worker.
    pub fn deliver(&self, group: &Arc<SocketGroup>, datagram: ReceivedDatagram) {
        if let Some(open) = self.entries.borrow().iter().find(|it| Arc::ptr_eq(&it.group, group)) {
            open.driver_handle.push_datagram(datagram);
        }
    }

    /// Closes all connections at once.
    pub fn close_all(&self) {
        self.entries.borrow().iter().for_each(|open| open.driver_handle.close_all());
    }

    fn new_driver(
        &self,
        host: Rc<dyn ConnectionOwner>,
        group: &Arc<SocketGroup>,
        keys: &QuicTokenKeys,
        driver_handle: &Rc<DriverHandle>,
        socket: QuicSocket,
    ) -> EndpointDriver {
        let server_id = group.server_id;
        let own = group.octet_of(self.worker);
        let mut config = EndpointConfig::new(Arc::clone(&keys.reset));
        config
            .supported_versions(vec![VERSION])
            .cid_generator(move || Box::new(WorkerCidGenerator::new(server_id, own)));
        let mut server = ConnectionAcceptor {
            worker: self.worker,
            group: Arc::clone(group),
            driver_handle: Rc::clone(driver_handle),
            host,
            keys: keys.clone(),
            counts: DatagramCounts::default(),
            handshake_steps: VecDeque::new(),
            handshaking: Cell::new(0),
            cached_config: None,
        };
        let server_config = server.current_config().map(|(config, _)| config);
        let endpoint =
            Endpoint::new(Arc::new(config), server_config, socket.never_fragments(), None);
        EndpointDriver::new(
            endpoint,
            socket,
            Rc::clone(driver_handle),
            Rc::clone(&self.buffers),
            DriverRole::Server(Box::new(server)),
        )
    }
}

/// Accepts client connections of one driver.
pub(super) struct ConnectionAcceptor {
    /// The index of the worker.
    worker: usize,
    group: Arc<SocketGroup>,
    driver_handle: Rc<DriverHandle>,
    /// The host that counts the datagrams: the last one that accepted connections here.
    host: Rc<dyn ConnectionOwner>,
    keys: QuicTokenKeys,
    /// Datagrams that have not been reported to the host yet.
    counts: DatagramCounts,
    handshake_steps: VecDeque<HandshakeStep>,
    /// Connections whose handshake is in progress.
    handshaking: Cell<usize>,
    cached_config: Option<CachedServerConfig>,
}

/// A step of a handshake.
pub(super) enum HandshakeStep {
    /// The client's first datagram, and its length.
    Accept(Incoming, usize),
    Continue(ConnectionHandle, ConnectionEvent),
}

/// The configuration of new connections, and the settings that it was built from.
struct CachedServerConfig {
    host: Rc<dyn ConnectionOwner>,
    settings: ServerSettings,
    config: Arc<ServerConfig>,
}

impl ConnectionAcceptor {
    /// Reports the datagrams of a turn to the host.
    pub(super) fn report_datagrams(&mut self) {
        self.counts.report(&*self.host);
    }

    pub(super) fn count_sent(&mut self, datagrams: usize) {
        self.counts.sent += datagrams as u64;
    }

    pub(super) fn count_drop(&mut self, why: DatagramDropReason) {
        self.counts.dropped[why as usize] += 1;
    }

    /// True if no handshake step is queued.
    pub(super) fn is_idle(&self) -> bool {
        self.handshake_steps.is_empty()
    }

    pub(super) fn next_step(&mut self) -> Option<HandshakeStep> {
        self.handshake_steps.pop_front()
    }

    /// Queues a step. Returns false if the queue is full.
    pub(super) fn queue_step(&mut self, step: HandshakeStep) -> bool {
        let may_wait = self.handshake_steps.len() < MAX_HANDSHAKE_STEPS;
        if may_wait {
            self.handshake_steps.push_back(step);
        }
        may_wait
    }

    /// Drops all queued steps; their clients get no answer.
    pub(super) fn drop_steps(&mut self, endpoint: &mut Endpoint) {
        for step in self.handshake_steps.drain(..) {
            match step {
                HandshakeStep::Accept(incoming, _length) => endpoint.ignore(incoming),
                HandshakeStep::Continue(..) => {}
            }
        }
    }

    /// Counts a datagram. Returns `None` if it belongs to another worker, to which it has been sent.
    pub(super) fn keep_or_hand_over(
        &mut self,
        datagram: ReceivedDatagram,
    ) -> Option<ReceivedDatagram> {
        self.counts.received += 1;
        let owner = self.group.worker_of(&datagram.bytes).filter(|owner| *owner != self.worker);
        let Some(owner) = owner else { return Some(datagram) };
        if self.host.hand_over(owner, &self.group, datagram) {
            self.counts.handed_over += 1;
        } else {
            self.count_drop(DatagramDropReason::Handover);
        }
        None
    }

    /// Returns the time at which to send a PING to the client of a connection in use, if no packet passes until then.
    pub(super) fn ping_at(&self, now: Instant) -> Option<Instant> {
        now.checked_add(self.cached_config.as_ref()?.settings.idle_timeout / 3)
    }

    /// Records the end of a handshake, unless it is recorded already.
    pub(super) fn conclude_handshake(
        &self,
        state: &mut QuicConnectionState,
        result: Result<(), ClientTlsError>,
    ) {
        if std::mem::replace(&mut state.handshake_concluded, true) {
            return;
        }
        self.handshaking.set(self.handshaking.get() - 1);
        let result = result.map(|()| match handshake_data(&state.proto) {
            Some(QuicHandshakeData { resumed: true, .. }) => CompletedHandshake::Resumed,
            Some(_) | None => CompletedHandshake::Full,
        });
        self.host.record_handshake(result);
        if result.is_err() {
            state.admitted = None;
        }
    }

    /// Starts to serve the connection, if it is not served already.
    pub(super) fn serve_connection(&self, connection: &QuicConnection) {
        let QuicConnection(inner) = connection;
        let admitted = {
            let state = &mut *inner.state.borrow_mut();
            let Some(admitted) = state.admitted.take() else { return };
            let (server_name, site) = handshake_data(&state.proto)
                .map_or((None, None), |data| (data.server_name, Some(data.site)));
            inner.tls_info.get_or_init(|| {
                let client = site.as_ref().and_then(|it| client_identity(it, &state.proto));
                Arc::new(TlsInfo { server_name, sni_entry: site, client, ..TlsInfo::of_quic() })
            });
            admitted
        };
        admitted.serve(connection.clone());
    }

    /// Returns the configuration of new connections; `None` if no more are accepted.
    fn current_config(&mut self) -> Option<(Arc<ServerConfig>, ServerSettings)> {
        let host = self.driver_handle.host()?;
        if !Rc::ptr_eq(&host, &self.host) {
            self.report_datagrams();
            self.host = host;
        }
        let settings = self.host.settings()?;
        let is_current = |cached: &CachedServerConfig| {
            Rc::ptr_eq(&cached.host, &self.host) && cached.settings == settings
        };
        let known = self.cached_config.take().filter(is_current);
        let cached = self.cached_config.insert(known.unwrap_or_else(|| CachedServerConfig {
            host: Rc::clone(&self.host),
            settings,
            config: self.new_config(settings),
        }));
        Some((Arc::clone(&cached.config), settings))
    }

    fn new_config(&self, settings: ServerSettings) -> Arc<ServerConfig> {
        let server_crypto = Arc::new(SniServerConfig::new(self.host.sni_source()));
        let mut config = ServerConfig::new(server_crypto, Arc::clone(&self.keys.token));
        let options = transport::TransportOptions {
            bi_streams: settings.max_concurrent_streams,
            idle_timeout: settings.idle_timeout.saturating_add(IDLE_TIMEOUT_MARGIN),
            keep_alive: None,
            congestion_control: settings.congestion_control,
        };
        config
            .transport_config(options.config())
            .max_incoming(MAX_HANDSHAKE_STEPS)
            .incoming_buffer_size(INCOMING_BUFFER_BYTES)
            .incoming_buffer_size_total(TOTAL_INCOMING_BUFFER_BYTES);
        Arc::new(config)
    }

    /// Returns the number of handshakes that are queued or in progress.
    fn handshakes(&self) -> usize {
        self.handshake_steps.len() + self.handshaking.get()
    }
}

/// Returns the identity of a client; `None`: it has presented no certificate.
fn client_identity(site: &SniEntry, proto: &quinn_proto::Connection) -> Option<ClientIdentity> {
    let presented = proto.crypto_session().peer_identity()?;
    let presented = presented.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    site.client_identity(*presented)
}

fn handshake_data(proto: &quinn_proto::Connection) -> Option<QuicHandshakeData> {
    let data = proto.crypto_session().handshake_data()?.downcast().ok()?;
    Some(*data)
}

impl EndpointDriver {
    /// Handles the first datagram of a new connection, which has that length.
    pub(super) fn handle_incoming(&mut self, incoming: Incoming, length: usize) {
        let DriverRole::Server(server) = &mut self.role else {
            return self.endpoint.ignore(incoming);
        };
        let is_serving =
            server.driver_handle.accepts_connections() && server.host.accepts_handshakes();
        if !is_serving {
            return self.refuse(incoming);
        }
        if server.handshakes() >= RETRY_FROM && !incoming.remote_address_validated() {
            return self.send_retry(incoming);
        }
        if server.handshake_steps.len() >= MAX_HANDSHAKE_STEPS {
            self.endpoint.ignore(incoming);
            return self.count_drop(DatagramDropReason::Handshakes);
        }
        server.handshake_steps.push_back(HandshakeStep::Accept(incoming, length));
    }

    /// Makes the client validate its address.
    fn send_retry(&mut self, incoming: Incoming) {
        self.reply.clear();
        match self.endpoint.retry(incoming, &mut self.reply) {
            Ok(transmit) => {
                if let DriverRole::Server(server) = &mut self.role {
                    server.counts.retries += 1;
                }
                self.send_reply(&transmit);
            }
            // Cannot happen: the address has not been validated yet.
            Err(error) => self.endpoint.ignore(error.into_incoming()),
        }
    }

    fn refuse(&mut self, incoming: Incoming) {
        self.reply.clear();
        let transmit = self.endpoint.refuse(incoming, &mut self.reply);
        self.send_reply(&transmit);
    }

    /// Takes the first step of a handshake, whose first datagram has that length.
    pub(super) fn accept(&mut self, incoming: Incoming, length: usize, now: Instant) {
        let DriverRole::Server(server) = &mut self.role else {
            return self.endpoint.ignore(incoming);
        };
        let Some((config, settings)) = server.current_config() else {
            return self.refuse(incoming);
        };
        let host = Rc::clone(&server.host);
        let Some(admitted) = ConnectionPermit::admit(&host) else { return self.refuse(incoming) };
        // Later connections are checked against the current configuration, too.
        self.endpoint.set_server_config(Some(Arc::clone(&config)));
        let amplification_limit = AmplificationLimit::new(&incoming, length);
        self.reply.clear();
        match self.endpoint.accept(incoming, now, &mut self.reply, Some(config)) {
            Ok((handle, connection)) => {
                server.handshaking.set(server.handshaking.get() + 1);
                let inner = self.add(handle, connection);
                {
                    let state = &mut *inner.state.borrow_mut();
                    state.amplification_limit = amplification_limit;
                    state.flood_detector = Some(FloodDetector::new(now));
                    state.admitted = Some(admitted);
                    state.handshake_deadline = now.checked_add(settings.handshake_timeout);
                }
                self.poll_events(&inner);
            }
            Err(AcceptError { cause, response }) => {
                host.record_handshake(Err(client_tls_error(&cause)));
                drop(admitted);
                if let Some(transmit) = response {
                    self.send_reply(&transmit);
                }
            }
        }
    }
}
