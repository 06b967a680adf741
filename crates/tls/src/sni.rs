//! TLS mode and configuration of a listener's connections, by server name (SNI).
//!
//! The tables are built when a Snapshot is applied. Parts that have not changed since the last Snapshot are reused, so
//! that the cost of a change follows its size.

use std::sync::Arc;

use gateway::matching::{HostName, HostPattern, HostTrie, OwnedHostName};
use gateway::snapshot::{ListenerTls, SniRule, TlsPayload, TlsTermination};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::{Error, ServerConfig};

use crate::TlsInfo;
use crate::certificate::CertificateResolver;
use crate::client_identity::ClientIdentity;
use crate::client_verifier::ListenerClientVerifier;
use crate::provider;
use crate::resumption::ResumptionRegistry;
use crate::ticket_keys::TicketKeyRing;

/// Application protocols within TLS over TCP, in order of preference (ALPN).
const REQUEST_PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];
/// The application protocol over QUIC.
const QUIC_PROTOCOL: &[u8] = b"h3";

/// The SNI entries of a listener, by server name.
pub struct SniTable {
    entries: Vec<Arc<SniEntry>>,
    by_host: HostTrie<Option<Arc<SniEntry>>>,
}

/// TLS mode of the connections for some server names.
pub struct SniEntry {
    hosts: HostPattern,
    pub mode: ServerTlsMode,
    pub carries: TlsPayload,
    /// The settings from the configuration; `None`: connections are passed through.
    terms: Option<Arc<TlsTermination>>,
}

/// The TLS mode of a connection: pass through, terminate or refuse.
#[derive(Clone)]
pub enum ServerTlsMode {
    PassThrough,
    Terminate(ServerTlsConfig),
    /// The configuration is unusable, as the log has said.
    Refuse,
}

/// The TLS configurations of decrypted connections.
#[derive(Clone)]
pub struct ServerTlsConfig {
    pub over_tcp: Arc<ServerConfig>,
    /// `None`: the payload can be carried over TCP only.
    pub over_quic: Option<QuicServerTlsConfig>,
    /// Verifier of the certificates that clients present; `None`: none is requested.
    clients: Option<Arc<ListenerClientVerifier>>,
}

/// The TLS configurations of connections over QUIC.
#[derive(Clone)]
pub struct QuicServerTlsConfig {
    pub without_early_data: Arc<ServerConfig>,
    /// Accepts early data (0-RTT), for each ticket once: it stores sessions in memory, because a self-contained ticket
    /// could be replayed (RFC 8446 §8.1).
    pub with_early_data: Arc<ServerConfig>,
}

impl SniTable {
    fn new(all: Vec<SniEntry>) -> Self {
        let entries: Vec<_> = all.into_iter().map(Arc::new).collect();
        let mut by_host = HostTrie::<Option<Arc<SniEntry>>>::default();
        for site in &entries {
            by_host.entry(&site.hosts).get_or_insert_with(|| Arc::clone(site));
        }
        Self { entries, by_host }
    }

    /// True if every entry passes connections through.
    pub fn only_pass_through(&self) -> bool {
        self.entries.iter().all(|site| matches!(site.mode, ServerTlsMode::PassThrough))
    }

    /// Returns the most specific entry for a name; `None` as the name means that the client sent none.
    pub fn find(&self, name: Option<HostName<'_>>) -> Option<&Arc<SniEntry>> {
        match (name, &*self.entries) {
            (None, all) => all.iter().find(|site| site.hosts == HostPattern::Any),
            (Some(name), [only]) => only.hosts.matches(name).then_some(only),
            (Some(name), _) => self.by_host.find(name)?.as_ref(),
        }
    }

    /// Returns the current entry for a connection, which differs from that of its handshake if the configuration was
    /// replaced. Returns `None` if there is none, or if it requires more of clients than the handshake did.
    pub fn current_entry(&self, tls_info: &TlsInfo) -> Option<&Arc<SniEntry>> {
        let site = self.find(tls_info.server_name.as_ref().map(OwnedHostName::borrowed))?;
        let of_handshake = tls_info.sni_entry.as_ref()?;
        let holds = Arc::ptr_eq(site, of_handshake) || site.accepts_handshake_of(of_handshake);
        holds.then_some(site)
    }

