//! State that replicas report to one another: the data plane's side of `balance::peer_reports`.
//!
//! The thread of the leases owns a `PeerReports`: it makes messages for all peers, and takes those of peers. No
//! request waits for it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use balance::Time;
use balance::peer_reports::{
    BackendHash, DemandMessage, OutageHints, OutageMessage, RefusalHints, RefusalMessage,
    RefusalReport, ReportRefusal, RouteHash, SuspicionHints,
};
use gateway::snapshot::HeededRefusals;

use crate::active_config::Route;
use crate::backend::Backend;
use crate::control::Proxy;
use crate::dial::pool::Endpoint;
use crate::lease_signal::LeaseSignal;

/// Schedule and content of demand messages.
mod demand;
/// Schedule and content of hints about endpoints.
mod hints;

use demand::DemandReporter;
use hints::{OutageReporter, RefusalReporter};

/// Reports of this replica, and those of its peers.
pub struct PeerReports {
    proxy: Arc<Proxy>,
    signal: Arc<LeaseSignal>,
    /// Generation of the configuration that `backends` has.
    generation: Option<u64>,
    backends: BTreeMap<BackendHash, Arc<Backend>>,
    /// Routes, if their rates are averaged.
    routes: BTreeMap<RouteHash, Arc<Route>>,
    /// True if `backends` has changed since the last step.
    has_new_backends: bool,
    demand: DemandReporter,
    refusals: RefusalReporter,
    refusal_hints: RefusalHints,
    outages: OutageReporter,
    outage_hints: OutageHints,
    suspicion_hints: SuspicionHints,
    counts: ReportCounts,
}

/// Counts of reports since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportCounts {
    /// Refused messages and reports, in the order of [`ReportRefusal::ALL`].
    pub refused: [u64; ReportRefusal::ALL.len()],
    /// Reports of demand that were taken.
    pub demand: u64,
    /// Reports of refusals that were taken.
    pub refusals: u64,
    /// Reports of endpoints that a peer cannot reach which have caused a check.
    pub outages: u64,
    /// Reports of endpoints that a peer has ejected which make this replica suspect them.
    pub ejections: u64,
}

