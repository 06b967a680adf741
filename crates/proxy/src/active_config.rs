//! The configuration in force: a Snapshot's plain data joined to the state that outlives it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use balance::rate_limit::ReplicaPart;
use balance::{EndpointRegistry, EndpointSet, SetMember, SlotAssignment};
use gateway::matching::{HostName, HostNameBuffer, RequestAttributes, RouteTable};
use gateway::snapshot::{
    AffinitySettings, ApiKeySettings, BackendKey, BackendSettings, ClientSettings, EndpointSpec,
    Http3Settings, InterceptionSettings, JwtSettings, ListenerProtocol, RateLimitSettings, Rule,
    TlsPayload, TransportProtocol,
};
use gateway::{Snapshot, snapshot};
use ipnet::IpNet;
use tls::{EndpointTlsContext, EndpointTlsFactory, SniTable, TlsInfo};

use crate::affinity::AffinityKey;
use crate::backend::{Backend, BackendConfigRef, SlotShare};
use crate::config_cell::{CachedConfig, ConfigCell};
use crate::credentials::api_key::ApiKeyTable;
use crate::credentials::jwt::JwtVerifier;
use crate::demand::route_rates::RouteRates;
use crate::dial::pool::EndpointData;
use crate::failure::Failure;
use crate::interception::ConnectionInterceptor;
use crate::lease_signal::LeaseSignal;
use crate::observe::{ListenerCounters, RouteCounters};
use crate::rate_limit::{RateLimiter, SharedPart};
use crate::resources::ResourceBudgets;

/// The configuration that workers use, read anew for each request.
#[derive(Default)]
pub(crate) struct ActiveConfig {
    /// By [`BoundListener::listener_index`], which a listener keeps as long as its address is bound.
    pub(crate) listeners: Vec<Option<ActiveListener>>,
    /// Routes, by [`Rule::index`].
    pub(crate) routes: Vec<Arc<Route>>,
    /// Rules, by their index.
    pub(crate) rules: Vec<Arc<Rule>>,
    /// Backends, by the index in [`snapshot::RuleTarget::Backend`].
    pub(crate) backends: Vec<Arc<Backend>>,
    /// Rate limits, by [`RouteFilters::rate_limit`](snapshot::RouteFilters::rate_limit).
    pub(crate) rate_limiters: Vec<Arc<RateLimiter>>,
    /// Keys of clients, by policy.
    pub(crate) api_keys: HashMap<Arc<str>, Arc<ApiKeyTable>>,
    /// Issuers of tokens, by SecurityPolicy.
    pub(crate) jwt: HashMap<Arc<str>, Arc<JwtVerifier>>,
    /// Indices of the listeners whose connections are intercepted, by address.
    pub(crate) intercepting: HashMap<SocketAddr, usize>,
}

impl ActiveConfig {
    /// Returns the listener of intercepted connections to this address.
    pub(crate) fn intercepting_listener(&self, destination: SocketAddr) -> Option<&ActiveListener> {
        self.listeners[*self.intercepting.get(&destination)?].as_ref()
    }

    /// Returns the index of a backend.
    pub(crate) fn backend_index(&self, key: &BackendKey) -> Option<usize> {
        self.backends.binary_search_by(|it| it.key.cmp(key)).ok()
    }

    /// Returns the listener of that socket, or `None` if it has been removed.
    pub(crate) fn listener(&self, bound: &Arc<BoundListener>) -> Option<&ActiveListener> {
        let listener = self.listeners.get(bound.listener_index)?.as_ref()?;
        Arc::ptr_eq(&listener.bound, bound).then_some(listener)
    }
}

/// A worker's own reference to an [`ActiveConfig`]. Its requests clone this `Rc`, so that workers do not contend for
/// one shared reference count.
pub(crate) struct WorkerConfig {
    config: CachedConfig<ActiveConfig>,
    /// The configuration of each backend that was in force at the last request for it.
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

    /// Returns the configuration in force of the backend with this index.
    pub(crate) fn backend_config(&self, backend: usize) -> Rc<BackendConfigRef> {
        let published = &self.backends[backend].current;
        let mut cached = self.backend_configs[backend].borrow_mut();
        match &*cached {
            Some(known) if known.is_current(published) => Rc::clone(known),
            Some(_) | None => Rc::clone(cached.insert(Rc::new(published.load_versioned()))),
        }
    }

