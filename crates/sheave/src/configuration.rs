//! Applies the content of the sources to the data plane: all of it, or none of it.
//!
//! It knows objects and the data plane; it must not know the sources of objects.

/// Conditions of routes at clients that use xDS.
mod xds_status;

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ::xds::ResourcePublisher;
use gateway::jwks::{JwksSubscription, KeySetState};
use gateway::snapshot::{Backend, BackendKey, EndpointSource, EndpointSpec, Snapshot};
use gateway::{
    AddressFilter, ApiObject, EndpointIndex, ObjectOrigin, ObjectProblem, TranslationResult,
    TranslationSettings, addresses, load_balancer, status,
};
use proxy::{ListenError, ListenerView, Proxy};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::dns::DnsWatcher;
use crate::failure::bind_advice;
use crate::files::SourceContents;
use crate::key_sets::KeySetWatcher;
use crate::report::{AppliedObjects, ProcessReport, ReloadOutcome, TranslatedServices};
use crate::transparent::AgentHandle;
use xds_status::XdsRouteStatus;

/// Interval between two attempts to bind an address that could not be bound.
const REBIND_INTERVAL: Duration = Duration::from_secs(5);
/// Time until an address is bound that a closing listener has just given up.
const HANDOVER_DELAY: Duration = Duration::from_millis(20);
/// Delay of the translation that reports rejected answers of DNS: records that change all the time cause one translation
/// a second.
const REJECTION_DELAY: Duration = Duration::from_secs(1);
/// Maximum number of rejected addresses of a name in a status.
const MAX_REJECTED_ADDRESSES: usize = 3;

/// The configuration in force.
pub(crate) struct ConfigurationController {
    proxy: Arc<Proxy>,
    dns: DnsWatcher,
    key_sets: KeySetWatcher,
    objects: Vec<ApiObject>,
    settings: TranslationSettings,
    /// Problems of the objects that the translation in force skipped.
    skipped_problems: Vec<ObjectProblem>,
    /// Problems that have been logged.
    logged_problems: Vec<ObjectProblem>,
    /// Time of the next translation of the same objects: to bind failed addresses, or to report rejected answers of DNS.
    retranslate_at: Option<Instant>,
    /// Objects that were rejected because an address could not be bound; they are tried again.
    unbindable: Option<(Vec<ApiObject>, TranslationSettings)>,
    /// Backends with their current endpoints.
    backends: Vec<Backend>,
    /// Backends behind each address of a pool.
    backends_by_address: BTreeMap<IpAddr, BTreeSet<BackendKey>>,
    /// Transparent mode, which takes the addresses of Services.
    agent: Option<AgentHandle>,
    /// The xDS server, which tells clients the routes and endpoints of Services.
    xds: Option<Arc<ResourcePublisher>>,
    /// The part of statuses that tells what xDS clients do not follow.
    xds_status: Option<XdsRouteStatus>,
    report: watch::Sender<ProcessReport>,
}

/// Handling of content with errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ErrorPolicy {
    /// Rejects everything: the editor of a file sees the errors, and the previous configuration stays in force.
    #[default]
    RejectAll,
    /// Skips the invalid objects: objects of a cluster have many owners, and an error of one must not affect another.
    SkipInvalid,
}

/// Objects that may be applied, with their translation.
pub(crate) struct CheckedConfiguration {
    pub(crate) objects: Vec<ApiObject>,
    pub(crate) settings: TranslationSettings,
    pub(crate) error_policy: ErrorPolicy,
    /// The translation, with all problems; there are none unless invalid objects are skipped.
    pub(crate) translation: TranslationResult,
}

/// Translates the content, or returns every error in it.
pub(crate) fn check(contents: SourceContents) -> Result<CheckedConfiguration, Vec<ObjectProblem>> {
    let SourceContents { mut objects, mut problems, settings, error_policy: errors } = contents;
    if errors == ErrorPolicy::RejectAll {
        gateway::objects::add_default_class(&mut objects);
    }
    let mut translation = gateway::translate(&objects, &settings);
    problems.append(&mut translation.problems);
    if errors == ErrorPolicy::RejectAll && !problems.is_empty() {
        return Err(problems);
    }
    translation.problems = problems;
    Ok(CheckedConfiguration { objects, settings, error_policy: errors, translation })
}

