//! Policies: what applies to whom.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::iter;
use std::sync::Arc;

use super::backend_tls::BackendTlsPolicies;
use super::backend_transport::BackendTransport;
use super::index::{BACKEND_POLICY, ObjectIndex, ObjectsByName, sorted_by_age};
use super::listener::{AcceptedListener, CONTROLLER};
use super::owner::OwnerObject;
use super::settings::{backend_faults, backend_settings, client_faults, client_settings, http3};
use super::{TranslationReport, ValidationFault, condition};
use crate::objects::{
    BackendPolicySpec, BackendProtocol, ClientPolicySpec, GatewaySpec, GatewayTarget,
    InvalidObject, MaxInFlight, ObjectMeta, PartialPolicy, ServiceTarget, TypedObject,
};
use crate::snapshot::{BackendKey, BackendSettings, ClientSettings, Http3Settings, Listener};
use crate::status::{ConditionReason, ConditionType, StatusCondition, StatusDetail, TargetStatus};

/// What a policy is for: a namespace, a name, and a part.
pub(super) type PolicyTargetKey<'a> = (&'a str, &'a str, Option<&'a str>);

/// Which policy of a kind each target has: its place among all of them, and its name.
#[derive(Default)]
pub(super) struct PolicyAttachments<'a>(BTreeMap<PolicyTargetKey<'a>, (usize, &'a str)>);

/// A target as a policy names it.
pub(super) struct PolicyTargetRef<'a> {
    pub(super) name: &'a str,
    pub(super) section: Option<&'a str>,
}

impl<'a> PolicyAttachments<'a> {
    /// Gives a target to a policy; if an older one has it, that one's name.
    pub(super) fn attach(
        &mut self,
        target: PolicyTargetKey<'a>,
        place: usize,
        policy: &'a str,
    ) -> Result<(), &'a str> {
        match self.0.entry(target) {
            Entry::Vacant(free) => _ = free.insert((place, policy)),
            Entry::Occupied(taken) => return Err(taken.get().1),
        }
        Ok(())
    }

    /// The policy of the part, or else that of the whole.
    pub(super) fn find(&self, (namespace, name, section): PolicyTargetKey<'_>) -> Option<usize> {
        let whole = || self.0.get(&(namespace, name, None));
        self.0.get(&(namespace, name, section)).or_else(whole).map(|(place, _)| *place)
    }

    /// Whether there is a policy for a part or for the whole; for the whole: for any part, too.
    pub(super) fn covers(&self, namespace: &str, name: &str, section: Option<&str>) -> bool {
        let mut parts = self.0.range((namespace, name, None)..).map(|(target, _)| target);
        section.map_or_else(
            || parts.next().is_some_and(|&(of, it, _)| (of, it) == (namespace, name)),
            |_| self.find((namespace, name, section)).is_some(),
        )
    }
}

/// The BackendPolicies of Services and their ports.
pub(super) struct BackendPolicies<'a> {
    attachments: PolicyAttachments<'a>,
    /// The oldest first.
    policies: Vec<PolicyObject<'a, BackendPolicySpec>>,
}

/// The ClientPolicies of Gateways and their listeners.
pub(super) struct ClientPolicies<'a> {
    attachments: PolicyAttachments<'a>,
    /// The oldest first, with their settings.
    policies: Vec<(PolicyObject<'a, ClientPolicySpec>, Arc<ClientSettings>)>,
    default: Arc<ClientSettings>,
}

/// A policy, or what can be read of one.
struct PolicyObject<'a, S> {
    owner: OwnerObject<'a>,
    spec: &'a S,
    /// What it is part of, if it is not all of it.
    invalid_object: Option<&'a InvalidObject>,
}

