//! What becomes of a listener's TLS connections, by the name that a client asks for.
//!
//! Made when a Snapshot is put in force. What has not changed since the last one is used again, so that a change costs
//! what it changes.

use std::sync::Arc;

use gateway::matching::HostPattern;
use gateway::snapshot::{Carried, ListenerTls, TlsSite, TlsTerms};
use rustls::crypto::CryptoProvider;
use rustls::{Error, ServerConfig};

use crate::tls::certificate::Certificates;
use crate::tls::clients;
use crate::tls::provider;
use crate::tls::resumption::Resumptions;

/// What we speak within TLS, what we like best first (ALPN).
const REQUEST_PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];
/// What we speak over QUIC.
const QUIC_PROTOCOL: &[u8] = b"h3";

/// The connections of a listener.
pub(crate) struct Sites(Vec<Site>);

/// Those for some names.
pub(crate) struct Site {
    hosts: HostPattern,
    pub(crate) treatment: Treatment,
    pub(crate) carries: Carried,
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
    /// Whether no name's connections are decrypted here.
    pub(crate) fn only_pass_through(&self) -> bool {
        self.0.iter().all(|site| matches!(site.treatment, Treatment::PassThrough))
    }

    /// The most specific site for a name in lower case; `None`: the client asked for none.
    pub(crate) fn find(&self, name: Option<&str>) -> Option<&Site> {
        self.0.iter().find(|site| match name {
            Some(name) => site.hosts.matches(name.as_bytes()),
            None => site.hosts == HostPattern::Any,
        })
    }

    /// Whether a request for `host` belongs to another site than the connection for `name` that it came by, as happens when
    /// clients use a connection for all names of its certificate.
    pub(crate) fn is_misdirected(&self, name: Option<&str>, host: &[u8]) -> bool {
        if self.0.len() < 2 || name.is_some_and(|name| host.eq_ignore_ascii_case(name.as_bytes())) {
            return false;
        }
        let Ok(host) = str::from_utf8(host) else { return false };
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let wanted = self.find(Some(&host));
        let here = self.find(name);
        wanted.is_some_and(|wanted| !here.is_some_and(|here| std::ptr::eq(wanted, here)))
    }
}

/// With what listeners decrypt, as of the last Snapshot.
pub(crate) struct Servers {
    provider: Arc<CryptoProvider>,
    known: Vec<Known>,
    resumptions: Resumptions,
}

/// What has been made of some terms.
struct Known {
    terms: Arc<TlsTerms>,
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
        let mut site = |asked: &TlsSite| Site {
            hosts: asked.hosts.clone(),
            treatment: self.treatment(asked, &before),
            carries: asked.carries.clone(),
        };
        let mut sites =
            |tls: &ListenerTls| Arc::new(Sites(tls.sites.iter().map(&mut site).collect()));
        listeners.map(|tls| tls.map(&mut sites)).collect()
    }

    fn treatment(&mut self, asked: &TlsSite, before: &Self) -> Treatment {
        let Some(terms) = &asked.terminate else { return Treatment::PassThrough };
        let carries_requests = matches!(asked.carries, Carried::Requests);
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

    fn find(&self, terms: &Arc<TlsTerms>, carries_requests: bool) -> Option<Treatment> {
        let is_it =
            |known: &&Known| known.carries_requests == carries_requests && known.terms == *terms;
        self.known.iter().find(is_it).map(|known| known.treatment.clone())
    }

    fn make(&mut self, terms: &TlsTerms, carries_requests: bool, before: &Self) -> Treatment {
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
        terms: &TlsTerms,
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