impl CheckedConfiguration {
    /// Returns a problem for each certificate that is not valid at this time. Such a certificate is still served and
    /// affects no other object: the client decides.
    pub(crate) fn expired_certificates(&self, now: SystemTime) -> Vec<ObjectProblem> {
        // A clock before 1970 is wrong; then no certificate is valid yet.
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        self.translation
            .certificate_validities
            .iter()
            .filter_map(|validity| validity.problem(now))
            .collect()
    }
}

impl ConfigurationController {
    /// Starts without a configuration in force.
    pub(crate) fn new(
        proxy: Arc<Proxy>,
        dns: DnsWatcher,
        agent: Option<AgentHandle>,
        report: watch::Sender<ProcessReport>,
    ) -> Self {
        let settings = TranslationSettings::default();
        let key_sets = KeySetWatcher::new(dns.resolver(), report.clone());
        let (objects, backends, backends_by_address, skipped_problems, logged_problems) =
            Default::default();
        let (retranslate_at, unbindable) = (None, None);
        Self {
            proxy,
            dns,
            key_sets,
            objects,
            settings,
            skipped_problems,
            logged_problems,
            retranslate_at,
            unbindable,
            backends,
            backends_by_address,
            agent,
            xds: None,
            xds_status: None,
            report,
        }
    }

    /// Returns the controller with an xDS server, if there is one. Needs a running tokio runtime.
    pub(crate) fn with_xds(self, xds: Option<Arc<ResourcePublisher>>) -> Self {
        let xds_status = xds.clone().map(XdsRouteStatus::new);
        Self { xds, xds_status, ..self }
    }

    /// Applies the content by the shortest path, or reports every error and changes nothing.
    pub(crate) fn reload(&mut self, contents: SourceContents) {
        let had_problems = !self.report.borrow().problems.is_empty();
        let reload = self.apply_contents(contents);
        self.report.send_modify(|report| report.count(reload));
        if had_problems && self.report.borrow().problems.is_empty() {
            tracing::info!("the configuration is valid again");
        }
    }

    /// Applies the first Snapshot, after a limited wait for the addresses of its names; returns the addresses that could
    /// not be bound yet.
    ///
    /// # Errors
    /// See [`apply`](Self::apply).
    pub(crate) async fn apply_first(
        &mut self,
        mut checked: CheckedConfiguration,
    ) -> Result<Vec<String>, Vec<ListenError>> {
        self.dns.watch_hosts(dns_hosts(&checked.translation.snapshot.backends));
        self.dns.wait_for_first_answers().await;
        let subscriptions = subscriptions(&checked.translation.snapshot);
        if !subscriptions.is_empty() {
            self.key_sets.watch_sets(subscriptions, &checked.settings.address_filter);
            self.key_sets.wait_for_first_sets().await;
            checked.settings.key_sets = self.key_sets.states();
            let problems = checked.translation.problems;
            checked.translation = gateway::translate(&checked.objects, &checked.settings);
            checked.translation.problems = problems;
        }
        self.apply(checked)
    }

