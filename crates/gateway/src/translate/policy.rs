//! Policies: what applies to whom, and what it says with every default filled in.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use balance::health::HealthSettings;
use balance::retry::RetrySettings;

use super::index::{Index, by_age};
use super::listener::CONTROLLER;
use super::{Fault, Report, condition};
use crate::objects::{
    self, BackendPolicySpec, ClientPolicySpec, GatewaySpec, GatewayTarget, Resource, ServiceTarget,
};
use crate::snapshot::{
    BackendKey, BackendSettings, ClientSettings, HashKey, Listener, ProxyProtocol,
};
use crate::status::{ConditionType, Detail, Reason, TargetStatus};

/// Requests that may wait where there is a cap and the policy does not say.
const QUEUE_WHEN_CAPPED: u32 = 1024;

/// What a policy is for: a namespace, a name, and a part.
type Target<'a> = (&'a str, &'a str, Option<&'a str>);

/// The policies of one kind by target.
struct Attached<'a, S>(BTreeMap<Target<'a>, &'a Resource<S>>);

/// A target as a policy names it.
struct Reference<'a> {
    name: &'a str,
    section: Option<&'a str>,
}

impl<'a, S> Attached<'a, S> {
    /// The policy of the part, or else that of the whole.
    fn find(&self, (namespace, name, section): Target<'_>) -> Option<&'a Resource<S>> {
        let whole = || self.0.get(&(namespace, name, None));
        self.0.get(&(namespace, name, section)).or_else(whole).copied()
    }
}

/// The BackendPolicies of Services and their ports.
pub(super) struct BackendPolicies<'a>(Attached<'a, BackendPolicySpec>);

/// The ClientPolicies of Gateways and their listeners, with their settings.
pub(super) struct ClientPolicies<'a> {
    attached: Attached<'a, ClientPolicySpec>,
    /// By the policy's namespace and name.
    settings: BTreeMap<(&'a str, &'a str), Arc<ClientSettings>>,
    default: Arc<ClientSettings>,
}

/// Every BackendPolicy at its targets.
pub(super) fn backend_policies<'a>(index: &Index<'a>, report: &mut Report) -> BackendPolicies<'a> {
    let mut attached = Attached(BTreeMap::new());
    for policy in by_age(&index.backend_policies) {
        let targets = policy.spec.target_refs.iter().map(service_reference);
        attach("BackendPolicy", "Service", policy, targets, &mut attached, report, |reference| {
            find_service(index, &policy.metadata.namespace, reference)
        });
    }
    BackendPolicies(attached)
}

/// Every ClientPolicy at its targets.
pub(super) fn client_policies<'a>(index: &Index<'a>, report: &mut Report) -> ClientPolicies<'a> {
    let mut attached = Attached(BTreeMap::new());
    let mut settings = BTreeMap::new();
    for policy in by_age(&index.client_policies) {
        let targets = policy.spec.target_refs.iter().map(gateway_reference);
        attach("ClientPolicy", "Gateway", policy, targets, &mut attached, report, |reference| {
            find_gateway(index, &policy.metadata.namespace, reference)
        });
        settings.insert(name_of(policy), Arc::new(client_settings(&policy.spec)));
    }
    ClientPolicies { attached, settings, default: Arc::default() }
}

impl BackendPolicies<'_> {
    /// How a backend is used: by the policy of its port, of its Service, or by the defaults.
    pub(super) fn settings(&self, index: &Index<'_>, key: &BackendKey) -> BackendSettings {
        let service = index.services.get(&(&*key.namespace, &*key.service));
        let ports = service.into_iter().flat_map(|service| &service.spec.ports);
        let port = ports.into_iter().find(|port| port.port == key.port).map(|port| &*port.name);
        self.0
            .find((&key.namespace, &key.service, port))
            .map_or_else(BackendSettings::default, |policy| backend_settings(&policy.spec))
    }
}

impl ClientPolicies<'_> {
    /// What clients of a listener may do: by the policy of the listener, of its Gateway, or by the defaults.
    pub(super) fn settings(
        &self,
        gateway: &Resource<GatewaySpec>,
        listener: &str,
    ) -> &Arc<ClientSettings> {
        self.find(gateway, listener)
            .map_or(&self.default, |policy| &self.settings[&name_of(policy)])
    }

    /// A listener's policy does not apply, for it shares its address with one that came before.
    pub(super) fn report_shared_address(
        &self,
        gateway: &Resource<GatewaySpec>,
        listener: &str,
        first: &Listener,
        report: &mut Report,
    ) {
        let Some(policy) = self.find(gateway, listener) else { return };
        let message = format!(
            "does not apply to listener {listener} of Gateway {}: it shares {} with {}, whose settings apply",
            gateway.metadata.name, first.address, first.name
        );
        report.problem("ClientPolicy", policy, "spec.targetRefs", message);
    }

    fn find(
        &self,
        gateway: &Resource<GatewaySpec>,
        listener: &str,
    ) -> Option<&Resource<ClientPolicySpec>> {
        let (namespace, name) = name_of(gateway);
        self.attached.find((namespace, name, Some(listener)))
    }
}