    /// Drops an outdated configuration, so that removed endpoints are freed even if the backend gets no more requests.
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
    pub(crate) bound: Arc<BoundListener>,
    /// The port that clients connect to.
    pub(crate) public_port: u16,
    pub(crate) client: Arc<ClientSettings>,
    pub(crate) head_treatment: HeadTreatment,
    pub(crate) protocol: ListenerProtocol,
    /// TLS by server name; if present, every connection begins with TLS.
    pub(crate) sni_table: Option<Arc<SniTable>>,
    /// HTTP/3, if the listener serves it.
    pub(crate) http3: Option<ListenerHttp3>,
    /// Settings of intercepted connections; `None`: the address is bound.
    pub(crate) interception: Option<InterceptionSettings>,
    /// Routes of requests from clients of a namespace that has its own.
    pub(crate) consumer_routes: BTreeMap<Arc<str>, RouteTable>,
    /// Networks of the clients that may connect; `None`: all.
    pub(crate) sources: Option<Arc<[IpNet]>>,
}

/// The treatment of the heads of requests, decided once for the listener, so that most requests need one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadTreatment {
    /// Forwarding fields are added.
    Described,
    /// Forwarding fields are added, and the request may be traced.
    DescribedAndTraced,
    /// The head is forwarded as it is, or with the client's address.
    Unchanged,
    /// The head is forwarded so, and the request may be traced.
    UnchangedAndTraced,
}

impl HeadTreatment {
    pub(crate) fn of(settings: &ClientSettings, is_traced: bool) -> Self {
        match (settings.forwards_unchanged, is_traced) {
            (false, false) => Self::Described,
            (false, true) => Self::DescribedAndTraced,
            (true, false) => Self::Unchanged,
            (true, true) => Self::UnchangedAndTraced,
        }
    }
}

/// HTTP/3 at a listener.
pub(crate) struct ListenerHttp3 {
    pub(crate) settings: Http3Settings,
    /// `Alt-Svc` value for clients over TCP.
    pub(crate) alt_svc: Box<str>,
}

impl ActiveListener {
    /// True if a client with this address may connect.
    pub(crate) fn admits_source(&self, client: IpAddr) -> bool {
        let Some(sources) = &self.sources else { return true };
        let client = client.to_canonical();
        sources.iter().any(|network| network.contains(&client))
    }

    /// Returns the `Alt-Svc` value for clients over TCP; `None`: HTTP/3 is not served.
    pub(crate) fn alt_svc(&self) -> Option<&str> {
        self.http3.as_ref().map(|http3| &*http3.alt_svc)
    }

    /// Returns the rule that serves a request of a connection. `namespace` returns the namespace of the client, if it
    /// is known.
    ///
    /// The host is normalized once; the SNI table and the routes are both looked up by that form.
    pub(crate) fn request_rule(
        &self,
        tls_info: Option<&TlsInfo>,
        namespace: impl FnOnce() -> Option<Arc<str>>,
        request: &impl RequestAttributes,
    ) -> Result<&Arc<Rule>, Failure> {
        let mut buffer = HostNameBuffer::new();
        let host = HostName::new(request.host(), &mut buffer);
        if self.sni_table.as_ref().is_some_and(|sni_table| sni_table.is_misdirected(tls_info, host))
        {
            return Err(Failure::Misdirected);
        }
        let routes = match &self.protocol {
            ListenerProtocol::Http(routes)
            | ListenerProtocol::Detected { requests: routes, .. } => routes,
            ListenerProtocol::Tcp(_) | ListenerProtocol::Udp(_) => return Err(Failure::NoRoute),
        };
        let routes = match self.consumer_routes.is_empty() {
            true => routes,
            false => namespace().and_then(|it| self.consumer_routes.get(&it)).unwrap_or(routes),
        };
        routes.find_at(host, request).ok_or(Failure::NoRoute)
    }

    /// True if a connection with this handshake, or without TLS, meets the listener's current TLS requirements.
    pub(crate) fn accepts_handshake(&self, tls_info: Option<&TlsInfo>) -> bool {
        let Some(sni_table) = &self.sni_table else { return true };
        tls_info.is_some_and(|tls_info| sni_table.current_entry(tls_info).is_some())
    }

    /// Returns the rule of a connection that is forwarded at L4.
    pub(crate) fn connection_rule(&self, tls_info: Option<&TlsInfo>) -> Option<&Arc<Rule>> {
        if let (Some(sni_table), Some(tls_info)) = (&self.sni_table, tls_info) {
            return match &sni_table.current_entry(tls_info)?.carries {
                TlsPayload::Connections(rule) => rule.as_ref(),
                TlsPayload::Requests => None,
            };
        }
        match &self.protocol {
            ListenerProtocol::Tcp(rule) | ListenerProtocol::Detected { connections: rule, .. } => {
                rule.as_ref()
            }
            ListenerProtocol::Http(_) | ListenerProtocol::Udp(_) => None,
        }
    }
}

