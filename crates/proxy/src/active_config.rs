//! A Snapshot at work: its plain data joined to the state that outlives it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use balance::{EndpointRegistry, EndpointSet, SetMember, SlotAssignment};
use gateway::matching::{HostName, HostNameBuffer, RequestAttributes};
use gateway::snapshot::{
    BackendKey, BackendSettings, ClientSettings, EndpointSpec, Http3Settings, ListenerProtocol,
    Rule, TlsPayload, TransportProtocol,
};
use gateway::{Snapshot, snapshot};

use crate::backend::{self, Backend, BackendConfigRef};
use crate::config_cell::{ConfigCell, VersionedConfig};
use crate::dial::pool::EndpointData;
use crate::failure::Failure;
use crate::observe::{ListenerCounters, RouteCounters};
use crate::tls::{EndpointTlsContext, EndpointTlsFactory, SniTable, TlsInfo};

/// What workers go by, from one request to the next.
#[derive(Default)]
pub(crate) struct ActiveConfig {
    /// By place; a place is kept as long as its address is listened on.
    pub(crate) listeners: Vec<Option<ActiveListener>>,
    /// As [`Rule::index`] numbers them.
    pub(crate) routes: Vec<Arc<Route>>,
    /// As [`snapshot::Target::Backend`] numbers them.
    pub(crate) backends: Vec<Arc<Backend>>,
}

impl ActiveConfig {
    /// The listener at that address, or `None` if nobody listens there any more.
    pub(crate) fn listener(&self, bound: &Arc<ListenerSocket>) -> Option<&ActiveListener> {
        let listener = self.listeners.get(bound.listener_index)?.as_ref()?;
        Arc::ptr_eq(&listener.bound, bound).then_some(listener)
    }
}

/// A worker's own hold on a [`ActiveConfig`]: its requests count their references here, where no other worker counts.
pub(crate) struct WorkerConfig {
    config: VersionedConfig<ActiveConfig>,
    /// Of each backend, what was in force when a request last asked.
    backend_configs: Box<[RefCell<Option<Rc<BackendConfigRef>>>]>,
}

impl WorkerConfig {
    pub(crate) fn new(published: &ConfigCell<ActiveConfig>) -> Self {
        let config = published.load_versioned();
        let backend_configs = config.backends.iter().map(|_| RefCell::default()).collect();
        Self { config, backend_configs }
    }

    pub(crate) fn is_current(&self, published: &ConfigCell<ActiveConfig>) -> bool {
        self.config.is_current(published)
    }

    /// What is in force now for the backend of this number.
    pub(crate) fn backend_config(&self, backend: usize) -> Rc<BackendConfigRef> {
        let published = &self.backends[backend].current;
        let mut held = self.backend_configs[backend].borrow_mut();
        match &*held {
            Some(known) if known.is_current(published) => Rc::clone(known),
            Some(_) | None => Rc::clone(held.insert(Rc::new(published.load_versioned()))),
        }
    }

    /// Lets go of what is in force no longer, so that endpoints which have left do not stay for want of requests.
    pub(crate) fn drop_outdated(&self, backend: usize) {
        let published = &self.backends[backend].current;
        self.backend_configs[backend].borrow_mut().take_if(|known| !known.is_current(published));
    }
}

impl std::ops::Deref for WorkerConfig {
    type Target = ActiveConfig;

    fn deref(&self) -> &ActiveConfig {
        &self.config
    }
}

pub(crate) struct ActiveListener {
    pub(crate) name: Arc<str>,
    pub(crate) bound: Arc<ListenerSocket>,
    /// The port that clients ask for.
    pub(crate) public_port: u16,
    pub(crate) client: Arc<ClientSettings>,
    pub(crate) protocol: ListenerProtocol,
    /// What becomes of TLS, which all connections begin with then.
    pub(crate) sni_table: Option<Arc<SniTable>>,
    /// How requests come by HTTP/3 too.
    pub(crate) http3: Option<ListenerHttp3>,
}

/// HTTP/3 at a listener.
pub(crate) struct ListenerHttp3 {
    pub(crate) settings: Http3Settings,
    /// What clients over TCP are told of it.
    pub(crate) alt_svc: Box<str>,
}

impl ActiveListener {
    /// What clients over TCP are told of HTTP/3; `None`: it is not served.
    pub(crate) fn alt_svc(&self) -> Option<&str> {
        self.http3.as_ref().map(|http3| &*http3.alt_svc)
    }

