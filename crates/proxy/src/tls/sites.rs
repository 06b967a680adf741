//! What becomes of a listener's TLS connections, by the name that a client asks for.
//!
//! Made when a Snapshot is put in force. What has not changed since the last one is used again, so that a change costs
//! what it changes.

use std::sync::Arc;

use gateway::matching::{HostName, HostPattern, HostTrie, OwnedHostName};
use gateway::snapshot::{ClientCertificates, ListenerTls, SniRule, TlsPayload, TlsTermination};
use rustls::crypto::CryptoProvider;
use rustls::{Error, ServerConfig};

use crate::tls::Greeting;
use crate::tls::certificate::Certificates;
use crate::tls::clients;
use crate::tls::provider;
use crate::tls::resumption::Resumptions;

/// What we speak within TLS, what we like best first (ALPN).
const REQUEST_PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];
/// What we speak over QUIC.
const QUIC_PROTOCOL: &[u8] = b"h3";

/// The connections of a listener, by the name that the client asks for.
pub(crate) struct Sites {
    all: Vec<Arc<Site>>,
    by_host: HostTrie<Option<Arc<Site>>>,
}

/// Those for some names.
pub(crate) struct Site {
    hosts: HostPattern,
    pub(crate) treatment: Treatment,
    pub(crate) carries: TlsPayload,
    /// As the configuration has them; `None`: connections are passed through.
    terms: Option<Arc<TlsTermination>>,
}

/// What is done with the TLS of a connection.
#[derive(Clone)]
pub(crate) enum Treatment {
    PassThrough,
    Decrypt(Decryption),
    /// The configuration cannot be used, as the log has said.
    Refuse,
}

/// With what connections are decrypted.
#[derive(Clone)]
pub(crate) struct Decryption {
    pub(crate) over_tcp: Arc<ServerConfig>,
    /// `None`: what they carry we carry over TCP alone.
    pub(crate) over_quic: Option<OverQuic>,
}

/// With what connections over QUIC are decrypted.
#[derive(Clone)]
pub(crate) struct OverQuic {
    pub(crate) usual: Arc<ServerConfig>,
    /// Hears clients that come back before their handshake is over (0-RTT), each ticket once: it remembers sessions, as
    /// tickets that all is sealed in could be used again and again (RFC 8446 §8.1).
    pub(crate) early: Arc<ServerConfig>,
}

impl Sites {
    fn new(all: Vec<Site>) -> Self {
        let all: Vec<_> = all.into_iter().map(Arc::new).collect();
        let mut by_host = HostTrie::<Option<Arc<Site>>>::default();
        for site in &all {
            by_host.entry(&site.hosts).get_or_insert_with(|| Arc::clone(site));
        }
        Self { all, by_host }
    }

    /// Whether no name's connections are decrypted here.
    pub(crate) fn only_pass_through(&self) -> bool {
        self.all.iter().all(|site| matches!(site.treatment, Treatment::PassThrough))
    }

    /// The most specific site for a name; `None`: the client asked for none.
    pub(crate) fn find(&self, name: Option<HostName<'_>>) -> Option<&Arc<Site>> {
        match (name, &*self.all) {
            (None, all) => all.iter().find(|site| site.hosts == HostPattern::Any),
            (Some(name), [only]) => only.hosts.matches(name).then_some(only),
            (Some(name), _) => self.by_host.find(name)?.as_ref(),
        }
    }

    /// Returns the site of a connection as of now, which is not that of its handshake if the configuration was replaced.
    /// `None` if there is none, or if it asks clients for more than the handshake did.
    pub(crate) fn of_connection(&self, greeting: &Greeting) -> Option<&Arc<Site>> {
        let site = self.find(greeting.server_name.as_ref().map(OwnedHostName::borrowed))?;
        let of_handshake = greeting.site.as_ref()?;
        let holds = Arc::ptr_eq(site, of_handshake) || site.accepts_handshake_of(of_handshake);
        holds.then_some(site)
    }

    /// Returns true if a request for `host` belongs to another site than the connection that it came by. That happens when
    /// clients use a connection for all names of its certificate, and when they try to avoid what the other site asks for.
    ///
    /// Sites are compared, never names: a site is all that a handshake has proved. A host without a site has no routes.
    pub(crate) fn is_misdirected(&self, greeting: Option<&Greeting>, host: HostName<'_>) -> bool {
        let Some(wanted) = self.find(Some(host)) else { return false };
        // A connection without TLS is older than the configuration.
        let Some(greeting) = greeting else { return true };
        let is_wanted = |site: &Arc<Site>| Arc::ptr_eq(site, wanted);
        // Nothing has been replaced since the handshake, nearly always.
        let belongs = greeting.site.as_ref().is_some_and(is_wanted)
            || self.of_connection(greeting).is_some_and(is_wanted);
        !belongs || !matches!(wanted.carries, TlsPayload::Requests)
    }
}