impl<'a, S> PolicyObject<'a, S> {
    /// Those of a kind, the oldest first.
    fn all(
        kind: &'static str,
        index: &ObjectIndex<'a>,
        whole: &ObjectsByName<'a, S>,
        remains: impl Fn(&'a PartialPolicy) -> Option<&'a S>,
    ) -> Vec<Self> {
        let whole = whole.values().map(|object| Self {
            owner: OwnerObject::of(kind, object),
            spec: &object.spec,
            invalid_object: None,
        });
        let rest = index.invalid_objects.iter().filter_map(|object| {
            let spec = remains(object.spec.partial_policy.as_ref()?)?;
            Some(Self {
                owner: OwnerObject::of(kind, object),
                spec,
                invalid_object: Some(&object.spec),
            })
        });
        sorted_by_age(whole.chain(rest), |it| it.owner.metadata)
    }
}

/// Every BackendPolicy at its targets.
pub(super) fn backend_policies<'a>(
    index: &ObjectIndex<'a>,
    tls: &BackendTlsPolicies<'_>,
    report: &mut TranslationReport,
) -> BackendPolicies<'a> {
    let mut attached = PolicyAttachments::default();
    let policies =
        PolicyObject::all(BACKEND_POLICY, index, &index.backend_policies, |it| match it {
            PartialPolicy::Backend { spec, .. } => Some(&**spec),
            PartialPolicy::Client(_) => None,
        });
    for (place, policy) in policies.iter().enumerate() {
        let PolicyObject { owner, spec, .. } = policy;
        let namespace = &*owner.metadata.namespace;
        let mut faults = backend_faults(spec);
        faults.extend(protocol_fault(policy, tls));
        let belief = verification_fault(policy, tls);
        let is_plain = spec.protocol == Some(BackendProtocol::H2c);
        let is_insecure = spec.tls.insecure_skip_verify && !is_plain && belief.is_none();
        let warning = is_insecure.then_some(ConditionType::InsecureEndpoints);
        faults.extend(belief);
        let target_kind = "Service";
        let slots = match spec.max_in_flight_per_endpoint {
            Some(MaxInFlight::Number(slots)) => Some(slots),
            Some(MaxInFlight::Auto) | None => None,
        };
        let attaching =
            PolicyAttachmentRequest { policy, place, target_kind, faults, warning, slots };
        let targets = spec.target_refs.iter().map(service_reference);
        attaching.attach(targets, &mut attached, report, |reference| {
            find_service(index, namespace, reference)
        });
    }
    BackendPolicies { attachments: attached, policies }
}

/// Every ClientPolicy at its targets.
pub(super) fn client_policies<'a>(
    index: &ObjectIndex<'a>,
    report: &mut TranslationReport,
) -> ClientPolicies<'a> {
    let mut attached = PolicyAttachments::default();
    let policies =
        PolicyObject::all("ClientPolicy", index, &index.client_policies, |it| match it {
            PartialPolicy::Client(spec) => Some(&**spec),
            PartialPolicy::Backend { .. } => None,
        });
    for (place, policy) in policies.iter().enumerate() {
        let PolicyObject { owner, spec, .. } = policy;
        let namespace = &*owner.metadata.namespace;
        let (target_kind, faults, warning) = ("Gateway", client_faults(spec), None);
        let attaching =
            PolicyAttachmentRequest { policy, place, target_kind, faults, warning, slots: None };
        let targets = spec.target_refs.iter().map(gateway_reference);
        attaching.attach(targets, &mut attached, report, |reference| {
            find_gateway(index, namespace, reference)
        });
    }
    let with_settings = |policy: PolicyObject<'a, ClientPolicySpec>| {
        let settings = Arc::new(client_settings(policy.spec));
        (policy, settings)
    };
    let policies = policies.into_iter().map(with_settings).collect();
    ClientPolicies { attachments: attached, policies, default: Arc::default() }
}

impl BackendPolicies<'_> {
    /// How a backend is used: by the policy of its port, of its Service, or by the defaults.
    pub(super) fn settings(
        &self,
        index: &ObjectIndex<'_>,
        key: &BackendKey,
        speech: BackendTransport,
    ) -> BackendSettings {
        let service = index.services.get(&(&*key.namespace, &*key.service)).map(|it| &it.spec);
        let mut ports = service.into_iter().flat_map(|service| &service.ports);
        let port = ports.find(|port| port.port == key.port).map(|port| &*port.name);
        let policy = self.attachments.find((&key.namespace, &key.service, port));
        let policy = policy.map(|place| &self.policies[place]);
        let settings_of =
            |it: &PolicyObject<'_, BackendPolicySpec>| backend_settings(it.spec, &key.namespace);
        let mut settings = policy.map_or_else(BackendSettings::default, settings_of);
        if policy.is_none_or(|policy| policy.spec.prefer_same_zone.is_none()) {
            let wish = service.and_then(|service| service.traffic_distribution.as_deref());
            settings.prefers_same_zone =
                wish.is_some_and(|wish| ["PreferSameZone", "PreferClose"].contains(&wish));
        }
        let speech = speech.with_policy(policy.map(|policy| policy.spec), key);
        let lacks_tls = policy.is_some_and(PolicyObject::lacks_tls);
        let speech = if lacks_tls { speech.require_tls(key) } else { speech };
        (settings.protocol, settings.tls) = (speech.protocol, speech.tls);
        settings
    }
}

