//! Policies: what applies to whom.

use std::collections::BTreeMap;
use std::iter;
use std::sync::Arc;

use super::backend_tls::BackendTlsPolicies;
use super::index::{Index, by_age};
use super::listener::{CONTROLLER, OurListener};
use super::settings::{backend_faults, backend_settings, client_faults, client_settings, http3};
use super::speech::Speech;
use super::{Fault, Report, condition};
use crate::objects::{
    BackendPolicySpec, BackendProtocol, ClientPolicySpec, GatewaySpec, GatewayTarget, Resource,
    ServiceTarget,
};
use crate::snapshot::{BackendKey, BackendSettings, ClientSettings, Http3, Listener};
use crate::status::{Condition, ConditionType, Detail, Reason, TargetStatus};

/// What a policy is for: a namespace, a name, and a part.
pub(super) type Target<'a> = (&'a str, &'a str, Option<&'a str>);

/// The policies of one kind by target.
pub(super) struct Attached<'a, S>(pub(super) BTreeMap<Target<'a>, &'a Resource<S>>);

/// A target as a policy names it.
pub(super) struct Reference<'a> {
    pub(super) name: &'a str,
    pub(super) section: Option<&'a str>,
}

impl<'a, S> Attached<'a, S> {
    /// The policy of the part, or else that of the whole.
    pub(super) fn find(&self, (namespace, name, section): Target<'_>) -> Option<&'a Resource<S>> {
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
pub(super) fn backend_policies<'a>(
    index: &Index<'a>,
    tls: &BackendTlsPolicies<'_>,
    report: &mut Report,
) -> BackendPolicies<'a> {
    let mut attached = Attached(BTreeMap::new());
    for policy in by_age(&index.backend_policies) {
        let targets = policy.spec.target_refs.iter().map(service_reference);
        let kinds = ("BackendPolicy", "Service");
        let mut faults = backend_faults(&policy.spec);
        faults.extend(protocol_fault(policy, tls));
        let belief = belief_fault(policy, tls);
        let is_plain = policy.spec.protocol == Some(BackendProtocol::H2c);
        let is_insecure = policy.spec.tls.insecure_skip_verify && !is_plain && belief.is_none();
        let warning = is_insecure.then_some(ConditionType::InsecureEndpoints);
        faults.extend(belief);
        let attaching = Attaching { kinds, policy, faults, warning };
        attaching.attach(targets, &mut attached, report, |reference| {
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
        let kinds = ("ClientPolicy", "Gateway");
        let faults = client_faults(&policy.spec);
        let attaching = Attaching { kinds, policy, faults, warning: None };
        attaching.attach(targets, &mut attached, report, |reference| {
            find_gateway(index, &policy.metadata.namespace, reference)
        });
        settings.insert(name_of(policy), Arc::new(client_settings(&policy.spec)));
    }
    ClientPolicies { attached, settings, default: Arc::default() }
}

impl BackendPolicies<'_> {
    /// How a backend is used: by the policy of its port, of its Service, or by the defaults.
    pub(super) fn settings(
        &self,
        index: &Index<'_>,
        key: &BackendKey,
        speech: Speech,
    ) -> BackendSettings {
        let service = index.services.get(&(&*key.namespace, &*key.service)).map(|it| &it.spec);
        let mut ports = service.into_iter().flat_map(|service| &service.ports);
        let port = ports.find(|port| port.port == key.port).map(|port| &*port.name);
        let policy = self.0.find((&key.namespace, &key.service, port)).map(|policy| &policy.spec);
        let settings_of = |spec| backend_settings(spec, &key.namespace);
        let mut settings = policy.map_or_else(BackendSettings::default, settings_of);
        if policy.is_none_or(|policy| policy.prefer_same_zone.is_none()) {
            let wish = service.and_then(|service| service.traffic_distribution.as_deref());
            settings.prefers_same_zone =
                wish.is_some_and(|wish| ["PreferSameZone", "PreferClose"].contains(&wish));
        }
        let speech = speech.with(policy, key);
        (settings.protocol, settings.tls) = (speech.protocol, speech.tls);
        settings
    }
}

impl ClientPolicies<'_> {
    /// What clients of a listener may do: by the policy of the listener, of its Gateway, or by the defaults.
    pub(super) fn settings(
        &self,
        gateway: &Resource<GatewaySpec>,
        listener: Option<&str>,
    ) -> &Arc<ClientSettings> {
        self.find(gateway, listener)
            .map_or(&self.default, |policy| &self.settings[&name_of(policy)])
    }

    /// Whether requests are to come to a listener by HTTP/3 too, by the same policy.
    pub(super) fn http3(
        &self,
        gateway: &Resource<GatewaySpec>,
        listener: Option<&str>,
    ) -> Option<Http3> {
        self.find(gateway, listener).and_then(|policy| http3(&policy.spec))
    }

    /// A listener's policy does not apply, for it shares its address with one that came before.
    pub(super) fn report_shared_address(
        &self,
        gateway: &Resource<GatewaySpec>,
        listener: &OurListener<'_>,
        first: &Listener,
        report: &mut Report,
    ) {
        let Some(policy) = self.find(gateway, listener.section()) else { return };
        let OurListener { owner, spec, .. } = listener;
        let message = format!(
            "does not apply to listener {} of {} {}: it shares {} with {}, whose settings apply",
            spec.name, owner.kind, owner.metadata.name, first.address, first.name
        );
        report.problem("ClientPolicy", policy, "spec.targetRefs", message);
    }

    fn find(
        &self,
        gateway: &Resource<GatewaySpec>,
        listener: Option<&str>,
    ) -> Option<&Resource<ClientPolicySpec>> {
        let (namespace, name) = name_of(gateway);
        self.attached.find((namespace, name, listener))
    }
}

/// A policy that asks to be attached.
struct Attaching<'a, S> {
    /// Its own and its targets'.
    kinds: (&'static str, &'static str),
    policy: &'a Resource<S>,
    /// What in it cannot be. All else of it applies: without its cap, say, an endpoint would drown for a slip elsewhere.
    faults: Vec<Fault>,
    /// What its status says besides, where it holds.
    warning: Option<ConditionType>,
}