/// Identity of a listener: its address and transport, and whether its connections are intercepted.
pub(crate) type ListenerKey = (SocketAddr, TransportProtocol, bool);

/// Returns the identity of a listener of a Snapshot.
pub(crate) fn listener_key(spec: &snapshot::Listener) -> ListenerKey {
    (spec.address, spec.protocol.transport(), spec.interception.is_some())
}

/// A bound listener address.
pub(crate) struct BoundListener {
    /// Index in [`ActiveConfig::listeners`].
    pub(crate) listener_index: usize,
    pub(crate) transport: TransportProtocol,
    /// The configured address; the port may be 0.
    pub(crate) requested_address: SocketAddr,
    /// The bound address, with the port that the kernel assigned.
    pub(crate) address: SocketAddr,
    /// True if it has no socket, because its connections are intercepted.
    pub(crate) is_intercepted: bool,
    open_connections: AtomicU32,
    /// One per worker.
    pub(crate) counters: Box<[ListenerCounters]>,
}

impl BoundListener {
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
            is_intercepted: false,
            open_connections: AtomicU32::new(0),
            counters,
        }
    }

    /// Creates a listener without a socket, whose connections are intercepted.
    pub(crate) fn intercepted(listener_index: usize, address: SocketAddr, workers: usize) -> Self {
        let bound = Self::new(listener_index, TransportProtocol::Tcp, address, address, workers);
        Self { is_intercepted: true, ..bound }
    }

    /// Returns the identity of the listener: one of the Snapshot with the same identity takes it over.
    pub(crate) fn key(&self) -> ListenerKey {
        (self.requested_address, self.transport, self.is_intercepted)
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
    pub(crate) rates: RouteRates,
}

/// The state that outlives Snapshots, by the names that Snapshots use.
pub(crate) struct StateRegistry {
    workers: usize,
    /// Endpoints by what their backends share. The health of a TCP port says nothing about the UDP port of the same
    /// number; and the requests of one namespace must not eject, throttle or fill the endpoints of another.
    endpoints: BTreeMap<(TransportProtocol, Arc<str>), EndpointRegistry<EndpointData>>,
    backends: BTreeMap<BackendKey, Arc<Backend>>,
    routes: BTreeMap<Arc<str>, Arc<Route>>,
    /// By policy and target.
    rate_limiters: BTreeMap<(Arc<str>, Arc<str>), Arc<RateLimiter>>,
    rate_limit_part: Arc<SharedPart>,
    /// By policy.
    api_keys: HashMap<Arc<str>, Arc<ApiKeyTable>>,
    /// By policy.
    jwt: HashMap<Arc<str>, Arc<JwtVerifier>>,
    endpoint_tls: EndpointTlsFactory,
    slot_assignment: SlotAssignment,
    affinity_key: Arc<AffinityKey>,
    budgets: Arc<ResourceBudgets>,
    interceptor: Option<Arc<dyn ConnectionInterceptor>>,
    leases: Option<Arc<LeaseSignal>>,
}

impl StateRegistry {
    pub(crate) fn new(
        workers: usize,
        budgets: Arc<ResourceBudgets>,
        affinity_key: AffinityKey,
        interceptor: Option<Arc<dyn ConnectionInterceptor>>,
        leases: Option<Arc<LeaseSignal>>,
    ) -> Self {
        Self {
            workers,
            endpoints: BTreeMap::new(),
            backends: BTreeMap::new(),
            routes: BTreeMap::new(),
            rate_limiters: BTreeMap::new(),
            rate_limit_part: Arc::default(),
            api_keys: HashMap::new(),
            jwt: HashMap::new(),
            endpoint_tls: EndpointTlsFactory::default(),
            // The thread of the leases sets it once it knows the replicas.
            slot_assignment: match &leases {
                Some(_) => SlotAssignment::withheld(),
                None => SlotAssignment::alone(),
            },
            affinity_key: Arc::new(affinity_key),
            budgets,
            interceptor,
            leases,
        }
    }

    /// Returns the Snapshot's backends, with the existing state of known ones.
    pub(crate) fn backends(&mut self, snapshot: &Snapshot) -> Vec<Arc<Backend>> {
        let backends: Vec<_> = snapshot.backends.iter().map(|spec| self.backend(spec)).collect();
        let kept = backends.iter().map(|backend| (backend.key.clone(), Arc::clone(backend)));
        let gone = std::mem::replace(&mut self.backends, kept.collect());
        for (key, backend) in gone {
            if !self.backends.contains_key(&key) {
                // No rule refers to it any more: requests that still wait end with the queue timeout.
                let (settings, tls_context) = backend.current().policy();
                configure(&backend, EndpointSet::empty(), settings, tls_context);
            }
        }
        self.forget_namespaces();
        backends
    }