    /// The rule that serves a request of a connection.
    ///
    /// One normal form of the host is what both the site and the routes are found by.
    pub(crate) fn request_rule(
        &self,
        greeting: Option<&TlsInfo>,
        request: &impl RequestAttributes,
    ) -> Result<&Arc<Rule>, Failure> {
        let mut buffer = HostNameBuffer::new();
        let host = HostName::new(request.host(), &mut buffer);
        if self.sni_table.as_ref().is_some_and(|sites| sites.is_misdirected(greeting, host)) {
            return Err(Failure::Misdirected);
        }
        match &self.protocol {
            ListenerProtocol::Http(routes) => routes.find_at(host, request).ok_or(Failure::NoRoute),
            ListenerProtocol::Tcp(_) | ListenerProtocol::Udp(_) => Err(Failure::NoRoute),
        }
    }

    /// True if a connection with this handshake, or without TLS, has proved what the listener asks for now.
    pub(crate) fn accepts_handshake(&self, greeting: Option<&TlsInfo>) -> bool {
        let Some(sites) = &self.sni_table else { return true };
        greeting.is_some_and(|greeting| sites.current_entry(greeting).is_some())
    }

    /// The rule of a connection that carries no requests.
    pub(crate) fn connection_rule(&self, greeting: Option<&TlsInfo>) -> Option<&Arc<Rule>> {
        if let (Some(sites), Some(greeting)) = (&self.sni_table, greeting) {
            return match &sites.current_entry(greeting)?.carries {
                TlsPayload::Connections(rule) => rule.as_ref(),
                TlsPayload::Requests => None,
            };
        }
        match &self.protocol {
            ListenerProtocol::Tcp(rule) => rule.as_ref(),
            ListenerProtocol::Http(_) | ListenerProtocol::Udp(_) => None,
        }
    }
}

/// An address that is listened on.
pub(crate) struct ListenerSocket {
    /// Its place in [`ActiveConfig::listeners`].
    pub(crate) listener_index: usize,
    pub(crate) transport: TransportProtocol,
    /// What was asked for; the port may be 0.
    pub(crate) requested_address: SocketAddr,
    /// With the port that the kernel gave.
    pub(crate) address: SocketAddr,
    open_connections: AtomicU32,
    /// One per worker.
    pub(crate) counters: Box<[ListenerCounters]>,
}

impl ListenerSocket {
    pub(crate) fn new(
        listener_index: usize,
        transport: TransportProtocol,
        requested_address: SocketAddr,
        address: SocketAddr,
        workers: usize,
    ) -> Self {
        let counters = (0..workers).map(|_| ListenerCounters::default()).collect();
        Self {
            listener_index,
            transport,
            requested_address,
            address,
            open_connections: AtomicU32::new(0),
            counters,
        }
    }

    /// It is where this listener is to be.
    pub(crate) fn matches_listener(&self, asked: &snapshot::Listener) -> bool {
        (self.requested_address, self.transport) == (asked.address, asked.protocol.transport())
    }

