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
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gateway::snapshot::{ClientSettings, Http3Settings};
use quinn_proto::{
    AcceptError, ConnectionEvent, ConnectionHandle, Endpoint, EndpointConfig, Incoming,
    ServerConfig,
};
use tls::{ClientTlsError, TlsInfo};

use crate::accept::accepted_connection::ConnectionGuard;
use crate::active_config::ListenerSocket;
use crate::observe::QuicCounters;
use crate::quic::close_reason::client_tls_error;
use crate::quic::connection::QuicConnectionState;
use crate::quic::connection_id::{self, WorkerCidGenerator};
use crate::quic::driver::{DriverRole, EndpointDriver};
use crate::quic::driver_handle::DriverHandle;
use crate::quic::session::{QuicHandshakeData, SniServerConfig, VERSION};
use crate::quic::socket::QuicSocket;
use crate::quic::{DatagramDropReason, QuicConnection, ReceivedDatagram, SocketGroup, transport};
use crate::worker::{DrainStage, Worker, WorkerCommand};

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
/// Datagrams in transit to a worker from the others.
const MAX_PENDING_DATAGRAMS: u32 = 1024;

/// Serves a connection whose handshake is complete, or that may be served before (0-RTT).
pub(crate) type ServeConnection = fn(ConnectionGuard, QuicConnection);

/// The drivers of a worker for client connections.
#[derive(Default)]
pub(crate) struct ServerDrivers(RefCell<Vec<ServerDriverEntry>>);

struct ServerDriverEntry {
    listener_index: usize,
    group: Arc<SocketGroup>,
    driver_handle: Rc<DriverHandle>,
}

impl ServerDrivers {
    /// Accepts connections at the group's address for `bound`, and serves them.
    pub(crate) fn open(
        &self,
        worker: &Rc<Worker>,
        bound: &Arc<ListenerSocket>,
        group: &Arc<SocketGroup>,
        serve: ServeConnection,
    ) {
        if worker.index >= group.len() {
            return;
        }
        let ports = &mut *self.0.borrow_mut();
        // The driver may still be running, for older connections.
        if let Some(open) = ports.iter_mut().find(|open| Arc::ptr_eq(&open.group, group)) {
            open.listener_index = bound.listener_index;
            open.driver_handle.set_listener_socket(Some(Arc::clone(bound)));
            return;
        }
        let socket = match group.socket(worker.index).and_then(QuicSocket::new) {
            Ok(socket) => socket,
            Err(error) => {
                tracing::error!(listener.address = %group.address, %error, "cannot open the QUIC socket of the listener");
                return;
            }
        };
        let driver_handle = Rc::new(DriverHandle::new(Some(Arc::clone(bound))));
        let port = new_driver(worker, bound, group, &driver_handle, socket, serve);
        ports.push(ServerDriverEntry {
            listener_index: bound.listener_index,
            group: Arc::clone(group),
            driver_handle,
        });
        let (worker, group) = (Rc::clone(worker), Arc::clone(group));
        tokio::task::spawn_local(async move {
            port.run().await;
            worker.ports.0.borrow_mut().retain(|open| !Arc::ptr_eq(&open.group, &group));
        });
    }

    /// Stops accepting connections for the listener; existing ones continue.
    pub(crate) fn close(&self, place: usize) {
        for open in self.0.borrow().iter().filter(|open| open.listener_index == place) {
            open.driver_handle.set_listener_socket(None);
        }
    }

    /// Delivers a datagram that arrived at another worker.
    pub(crate) fn deliver(&self, group: &Arc<SocketGroup>, datagram: ReceivedDatagram) {
        if let Some(open) = self.0.borrow().iter().find(|it| Arc::ptr_eq(&it.group, group)) {
            open.driver_handle.push_datagram(datagram);
        }
    }

    /// Closes all connections at once.
    pub(crate) fn close_all(&self) {
        self.0.borrow().iter().for_each(|open| open.driver_handle.close_all());
    }
}