    /// Applies a new Snapshot; returns the addresses that could not be bound yet. Names that are new have no addresses:
    /// their answers arrive later, so that a name that does not resolve delays no other change.
    ///
    /// # Errors
    /// Unless invalid objects are skipped: the addresses that could not be bound. Then nothing has changed.
    fn apply(&mut self, checked: CheckedConfiguration) -> Result<Vec<String>, Vec<ListenError>> {
        for problem in checked.expired_certificates(proxy::clock::wall()) {
            tracing::warn!(file = %problem.origin.file, object = problem.object, "{}", problem.message);
        }
        let CheckedConfiguration { objects, settings, translation, error_policy } = checked;
        let TranslationResult {
            mut snapshot,
            mut statuses,
            certificate_validities: validities,
            problems,
            managed_services: services,
            retained_gateways: retained,
            transparent_services,
            mut load_balancer_services,
        } = translation;
        // Names in force are kept until the new Snapshot is in force: it may be rejected.
        let hosts = dns_hosts(&snapshot.backends);
        self.dns.watch_hosts(&hosts | &dns_hosts(&self.backends));
        for backend in &mut snapshot.backends {
            self.resolve_backend(backend, &settings.address_filter);
        }
        let before = self.listening_addresses();
        if let Some(agent) = &self.agent {
            agent.release(&transparent_services);
        }
        let (errors, rebind_delay) = match error_policy {
            ErrorPolicy::SkipInvalid => (self.proxy.apply(&snapshot), REBIND_INTERVAL),
            ErrorPolicy::RejectAll => match self.proxy.apply_whole(&snapshot) {
                Ok(waiting) => (waiting, HANDOVER_DELAY),
                Err(errors) => {
                    // Their names stay watched, because they are tried again.
                    self.unbindable = Some((objects, settings));
                    self.retranslate_at = Some(Instant::now() + REBIND_INTERVAL);
                    return Err(errors);
                }
            },
        };
        if let Some(agent) = &self.agent {
            agent.take(&transparent_services);
        }
        if let Some(xds) = &self.xds {
            xds.publish(&snapshot, settings.cluster_domain.name());
        }
        self.dns.watch_hosts(hosts);
        self.key_sets.watch_sets(subscriptions(&snapshot), &settings.address_filter);
        let unbound: Vec<String> = errors.iter().map(with_advice).collect();
        for (error, sentence) in errors.iter().zip(&unbound) {
            status::report_port_unavailable(
                &mut statuses,
                (error.address, error.transport),
                sentence,
            );
            load_balancer::report_port_unavailable(
                &mut load_balancer_services,
                (error.address, error.transport),
                sentence,
            );
        }
        if let Some(xds_status) = &mut self.xds_status {
            xds_status.report(&mut statuses);
        }
        let node = settings.load_balancer.as_ref().map(|it| Arc::clone(&it.node));
        let assignment = settings.load_balancer.as_ref().map(|it| &it.assignment);
        let announcements = assignment.map(|it| it.announcements.clone()).unwrap_or_default();
        let bgp_routers = load_balancer::bgp_routers(&objects);
        self.log_listener_changes(&before);
        log_size(&snapshot);
        self.objects = objects;
        let controller = Arc::clone(&settings.controllers.gateway);
        self.settings = settings;
        self.backends_by_address = addresses::backends_by_address(&snapshot);
        self.backends = snapshot.backends;
        self.skipped_problems = problems;
        self.retranslate_at = (!unbound.is_empty()).then(|| Instant::now() + rebind_delay);
        self.schedule_rejected_answers();
        self.update_report(|report| {
            report.statuses = statuses.into();
            report.controller = controller;
            report.services = TranslatedServices { desired: services, retained }.into();
            report.certificates = validities.into_iter().collect();
            report.unbound = unbound.clone().into();
            report.transparent_services = transparent_services.into();
            report.load_balancers = load_balancer_services.into();
            report.announcements = announcements.into();
            report.bgp_routers = bgp_routers.into();
            report.node = node.unwrap_or_default();
        });
        self.set_problems(Vec::new());
        Ok(unbound)
    }

    /// Waits until the addresses of a DNS name or a key set change, the next translation of the same objects is due, or
    /// xDS clients reject something else, and handles it. Cancel-safe.
    pub(crate) async fn follow(&mut self) {
        let wait = async |at: Option<Instant>| match at {
            Some(at) => sleep_until(at).await,
            None => pending().await,
        };
        let changed = tokio::select! {
            changed = self.dns.changed() => Some(changed),
            () = wait(self.retranslate_at) => None,
            () = self.key_sets.changed() => None,
            stale = self.proxy.stale_key_sets() => {
                self.key_sets.fetch_early(&stale);
                return;
            }
            () = xds_status_change(&mut self.xds_status) => {
                self.report_xds_status();
                return;
            }
        };
        match changed {
            Some(name) => self.resolve(&name),
            None => self.retranslate(),
        }
    }

    /// Reports in the statuses of routes what xDS clients reject now.
    fn report_xds_status(&mut self) {
        let Some(xds_status) = &mut self.xds_status else { return };
        let mut statuses = self.report.borrow().statuses.to_vec();
        xds_status.report(&mut statuses);
        self.report.send_modify(|report| report.statuses = statuses.into());
    }

