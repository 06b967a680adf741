//! Clients' connections, from the first datagram to their handshake's end.
//!
//! A handshake costs far more than a request. So its steps wait in a line, and a port takes one in each turn: a flood of
//! them delays requests by one step at a time, as over TCP. When many handshakes are under way, whoever comes next has to
//! show first that it is where it says (Retry, RFC 9000 §8.1.2), which costs us nearly nothing; beyond that line and
//! buffers are bounded, and what does not fit is dropped and counted.

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

use crate::accept::arrival::Presence;
use crate::live::Bound;
use crate::observe::QuicCounters;
use crate::quic::agenda::Agenda;
use crate::quic::closed::unsecured;
use crate::quic::connection::State;
use crate::quic::id::{self, Ids};
use crate::quic::port::{Port, Role};
use crate::quic::session::{Answerer, Settled, VERSION};
use crate::quic::socket::Socket;
use crate::quic::{Connection, Datagram, Dropped, Group, transport};
use crate::tls::{Greeting, Unsecured};
use crate::worker::{Command, Stage, Worker};

/// Silence ends a connection so much later than whoever serves it does, who says goodbye.
const RESERVE: Duration = Duration::from_secs(3);
/// Handshakes under way on a worker from which on whoever comes next has to show where it is.
const RETRY_FROM: usize = 256;
/// Steps of handshakes that may wait on a worker.
const STEPS: usize = 1024;
/// Bytes that may come of one connection, and of all, before it is begun.
const AHEAD: u64 = 16 * 1024;
const ALL_AHEAD: u64 = 4 * 1024 * 1024;
/// Datagrams that may be on their way to a worker from others.
const LETTERS: u32 = 1024;

/// Serves a connection whose handshake is complete, or which may be served before.
pub(crate) type Serve = fn(Presence, Connection);

/// A worker's ports for clients.
#[derive(Default)]
pub(crate) struct Ports(RefCell<Vec<Open>>);

struct Open {
    place: usize,
    group: Arc<Group>,
    agenda: Rc<Agenda>,
}

impl Ports {
    /// Takes in connections at the group's address for `bound`, and has them served.
    pub(crate) fn open(
        &self,
        worker: &Rc<Worker>,
        bound: &Arc<Bound>,
        group: &Arc<Group>,
        serve: Serve,
    ) {
        if worker.index >= group.len() {
            return;
        }
        let ports = &mut *self.0.borrow_mut();
        // It may be open still, for connections of before.
        if let Some(open) = ports.iter_mut().find(|open| Arc::ptr_eq(&open.group, group)) {
            open.place = bound.place;
            open.agenda.take_in_for(Some(Arc::clone(bound)));
            return;
        }
        let socket = match group.socket(worker.index).and_then(Socket::new) {
            Ok(socket) => socket,
            Err(error) => {
                tracing::error!(listener.address = %group.address, %error, "cannot watch the listener");
                return;
            }
        };
        let agenda = Rc::new(Agenda::new(Some(Arc::clone(bound))));
        let port = port(worker, bound, group, &agenda, socket, serve);
        ports.push(Open { place: bound.place, group: Arc::clone(group), agenda });
        let (worker, group) = (Rc::clone(worker), Arc::clone(group));
        tokio::task::spawn_local(async move {
            port.run().await;
            worker.ports.0.borrow_mut().retain(|open| !Arc::ptr_eq(&open.group, &group));
        });
    }

    /// Takes in no more connections there; those that are there go on.
    pub(crate) fn close(&self, place: usize) {
        for open in self.0.borrow().iter().filter(|open| open.place == place) {
            open.agenda.take_in_for(None);
        }
    }

    /// A datagram for this worker has come to another one.
    pub(crate) fn deliver(&self, group: &Arc<Group>, datagram: Datagram) {
        if let Some(open) = self.0.borrow().iter().find(|it| Arc::ptr_eq(&it.group, group)) {
            open.agenda.post(datagram);
        }
    }

    /// Closes all connections at once.
    pub(crate) fn end(&self) {
        self.0.borrow().iter().for_each(|open| open.agenda.end());
    }
}

fn port(
    worker: &Rc<Worker>,
    bound: &Arc<Bound>,
    group: &Arc<Group>,
    agenda: &Rc<Agenda>,
    socket: Socket,
    serve: Serve,
) -> Port {
    let shared = &worker.shared;
    let server_id = group.server_id;
    let own = u8::try_from(worker.index).expect("a group has no more workers than an octet tells");
    let mut config = EndpointConfig::new(Arc::clone(&shared.quic_keys.reset));
    config
        .supported_versions(vec![VERSION])
        .cid_generator(move || Box::new(Ids::new(server_id, own)));
    let mut server = Server {
        worker: Rc::clone(worker),
        group: Arc::clone(group),
        agenda: Rc::clone(agenda),
        bound: Arc::clone(bound),
        serve,
        line: VecDeque::new(),
        handshaking: Cell::new(0),
        terms: None,
    };
    let terms = server.terms().map(|(terms, _)| terms);
    let endpoint = Endpoint::new(Arc::new(config), terms, socket.keeps_datagrams_whole(), None);
    let buffers = Rc::clone(&worker.quic.buffers);
    Port::new(endpoint, socket, Rc::clone(agenda), buffers, Role::Server(Box::new(server)))
}