/// Messages that are due, for all peers.
#[derive(Clone, Debug, Default)]
pub struct DueReports {
    pub demand: Option<DemandMessage>,
    pub refusals: Option<RefusalMessage>,
    pub outages: Option<OutageMessage>,
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
            routes: BTreeMap::new(),
            has_new_backends: false,
            demand: DemandReporter::default(),
            refusals: RefusalReporter::default(),
            refusal_hints: RefusalHints::default(),
            outages: OutageReporter::default(),
            outage_hints: OutageHints::default(),
            suspicion_hints: SuspicionHints::default(),
            counts: ReportCounts::default(),
        })
    }

    /// Returns the messages that are due.
    pub fn step(&mut self, now: Time) -> DueReports {
        self.follow_configuration();
        let has_risen = self.signal.take_demand_rise();
        let is_urgent = std::mem::take(&mut self.has_new_backends) || has_risen;
        let refusing = self.signal.take_refusing().into_iter();
        let refusing = refusing.filter_map(|address| self.endpoint(address).ok()).collect();
        DueReports {
            demand: self.demand.step(&self.backends, &self.routes, is_urgent, now),
            refusals: self.refusals.step(refusing, now),
            outages: self.outages.step(
                self.signal.take_new_outage(),
                &self.proxy.shared().outages,
                self.backends.values(),
                now,
            ),
        }
    }

    /// Returns the time of the next [`step`](Self::step), unless [`SlotLeases::changed`](crate::SlotLeases::changed)
    /// ends before.
    #[must_use]
    pub fn next_step(&self) -> Time {
        let hints = self.refusals.next_step().min(self.outages.next_step());
        self.demand.next_step().min(hints)
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
        self.count(message.check())?;
        self.follow_configuration();
        let mut result = Ok(());
        for report in &message.reports {
            match self.backends.get(&report.backend) {
                Some(backend) => {
                    backend.demand.record_peer(peer, *report, now);
                    self.counts.demand += 1;
                }
                None => result = self.count(Err(ReportRefusal::UnknownBackend)),
            }
        }
        self.take_route_rates(peer, message, now).and(result)
    }

    /// Takes the rates of routes, unless this replica does not average them: then no autoscaler asks it.
    fn take_route_rates(
        &mut self,
        peer: SocketAddr,
        message: &DemandMessage,
        now: Time,
    ) -> Result<(), ReportRefusal> {
        let mut result = Ok(());
        if !self.averages_routes() {
            return result;
        }
        for report in &message.routes {
            match self.routes.get(&report.route) {
                Some(route) => route.rates.record_peer(peer, report.rates, now),
                None => result = self.count(Err(ReportRefusal::UnknownRoute)),
            }
        }
        result
    }

    fn averages_routes(&self) -> bool {
        self.proxy.shared().averages_routes.load(Ordering::Relaxed)
    }

    /// Takes a message about endpoints that refuse requests of a peer. They get less for a time, as if they had refused
    /// a request of this replica, unless the policy of their backends ignores refusals.
    ///
    /// # Errors
    /// The reason if the message is refused, or if reports of it are.
    pub fn receive_refusals(
        &mut self,
        message: &RefusalMessage,
        now: Time,
    ) -> Result<(), ReportRefusal> {
        self.count(message.check())?;
        self.follow_configuration();
        self.refusal_hints.forget_expired(now);
        let mut result = Ok(());
        for report in &message.reports {
            let taken = self.take_refusal(report, now);
            result = self.count(taken).and(result);
        }
        result
    }

    fn take_refusal(&mut self, report: &RefusalReport, now: Time) -> Result<(), ReportRefusal> {
        let endpoint = self.endpoint(report.endpoint)?;
        let heeds = |it: &Arc<Backend>| it.current().settings.heed_refusals != HeededRefusals::None;
        let heeding: Vec<_> = endpoint.data.backends().into_iter().filter(heeds).collect();
        if heeding.is_empty() {
            return Ok(());
        }
        let remaining = self.refusal_hints.admit(report, endpoint.last_refused_at(), now)?;
        endpoint.reduce_for_peer(report.limit, remaining, now);
        self.counts.refusals += 1;
        for backend in heeding {
            backend.adaptive_limits.mark_overloaded(&self.proxy.shared().health_waker);
        }
        Ok(())
    }

    /// Takes a message about endpoints that a peer cannot reach, or has ejected. The health thread connects to each of
    /// the former once; only the result of that counts. It judges failures of the latter sooner, for a time.
    ///
    /// # Errors
    /// The reason if the message is refused, or if endpoints of it are.
    pub fn receive_outages(
        &mut self,
        peer: SocketAddr,
        message: &OutageMessage,
        now: Time,
    ) -> Result<(), ReportRefusal> {
        self.count(message.check())?;
        self.follow_configuration();
        self.outage_hints.forget_expired(now);
        let mut result = Ok(());
        for &address in &message.endpoints {
            let taken = self.take_outage(peer, address, now);
            result = self.count(taken).and(result);
        }
        self.suspicion_hints.forget_expired(now);
        for &address in &message.ejected {
            let taken = self.take_ejection(address, now);
            result = self.count(taken).and(result);
        }
        self.proxy.shared().health_waker.wake();
        result
    }

    fn take_outage(
        &mut self,
        peer: SocketAddr,
        address: SocketAddr,
        now: Time,
    ) -> Result<(), ReportRefusal> {
        let endpoint = self.endpoint(address)?;
        let is_due = self.outage_hints.should_check(peer, address, now);
        if is_due && endpoint.is_reachable() {
            self.signal.request_check(address);
            self.counts.outages += 1;
        }
        Ok(())
    }

    fn take_ejection(&mut self, address: SocketAddr, now: Time) -> Result<(), ReportRefusal> {
        self.endpoint(address)?;
        if let Some(until) = self.suspicion_hints.admit(address, now)? {
            self.signal.request_suspicion(address, until);
            self.counts.ejections += 1;
        }
        Ok(())
    }

    /// Returns the endpoint with an address.
    fn endpoint(&self, address: SocketAddr) -> Result<Arc<Endpoint>, ReportRefusal> {
        let found = |it: &Arc<Backend>| {
            it.current().set.find(address).map(|member| Arc::clone(&member.endpoint))
        };
        self.backends.values().find_map(found).ok_or(ReportRefusal::UnknownEndpoint)
    }

    fn count<T>(&mut self, result: Result<T, ReportRefusal>) -> Result<T, ReportRefusal> {
        result.inspect_err(|refusal| self.counts.refused[*refusal as usize] += 1)
    }

    /// Returns the counts since the start.
    #[must_use]
    pub fn counts(&self) -> ReportCounts {
        self.counts
    }

    /// Reads the backends, if the configuration has changed.
    fn follow_configuration(&mut self) {
        let generation = Some(self.signal.generation());
        if self.generation != generation {
            self.generation = generation;
            self.has_new_backends = true;
            let config = self.proxy.shared().config.load();
            let of = |it: &Arc<Backend>| (BackendHash::of(&it.name), Arc::clone(it));
            self.backends = config.backends.iter().map(of).collect();
            let routes = config.routes.iter().filter(|_| self.averages_routes());
            let of = |it: &Arc<Route>| (RouteHash::of(&it.name), Arc::clone(it));
            self.routes = routes.map(of).collect();
        }
    }
}