    fn resolve(&mut self, name: &str) {
        if !dns_hosts(&self.backends).contains(name) {
            // Only objects that wait for an address name it.
            return;
        }
        let mut backends = std::mem::take(&mut self.backends);
        for backend in &mut backends {
            match &backend.source {
                EndpointSource::Dns { host, .. } if **host == *name => {}
                EndpointSource::Dns { .. } | EndpointSource::Slices => continue,
            }
            let before = std::mem::take(&mut backend.endpoints);
            self.resolve_backend(backend, &self.settings.address_filter);
            if backend.endpoints != before {
                self.set_endpoints(backend);
            }
        }
        self.backends = backends;
        self.schedule_rejected_answers();
        self.update_report(|_| {});
    }

    /// Sets the endpoints of a backend from the known addresses of its DNS name. Until the first answer to a new name, a
    /// backend keeps the endpoints of its former name.
    fn resolve_backend(&self, backend: &mut Backend, filter: &AddressFilter) {
        let EndpointSource::Dns { host, port, is_filtered } = &backend.source else { return };
        let may_use = |address: &IpAddr| !is_filtered || filter.check_name(*address).is_ok();
        if self.dns.is_pending(host) {
            let is_former = |it: &&Backend| {
                it.key == backend.key && matches!(it.source, EndpointSource::Dns { .. })
            };
            let former = self.backends.iter().find(is_former);
            let kept = former.into_iter().flat_map(|former| &former.endpoints);
            backend.endpoints = kept.filter(|it| may_use(&it.address.ip())).cloned().collect();
            return;
        }
        let endpoint = |address| EndpointSpec::new(SocketAddr::new(address, *port));
        let addresses = self.dns.addresses(host).into_iter().filter(may_use);
        backend.endpoints = addresses.map(endpoint).collect();
    }

    /// Returns the names whose last answer has addresses that must not be used, with the reasons.
    fn rejected_answers(&self) -> BTreeMap<Arc<str>, String> {
        let mut rejected = BTreeMap::new();
        for backend in &self.backends {
            let EndpointSource::Dns { host, is_filtered: true, .. } = &backend.source else {
                continue;
            };
            let addresses = self.dns.addresses(host).into_iter();
            let reasons: Vec<_> = addresses
                .filter_map(|address| {
                    let rejection = self.settings.address_filter.check_name(address).err()?;
                    Some(format!("{address} {rejection}"))
                })
                .take(MAX_REJECTED_ADDRESSES)
                .collect();
            if !reasons.is_empty() {
                rejected.insert(Arc::clone(host), reasons.join(", "));
            }
        }
        rejected
    }

    /// Schedules a translation if the statuses do not show the present rejected answers.
    fn schedule_rejected_answers(&mut self) {
        if self.rejected_answers() != self.settings.rejected_answers {
            let at = Instant::now() + REJECTION_DELAY;
            self.retranslate_at = Some(self.retranslate_at.map_or(at, |other| other.min(at)));
        }
    }

    /// Translates the same objects again: the process that has a failed address may have stopped, or answers of DNS may
    /// have been rejected.
    fn retranslate(&mut self) {
        let (objects, mut settings, error_policy) = match self.unbindable.take() {
            Some((objects, settings)) => (objects, settings, ErrorPolicy::RejectAll),
            None => (self.objects.clone(), self.settings.clone(), ErrorPolicy::SkipInvalid),
        };
        settings.rejected_answers = self.rejected_answers();
        settings.key_sets = self.key_sets.states();
        let key_sets = settings.key_sets.clone();
        let translation = gateway::translate(&objects, &settings);
        let checked = CheckedConfiguration { objects, settings, error_policy, translation };
        let outcome = self.apply_and_log(checked);
        if outcome == ReloadOutcome::Refused && self.settings.key_sets != key_sets {
            self.renew_key_sets(key_sets);
        }
    }

    /// Applies new key sets to the objects in force, while others wait for their addresses.
    fn renew_key_sets(&mut self, key_sets: BTreeMap<JwksSubscription, KeySetState>) {
        let (waiting, waiting_until) = (self.unbindable.take(), self.retranslate_at);
        let problems = Arc::clone(&self.report.borrow().problems);
        let (objects, error_policy) = (self.objects.clone(), ErrorPolicy::SkipInvalid);
        let settings = TranslationSettings { key_sets, ..self.settings.clone() };
        let translation = gateway::translate(&objects, &settings);
        self.apply_and_log(CheckedConfiguration { objects, settings, error_policy, translation });
        (self.unbindable, self.retranslate_at) = (waiting, waiting_until);
        self.report.send_modify(|report| report.problems = problems);
    }

