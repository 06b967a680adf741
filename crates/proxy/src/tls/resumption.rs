//! Sessions that go on where an earlier one ended, on whichever worker, listener and certificate.
//!
//! Tickets are sealed with keys that all workers share and that are replaced every six hours; a ticket is good for
//! twelve at most. A resumed session is not asked again for the client's certificate, so keys are shared only where the
//! same is asked of clients: a ticket of a listener that asks for nothing opens none that does.

use std::sync::Arc;

use gateway::snapshot::ClientCertificates;
use rustls::Error;
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::server::{ProducesTickets, ServerSessionMemoryCache, StoresServerSessions};

/// Sessions of TLS 1.2 that we remember, for clients that know no tickets. The oldest are forgotten first.
const SESSIONS: usize = 4096;

/// What sessions are resumed by.
#[derive(Clone)]
pub(super) struct SessionResumption {
    pub(super) tickets: Arc<dyn ProducesTickets>,
    pub(super) sessions: Arc<dyn StoresServerSessions>,
}

/// By what is asked of clients.
#[derive(Default)]
pub(super) struct ResumptionRegistry(Vec<(Option<ClientCertificates>, SessionResumption)>);

impl ResumptionRegistry {
    /// That of who asks the same of clients, which `before` may know already.
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
                tickets: Ticketer::new()?,
                sessions: ServerSessionMemoryCache::new(SESSIONS),
            },
        };
        self.0.push((clients.cloned(), resumption.clone()));
        Ok(resumption)
    }

    fn find(&self, clients: Option<&ClientCertificates>) -> Option<SessionResumption> {
        let known = self.0.iter().find(|(asked, _)| asked.as_ref() == clients);
        known.map(|(_, resumption)| resumption.clone())
    }
}