    /// Returns true if a request for `host` belongs to another entry than the connection that carries it. That happens
    /// when clients use a connection for all names of its certificate, and when they try to avoid the requirements of
    /// the other entry.
    ///
    /// Entries are compared, never names: a handshake proves the entry and nothing else. A host without an entry has
    /// no routes.
    pub fn is_misdirected(&self, tls_info: Option<&TlsInfo>, host: HostName<'_>) -> bool {
        let Some(wanted) = self.find(Some(host)) else { return false };
        // A connection without TLS is older than this configuration.
        let Some(tls_info) = tls_info else { return true };
        let is_wanted = |site: &Arc<SniEntry>| Arc::ptr_eq(site, wanted);
        // Usually the configuration has not been replaced since the handshake.
        let belongs = tls_info.sni_entry.as_ref().is_some_and(is_wanted)
            || self.current_entry(tls_info).is_some_and(is_wanted);
        !belongs || !matches!(wanted.carries, TlsPayload::Requests)
    }
}

impl SniEntry {
    /// Returns the identity of a client that has presented these certificates, its own first. `None`: it has presented
    /// none, or none was requested.
    pub fn client_identity(
        &self,
        presented: Vec<CertificateDer<'static>>,
    ) -> Option<ClientIdentity> {
        let ServerTlsMode::Terminate(config) = &self.mode else { return None };
        ClientIdentity::new(config.clients.as_ref()?, presented)
    }

    /// True if a handshake with the entry `earlier` has proved all that this entry requires of clients, or that policies
    /// may ask of their certificates.
    ///
    /// A replaced server certificate makes no difference, nor do additional client authorities: either change leaves
    /// connections alone.
    fn accepts_handshake_of(&self, earlier: &Self) -> bool {
        let (Some(now), Some(then)) = (&self.terms, &earlier.terms) else {
            return self.terms.is_none() && earlier.terms.is_none();
        };
        match (&now.clients, &then.clients) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(asked), Some(proved)) => {
                let is_shallower = match (asked.max_intermediates, proved.max_intermediates) {
                    (None, _) => true,
                    (Some(_), None) => false,
                    (Some(asked), Some(proved)) => proved <= asked,
                };
                (proved.required || !asked.required)
                    && is_shallower
                    && proved.roots.iter().all(|root| asked.roots.contains(root))
            }
        }
    }
}

/// The TLS configurations of all listeners, as of the last Snapshot.
pub struct ServerTlsConfigs {
    provider: Arc<CryptoProvider>,
    cached: Vec<CachedServerTls>,
    resumptions: ResumptionRegistry,
}

/// The TLS mode that was built from some settings.
struct CachedServerTls {
    terms: Arc<TlsTermination>,
    carries_requests: bool,
    mode: ServerTlsMode,
}

impl Default for ServerTlsConfigs {
    fn default() -> Self {
        Self::new(None)
    }
}

impl ServerTlsConfigs {
    /// Returns configurations whose tickets have these keys, except where certificates of clients are requested.
    /// `None`: all tickets have keys of this process.
    pub fn new(shared: Option<Arc<TicketKeyRing>>) -> Self {
        let resumptions = ResumptionRegistry::new(shared);
        Self { provider: provider(), cached: Vec::new(), resumptions }
    }

    /// Returns the keys of tickets that replicas share.
    pub fn shared_ticket_keys(&self) -> Option<&Arc<TicketKeyRing>> {
        self.resumptions.shared.as_ref()
    }