    /// Applies the configuration, and logs each address that newly fails to bind.
    fn apply_and_log(&mut self, checked: CheckedConfiguration) -> ReloadOutcome {
        let logged = Arc::clone(&self.report.borrow().unbound);
        let error_policy = checked.error_policy;
        match self.apply(checked) {
            // The addresses are those of listeners that are closing.
            Ok(_) if error_policy == ErrorPolicy::RejectAll => ReloadOutcome::Applied,
            Ok(unbound) => {
                for sentence in unbound.iter().filter(|it| !logged.contains(it)) {
                    tracing::error!("{sentence}");
                }
                ReloadOutcome::Applied
            }
            Err(errors) => {
                let problems: Vec<_> = errors.iter().map(bind_problem).collect();
                if *self.report.borrow().problems != *problems {
                    self.reject(problems);
                }
                ReloadOutcome::Refused
            }
        }
    }

    fn apply_contents(&mut self, mut contents: SourceContents) -> ReloadOutcome {
        contents.settings.rejected_answers.clone_from(&self.settings.rejected_answers);
        contents.settings.key_sets = self.key_sets.states();
        let is_clean =
            contents.error_policy == ErrorPolicy::SkipInvalid || contents.problems.is_empty();
        if self.unbindable.take().is_some() {
            self.retranslate_at = None;
            self.dns.watch_hosts(dns_hosts(&self.backends));
        }
        if is_clean {
            let is_same_ground = contents.settings == self.settings;
            let is_same = is_same_ground && contents.objects == self.objects;
            if is_same && self.report.borrow().unbound.is_empty() {
                self.set_problems(contents.problems);
                return ReloadOutcome::Unchanged;
            }
            let has_moved = is_same_ground && !is_same;
            if has_moved && differ_in_slices_alone(&contents.objects, &self.objects) {
                return self.swap_endpoints(contents);
            }
        }
        match check(contents) {
            Ok(checked) => self.apply_and_log(checked),
            Err(problems) => {
                self.reject(problems);
                ReloadOutcome::Refused
            }
        }
    }

    /// Fast path: replaces endpoints without a translation and without a new Snapshot.
    fn swap_endpoints(&mut self, contents: SourceContents) -> ReloadOutcome {
        let SourceContents { objects, mut problems, error_policy: errors, .. } = contents;
        let changed = EndpointIndex::new(&objects, &self.settings);
        let keys: Vec<BackendKey> = self.backends.iter().map(|it| it.key.clone()).collect();
        problems.extend(changed.problems(&keys));
        if errors == ErrorPolicy::RejectAll && !problems.is_empty() {
            self.reject(problems);
            return ReloadOutcome::Refused;
        }
        let mut backends = std::mem::take(&mut self.backends);
        for backend in backends.iter_mut().filter(|it| it.source == EndpointSource::Slices) {
            backend.elsewhere = changed.elsewhere(&backend.key);
            let endpoints = changed.of(&backend.key);
            if endpoints != backend.endpoints {
                backend.endpoints = endpoints;
                self.set_endpoints(backend);
            }
        }
        self.backends = backends;
        self.objects = objects;
        self.update_report(|_| {});
        self.set_problems(problems);
        ReloadOutcome::Endpoints
    }

    /// Replaces the endpoints of one backend in the data plane, and at xDS clients.
    fn set_endpoints(&self, backend: &Backend) {
        let known = self.proxy.set_endpoints(&backend.key, &backend.endpoints);
        debug_assert!(known, "the backend is in the Snapshot in force");
        if let Some(xds) = &self.xds {
            xds.set_endpoints(&backend.key, &backend.endpoints);
        }
        let endpoints = backend.endpoints.len();
        tracing::info!(backend = %backend.key, endpoints, "endpoints changed");
    }

    /// Reports the current problems together with those of the translation in force. Each problem is logged once,
    /// however often the others change.
    fn set_problems(&mut self, mut problems: Vec<ObjectProblem>) {
        let more = self.skipped_problems.iter().filter(|it| !problems.contains(it));
        let more: Vec<_> = more.cloned().collect();
        problems.extend(more);
        problems
            .iter()
            .filter(|problem| !self.logged_problems.contains(problem))
            .for_each(log_problem);
        self.logged_problems.clone_from(&problems);
        self.report.send_modify(|report| report.problems = problems.into());
    }