fn new_driver(
    worker: &Rc<Worker>,
    bound: &Arc<ListenerSocket>,
    group: &Arc<SocketGroup>,
    driver_handle: &Rc<DriverHandle>,
    socket: QuicSocket,
    serve: ServeConnection,
) -> EndpointDriver {
    let shared = &worker.shared;
    let server_id = group.server_id;
    let own = u8::try_from(worker.index).expect("a group has at most 256 workers");
    let mut config = EndpointConfig::new(Arc::clone(&shared.quic_keys.reset));
    config
        .supported_versions(vec![VERSION])
        .cid_generator(move || Box::new(WorkerCidGenerator::new(server_id, own)));
    let mut server = ConnectionAcceptor {
        worker: Rc::clone(worker),
        group: Arc::clone(group),
        driver_handle: Rc::clone(driver_handle),
        listener_socket: Arc::clone(bound),
        serve,
        handshake_steps: VecDeque::new(),
        handshaking: Cell::new(0),
        cached_config: None,
    };
    let server_config = server.current_config().map(|(config, _)| config);
    let endpoint = Endpoint::new(Arc::new(config), server_config, socket.never_fragments(), None);
    let buffers = Rc::clone(&worker.quic.buffers);
    EndpointDriver::new(
        endpoint,
        socket,
        Rc::clone(driver_handle),
        buffers,
        DriverRole::Server(Box::new(server)),
    )
}

/// Accepts client connections of one driver.
pub(super) struct ConnectionAcceptor {
    worker: Rc<Worker>,
    group: Arc<SocketGroup>,
    driver_handle: Rc<DriverHandle>,
    /// The listener whose metrics count the datagrams: the last one that accepted connections here.
    listener_socket: Arc<ListenerSocket>,
    serve: ServeConnection,
    handshake_steps: VecDeque<HandshakeStep>,
    /// Connections whose handshake is in progress.
    handshaking: Cell<usize>,
    cached_config: Option<CachedServerConfig>,
}

/// A step of a handshake.
pub(super) enum HandshakeStep {
    Accept(Incoming),
    Continue(ConnectionHandle, ConnectionEvent),
}

/// The configuration of new connections, and the settings that it was built from.
struct CachedServerConfig {
    listener_socket: Arc<ListenerSocket>,
    policy: Arc<ClientSettings>,
    http3: Http3Settings,
    config: Arc<ServerConfig>,
}

