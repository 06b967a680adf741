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

use crate::backend::{self, Backend, Held};
use crate::dial::pool::EndpointData;
use crate::failure::Failure;
use crate::observe::{ListenerCounters, RouteCounters};
use crate::published::{Edition, Published};
use crate::tls::{Greeting, Sites, Trust, Trusts};

/// What workers go by, from one request to the next.
#[derive(Default)]
pub(crate) struct Live {
    /// By place; a place is kept as long as its address is listened on.
    pub(crate) listeners: Vec<Option<LiveListener>>,
    /// As [`Rule::index`] numbers them.
    pub(crate) routes: Vec<Arc<Route>>,
    /// As [`snapshot::Target::Backend`] numbers them.
    pub(crate) backends: Vec<Arc<Backend>>,
}

impl Live {
    /// The listener at that address, or `None` if nobody listens there any more.
    pub(crate) fn listener(&self, bound: &Arc<Bound>) -> Option<&LiveListener> {
        let listener = self.listeners.get(bound.place)?.as_ref()?;
        Arc::ptr_eq(&listener.bound, bound).then_some(listener)
    }
}

/// A worker's own hold on a [`Live`]: its requests count their references here, where no other worker counts.
pub(crate) struct Ours {
    live: Edition<Live>,
    /// Of each backend, what was in force when a request last asked.
    held: Box<[RefCell<Option<Rc<Held>>>]>,
}

impl Ours {
    pub(crate) fn new(published: &Published<Live>) -> Self {
        let live = published.edition();
        let held = live.backends.iter().map(|_| RefCell::default()).collect();
        Self { live, held }
    }

    pub(crate) fn is_current(&self, published: &Published<Live>) -> bool {
        self.live.is_current(published)
    }

    /// What is in force now for the backend of this number.
    pub(crate) fn hold(&self, backend: usize) -> Rc<Held> {
        let published = &self.backends[backend].current;
        let mut held = self.held[backend].borrow_mut();
        match &*held {
            Some(known) if known.is_current(published) => Rc::clone(known),
            Some(_) | None => Rc::clone(held.insert(Rc::new(published.edition()))),
        }
    }

    /// Lets go of what is in force no longer, so that endpoints which have left do not stay for want of requests.
    pub(crate) fn refresh(&self, backend: usize) {
        let published = &self.backends[backend].current;
        self.held[backend].borrow_mut().take_if(|known| !known.is_current(published));
    }
}

impl std::ops::Deref for Ours {
    type Target = Live;

    fn deref(&self) -> &Live {
        &self.live
    }
}

pub(crate) struct LiveListener {
    pub(crate) name: Arc<str>,
    pub(crate) bound: Arc<Bound>,
    /// The port that clients ask for.
    pub(crate) public_port: u16,
    pub(crate) client: Arc<ClientSettings>,
    pub(crate) protocol: ListenerProtocol,
    /// What becomes of TLS, which all connections begin with then.
    pub(crate) tls: Option<Arc<Sites>>,
    /// How requests come by HTTP/3 too.
    pub(crate) http3: Option<LiveHttp3>,
}

/// HTTP/3 at a listener.
pub(crate) struct LiveHttp3 {
    pub(crate) settings: Http3Settings,
    /// What clients over TCP are told of it.
    pub(crate) alt_svc: Box<str>,
}

impl LiveListener {
    /// What clients over TCP are told of HTTP/3; `None`: it is not served.
    pub(crate) fn alt_svc(&self) -> Option<&str> {
        self.http3.as_ref().map(|http3| &*http3.alt_svc)
    }

    /// The rule that serves a request of a connection.
    ///
    /// One normal form of the host is what both the site and the routes are found by.
    pub(crate) fn request_rule(
        &self,
        greeting: Option<&Greeting>,
        request: &impl RequestAttributes,
    ) -> Result<&Arc<Rule>, Failure> {
        let mut buffer = HostNameBuffer::new();
        let host = HostName::new(request.host(), &mut buffer);
        if self.tls.as_ref().is_some_and(|sites| sites.is_misdirected(greeting, host)) {
            return Err(Failure::Misdirected);
        }
        match &self.protocol {
            ListenerProtocol::Http(routes) => routes.find_at(host, request).ok_or(Failure::NoRoute),
            ListenerProtocol::Tcp(_) | ListenerProtocol::Udp(_) => Err(Failure::NoRoute),
        }
    }