/// Attaches a policy to each of its targets that exists and that no older policy has taken.
fn attach<'a, S>(
    kind: &'static str,
    target_kind: &'static str,
    policy: &'a Resource<S>,
    references: impl Iterator<Item = Reference<'a>>,
    attached: &mut Attached<'a, S>,
    report: &mut Report,
    find: impl Fn(&Reference<'a>) -> Result<(), (&'static str, String)>,
) {
    let mut statuses = Vec::new();
    for (n, reference) in references.enumerate() {
        let field = format!("spec.targetRefs[{n}]");
        let target = (&*policy.metadata.namespace, reference.name, reference.section);
        let fault = match (find(&reference), attached.0.get(&target)) {
            (Err((part, message)), _) => {
                Some(Fault::new(Reason::TargetNotFound, format!("{field}.{part}"), message))
            }
            (Ok(()), Some(older)) => {
                let message =
                    format!("{kind} {} has this target and is older", older.metadata.name);
                Some(Fault::new(Reason::Conflicted, field, message))
            }
            (Ok(()), None) => {
                attached.0.insert(target, policy);
                None
            }
        };
        if let Some(fault) = &fault {
            report.fault(kind, policy, fault);
        }
        let accepted = condition(ConditionType::Accepted, Reason::Accepted, fault.as_ref());
        statuses.push(TargetStatus {
            kind: target_kind,
            name: reference.name.to_owned(),
            section_name: reference.section.map(str::to_owned),
            conditions: vec![accepted],
        });
    }
    report.status(kind, policy, Detail::Policy(statuses));
}

fn service_reference(target: &ServiceTarget) -> Reference<'_> {
    Reference { name: &target.name, section: target.section_name.as_deref() }
}

fn gateway_reference(target: &GatewayTarget) -> Reference<'_> {
    Reference { name: &target.name, section: target.section_name.as_deref() }
}

fn find_service(
    index: &Index<'_>,
    namespace: &str,
    reference: &Reference<'_>,
) -> Result<(), (&'static str, String)> {
    let Some(service) = index.services.get(&(namespace, reference.name)) else {
        return Err(("name", format!("there is no Service {namespace}/{}", reference.name)));
    };
    match reference.section {
        Some(section) if service.spec.ports.iter().all(|port| port.name != section) => {
            Err(("sectionName", format!("Service {} has no port of this name", reference.name)))
        }
        Some(_) | None => Ok(()),
    }
}

fn find_gateway(
    index: &Index<'_>,
    namespace: &str,
    reference: &Reference<'_>,
) -> Result<(), (&'static str, String)> {
    let Some(gateway) = index.gateways.get(&(namespace, reference.name)) else {
        return Err(("name", format!("there is no Gateway {namespace}/{}", reference.name)));
    };
    let class = index.classes.get(&("", &*gateway.spec.gateway_class_name));
    if class.is_none_or(|class| class.spec.controller_name != CONTROLLER) {
        return Err((
            "name",
            format!("Gateway {namespace}/{} is not served by us", reference.name),
        ));
    }
    match reference.section {
        Some(section) if gateway.spec.listeners.iter().all(|listener| listener.name != section) => {
            Err(("sectionName", format!("Gateway {} has no listener of this name", reference.name)))
        }
        Some(_) | None => Ok(()),
    }
}

fn name_of<S>(object: &Resource<S>) -> (&str, &str) {
    (&object.metadata.namespace, &object.metadata.name)
}

/// Those of a Service without a policy.
impl Default for BackendSettings {
    fn default() -> Self {
        backend_settings(&BackendPolicySpec::for_targets(Vec::new()))
    }
}

/// Those of a Gateway without a policy.
impl Default for ClientSettings {
    fn default() -> Self {
        client_settings(&ClientPolicySpec::for_targets(Vec::new()))
    }
}

fn backend_settings(spec: &BackendPolicySpec) -> BackendSettings {
    let cap = spec.max_in_flight_per_endpoint.and_then(NonZeroU32::new);
    let queue = spec.queue.max_requests;
    let default_queue = if cap.is_some() { QUEUE_WHEN_CAPPED } else { 0 };
    BackendSettings {
        algorithm: match spec.algorithm {
            objects::Algorithm::LeastLoad => balance::Algorithm::LeastLoad,
            objects::Algorithm::RoundRobin => balance::Algorithm::RoundRobin,
        },
        max_in_flight_per_endpoint: cap,
        queue_max_requests: queue.unwrap_or(default_queue),
        queue_timeout: spec.queue.timeout.0,
        overload_status: spec.overload.status,
        overload_retry_after: spec.overload.retry_after.0,
        connect_timeout: spec.timeouts.connect.0,
        request_timeout: spec.timeouts.request.map(|timeout| timeout.0),
        per_attempt_timeout: spec.timeouts.per_attempt.map(|timeout| timeout.0),
        idle_timeout: spec.timeouts.idle.0,
        abandoned_timeout: spec.timeouts.abandoned.0,
        connection_max_age: spec.connections.max_age.map(|age| age.0),
        connection_max_requests: spec.connections.max_requests.and_then(NonZeroU32::new),
        connection_idle_timeout: spec.connections.idle_timeout.0,
        connection_max: spec.connections.max.and_then(NonZeroU32::new),
        hash_key: HashKey::default(),
        affinity: None,
        prefers_same_zone: false,
        retry: RetrySettings::default(),
        retry_statuses: Box::default(),
        health: HealthSettings::default(),
        probe: None,
        proxy_protocol: None,
    }
}

fn client_settings(spec: &ClientPolicySpec) -> ClientSettings {
    ClientSettings {
        max_connections: spec.connections.max,
        connection_max_age: spec.connections.max_age.map(|age| age.0),
        connection_idle_timeout: spec.connections.idle_timeout.0,
        max_head_bytes: spec.limits.head_bytes,
        max_header_fields: spec.limits.header_fields,
        max_target_bytes: spec.limits.target_bytes,
        max_body_bytes: spec.limits.body_bytes,
        head_timeout: spec.timeouts.head.0,
        body_timeout: spec.timeouts.body.0,
        trusted_proxies: spec.trusted_proxies.iter().map(|network| network.0).collect(),
        proxy_protocol: ProxyProtocol::Off,
        stream_idle_timeout: Duration::from_secs(3600),
        flow_idle_timeout: Duration::from_secs(30),
    }
}
