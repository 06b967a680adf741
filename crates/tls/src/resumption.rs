//! Session resumption on any worker, listener and certificate, and at other replicas.
//!
//! Tickets are sealed with keys that all workers share and that rotate every six hours; a ticket is valid for twelve
//! hours at most. A resumed session is not asked again for the client's certificate, so keys are shared only by
//! listeners with the same requirements on clients: a ticket of a listener that asks for nothing is invalid at one
//! that does. Of listeners that request certificates, no key leaves the process: whatever has such a key can make
//! tickets for the certificate of any client.

use std::sync::Arc;

use gateway::snapshot::ClientCertificates;
use rustls::Error;
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::server::{ProducesTickets, ServerSessionMemoryCache, StoresServerSessions};

use crate::ticket_keys::TicketKeyRing;

/// TLS 1.2 sessions to remember, for clients without support for tickets. The oldest are dropped first.
const SESSIONS: usize = 4096;

/// State that sessions are resumed from.
#[derive(Clone)]
pub(super) struct SessionResumption {
    pub(super) tickets: Arc<dyn ProducesTickets>,
    pub(super) sessions: Arc<dyn StoresServerSessions>,
}

/// Resumption states, by the requirements on clients.
pub(super) struct ResumptionRegistry {
    states: Vec<(Option<ClientCertificates>, SessionResumption)>,
    /// Keys that replicas share; `None`: each process has its own.
    pub(super) shared: Option<Arc<TicketKeyRing>>,
}

impl ResumptionRegistry {
    pub(super) fn new(shared: Option<Arc<TicketKeyRing>>) -> Self {
        Self { states: Vec::new(), shared }
    }

    /// Returns the state for the same requirements on clients, from `before` if it has one.
    pub(super) fn get_or_create(
        &mut self,
        clients: Option<&ClientCertificates>,
        before: &Self,
    ) -> Result<SessionResumption, Error> {
        if let Some(known) = self.find(clients) {
            return Ok(known);
        }
        let resumption = match before.find(clients) {
            Some(known) => known,
            None => SessionResumption {
                tickets: self.tickets(clients)?,
                sessions: ServerSessionMemoryCache::new(SESSIONS),
            },
        };
        self.states.push((clients.cloned(), resumption.clone()));
        Ok(resumption)
    }

    fn tickets(
        &self,
        clients: Option<&ClientCertificates>,
    ) -> Result<Arc<dyn ProducesTickets>, Error> {
        match (clients, &self.shared) {
            (None, Some(shared)) => Ok(Arc::clone(shared) as Arc<dyn ProducesTickets>),
            (Some(_), _) | (None, None) => Ticketer::new(),
        }
    }

    fn find(&self, clients: Option<&ClientCertificates>) -> Option<SessionResumption> {
        let known = self.states.iter().find(|(asked, _)| asked.as_ref() == clients);
        known.map(|(_, resumption)| resumption.clone())
    }
}