impl PolicyObject<'_, BackendPolicySpec> {
    /// Whether nobody can say how connections are to be secured.
    fn lacks_tls(&self) -> bool {
        let remains = self.invalid_object.and_then(|refused| refused.partial_policy.as_ref());
        matches!(remains, Some(PartialPolicy::Backend { lacks_tls: true, .. }))
    }
}

impl ClientPolicies<'_> {
    /// What clients of a listener may do: by the policy of the listener, of its Gateway, or by the defaults.
    pub(super) fn settings(
        &self,
        gateway: &TypedObject<GatewaySpec>,
        listener: Option<&str>,
    ) -> &Arc<ClientSettings> {
        self.find(gateway, listener).map_or(&self.default, |(_, settings)| settings)
    }

    /// Whether requests are to come to a listener by HTTP/3 too, by the same policy.
    pub(super) fn http3(
        &self,
        gateway: &TypedObject<GatewaySpec>,
        listener: Option<&str>,
    ) -> Option<Http3Settings> {
        self.find(gateway, listener).and_then(|(policy, _)| http3(policy.spec))
    }

    /// A listener's policy does not apply, for it shares its address with one that came before.
    pub(super) fn report_shared_address(
        &self,
        gateway: &TypedObject<GatewaySpec>,
        listener: &AcceptedListener<'_>,
        first: &Listener,
        report: &mut TranslationReport,
    ) {
        let Some((policy, _)) = self.find(gateway, listener.section()) else { return };
        let AcceptedListener { owner, spec, .. } = listener;
        let message = format!(
            "does not apply to listener {} of {} {}: it shares {} with {}, whose settings apply",
            spec.name, owner.kind, owner.metadata.name, first.address, first.name
        );
        report.problems.push(policy.owner.problem("spec.targetRefs", &message));
    }

    fn find(
        &self,
        gateway: &TypedObject<GatewaySpec>,
        listener: Option<&str>,
    ) -> Option<&(PolicyObject<'_, ClientPolicySpec>, Arc<ClientSettings>)> {
        let ObjectMeta { namespace, name, .. } = &gateway.metadata;
        self.attachments.find((namespace, name, listener)).map(|place| &self.policies[place])
    }
}

/// A policy that asks to be attached.
struct PolicyAttachmentRequest<'a, 'p, S> {
    policy: &'p PolicyObject<'a, S>,
    /// Its place among those of its kind.
    place: usize,
    target_kind: &'static str,
    /// What in it cannot be. All else of it applies: without its cap, say, an endpoint would drown for a slip elsewhere.
    faults: Vec<ValidationFault>,
    /// What its status says besides, where it holds.
    warning: Option<ConditionType>,
    /// What it allows at each endpoint.
    slots: Option<u32>,
}

