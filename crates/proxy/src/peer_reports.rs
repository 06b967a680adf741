//! State that replicas report to one another: the data plane's side of [`balance::peer_reports`].
//!
//! The thread of the leases owns a [`PeerReports`]: it makes messages for all peers, and takes those of peers. No
//! request waits for it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use balance::Time;
use balance::peer_reports::{BackendHash, DemandMessage, ReportRefusal};

use crate::backend::Backend;
use crate::control::Proxy;
use crate::lease_signal::LeaseSignal;

/// Schedule and content of demand messages.
mod demand;

use demand::DemandReporter;

/// Reports of this replica, and those of its peers.
pub struct PeerReports {
    proxy: Arc<Proxy>,
    signal: Arc<LeaseSignal>,
    /// Generation of the configuration that `backends` has.
    generation: Option<u64>,
    backends: BTreeMap<BackendHash, Arc<Backend>>,
    demand: DemandReporter,
    counts: ReportCounts,
}

/// Counts of reports since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportCounts {
    /// Refused messages and reports, in the order of [`ReportRefusal::ALL`].
    pub refused: [u64; ReportRefusal::ALL.len()],
    /// Reports of demand that were taken.
    pub demand: u64,
}

impl PeerReports {
    /// Returns the reports of a data plane; `None` unless it was started with
    /// [`ProxySettings::leases_slots`](crate::ProxySettings::leases_slots).
    #[must_use]
    pub fn new(proxy: Arc<Proxy>) -> Option<Self> {
        let signal = Arc::clone(proxy.shared().leases.as_ref()?);
        Some(Self {
            proxy,
            signal,
            generation: None,
            backends: BTreeMap::new(),
            demand: DemandReporter::default(),
            counts: ReportCounts::default(),
        })
    }

    /// Returns the message about demand that is due, for all peers.
    pub fn step(&mut self, now: Time) -> Option<DemandMessage> {
        let is_new = self.follow_configuration();
        let is_urgent = self.signal.take_demand_rise() || is_new;
        self.demand.step(&self.backends, is_urgent, now)
    }

    /// Returns the time of the next [`step`](Self::step), unless [`SlotLeases::changed`](crate::SlotLeases::changed)
    /// ends before.
    #[must_use]
    pub fn next_step(&self) -> Time {
        self.demand.next_step()
    }

    /// Takes a message about the demand of a peer.
    ///
    /// # Errors
    /// The reason if the message is refused, or if reports of it are: those of backends that this replica does not have.
    pub fn receive_demand(
        &mut self,
        peer: SocketAddr,
        message: &DemandMessage,
        now: Time,
    ) -> Result<(), ReportRefusal> {
        message.check().inspect_err(|refusal| self.counts.refused[*refusal as usize] += 1)?;
        self.follow_configuration();
        let mut result = Ok(());
        for report in &message.reports {
            match self.backends.get(&report.backend) {
                Some(backend) => {
                    backend.demand.record_peer(peer, *report, now);
                    self.counts.demand += 1;
                }
                None => {
                    let refusal = ReportRefusal::UnknownBackend;
                    self.counts.refused[refusal as usize] += 1;
                    result = Err(refusal);
                }
            }
        }
        result
    }

    /// Returns the counts since the start.
    #[must_use]
    pub fn counts(&self) -> ReportCounts {
        self.counts
    }

    /// Reads the backends, if the configuration has changed; true if it has.
    fn follow_configuration(&mut self) -> bool {
        let generation = Some(self.signal.generation());
        let is_new = self.generation != generation;
        if is_new {
            self.generation = generation;
            let config = self.proxy.shared().config.load();
            let of = |it: &Arc<Backend>| (BackendHash::of(&it.name), Arc::clone(it));
            self.backends = config.backends.iter().map(of).collect();
        }
        is_new
    }
}
