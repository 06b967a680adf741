//! The handle on the control side: starts the workers, tells them what is in force, asks them what they do.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use gateway::Snapshot;
use gateway::snapshot::{BackendKey, BackendSettings, EndpointSpec, Listener};
use thiserror::Error;
use tokio::sync::mpsc;

use crate::accept::listen::Listening;
use crate::alt_svc;
use crate::backend::Backend;
use crate::clock;
use crate::dial::pool::{Endpoint, lock};
use crate::health;
use crate::live::{Bound, Estate, Live, LiveListener};
use crate::observe::{self, access};
use crate::tls::Servers;
use crate::worker::{self, Command, Shared, Stage, Worker};

/// How often a drain looks whether the last connection has gone.
const DRAIN_LOOK: Duration = Duration::from_millis(5);
/// Idle clients may still send a request for a third of the time for draining, and for no longer than this.
const DRAIN_GRACE: Duration = Duration::from_secs(5);

/// How the data plane runs; not what it does.
pub struct Settings {
    pub workers: NonZeroUsize,
    pub access_log: Option<AccessLog>,
    /// Whether histograms keep the ids of traces that clients send.
    pub exemplars: bool,
}

/// Where and how much is logged of requests.
pub struct AccessLog {
    /// The share of requests that are logged: more than 0, at most 1.
    pub sample: f64,
    pub output: Box<dyn Write + Send>,
}

/// A running data plane.
pub struct Proxy {
    shared: Arc<Shared>,
    control: Mutex<Control>,
}

struct Control {
    estate: Estate,
    servers: Servers,
    threads: Vec<JoinHandle<()>>,
}

/// An address that cannot be listened on.
#[derive(Debug, Error)]
#[error("cannot listen on {address} ({name})")]
pub struct ListenError {
    pub name: Arc<str>,
    pub address: SocketAddr,
    pub source: io::Error,
}

/// A listener as an operator sees it.
#[derive(Clone, Debug)]
pub struct ListenerView {
    pub name: Arc<str>,
    /// With the port that the kernel gave.
    pub address: SocketAddr,
    /// HTTP/3 is served at the UDP port of the same number.
    pub http3: bool,
    pub connections: u64,
}

/// A backend as an operator sees it.
#[derive(Clone, Debug)]
pub struct BackendView {
    pub key: BackendKey,
    pub settings: BackendSettings,
    /// Requests that wait for a slot.
    pub waiting: u32,
    /// Too few endpoints are usable, so that health is ignored.
    pub panicking: bool,
    /// Attempts beyond a request's first, so far.
    pub retries: u64,
    pub endpoints: Vec<EndpointView>,
}

/// An endpoint as an operator sees it.
#[derive(Clone, Debug)]
pub struct EndpointView {
    pub address: SocketAddr,
    /// In force now: 0 for one that is out, less than all for one that starts.
    pub weight: u32,
    /// How it stands, in a word.
    pub health: &'static str,
    pub in_flight: u32,
    pub idle_connections: usize,
    /// Attempts so far, over all backends that name it.
    pub requests: u64,
    /// Of these, those that failed by its fault.
    pub failures: u64,
    /// To the head of the response, where PeakEwma learns it; `None`: not known yet, or no longer.
    pub latency: Option<Duration>,
}