impl<'a, S> Attaching<'a, S> {
    /// Attaches the policy to each of its targets that exists and that no older policy has taken.
    fn attach(
        &self,
        references: impl Iterator<Item = Reference<'a>>,
        attached: &mut Attached<'a, S>,
        report: &mut Report,
        find: impl Fn(&Reference<'a>) -> Result<(), (&'static str, String)>,
    ) {
        let Self { kinds: (kind, target_kind), policy, faults, warning } = self;
        faults.iter().for_each(|fault| report.fault(kind, policy, fault));
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
            fault.iter().for_each(|fault| report.fault(kind, policy, fault));
            let invalid = faults.first().map(with_field);
            let fault = fault.or(invalid);
            let accepted = condition(ConditionType::Accepted, Reason::Accepted, fault.as_ref());
            let warning = warning.map(|kind| Condition::yes(kind, Reason::ConfigurationChanged));
            statuses.push(TargetStatus {
                kind: target_kind,
                namespace: policy.metadata.namespace.clone(),
                name: reference.name.to_owned(),
                section_name: reference.section.map(str::to_owned),
                conditions: iter::once(accepted).chain(warning).collect(),
            });
        }
        report.status(kind, policy, Detail::Policy(statuses));
    }
}

/// In a status, the message alone says which field it is about.
fn with_field(fault: &Fault) -> Fault {
    let message = format!("{}: {}; all else applies", fault.field, fault.message);
    Fault { message, ..fault.clone() }
}

/// Whether what is to be spoken is encrypted, a BackendTLSPolicy says, or that anybody is believed; the two must agree.
fn protocol_fault(
    policy: &Resource<BackendPolicySpec>,
    tls: &BackendTlsPolicies<'_>,
) -> Option<Fault> {
    let namespace = &policy.metadata.namespace;
    let is_covered = |target: &&ServiceTarget| covers(tls, namespace, target);
    let is_bare = |target: &&ServiceTarget| {
        !policy.spec.tls.insecure_skip_verify && !covers(tls, namespace, target)
    };
    let mut targets = policy.spec.target_refs.iter();
    let message = match policy.spec.protocol? {
        BackendProtocol::H2 => {
            let target = targets.find(is_bare)?;
            format!(
                "H2 needs a BackendTLSPolicy for Service {}: without TLS it is H2C",
                target.name
            )
        }
        BackendProtocol::H2c => {
            let target = targets.find(is_covered)?;
            format!("there is a BackendTLSPolicy for Service {}: with TLS it is H2", target.name)
        }
        BackendProtocol::H3 => {
            let target = targets.find(is_bare)?;
            format!(
                "H3 needs a BackendTLSPolicy for Service {}: QUIC is always encrypted",
                target.name
            )
        }
        BackendProtocol::Http1 => return None,
    };
    Some(Fault::new(Reason::Invalid, "spec.protocol", message))
}

/// Where a BackendTLSPolicy says whom to believe, nobody else is.
fn belief_fault(
    policy: &Resource<BackendPolicySpec>,
    tls: &BackendTlsPolicies<'_>,
) -> Option<Fault> {
    let namespace = &policy.metadata.namespace;
    let mut targets = policy.spec.target_refs.iter();
    let target = targets
        .find(|target| covers(tls, namespace, target))
        .filter(|_| policy.spec.tls.insecure_skip_verify)?;
    let message =
        format!("there is a BackendTLSPolicy for Service {}: what it says holds", target.name);
    Some(Fault::new(Reason::Invalid, "spec.tls.insecureSkipVerify", message))
}

fn covers(tls: &BackendTlsPolicies<'_>, namespace: &str, target: &ServiceTarget) -> bool {
    tls.covers(namespace, &target.name, target.section_name.as_deref())
}

fn service_reference(target: &ServiceTarget) -> Reference<'_> {
    Reference { name: &target.name, section: target.section_name.as_deref() }
}

fn gateway_reference(target: &GatewayTarget) -> Reference<'_> {
    Reference { name: &target.name, section: target.section_name.as_deref() }
}

pub(super) fn find_service(
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