    /// Returns the SNI table of each listener, in the order of `listeners`. Configurations that none of them needs any
    /// more are dropped.
    pub fn sni_tables<'l>(
        &mut self,
        listeners: impl Iterator<Item = Option<&'l ListenerTls>>,
    ) -> Vec<Option<Arc<SniTable>>> {
        let next = Self {
            provider: Arc::clone(&self.provider),
            ..Self::new(self.resumptions.shared.clone())
        };
        let before = std::mem::replace(self, next);
        let mut site = |asked: &SniRule| SniEntry {
            hosts: asked.hosts.clone(),
            mode: self.tls_mode(asked, &before),
            carries: asked.payload.clone(),
            terms: asked.terminate.clone(),
        };
        let mut sites = |tls: &ListenerTls| {
            Arc::new(SniTable::new(tls.sni_rules.iter().map(&mut site).collect()))
        };
        listeners.map(|tls| tls.map(&mut sites)).collect()
    }

    fn tls_mode(&mut self, asked: &SniRule, before: &Self) -> ServerTlsMode {
        let Some(terms) = &asked.terminate else { return ServerTlsMode::PassThrough };
        let carries_requests = matches!(asked.payload, TlsPayload::Requests);
        if let Some(known) = self.find(terms, carries_requests) {
            return known;
        }
        let mode = match before.find(terms, carries_requests) {
            Some(known @ (ServerTlsMode::Terminate(_) | ServerTlsMode::PassThrough)) => known,
            // It may be usable now, for example after a change of the certificate.
            Some(ServerTlsMode::Refuse) | None => {
                self.build_tls_mode(terms, carries_requests, before)
            }
        };
        let terms = Arc::clone(terms);
        self.cached.push(CachedServerTls { terms, carries_requests, mode: mode.clone() });
        mode
    }

    fn find(&self, terms: &Arc<TlsTermination>, carries_requests: bool) -> Option<ServerTlsMode> {
        let is_it = |known: &&CachedServerTls| {
            known.carries_requests == carries_requests && known.terms == *terms
        };
        self.cached.iter().find(is_it).map(|known| known.mode.clone())
    }

    fn build_tls_mode(
        &mut self,
        terms: &TlsTermination,
        carries_requests: bool,
        before: &Self,
    ) -> ServerTlsMode {
        match self.build_config(terms, carries_requests, before) {
            Ok(tls_config) => ServerTlsMode::Terminate(tls_config),
            Err(error) => {
                let certificates: Vec<_> = terms.certificates.iter().map(|it| &*it.name).collect();
                tracing::error!(?certificates, %error, "unusable TLS configuration: connections for these certificates are rejected");
                ServerTlsMode::Refuse
            }
        }
    }

    fn build_config(
        &mut self,
        terms: &TlsTermination,
        carries_requests: bool,
        before: &Self,
    ) -> Result<ServerTlsConfig, Error> {
        let builder = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()?;
        let (builder, clients) = match &terms.clients {
            Some(asked) => {
                let verifier = Arc::new(ListenerClientVerifier::new(asked, &self.provider)?);
                (builder.with_client_cert_verifier(verifier.clone()), Some(verifier))
            }
            None => (builder.with_no_client_auth(), None),
        };
        let certificates = CertificateResolver::new(&terms.certificates, &self.provider)?;
        let mut config = builder.with_cert_resolver(Arc::new(certificates));
        let no_tickets = Arc::clone(&config.ticketer);
        let resumption =
            self.resumptions.get_or_create(terms.clients.as_ref(), &before.resumptions)?;
        (config.ticketer, config.session_storage) = (resumption.tickets, resumption.sessions);
        if !carries_requests {
            return Ok(ServerTlsConfig { over_tcp: Arc::new(config), over_quic: None, clients });
        }
        let mut usual = config.clone();
        usual.alpn_protocols = vec![QUIC_PROTOCOL.to_vec()];
        let mut early = usual.clone();
        (early.ticketer, early.max_early_data_size) = (no_tickets, u32::MAX);
        config.alpn_protocols = REQUEST_PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        let over_quic = QuicServerTlsConfig {
            without_early_data: Arc::new(usual),
            with_early_data: Arc::new(early),
        };
        Ok(ServerTlsConfig { over_tcp: Arc::new(config), over_quic: Some(over_quic), clients })
    }
}