impl Site {
    /// True if a handshake with the site `earlier` has proved all that this site asks clients for.
    ///
    /// Other certificates of ours make no difference, nor do further authorities of clients: to replace either leaves
    /// connections alone.
    fn accepts_handshake_of(&self, earlier: &Self) -> bool {
        let (Some(now), Some(then)) = (&self.terms, &earlier.terms) else {
            return self.terms.is_none() && earlier.terms.is_none();
        };
        match (required_clients(now), required_clients(then)) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(asked), Some(proved)) => {
                proved.roots.iter().all(|root| asked.roots.contains(root))
            }
        }
    }
}

/// What clients must show, where they must show anything.
fn required_clients(terms: &TlsTermination) -> Option<&ClientCertificates> {
    terms.clients.as_ref().filter(|clients| clients.required)
}

/// With what listeners decrypt, as of the last Snapshot.
pub(crate) struct Servers {
    provider: Arc<CryptoProvider>,
    known: Vec<Known>,
    resumptions: Resumptions,
}

/// What has been made of some terms.
struct Known {
    terms: Arc<TlsTermination>,
    carries_requests: bool,
    treatment: Treatment,
}

impl Servers {
    pub(crate) fn new() -> Self {
        Self { provider: provider(), known: Vec::new(), resumptions: Resumptions::default() }
    }

    /// Each listener's sites, in the order of `listeners`. What none of them needs any more is forgotten.
    pub(crate) fn sites<'l>(
        &mut self,
        listeners: impl Iterator<Item = Option<&'l ListenerTls>>,
    ) -> Vec<Option<Arc<Sites>>> {
        let before =
            std::mem::replace(self, Self { provider: Arc::clone(&self.provider), ..Self::new() });
        let mut site = |asked: &SniRule| Site {
            hosts: asked.hosts.clone(),
            treatment: self.treatment(asked, &before),
            carries: asked.payload.clone(),
            terms: asked.terminate.clone(),
        };
        let mut sites =
            |tls: &ListenerTls| Arc::new(Sites::new(tls.sni_rules.iter().map(&mut site).collect()));
        listeners.map(|tls| tls.map(&mut sites)).collect()
    }

    fn treatment(&mut self, asked: &SniRule, before: &Self) -> Treatment {
        let Some(terms) = &asked.terminate else { return Treatment::PassThrough };
        let carries_requests = matches!(asked.payload, TlsPayload::Requests);
        if let Some(known) = self.find(terms, carries_requests) {
            return known;
        }
        let treatment = match before.find(terms, carries_requests) {
            Some(known @ (Treatment::Decrypt(_) | Treatment::PassThrough)) => known,
            // Perhaps it can be used now.
            Some(Treatment::Refuse) | None => self.make(terms, carries_requests, before),
        };
        let terms = Arc::clone(terms);
        self.known.push(Known { terms, carries_requests, treatment: treatment.clone() });
        treatment
    }

    fn find(&self, terms: &Arc<TlsTermination>, carries_requests: bool) -> Option<Treatment> {
        let is_it =
            |known: &&Known| known.carries_requests == carries_requests && known.terms == *terms;
        self.known.iter().find(is_it).map(|known| known.treatment.clone())
    }

    fn make(&mut self, terms: &TlsTermination, carries_requests: bool, before: &Self) -> Treatment {
        match self.configure(terms, carries_requests, before) {
            Ok(decryption) => Treatment::Decrypt(decryption),
            Err(error) => {
                let certificates: Vec<_> = terms.certificates.iter().map(|it| &*it.name).collect();
                tracing::error!(?certificates, %error, "connections for these certificates are refused");
                Treatment::Refuse
            }
        }
    }

    fn configure(
        &mut self,
        terms: &TlsTermination,
        carries_requests: bool,
        before: &Self,
    ) -> Result<Decryption, Error> {
        let builder = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()?;
        let builder = match &terms.clients {
            Some(asked) => {
                builder.with_client_cert_verifier(clients::verifier(asked, &self.provider)?)
            }
            None => builder.with_no_client_auth(),
        };
        let certificates = Certificates::new(&terms.certificates, &self.provider)?;
        let mut config = builder.with_cert_resolver(Arc::new(certificates));
        let no_tickets = Arc::clone(&config.ticketer);
        let resumption = self.resumptions.of(terms.clients.as_ref(), &before.resumptions)?;
        (config.ticketer, config.session_storage) = (resumption.tickets, resumption.sessions);
        if !carries_requests {
            return Ok(Decryption { over_tcp: Arc::new(config), over_quic: None });
        }
        let mut usual = config.clone();
        usual.alpn_protocols = vec![QUIC_PROTOCOL.to_vec()];
        let mut early = usual.clone();
        (early.ticketer, early.max_early_data_size) = (no_tickets, u32::MAX);
        config.alpn_protocols = REQUEST_PROTOCOLS.map(<[u8]>::to_vec).to_vec();
        let over_quic = OverQuic { usual: Arc::new(usual), early: Arc::new(early) };
        Ok(Decryption { over_tcp: Arc::new(config), over_quic: Some(over_quic) })
    }
}