impl<'a, S> PolicyAttachmentRequest<'a, '_, S> {
    /// Attaches the policy to each of its targets that exists and that no older policy has taken.
    fn attach(
        &self,
        references: impl Iterator<Item = PolicyTargetRef<'a>>,
        attached: &mut PolicyAttachments<'a>,
        report: &mut TranslationReport,
        find: impl Fn(&PolicyTargetRef<'a>) -> Result<(), (&'static str, String)>,
    ) {
        let owner = self.policy.owner;
        self.faults.iter().for_each(|fault| report.owner_fault(owner, fault));
        let mut statuses = Vec::new();
        for (n, reference) in references.enumerate() {
            let fault = self.attach_to(n, &reference, attached, &find).err();
            let slots = self.slots.filter(|_| fault.is_none());
            fault.iter().for_each(|fault| report.owner_fault(owner, fault));
            let fault = fault.or_else(|| self.fault());
            let accepted =
                condition(ConditionType::Accepted, ConditionReason::Accepted, fault.as_ref());
            let warning = self
                .warning
                .map(|it| StatusCondition::yes(it, ConditionReason::ConfigurationChanged));
            statuses.push(TargetStatus {
                kind: self.target_kind,
                namespace: owner.metadata.namespace.clone(),
                name: reference.name.to_owned(),
                section_name: reference.section.map(str::to_owned),
                slots,
                conditions: iter::once(accepted).chain(warning).collect(),
            });
        }
        report.owner_status(owner, StatusDetail::Policy(statuses));
    }

    fn attach_to(
        &self,
        number: usize,
        reference: &PolicyTargetRef<'a>,
        attached: &mut PolicyAttachments<'a>,
        find: impl Fn(&PolicyTargetRef<'a>) -> Result<(), (&'static str, String)>,
    ) -> Result<(), ValidationFault> {
        let OwnerObject { kind, metadata, .. } = self.policy.owner;
        let field = format!("spec.targetRefs[{number}]");
        find(reference).map_err(|(part, message)| {
            ValidationFault::new(
                ConditionReason::TargetNotFound,
                format!("{field}.{part}"),
                message,
            )
        })?;
        let target = (&*metadata.namespace, reference.name, reference.section);
        attached.attach(target, self.place, &metadata.name).map_err(|older| {
            let message = format!("{kind} {older} has this target and is older");
            ValidationFault::new(ConditionReason::Conflicted, field, message)
        })
    }

    /// What a status says is wrong with the policy itself. There, the message alone says which field it is about.
    fn fault(&self) -> Option<ValidationFault> {
        let unread = self.policy.invalid_object;
        let unread = unread.map(|it| format!("{}; the other parts of the spec apply", it.message));
        let with_field = |fault: &ValidationFault| {
            format!("{}: {}; all else applies", fault.field, fault.message)
        };
        let message = unread.or_else(|| self.faults.first().map(with_field))?;
        Some(ValidationFault::new(ConditionReason::Invalid, "", message))
    }
}

/// Whether what is to be spoken is encrypted, a BackendTLSPolicy says, or that anybody is believed; the two must agree.
fn protocol_fault(
    policy: &PolicyObject<'_, BackendPolicySpec>,
    tls: &BackendTlsPolicies<'_>,
) -> Option<ValidationFault> {
    let namespace = &policy.owner.metadata.namespace;
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
    Some(ValidationFault::new(ConditionReason::Invalid, "spec.protocol", message))
}

/// Where a BackendTLSPolicy says whom to believe, nobody else is.
fn verification_fault(
    policy: &PolicyObject<'_, BackendPolicySpec>,
    tls: &BackendTlsPolicies<'_>,
) -> Option<ValidationFault> {
    let namespace = &policy.owner.metadata.namespace;
    let mut targets = policy.spec.target_refs.iter();
    let target = targets
        .find(|target| covers(tls, namespace, target))
        .filter(|_| policy.spec.tls.insecure_skip_verify)?;
    let message =
        format!("there is a BackendTLSPolicy for Service {}: what it says holds", target.name);
    Some(ValidationFault::new(ConditionReason::Invalid, "spec.tls.insecureSkipVerify", message))
}

fn covers(tls: &BackendTlsPolicies<'_>, namespace: &str, target: &ServiceTarget) -> bool {
    tls.covers(namespace, &target.name, target.section_name.as_deref())
}

fn service_reference(target: &ServiceTarget) -> PolicyTargetRef<'_> {
    PolicyTargetRef { name: &target.name, section: target.section_name.as_deref() }
}

fn gateway_reference(target: &GatewayTarget) -> PolicyTargetRef<'_> {
    PolicyTargetRef { name: &target.name, section: target.section_name.as_deref() }
}

pub(super) fn find_service(
    index: &ObjectIndex<'_>,
    namespace: &str,
    reference: &PolicyTargetRef<'_>,
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
    index: &ObjectIndex<'_>,
    namespace: &str,
    reference: &PolicyTargetRef<'_>,
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