    /// Returns the Snapshot's routes, with the existing counters of known ones.
    pub(crate) fn routes(&mut self, rules: &[Arc<Rule>]) -> Vec<Arc<Route>> {
        let workers = self.workers;
        let routes: Vec<_> = rules
            .iter()
            .map(|rule| {
                let known = self.routes.get(&rule.name).map(Arc::clone);
                known.unwrap_or_else(|| {
                    let counters = (0..workers).map(|_| RouteCounters::default()).collect();
                    let (name, rates) = (Arc::clone(&rule.name), RouteRates::new());
                    Arc::new(Route { name, counters, rates })
                })
            })
            .collect();
        self.routes =
            routes.iter().map(|route| (Arc::clone(&route.name), Arc::clone(route))).collect();
        routes
    }

    /// Returns the limiters of the Snapshot, with the existing buckets of limits that have not changed.
    pub(crate) fn rate_limiters(
        &mut self,
        all: &[Arc<RateLimitSettings>],
    ) -> Vec<Arc<RateLimiter>> {
        let mut limiters = BTreeMap::new();
        let made = all.iter().map(|settings| {
            let name = (Arc::clone(&settings.policy), Arc::clone(&settings.target));
            let known = self.rate_limiters.get(&name);
            let limiter = match known.filter(|known| known.settings == *settings) {
                Some(known) => Arc::clone(known),
                None => {
                    let part = &self.rate_limit_part;
                    let known = known.map(|known| &**known);
                    Arc::new(RateLimiter::new(settings, known, part, self.workers))
                }
            };
            limiters.insert(name, Arc::clone(&limiter));
            limiter
        });
        let made = made.collect();
        self.rate_limiters = limiters;
        made
    }

    /// Returns the keys of clients of the Snapshot, by policy.
    pub(crate) fn api_keys(
        &mut self,
        all: &[Arc<ApiKeySettings>],
    ) -> HashMap<Arc<str>, Arc<ApiKeyTable>> {
        let table = |settings: &Arc<ApiKeySettings>| {
            let known = self.api_keys.get(&settings.policy);
            let table = match known.filter(|known| known.settings == *settings) {
                Some(known) => Arc::clone(known),
                None => Arc::new(ApiKeyTable::new(settings)),
            };
            (Arc::clone(&settings.policy), table)
        };
        self.api_keys = all.iter().map(table).collect();
        self.api_keys.clone()
    }

    /// Returns the issuers of tokens of the Snapshot, by policy. Tokens that were right are remembered as long as the
    /// settings and keys of their policy stay the same.
    pub(crate) fn jwt(&mut self, all: &[Arc<JwtSettings>]) -> HashMap<Arc<str>, Arc<JwtVerifier>> {
        let verifier = |settings: &Arc<JwtSettings>| {
            let known = self.jwt.get(&settings.policy);
            let verifier = match known.filter(|known| known.settings == *settings) {
                Some(known) => Arc::clone(known),
                None => {
                    let known = known.map(|known| &**known);
                    Arc::new(JwtVerifier::new(settings, known, self.workers))
                }
            };
            (Arc::clone(&settings.policy), verifier)
        };
        self.jwt = all.iter().map(verifier).collect();
        self.jwt.clone()
    }

    /// Sets this replica's part of every bucket of a rate limit.
    pub(crate) fn set_rate_limit_part(&self, part: ReplicaPart) {
        self.rate_limit_part.set(part);
    }

    /// Replaces the endpoints of one backend, without a new Snapshot. Returns false if there is no such backend.
    pub(crate) fn set_endpoints(&mut self, key: &BackendKey, endpoints: &[EndpointSpec]) -> bool {
        let Some(backend) = self.backends.get(key).map(Arc::clone) else { return false };
        let (settings, tls_context) = backend.current().policy();
        let configured = self.endpoints(key, endpoints, &settings);
        configure(&backend, configured, settings, tls_context);
        if let Some(leases) = &self.leases {
            leases.record_change();
        }
        true
    }

    /// Sets the division of fixed caps among replicas.
    pub(crate) fn set_slot_assignment(&mut self, assignment: SlotAssignment) {
        self.slot_assignment = assignment;
        self.backends
            .values()
            .for_each(|backend| backend.apply_slot_assignment(&self.slot_assignment));
    }