/// What a port does for clients.
pub(super) struct Server {
    worker: Rc<Worker>,
    group: Arc<Group>,
    agenda: Rc<Agenda>,
    /// Whom what comes is counted for: the last listener that took in connections here.
    bound: Arc<Bound>,
    serve: Serve,
    line: VecDeque<Step>,
    /// Connections whose handshake has begun and is not over.
    handshaking: Cell<usize>,
    terms: Option<Terms>,
}

/// A step of a handshake.
pub(super) enum Step {
    Begins(Incoming),
    Goes(ConnectionHandle, ConnectionEvent),
}

/// On what terms connections begin, and what that was made of.
struct Terms {
    bound: Arc<Bound>,
    policy: Arc<ClientSettings>,
    http3: Http3Settings,
    config: Arc<ServerConfig>,
}

impl Server {
    pub(super) fn counters(&self) -> &QuicCounters {
        &self.bound.counters[self.worker.index].quic
    }

    /// No handshake waits for a step.
    pub(super) fn is_idle(&self) -> bool {
        self.line.is_empty()
    }

    pub(super) fn next_step(&mut self) -> Option<Step> {
        self.line.pop_front()
    }

    /// False: too many wait already.
    pub(super) fn wait(&mut self, step: Step) -> bool {
        let may_wait = self.line.len() < STEPS;
        if may_wait {
            self.line.push_back(step);
        }
        may_wait
    }

    /// Whoever waits for a step is not answered any more.
    pub(super) fn forget_steps(&mut self, endpoint: &mut Endpoint) {
        for step in self.line.drain(..) {
            match step {
                Step::Begins(incoming) => endpoint.ignore(incoming),
                Step::Goes(..) => {}
            }
        }
    }

    /// Counts a datagram. `None`: it is another worker's, and on its way there.
    pub(super) fn keep(&self, datagram: Datagram) -> Option<Datagram> {
        self.counters().received.add(1);
        let home = id::worker_of(&datagram.bytes)
            .filter(|home| *home != self.worker.index && *home < self.group.len());
        let Some(home) = home else { return Some(datagram) };
        let seat = &self.worker.shared.seats[home];
        let more = |letters: u32| (letters < LETTERS).then_some(letters + 1);
        if seat.letters.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok() {
            self.counters().handed_over.add(1);
            seat.tell(Command::Datagram(Arc::clone(&self.group), datagram));
        } else {
            self.counters().dropped[Dropped::Handover as usize].add(1);
        }
        None
    }

    /// When the client of a connection that is used is asked for a sign of life, if nothing passes from now on.
    pub(super) fn ping_at(&self, now: Instant) -> Option<Instant> {
        now.checked_add(self.terms.as_ref()?.policy.connection_idle_timeout / 3)
    }

    /// A handshake is over, if it was not before.
    pub(super) fn conclude(&self, state: &mut State, result: Result<(), Unsecured>) {
        if std::mem::replace(&mut state.concluded, true) {
            return;
        }
        self.handshaking.set(self.handshaking.get() - 1);
        let counters = &self.bound.counters[self.worker.index].handshakes;
        match (result, settled(&state.proto)) {
            (Err(unsecured), _) => {
                counters.failed[unsecured as usize].add(1);
                state.presence = None;
            }
            (Ok(()), Some(Settled { resumed: true, .. })) => counters.resumed.add(1),
            (Ok(()), _) => counters.full.add(1),
        }
    }

    /// Has the connection served, if it is not already.
    pub(super) fn begin(&self, connection: &Connection) {
        let Connection(inner) = connection;
        let presence = {
            let state = &mut *inner.state.borrow_mut();
            let Some(presence) = state.presence.take() else { return };
            let (server_name, site) = settled(&state.proto)
                .map_or((None, None), |settled| (settled.server_name, Some(settled.site)));
            inner
                .greeting
                .get_or_init(|| Arc::new(Greeting { server_name, site, ..Greeting::of_quic() }));
            presence
        };
        (self.serve)(presence, connection.clone());
    }