impl ConnectionAcceptor {
    pub(super) fn counters(&self) -> &QuicCounters {
        &self.listener_socket.counters[self.worker.index].quic
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
                HandshakeStep::Accept(incoming) => endpoint.ignore(incoming),
                HandshakeStep::Continue(..) => {}
            }
        }
    }

    /// Counts a datagram. Returns `None` if it belongs to another worker, to which it has been sent.
    pub(super) fn keep_or_hand_over(&self, datagram: ReceivedDatagram) -> Option<ReceivedDatagram> {
        self.counters().received.add(1);
        let owner = connection_id::worker_of(&datagram.bytes)
            .filter(|owner| *owner != self.worker.index && *owner < self.group.len());
        let Some(owner) = owner else { return Some(datagram) };
        let target = &self.worker.shared.workers[owner];
        let more = |pending: u32| (pending < MAX_PENDING_DATAGRAMS).then_some(pending + 1);
        if target.pending_datagrams.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
        {
            self.counters().handed_over.add(1);
            target.send(WorkerCommand::Datagram(Arc::clone(&self.group), datagram));
        } else {
            self.counters().dropped[DatagramDropReason::Handover as usize].add(1);
        }
        None
    }

    /// Returns the time at which to send a PING to the client of a connection in use, if no packet passes until then.
    pub(super) fn ping_at(&self, now: Instant) -> Option<Instant> {
        now.checked_add(self.cached_config.as_ref()?.policy.connection_idle_timeout / 3)
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
        let counters = &self.listener_socket.counters[self.worker.index].handshakes;
        match (result, handshake_data(&state.proto)) {
            (Err(error), _) => {
                counters.failed[error as usize].add(1);
                state.connection_guard = None;
            }
            (Ok(()), Some(QuicHandshakeData { resumed: true, .. })) => counters.resumed.add(1),
            (Ok(()), _) => counters.full.add(1),
        }
    }

    /// Starts to serve the connection, if it is not served already.
    pub(super) fn serve_connection(&self, connection: &QuicConnection) {
        let QuicConnection(inner) = connection;
        let guard = {
            let state = &mut *inner.state.borrow_mut();
            let Some(guard) = state.connection_guard.take() else { return };
            let (server_name, site) = handshake_data(&state.proto)
                .map_or((None, None), |data| (data.server_name, Some(data.site)));
            inner.tls_info.get_or_init(|| {
                Arc::new(TlsInfo { server_name, sni_entry: site, ..TlsInfo::of_quic() })
            });
            guard
        };
        (self.serve)(guard, connection.clone());
    }

    /// Returns the configuration of new connections; `None` if no listener accepts them any more.
    fn current_config(&mut self) -> Option<(Arc<ServerConfig>, Arc<ClientSettings>)> {
        self.listener_socket = self.driver_handle.listener_socket()?;
        let live = self.worker.config();
        let listener = live.listener(&self.listener_socket)?;
        let (policy, http3) = (&listener.client, listener.http3.as_ref()?.settings);
        let is_current = |cached: &CachedServerConfig| {
            Arc::ptr_eq(&cached.listener_socket, &self.listener_socket)
                && Arc::ptr_eq(&cached.policy, policy)
                && cached.http3 == http3
        };
        let known = self.cached_config.take().filter(is_current);
        let cached = self.cached_config.insert(known.unwrap_or_else(|| CachedServerConfig {
            listener_socket: Arc::clone(&self.listener_socket),
            policy: Arc::clone(policy),
            http3,
            config: self.new_config(policy, http3),
        }));
        Some((Arc::clone(&cached.config), Arc::clone(&cached.policy)))
    }

    fn new_config(&self, policy: &ClientSettings, http3: Http3Settings) -> Arc<ServerConfig> {
        let shared = &self.worker.shared;
        let server_crypto = Arc::new(SniServerConfig::new(shared, &self.listener_socket));
        let mut config = ServerConfig::new(server_crypto, Arc::clone(&shared.quic_keys.token));
        let options = transport::TransportOptions {
            bi_streams: http3.max_concurrent_streams,
            idle_timeout: policy.connection_idle_timeout.saturating_add(IDLE_TIMEOUT_MARGIN),
            keep_alive: None,
            congestion_control: http3.congestion_control,
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

fn handshake_data(proto: &quinn_proto::Connection) -> Option<QuicHandshakeData> {
    let data = proto.crypto_session().handshake_data()?.downcast().ok()?;
    Some(*data)
}

impl EndpointDriver {
    /// Handles the first datagram of a new connection.
    pub(super) fn handle_incoming(&mut self, incoming: Incoming) {
        let DriverRole::Server(server) = &mut self.role else {
            return self.endpoint.ignore(incoming);
        };
        let is_serving = server.driver_handle.accepts_connections()
            && server.worker.stage() < DrainStage::Draining;
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
        server.handshake_steps.push_back(HandshakeStep::Accept(incoming));
    }

    /// Makes the client validate its address.
    fn send_retry(&mut self, incoming: Incoming) {
        self.reply.clear();
        match self.endpoint.retry(incoming, &mut self.reply) {
            Ok(transmit) => {
                if let DriverRole::Server(server) = &self.role {
                    server.counters().retries.add(1);
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

    /// Takes the first step of a handshake.
    pub(super) fn accept(&mut self, incoming: Incoming, now: Instant) {
        let DriverRole::Server(server) = &mut self.role else {
            return self.endpoint.ignore(incoming);
        };
        let Some((config, policy)) = server.current_config() else { return self.refuse(incoming) };
        let (worker, bound) = (Rc::clone(&server.worker), Arc::clone(&server.listener_socket));
        let counters = &bound.counters[worker.index];
        if !bound.admit_connection(policy.max_connections) {
            counters.refused.add(1);
            return self.refuse(incoming);
        }
        counters.accepted.add(1);
        counters.handshakes.begun.add(1);
        counters.quic.connections.add(1);
        worker.handle().connections.fetch_add(1, Ordering::AcqRel);
        let guard = ConnectionGuard::new(&worker, &bound);
        // Later connections are checked against the current configuration, too.
        self.endpoint.set_server_config(Some(Arc::clone(&config)));
        self.reply.clear();
        match self.endpoint.accept(incoming, now, &mut self.reply, Some(config)) {
            Ok((handle, connection)) => {
                server.handshaking.set(server.handshaking.get() + 1);
                let inner = self.add(handle, connection);
                {
                    let state = &mut *inner.state.borrow_mut();
                    state.connection_guard = Some(guard);
                    state.handshake_deadline = now.checked_add(policy.head_timeout);
                }
                self.poll_events(&inner);
            }
            Err(AcceptError { cause, response }) => {
                counters.handshakes.failed[client_tls_error(&cause) as usize].add(1);
                drop(guard);
                if let Some(transmit) = response {
                    self.send_reply(&transmit);
                }
            }
        }
    }
}