    fn backend(&mut self, spec: &snapshot::Backend) -> Arc<Backend> {
        if let Some(known) = self.backends.get(&spec.key)
            && known.current().settings == spec.settings
            && self.has_members(&known.configured(), spec)
        {
            return Arc::clone(known);
        }
        let configured = self.endpoints(&spec.key, &spec.endpoints, &spec.settings);
        let settings = spec.settings.clone();
        let has_tokens = settings.affinity.as_ref().is_some_and(AffinitySettings::has_tokens);
        if has_tokens || settings.has_rule_affinity {
            let name = spec.key.to_string();
            self.affinity_key.warn_if_temporary(&name, settings.service_uid.as_deref());
        }
        let Some(known) = self.backends.get(&spec.key) else {
            let (key, tls_context) =
                (spec.key.clone(), self.endpoint_tls.context_for(&settings, None));
            let backend = Arc::new(Backend::new(
                key,
                configured,
                settings,
                tls_context,
                Arc::clone(&self.affinity_key),
                self.workers,
                self.leases.clone(),
            ));
            update_sharers(&backend, &EndpointSet::empty(), &backend.configured());
            return backend;
        };
        let tls_context =
            self.endpoint_tls.context_for(&settings, known.current().tls_context.as_ref());
        configure(known, configured, settings, tls_context);
        Arc::clone(known)
    }

    /// True if the set has exactly the endpoints of the backend. Most changes concern few of many backends.
    fn has_members(&self, set: &EndpointSet<EndpointData>, spec: &snapshot::Backend) -> bool {
        let share = SlotShare::of(&self.slot_assignment, &spec.settings, self.leases.is_some());
        let preferred = spec.settings.preferred_location.as_ref();
        let is_member = |it: &EndpointSpec| {
            set.find(it.address).is_some_and(|member| {
                member.weight == it.weight
                    && member.local == preferred.is_some_and(|location| location.contains(it))
                    && member.max_in_flight == share.at(it.address)
                    && member.endpoint.data.other_address.is_known_as(it.other_address)
            })
        };
        set.members().len() == spec.endpoints.len() && spec.endpoints.iter().all(is_member)
    }

    fn endpoints(
        &mut self,
        key: &BackendKey,
        specs: &[EndpointSpec],
        settings: &BackendSettings,
    ) -> EndpointSet<EndpointData> {
        let share = SlotShare::of(&self.slot_assignment, settings, self.leases.is_some());
        let scope = (key.transport, Arc::clone(&key.namespace));
        let leases = self.leases.as_ref();
        let registry = self.endpoints.entry(scope).or_insert_with(|| match leases {
            Some(leases) => EndpointRegistry::with_leases(leases.validity.clone()),
            None => EndpointRegistry::new(),
        });
        let member = |spec: &EndpointSpec| {
            let data = || {
                let interceptor = self.interceptor.clone();
                EndpointData::new(self.workers, Arc::clone(&self.budgets), interceptor)
            };
            let endpoint = registry.endpoint(spec.address, data);
            if let Some(address) = spec.other_address {
                endpoint.data.other_address.set(address);
            }
            if !endpoint.is_leased()
                && let Some(share) = share.before_leases(spec.address)
            {
                endpoint.set_share(share);
            }
            SetMember {
                local: settings.preferred_location.as_ref().is_some_and(|it| it.contains(spec)),
                max_in_flight: share.at(spec.address),
                ..SetMember::new(endpoint, spec.weight)
            }
        };
        EndpointSet::new(specs.iter().map(member).collect())
    }

    /// Drops the registries of namespaces without a backend. If a request still uses an endpoint, its registry stays,
    /// so that the request counts if the namespace returns.
    fn forget_namespaces(&mut self) {
        let used: BTreeSet<_> = self.backends.keys().map(|key| &*key.namespace).collect();
        self.endpoints.retain(|(_, namespace), registry| {
            used.contains(&**namespace) || !registry.live().is_empty()
        });
    }
}

/// Configures a backend, and updates its endpoints' lists of backends.
fn configure(
    backend: &Arc<Backend>,
    configured: EndpointSet<EndpointData>,
    settings: BackendSettings,
    tls_context: Option<Arc<EndpointTlsContext>>,
) {
    let before = backend.configured();
    backend.configure(configured, settings, tls_context);
    update_sharers(backend, &before, &backend.configured());
}

/// Adds the backend to endpoints that it now contains, and removes it from those that it no longer contains.
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

#[cfg(test)]
mod tests;
#[cfg(test)]
mod location_tests;
#[cfg(test)]
mod slot_tests;