impl Proxy {
    /// Starts the workers; nothing is listened on yet.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(settings: Settings) -> io::Result<Self> {
        let count = settings.workers.get();
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..count).map(|_| mpsc::unbounded_channel()).unzip();
        let shared = Arc::new(Shared::new(senders, settings.exemplars));
        let mut threads = Vec::new();
        let (mut sample, mut writer) = (0.0, None);
        if let Some(log) = settings.access_log {
            let (sender, thread) = access::start_writer(log.output)?;
            (sample, writer) = (log.sample, Some(sender));
            threads.push(thread);
        }
        for (index, commands) in receivers.into_iter().enumerate() {
            let (shared, writer) = (Arc::clone(&shared), writer.clone());
            let work = move || {
                let log = access::Log::new(sample, writer);
                if let Err(error) = worker::run(Worker::new(index, shared, log), commands) {
                    tracing::error!(worker = index, %error, "the worker cannot run");
                }
            };
            let thread = std::thread::Builder::new().name(format!("worker-{index}"));
            threads.push(thread.spawn(work)?);
        }
        let watched = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("health".to_owned());
        threads.push(thread.spawn(move || {
            if let Err(error) = health::run(&watched) {
                tracing::error!(%error, "nobody watches the health of endpoints");
            }
        })?);
        let control =
            Mutex::new(Control { estate: Estate::new(count), servers: Servers::new(), threads });
        Ok(Self { shared, control })
    }

    /// Puts the Snapshot in force. What cannot be listened on is returned; all else is in force.
    pub fn apply(&self, snapshot: &Snapshot) -> Vec<ListenError> {
        let mut control = lock(&self.control);
        let old = self.shared.live.load();
        let mut errors = Vec::new();
        let mut live = Live {
            listeners: (0..old.listeners.len()).map(|_| None).collect(),
            routes: control.estate.routes(&snapshot.rules),
            backends: control.estate.backends(snapshot),
        };
        let mut sockets = Vec::new();
        let sites = control.servers.sites(snapshot.listeners.iter().map(|it| it.tls.as_deref()));
        for (asked, tls) in snapshot.listeners.iter().zip(sites) {
            let mut known = old.listeners.iter().flatten();
            let bound = match known.find(|known| known.bound.is_for(asked)) {
                Some(known) => Arc::clone(&known.bound),
                None => match self.bind(&mut live, asked) {
                    Ok((bound, socket)) => {
                        sockets.push((Arc::clone(&bound), socket));
                        bound
                    }
                    Err(source) => {
                        let (name, address) = (Arc::clone(&asked.name), asked.address);
                        errors.push(ListenError { name, address, source });
                        continue;
                    }
                },
            };
            let place = bound.place;
            let alt_svc =
                asked.http3.as_ref().map(|http3| alt_svc::value(http3, bound.address.port()));
            live.listeners[place] = Some(LiveListener {
                name: Arc::clone(&asked.name),
                bound,
                client: Arc::clone(&asked.client),
                protocol: asked.protocol.clone(),
                tls,
                http3: asked.http3,
                alt_svc,
            });
        }
        self.swap(&old, live, sockets);
        self.shared.bell.ring();
        errors
    }

    /// Takes a free place for a new address.
    fn bind(&self, live: &mut Live, asked: &Listener) -> io::Result<(Arc<Bound>, Listening)> {
        let transport = asked.protocol.transport();
        let socket = Listening::bind(transport, asked.address)?;
        let bound_to = socket.address()?;
        live.listeners.push(None);
        let place = live.listeners.len() - 1;
        let workers = self.shared.seats.len();
        let bound = Bound::new(place, transport, asked.address, bound_to, workers);
        Ok((Arc::new(bound), socket))
    }

    /// First the Snapshot, then the sockets: no connection comes by a listener that is not known.
    fn swap(&self, old: &Live, live: Live, sockets: Vec<(Arc<Bound>, Listening)>) {
        let is_gone = |place: usize| live.listeners.get(place).is_none_or(Option::is_none);
        let gone: Vec<usize> = old
            .listeners
            .iter()
            .flatten()
            .map(|listener| listener.bound.place)
            .filter(|&place| is_gone(place))
            .collect();
        self.shared.live.store(Arc::new(live));
        for (bound, socket) in sockets {
            self.home(bound.place).tell(Command::Listen(bound, socket));
        }
        for &place in &gone {
            self.home(place).tell(Command::Unlisten { place });
        }
        if !gone.is_empty() {
            self.shared.seats.iter().for_each(|seat| seat.tell(Command::LookUp));
        }
    }

    /// The worker that accepts for a place.
    fn home(&self, place: usize) -> &worker::Seat {
        &self.shared.seats[place % self.shared.seats.len()]
    }

    /// The short way: new endpoints for one backend. False if no rule names such a backend.
    pub fn set_endpoints(&self, key: &BackendKey, endpoints: &[EndpointSpec]) -> bool {
        let known = lock(&self.control).estate.set_endpoints(key, endpoints);
        self.shared.bell.ring();
        known
    }

    pub fn listeners(&self) -> Vec<ListenerView> {
        let live = self.shared.live.load();
        let view = |listener: &LiveListener| ListenerView {
            name: Arc::clone(&listener.name),
            address: listener.bound.address,
            http3: listener.http3.is_some(),
            connections: u64::from(listener.bound.open()),
        };
        live.listeners.iter().flatten().map(view).collect()
    }

    pub fn backends(&self) -> Vec<BackendView> {
        self.shared.live.load().backends.iter().map(|backend| view_backend(backend)).collect()
    }

    /// Calls `sink` with every value of every metric, those of one metric together.
    pub fn collect(&self, sink: &mut dyn FnMut(observe::Sample<'_>)) {
        observe::collect(&self.shared, sink);
    }

    /// Stops listening, lets running requests end and says to clients that their connections will be closed. True: all
    /// connections had gone in time.
    pub fn drain(&self, timeout: Duration) -> bool {
        let started = clock::now();
        let live = self.shared.live.load();
        self.shared.enter(Stage::Draining);
        for listener in live.listeners.iter().flatten() {
            let place = listener.bound.place;
            self.home(place).tell(Command::Unlisten { place });
        }
        while self.shared.connections() > 0 {
            let passed = clock::now().saturating_since(started);
            if passed >= timeout {
                return false;
            }
            if passed >= DRAIN_GRACE.min(timeout / 3) && self.shared.stage() == Stage::Draining {
                self.shared.enter(Stage::Closing);
            }
            std::thread::sleep(DRAIN_LOOK);
        }
        true
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.seats.iter().for_each(|seat| seat.tell(Command::Stop));
        self.shared.bell.stop();
        for thread in lock(&self.control).threads.drain(..).rev() {
            // A worker that panicked has said so.
            drop(thread.join());
        }
    }
}

fn view_backend(backend: &Backend) -> BackendView {
    let current = backend.current();
    let members = current.set.members().iter();
    let standings = backend.care.standings(&current.settings.health);
    BackendView {
        panicking: backend.care.is_panicking(),
        key: backend.key.clone(),
        settings: current.settings.clone(),
        waiting: backend.waiting(),
        retries: backend.counters.iter().map(|shard| shard.retries.value()).sum(),
        endpoints: members
            .map(|member| {
                let standing = standings.get(&member.endpoint.address).copied();
                view_endpoint(&member.endpoint, member.weight, standing.unwrap_or("serving"))
            })
            .collect(),
    }
}

fn view_endpoint(endpoint: &Endpoint, weight: u32, health: &'static str) -> EndpointView {
    let shards = endpoint.data.counters.iter();
    EndpointView {
        address: endpoint.address,
        weight,
        health,
        in_flight: endpoint.in_flight(),
        idle_connections: endpoint.data.idle_connections(),
        requests: shards.clone().map(|shard| shard.attempts.value()).sum(),
        failures: shards.map(|shard| shard.failures.value()).sum(),
        latency: endpoint.latency(clock::now()),
    }
}