    /// True if a connection with this handshake, or without TLS, has proved what the listener asks for now.
    pub(crate) fn accepts_handshake(&self, greeting: Option<&Greeting>) -> bool {
        let Some(sites) = &self.tls else { return true };
        greeting.is_some_and(|greeting| sites.of_connection(greeting).is_some())
    }

    /// The rule of a connection that carries no requests.
    pub(crate) fn connection_rule(&self, greeting: Option<&Greeting>) -> Option<&Arc<Rule>> {
        if let (Some(sites), Some(greeting)) = (&self.tls, greeting) {
            return match &sites.of_connection(greeting)?.carries {
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
pub(crate) struct Bound {
    /// Its place in [`Live::listeners`].
    pub(crate) place: usize,
    pub(crate) transport: TransportProtocol,
    /// What was asked for; the port may be 0.
    pub(crate) asked: SocketAddr,
    /// With the port that the kernel gave.
    pub(crate) address: SocketAddr,
    open: AtomicU32,
    /// One per worker.
    pub(crate) counters: Box<[ListenerCounters]>,
}

impl Bound {
    pub(crate) fn new(
        place: usize,
        transport: TransportProtocol,
        asked: SocketAddr,
        address: SocketAddr,
        workers: usize,
    ) -> Self {
        let counters = (0..workers).map(|_| ListenerCounters::default()).collect();
        Self { place, transport, asked, address, open: AtomicU32::new(0), counters }
    }

    /// It is where this listener is to be.
    pub(crate) fn is_for(&self, asked: &snapshot::Listener) -> bool {
        (self.asked, self.transport) == (asked.address, asked.protocol.transport())
    }

    /// Counts one more open connection, if fewer than `most` are open.
    pub(crate) fn admit(&self, most: u32) -> bool {
        let more = |open: u32| (open < most).then_some(open + 1);
        self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    pub(crate) fn leave(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn open(&self) -> u32 {
        self.open.load(Ordering::Relaxed)
    }
}

/// A rule's name with its counters, which outlive the rule's changes.
pub(crate) struct Route {
    pub(crate) name: Arc<str>,
    /// One per worker.
    pub(crate) counters: Box<[RouteCounters]>,
}

/// The state that outlives Snapshots, by the names that Snapshots use.
pub(crate) struct Estate {
    workers: usize,
    /// What a TCP port does says nothing of the UDP port of the same number.
    tcp: EndpointRegistry<EndpointData>,
    udp: EndpointRegistry<EndpointData>,
    backends: BTreeMap<BackendKey, Arc<Backend>>,
    routes: BTreeMap<Arc<str>, Arc<Route>>,
    trusts: Trusts,
    deal: SlotAssignment,
}

impl Estate {
    pub(crate) fn new(workers: usize) -> Self {
        let (backends, routes) = (BTreeMap::new(), BTreeMap::new());
        let (tcp, udp) = (EndpointRegistry::new(), EndpointRegistry::new());
        let (trusts, deal) = (Trusts::new(), SlotAssignment::alone());
        Self { workers, tcp, udp, backends, routes, trusts, deal }
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
    pub(crate) fn set_deal(&mut self, deal: SlotAssignment) {
        self.deal = deal;
        self.backends.values().for_each(|backend| backend.deal(&self.deal));
    }

    fn backend(&mut self, asked: &snapshot::Backend) -> Arc<Backend> {
        let configured = self.endpoints(asked.key.transport, &asked.endpoints, &asked.settings);
        let settings = asked.settings.clone();
        let Some(known) = self.backends.get(&asked.key) else {
            let (key, trust) = (asked.key.clone(), self.trusts.of(&settings, None));
            let backend = Arc::new(Backend::new(key, configured, settings, trust, self.workers));
            tell_sharers(&backend, &EndpointSet::empty(), &backend.configured());
            return backend;
        };
        let trust = self.trusts.of(&settings, known.current().trust.as_ref());
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
                max_in_flight: self.deal.max_in_flight(spec.address, cap),
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
    trust: Option<Arc<Trust>>,
) {
    let before = backend.configured();
    backend.configure(configured, settings, trust);
    tell_sharers(backend, &before, &backend.configured());
}

/// Endpoints learn that the backend names them, or that it does no longer.
fn tell_sharers(
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