    /// On what terms a connection begins now; `None`: nobody listens here any more.
    fn terms(&mut self) -> Option<(Arc<ServerConfig>, Arc<ClientSettings>)> {
        self.bound = self.agenda.bound()?;
        let live = self.worker.live();
        let listener = live.listener(&self.bound)?;
        let (policy, http3) = (&listener.client, listener.http3.as_ref()?.settings);
        let is_of_now = |terms: &Terms| {
            Arc::ptr_eq(&terms.bound, &self.bound)
                && Arc::ptr_eq(&terms.policy, policy)
                && terms.http3 == http3
        };
        let known = self.terms.take().filter(is_of_now);
        let terms = self.terms.insert(known.unwrap_or_else(|| Terms {
            bound: Arc::clone(&self.bound),
            policy: Arc::clone(policy),
            http3,
            config: self.config(policy, http3),
        }));
        Some((Arc::clone(&terms.config), Arc::clone(&terms.policy)))
    }

    fn config(&self, policy: &ClientSettings, http3: Http3Settings) -> Arc<ServerConfig> {
        let shared = &self.worker.shared;
        let answerer = Arc::new(Answerer::new(shared, &self.bound));
        let mut config = ServerConfig::new(answerer, Arc::clone(&shared.quic_keys.token));
        let terms = transport::Terms {
            bi_streams: http3.max_concurrent_streams,
            idle_timeout: policy.connection_idle_timeout.saturating_add(RESERVE),
            keep_alive: None,
            congestion_control: http3.congestion_control,
        };
        config
            .transport_config(terms.config())
            .max_incoming(STEPS)
            .incoming_buffer_size(AHEAD)
            .incoming_buffer_size_total(ALL_AHEAD);
        Arc::new(config)
    }

    /// Handshakes that wait or are under way.
    fn handshakes(&self) -> usize {
        self.line.len() + self.handshaking.get()
    }
}

fn settled(proto: &quinn_proto::Connection) -> Option<Settled> {
    let settled = proto.crypto_session().handshake_data()?.downcast().ok()?;
    Some(*settled)
}

impl Port {
    /// Somebody wants to connect.
    pub(super) fn arrive(&mut self, incoming: Incoming) {
        let Role::Server(server) = &mut self.role else { return self.endpoint.ignore(incoming) };
        let is_serving = server.agenda.takes_in() && server.worker.stage() < Stage::Draining;
        if !is_serving {
            return self.refuse(incoming);
        }
        if server.handshakes() >= RETRY_FROM && !incoming.remote_address_validated() {
            return self.ask_where(incoming);
        }
        if server.line.len() >= STEPS {
            self.endpoint.ignore(incoming);
            return self.drop_one(Dropped::Handshakes);
        }
        server.line.push_back(Step::Begins(incoming));
    }

    /// Has the client show that it is where it says.
    fn ask_where(&mut self, incoming: Incoming) {
        self.reply.clear();
        match self.endpoint.retry(incoming, &mut self.reply) {
            Ok(transmit) => {
                if let Role::Server(server) = &self.role {
                    server.counters().retries.add(1);
                }
                self.send_reply(&transmit);
            }
            // Not to be, as it has not been shown yet.
            Err(error) => self.endpoint.ignore(error.into_incoming()),
        }
    }

    fn refuse(&mut self, incoming: Incoming) {
        self.reply.clear();
        let transmit = self.endpoint.refuse(incoming, &mut self.reply);
        self.send_reply(&transmit);
    }

    /// The first step of a handshake.
    pub(super) fn accept(&mut self, incoming: Incoming, now: Instant) {
        let Role::Server(server) = &mut self.role else { return self.endpoint.ignore(incoming) };
        let Some((config, policy)) = server.terms() else { return self.refuse(incoming) };
        let (worker, bound) = (Rc::clone(&server.worker), Arc::clone(&server.bound));
        let counters = &bound.counters[worker.index];
        if !bound.admit(policy.max_connections) {
            counters.refused.add(1);
            return self.refuse(incoming);
        }
        counters.accepted.add(1);
        counters.handshakes.begun.add(1);
        counters.quic.connections.add(1);
        worker.seat().connections.fetch_add(1, Ordering::AcqRel);
        let presence = Presence::new(&worker, &bound);
        // What comes next is looked at by the terms of now, too.
        self.endpoint.set_server_config(Some(Arc::clone(&config)));
        self.reply.clear();
        match self.endpoint.accept(incoming, now, &mut self.reply, Some(config)) {
            Ok((handle, connection)) => {
                server.handshaking.set(server.handshaking.get() + 1);
                let inner = self.add(handle, connection);
                {
                    let state = &mut *inner.state.borrow_mut();
                    state.presence = Some(presence);
                    state.handshake_until = now.checked_add(policy.head_timeout);
                }
                self.attend(&inner);
            }
            Err(AcceptError { cause, response }) => {
                counters.handshakes.failed[unsecured(&cause) as usize].add(1);
                drop(presence);
                if let Some(transmit) = response {
                    self.send_reply(&transmit);
                }
            }
        }
    }
}