    /// Counts one more open connection, if fewer than `most` are open.
    pub(crate) fn admit_connection(&self, most: u32) -> bool {
        let more = |open: u32| (open < most).then_some(open + 1);
        self.open_connections.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    pub(crate) fn release_connection(&self) {
        self.open_connections.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn open(&self) -> u32 {
        self.open_connections.load(Ordering::Relaxed)
    }
}

/// A rule's name with its counters, which outlive the rule's changes.
pub(crate) struct Route {
    pub(crate) name: Arc<str>,
    /// One per worker.
    pub(crate) counters: Box<[RouteCounters]>,
}

/// The state that outlives Snapshots, by the names that Snapshots use.
pub(crate) struct StateRegistry {
    workers: usize,
    /// What a TCP port does says nothing of the UDP port of the same number.
    tcp: EndpointRegistry<EndpointData>,
    udp: EndpointRegistry<EndpointData>,
    backends: BTreeMap<BackendKey, Arc<Backend>>,
    routes: BTreeMap<Arc<str>, Arc<Route>>,
    endpoint_tls: EndpointTlsFactory,
    slot_assignment: SlotAssignment,
}

impl StateRegistry {
    pub(crate) fn new(workers: usize) -> Self {
        let (backends, routes) = (BTreeMap::new(), BTreeMap::new());
        let (tcp, udp) = (EndpointRegistry::new(), EndpointRegistry::new());
        let (endpoint_tls, slot_assignment) = (EndpointTlsFactory::new(), SlotAssignment::alone());
        Self { workers, tcp, udp, backends, routes, endpoint_tls, slot_assignment }
    }

    /// The Snapshot's backends, with the state of those that were there before.
    pub(crate) fn backends(&mut self, snapshot: &Snapshot) -> Vec<Arc<Backend>> {
        let live: Vec<_> = snapshot.backends.iter().map(|asked| self.backend(asked)).collect();
        let kept = live.iter().map(|backend| (backend.key.clone(), Arc::clone(backend)));
        let gone = std::mem::replace(&mut self.backends, kept.collect());
        for (key, backend) in gone {
            if !self.backends.contains_key(&key) {
                // No rule names it any more: who waits is woken by its timeout.
                let (settings, trust) = backend.current().policy();
                configure(&backend, EndpointSet::empty(), settings, trust);
            }
        }
        live
    }

    /// The Snapshot's rules, with the counters of those that were there before.
    pub(crate) fn routes(&mut self, rules: &[Arc<Rule>]) -> Vec<Arc<Route>> {
        let workers = self.workers;
        let live: Vec<_> = rules
            .iter()
            .map(|rule| {
                let known = self.routes.get(&rule.name).map(Arc::clone);
                known.unwrap_or_else(|| {
                    let counters = (0..workers).map(|_| RouteCounters::default()).collect();
                    Arc::new(Route { name: Arc::clone(&rule.name), counters })
                })
            })
            .collect();
        self.routes =
            live.iter().map(|route| (Arc::clone(&route.name), Arc::clone(route))).collect();
        live
    }

    /// The short way: new endpoints for one backend. False if there is no such backend.
    pub(crate) fn set_endpoints(&mut self, key: &BackendKey, endpoints: &[EndpointSpec]) -> bool {
        let Some(backend) = self.backends.get(key).map(Arc::clone) else { return false };
        let (settings, trust) = backend.current().policy();
        let configured = self.endpoints(key.transport, endpoints, &settings);
        configure(&backend, configured, settings, trust);
        true
    }

    /// From now on fixed caps are shared so.
    pub(crate) fn set_slot_assignment(&mut self, deal: SlotAssignment) {
        self.slot_assignment = deal;
        self.backends
            .values()
            .for_each(|backend| backend.apply_slot_assignment(&self.slot_assignment));
    }

    fn backend(&mut self, asked: &snapshot::Backend) -> Arc<Backend> {
        let configured = self.endpoints(asked.key.transport, &asked.endpoints, &asked.settings);
        let settings = asked.settings.clone();
        let Some(known) = self.backends.get(&asked.key) else {
            let (key, trust) = (asked.key.clone(), self.endpoint_tls.context_for(&settings, None));
            let backend = Arc::new(Backend::new(key, configured, settings, trust, self.workers));
            update_sharers(&backend, &EndpointSet::empty(), &backend.configured());
            return backend;
        };
        let trust = self.endpoint_tls.context_for(&settings, known.current().tls_context.as_ref());
        configure(known, configured, settings, trust);
        Arc::clone(known)
    }

    fn endpoints(
        &mut self,
        transport: TransportProtocol,
        specs: &[EndpointSpec],
        settings: &BackendSettings,
    ) -> EndpointSet<EndpointData> {
        let cap = backend::cap(settings);
        let ledger = match transport {
            TransportProtocol::Tcp => &mut self.tcp,
            TransportProtocol::Udp => &mut self.udp,
        };
        let member = |spec: &EndpointSpec| {
            let data = || EndpointData::new(self.workers);
            let endpoint = ledger.endpoint(spec.address, data);
            SetMember {
                max_in_flight: self.slot_assignment.max_in_flight(spec.address, cap),
                ..SetMember::new(endpoint, spec.weight)
            }
        };
        EndpointSet::new(specs.iter().map(member).collect())
    }
}

/// Puts it in force.
fn configure(
    backend: &Arc<Backend>,
    configured: EndpointSet<EndpointData>,
    settings: BackendSettings,
    trust: Option<Arc<EndpointTlsContext>>,
) {
    let before = backend.configured();
    backend.configure(configured, settings, trust);
    update_sharers(backend, &before, &backend.configured());
}

/// Endpoints learn that the backend names them, or that it does no longer.
fn update_sharers(
    backend: &Arc<Backend>,
    before: &EndpointSet<EndpointData>,
    after: &EndpointSet<EndpointData>,
) {
    let (was, is) = (addresses(before), addresses(after));
    for SetMember { endpoint, .. } in before.members() {
        if !is.contains(&endpoint.address) {
            endpoint.data.remove_backend(backend);
        }
    }
    for SetMember { endpoint, .. } in after.members() {
        if !was.contains(&endpoint.address) {
            endpoint.data.add_backend(backend);
        }
    }
}

fn addresses(set: &EndpointSet<EndpointData>) -> BTreeSet<SocketAddr> {
    set.members().iter().map(|member| member.endpoint.address).collect()
}