    fn reject(&self, problems: Vec<ObjectProblem>) {
        problems.iter().for_each(log_problem);
        let errors = problems.len();
        tracing::error!(errors, "configuration rejected: the previous one stays in force");
        self.report.send_modify(|report| report.problems = problems.into());
    }

    /// Returns names and addresses; HTTP/3 has an entry of its own.
    fn listening_addresses(&self) -> BTreeSet<(Arc<str>, String)> {
        let addresses = |view: ListenerView| {
            let address = view.address;
            let http3 = view.http3.then(|| (view.name.clone(), format!("{address}/udp")));
            std::iter::once((view.name, address.to_string())).chain(http3)
        };
        self.proxy.listeners().into_iter().flat_map(addresses).collect()
    }

    fn log_listener_changes(&self, before: &BTreeSet<(Arc<str>, String)>) {
        let after = self.listening_addresses();
        for (name, address) in after.difference(before) {
            tracing::info!(%address, listener = %name, "listening");
        }
        for (name, address) in before.difference(&after) {
            tracing::info!(%address, listener = %name, "no longer listening");
        }
    }

    /// Updates the report after a change took effect.
    fn update_report(&self, detail: impl FnOnce(&mut ProcessReport)) {
        let endpoint_counts =
            addresses::endpoints_by_address(&self.backends_by_address, &self.backends);
        let (objects, settings) = (self.objects.clone(), self.settings.clone());
        self.report.send_modify(|report| {
            report.endpoint_counts = endpoint_counts.into();
            report.applied = AppliedObjects { objects, settings }.into();
            report.generation += 1;
            report.applied_at = Some(proxy::clock::wall());
            report.problems = Arc::default();
            detail(report);
        });
    }
}

/// Waits until xDS clients reject something else than the statuses of routes say.
async fn xds_status_change(status: &mut Option<XdsRouteStatus>) {
    match status {
        Some(status) => status.changed().await,
        None => pending().await,
    }
}

/// Returns the problem of a listener whose address could not be bound.
fn bind_problem(error: &ListenError) -> ObjectProblem {
    ObjectProblem {
        origin: ObjectOrigin::default(),
        object: error.name.to_string(),
        field: String::new(),
        message: with_advice(error),
    }
}

fn log_problem(problem: &ObjectProblem) {
    let file = &*problem.origin.file;
    let named = |part: &str| (!part.is_empty()).then(|| part.to_owned());
    tracing::error!(
        file = (!file.is_empty()).then(|| tracing::field::display(file)),
        document = (problem.origin.document > 0).then_some(problem.origin.document),
        object = named(&problem.object),
        field = named(&problem.field),
        "{}",
        problem.message
    );
}

/// Returns the key sets that policies fetch.
fn subscriptions(snapshot: &Snapshot) -> BTreeSet<Arc<JwksSubscription>> {
    let issuers = snapshot.jwt.iter().flat_map(|it| &it.issuers);
    issuers.filter_map(|it| it.subscription.clone()).collect()
}

/// Returns the DNS names of backends.
fn dns_hosts(backends: &[Backend]) -> BTreeSet<Arc<str>> {
    let host = |backend: &Backend| match &backend.source {
        EndpointSource::Dns { host, .. } => Some(host.clone()),
        EndpointSource::Slices => None,
    };
    backends.iter().filter_map(host).collect()
}

fn log_size(snapshot: &Snapshot) {
    let endpoints: usize = snapshot.backends.iter().map(|backend| backend.endpoints.len()).sum();
    tracing::info!(
        listeners = snapshot.listeners.len(),
        rules = snapshot.rules.len(),
        backends = snapshot.backends.len(),
        endpoints,
        "configuration in force"
    );
}

pub(crate) fn with_advice(error: &ListenError) -> String {
    format!("{error}: {}: {}", error.source, bind_advice(&error.source))
}

fn differ_in_slices_alone(some: &[ApiObject], others: &[ApiObject]) -> bool {
    let is_other = |object: &&ApiObject| !matches!(object, ApiObject::EndpointSlice(_));
    some.iter().filter(is_other).eq(others.iter().filter(is_other))
}

#[cfg(test)]
mod tests;
