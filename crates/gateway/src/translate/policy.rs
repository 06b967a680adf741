//! BackendPolicies and ClientPolicies: which policy applies to which target.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::iter;
use std::sync::Arc;

use super::backend_tls::BackendTlsPolicies;
use super::backend_transport::BackendTransport;
use super::index::{BACKEND_POLICY, ObjectIndex, ObjectsByName, sorted_by_age};
use super::listener::{ListenerContext, is_ours};
use super::owner::OwnerObject;
use super::report::{TranslationReport, ValidationFault, condition};
use super::revocation::{self, RevocationResult};
use super::settings::{backend_faults, backend_settings, client_faults, client_settings, http3};
use super::xds_servers;
use crate::objects::{
    BackendPolicySpec, BackendProtocol, ClientPolicySpec, GatewaySpec, GatewayTarget,
    InvalidObject, MaxInFlight, ObjectMeta, PartialPolicy, ServiceTarget, TypedObject,
};
use crate::snapshot::{
    BackendKey, BackendSettings, ClientSettings, Http3Settings, Listener, XdsServerAccess,
    XdsServerSettings,
};
use crate::status::{ConditionReason, ConditionType, StatusCondition, StatusDetail, TargetStatus};

/// The target of a policy: namespace, name, and section.
pub(super) type PolicyTargetKey<'a> = (&'a str, &'a str, Option<&'a str>);

/// The policy of each target: its index among all of its kind, and its name.
#[derive(Default)]
pub(super) struct PolicyAttachments<'a>(BTreeMap<PolicyTargetKey<'a>, (usize, &'a str)>);

/// A target reference of a policy.
pub(super) struct PolicyTargetRef<'a> {
    pub(super) name: &'a str,
    pub(super) section: Option<&'a str>,
}

impl<'a> PolicyAttachments<'a> {
    /// Attaches a policy to a target. If an older policy has the target, returns its name.
    pub(super) fn attach(
        &mut self,
        target: PolicyTargetKey<'a>,
        position: usize,
        policy: &'a str,
    ) -> Result<(), &'a str> {
        match self.0.entry(target) {
            Entry::Vacant(free) => _ = free.insert((position, policy)),
            Entry::Occupied(taken) => return Err(taken.get().1),
        }
        Ok(())
    }

    /// Returns the policy of the section, or else that of the whole object.
    pub(super) fn find(&self, (namespace, name, section): PolicyTargetKey<'_>) -> Option<usize> {
        let whole = || self.0.get(&(namespace, name, None));
        self.0.get(&(namespace, name, section)).or_else(whole).map(|(position, _)| *position)
    }

    /// Returns the policies of an object and of all its sections.
    fn of_object(&self, namespace: &str, name: &str) -> Vec<usize> {
        let from_here = self.0.range((namespace, name, None)..);
        let of_object = from_here.take_while(|((of, it, _), _)| (*of, *it) == (namespace, name));
        of_object.map(|(_, (position, _))| *position).collect()
    }

    /// True if a policy applies to the section or to the whole object; without a section, also if one applies to any
    /// section.
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
    /// The policies, the oldest first.
    policies: Vec<PolicyObject<'a, BackendPolicySpec>>,
}

/// The ClientPolicies of Gateways and their listeners.
pub(super) struct ClientPolicies<'a> {
    attachments: PolicyAttachments<'a>,
    /// The policies with their settings, the oldest first.
    policies: Vec<(PolicyObject<'a, ClientPolicySpec>, Arc<ClientSettings>)>,
    /// The revocation checks of the policies, in the same order.
    revocations: Vec<Option<RevocationResult>>,
    default: Arc<ClientSettings>,
}

/// A policy, or the valid part of one.
struct PolicyObject<'a, S> {
    owner: OwnerObject<'a>,
    spec: &'a S,
    /// The invalid object, if only a part of the policy is valid.
    invalid_object: Option<&'a InvalidObject>,
}

impl<'a, S> PolicyObject<'a, S> {
    /// Returns the policies of a kind, the oldest first.
    fn all(
        kind: &'static str,
        index: &ObjectIndex<'a>,
        whole: &ObjectsByName<'a, S>,
        partial: impl Fn(&'a PartialPolicy) -> Option<&'a S>,
    ) -> Vec<Self> {
        let whole = whole.values().map(|object| Self {
            owner: OwnerObject::of(kind, object),
            spec: &object.spec,
            invalid_object: None,
        });
        let invalid = index.invalid_objects.iter().filter_map(|object| {
            let spec = partial(object.spec.partial_policy.as_ref()?)?;
            Some(Self {
                owner: OwnerObject::of(kind, object),
                spec,
                invalid_object: Some(&object.spec),
            })
        });
        sorted_by_age(whole.chain(invalid), |it| it.owner.metadata)
    }
}

/// Attaches every BackendPolicy to its targets.
pub(super) fn backend_policies<'a>(
    index: &ObjectIndex<'a>,
    tls: &BackendTlsPolicies<'_>,
    report: &mut TranslationReport,
) -> BackendPolicies<'a> {
    let mut attached = PolicyAttachments::default();
    let policies =
        PolicyObject::all(BACKEND_POLICY, index, &index.backend_policies, |it| match it {
            PartialPolicy::Backend { spec, .. } => Some(&**spec),
            PartialPolicy::Client { .. } => None,
        });
    for (position, policy) in policies.iter().enumerate() {
        let PolicyObject { owner, spec, .. } = policy;
        let namespace = &*owner.metadata.namespace;
        let mut faults = backend_faults(spec);
        faults.extend(protocol_fault(policy, tls));
        faults.extend(xds_servers::faults(&spec.xds_servers, || {
            let mut targets = spec.target_refs.iter();
            spec.tls.insecure_skip_verify
                || targets.all(|it| covers_all_ports(index, tls, namespace, it))
        }));
        let verification = verification_fault(policy, tls);
        let is_plain = spec.protocol == Some(BackendProtocol::H2c);
        let is_insecure = spec.tls.insecure_skip_verify && !is_plain && verification.is_none();
        let warning = is_insecure.then_some(ConditionType::InsecureEndpoints);
        faults.extend(verification);
        let target_kind = "Service";
        let slots = match spec.max_in_flight_per_endpoint {
            Some(MaxInFlight::Number(slots)) => Some(slots),
            Some(MaxInFlight::Auto) | None => None,
        };
        let request =
            PolicyAttachmentRequest { policy, position, target_kind, faults, warning, slots };
        let targets = spec.target_refs.iter().map(service_reference);
        request.attach(targets, &mut attached, report, |reference| {
            find_service(index, namespace, reference)
        });
    }
    BackendPolicies { attachments: attached, policies }
}

/// Attaches every ClientPolicy to its targets.
pub(super) fn client_policies<'a>(
    index: &ObjectIndex<'a>,
    report: &mut TranslationReport,
) -> ClientPolicies<'a> {
    let mut attached = PolicyAttachments::default();
    let mut revocations = Vec::new();
    let policies =
        PolicyObject::all("ClientPolicy", index, &index.client_policies, |it| match it {
            PartialPolicy::Client { spec, .. } => Some(&**spec),
            PartialPolicy::Backend { .. } => None,
        });
    for (position, policy) in policies.iter().enumerate() {
        let PolicyObject { owner, spec, .. } = policy;
        let namespace = &*owner.metadata.namespace;
        let (target_kind, mut faults, warning) = ("Gateway", client_faults(spec), None);
        let revocation = match policy.lacks_revocation() {
            true => Some(revocation::unreadable()),
            false => revocation::read(index, namespace, spec),
        };
        // An invalid object has a fault already.
        let fault = revocation.as_ref().and_then(|it| it.as_ref().err());
        faults.extend(fault.filter(|_| policy.invalid_object.is_none()).cloned());
        revocations.push(revocation);
        let request =
            PolicyAttachmentRequest { policy, position, target_kind, faults, warning, slots: None };
        let targets = spec.target_refs.iter().map(gateway_reference);
        request.attach(targets, &mut attached, report, |reference| {
            find_gateway(index, namespace, reference)
        });
    }
    let with_settings = |policy: PolicyObject<'a, ClientPolicySpec>| {
        let settings = Arc::new(client_settings(policy.spec));
        (policy, settings)
    };
    let policies = policies.into_iter().map(with_settings).collect();
    ClientPolicies { attachments: attached, policies, revocations, default: Arc::default() }
}

impl BackendPolicies<'_> {
    /// True if a policy applies to a backend.
    pub(super) fn applies_to(&self, index: &ObjectIndex<'_>, key: &BackendKey) -> bool {
        self.find(index, key).is_some()
    }

    /// Returns the policy of a backend.
    pub(super) fn spec(
        &self,
        index: &ObjectIndex<'_>,
        key: &BackendKey,
    ) -> Option<&BackendPolicySpec> {
        self.find(index, key).map(|policy| policy.spec)
    }

    /// Returns the names and specs of the policies of a Service and of its ports.
    pub(super) fn of_service(
        &self,
        namespace: &str,
        service: &str,
    ) -> Vec<(&str, &BackendPolicySpec)> {
        let of_position = |position: usize| {
            let PolicyObject { owner, spec, .. } = &self.policies[position];
            (&*owner.metadata.name, *spec)
        };
        let positions = self.attachments.of_object(namespace, service);
        positions.into_iter().map(of_position).collect()
    }

    fn find(
        &self,
        index: &ObjectIndex<'_>,
        key: &BackendKey,
    ) -> Option<&PolicyObject<'_, BackendPolicySpec>> {
        let service = index.services.get(&(&*key.namespace, &*key.service)).map(|it| &it.spec);
        let mut ports = service.into_iter().flat_map(|service| &service.ports);
        let port = ports.find(|port| port.port == key.port).map(|port| &*port.name);
        let policy = self.attachments.find((&key.namespace, &key.service, port));
        policy.map(|position| &self.policies[position])
    }

    /// Returns the settings of a backend: from the policy of its port, else of its Service, else the defaults.
    pub(super) fn settings(
        &self,
        index: &ObjectIndex<'_>,
        key: &BackendKey,
        transport: BackendTransport,
    ) -> BackendSettings {
        let service = index.services.get(&(&*key.namespace, &*key.service)).map(|it| &it.spec);
        let policy = self.find(index, key);
        let settings_of =
            |it: &PolicyObject<'_, BackendPolicySpec>| backend_settings(it.spec, &key.namespace);
        let mut settings = policy.map_or_else(BackendSettings::default, settings_of);
        if policy.is_none_or(|policy| policy.spec.prefer_same_zone.is_none()) {
            let distribution = service.and_then(|service| service.traffic_distribution.as_deref());
            settings.prefers_same_zone = distribution.is_some_and(|distribution| {
                ["PreferSameZone", "PreferClose"].contains(&distribution)
            });
        }
        let transport = transport.with_policy(policy.map(|policy| policy.spec), key);
        let lacks_tls = policy.is_some_and(PolicyObject::lacks_tls);
        let transport = if lacks_tls { transport.require_tls(key) } else { transport };
        settings.protocol_is_assumed =
            index.settings.transparent.is_some() && transport.may_be_that_of_the_client();
        (settings.protocol, settings.tls) = (transport.protocol, transport.tls);
        settings
    }

    /// Returns the listener of a Service's own gRPC servers. `is_encrypted` is true if their clients use TLS.
    pub(super) fn xds_server(
        &self,
        index: &ObjectIndex<'_>,
        key: &BackendKey,
        is_encrypted: bool,
    ) -> XdsServerSettings {
        let policy = self.find(index, key);
        let servers = policy.map(|it| &it.spec.xds_servers);
        let mut settings = xds_servers::settings(servers, is_encrypted);
        // A policy whose targets cannot be read may be for these servers.
        let is_unreadable = || {
            let mut invalid = index.invalid_objects.iter().filter(|it| {
                it.spec.kind == BACKEND_POLICY
                    && it.spec.partial_policy.is_none()
                    && *it.metadata.namespace == *key.namespace
            });
            invalid.any(|it| it.spec.services().any(|target| *target.name == *key.service))
        };
        if policy.is_some_and(PolicyObject::lacks_xds_servers) || is_unreadable() {
            settings.access = XdsServerAccess::None;
        }
        settings
    }
}

impl PolicyObject<'_, BackendPolicySpec> {
    /// True if the TLS settings cannot be read.
    fn lacks_tls(&self) -> bool {
        matches!(self.partial_policy(), Some(PartialPolicy::Backend { lacks_tls: true, .. }))
    }

    /// True if the clients of servers cannot be read.
    fn lacks_xds_servers(&self) -> bool {
        let partial = self.partial_policy();
        matches!(partial, Some(PartialPolicy::Backend { lacks_xds_servers: true, .. }))
    }

    fn partial_policy(&self) -> Option<&PartialPolicy> {
        self.invalid_object.and_then(|refused| refused.partial_policy.as_ref())
    }
}

impl PolicyObject<'_, ClientPolicySpec> {
    /// True if the settings of revocation cannot be read.
    fn lacks_revocation(&self) -> bool {
        let partial = self.invalid_object.and_then(|refused| refused.partial_policy.as_ref());
        matches!(partial, Some(PartialPolicy::Client { lacks_revocation: true, .. }))
    }
}

impl ClientPolicies<'_> {
    /// Returns the settings for clients of a listener: from the policy of the listener, else of its Gateway, else the
    /// defaults.
    pub(super) fn settings(
        &self,
        gateway: &TypedObject<GatewaySpec>,
        listener: Option<&str>,
    ) -> &Arc<ClientSettings> {
        self.find(gateway, listener).map_or(&self.default, |(_, settings)| settings)
    }

    /// Returns the HTTP/3 settings of a listener from the same policy, or `None` if HTTP/3 is not enabled.
    pub(super) fn http3(
        &self,
        gateway: &TypedObject<GatewaySpec>,
        listener: Option<&str>,
    ) -> Option<Http3Settings> {
        self.find(gateway, listener).and_then(|(policy, _)| http3(policy.spec))
    }

    /// Returns the revocation check of a listener from the same policy, or `None` if it has none.
    pub(super) fn revocation(
        &self,
        gateway: &TypedObject<GatewaySpec>,
        listener: Option<&str>,
    ) -> Option<&RevocationResult> {
        let ObjectMeta { namespace, name, .. } = &gateway.metadata;
        self.revocations[self.attachments.find((namespace, name, listener))?].as_ref()
    }

    /// Reports that a listener's policy does not apply because an earlier listener has the same address and other
    /// settings.
    pub(super) fn report_shared_address(
        &self,
        gateway: &TypedObject<GatewaySpec>,
        listener: &ListenerContext<'_>,
        first: &Listener,
        report: &mut TranslationReport,
    ) {
        let Some((policy, _)) = self.find(gateway, listener.section()) else { return };
        let ListenerContext { owner, spec, .. } = listener;
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
        self.attachments.find((namespace, name, listener)).map(|position| &self.policies[position])
    }
}

/// A policy to attach to its targets.
struct PolicyAttachmentRequest<'a, 'p, S> {
    policy: &'p PolicyObject<'a, S>,
    /// Index among the policies of its kind.
    position: usize,
    target_kind: &'static str,
    /// Errors in the policy. All other fields apply: if an error elsewhere disabled the concurrency limit, for example,
    /// endpoints could be overloaded.
    faults: Vec<ValidationFault>,
    /// A warning for the status of a target that the policy applies to.
    warning: Option<ConditionType>,
    /// The limit of requests in flight at each endpoint.
    slots: Option<u32>,
}

impl<'a, S> PolicyAttachmentRequest<'a, '_, S> {
    /// Attaches the policy to each target that exists and has no older policy.
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
        attached.attach(target, self.position, &metadata.name).map_err(|older| {
            let message = format!("{kind} {older} has this target and is older");
            ValidationFault::new(ConditionReason::Conflicted, field, message)
        })
    }

    /// Returns the fault of the policy itself for its status. A status has no field path, so the message names the
    /// field.
    fn fault(&self) -> Option<ValidationFault> {
        let invalid = self.policy.invalid_object;
        let invalid =
            invalid.map(|it| format!("{}; the other parts of the spec apply", it.message));
        let with_field = |fault: &ValidationFault| {
            format!("{}: {}; all else applies", fault.field, fault.message)
        };
        let message = invalid.or_else(|| self.faults.first().map(with_field))?;
        Some(ValidationFault::new(ConditionReason::Invalid, "", message))
    }
}

/// Returns the fault of a protocol that contradicts the TLS settings: TLS is on if there is a BackendTLSPolicy or
/// verification is skipped.
fn protocol_fault(
    policy: &PolicyObject<'_, BackendPolicySpec>,
    tls: &BackendTlsPolicies<'_>,
) -> Option<ValidationFault> {
    let namespace = &policy.owner.metadata.namespace;
    let is_covered = |target: &&ServiceTarget| covers(tls, namespace, target);
    let lacks_tls = |target: &&ServiceTarget| {
        !policy.spec.tls.insecure_skip_verify && !covers(tls, namespace, target)
    };
    let mut targets = policy.spec.target_refs.iter();
    let message = match policy.spec.protocol? {
        BackendProtocol::H2 => {
            let target = targets.find(lacks_tls)?;
            format!("H2 needs a BackendTLSPolicy for Service {}: use H2C without TLS", target.name)
        }
        BackendProtocol::H2c => {
            let target = targets.find(is_covered)?;
            format!("there is a BackendTLSPolicy for Service {}: use H2 with TLS", target.name)
        }
        BackendProtocol::H3 => {
            let target = targets.find(lacks_tls)?;
            format!(
                "H3 needs a BackendTLSPolicy for Service {}: QUIC is always encrypted",
                target.name
            )
        }
        BackendProtocol::Http1 => return None,
    };
    Some(ValidationFault::new(ConditionReason::Invalid, "spec.protocol", message))
}

/// Returns the fault of a policy that skips verification although a BackendTLSPolicy requires it.
fn verification_fault(
    policy: &PolicyObject<'_, BackendPolicySpec>,
    tls: &BackendTlsPolicies<'_>,
) -> Option<ValidationFault> {
    let namespace = &policy.owner.metadata.namespace;
    let mut targets = policy.spec.target_refs.iter();
    let target = targets
        .find(|target| covers(tls, namespace, target))
        .filter(|_| policy.spec.tls.insecure_skip_verify)?;
    let message = format!("the BackendTLSPolicy for Service {} has precedence", target.name);
    Some(ValidationFault::new(ConditionReason::Invalid, "spec.tls.insecureSkipVerify", message))
}

fn covers(tls: &BackendTlsPolicies<'_>, namespace: &str, target: &ServiceTarget) -> bool {
    tls.covers(namespace, &target.name, target.section_name.as_deref())
}

/// True if there is a BackendTLSPolicy for each port that a target has.
fn covers_all_ports(
    index: &ObjectIndex<'_>,
    tls: &BackendTlsPolicies<'_>,
    namespace: &str,
    target: &ServiceTarget,
) -> bool {
    let service = index.services.get(&(namespace, &*target.name));
    match service.filter(|_| target.section_name.is_none()) {
        Some(service) => {
            let mut ports = service.spec.ports.iter();
            ports.all(|port| tls.find_port(namespace, &target.name, &port.name))
        }
        None => covers(tls, namespace, target),
    }
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

pub(super) fn find_gateway(
    index: &ObjectIndex<'_>,
    namespace: &str,
    reference: &PolicyTargetRef<'_>,
) -> Result<(), (&'static str, String)> {
    let Some(gateway) = index.gateways.get(&(namespace, reference.name)) else {
        return Err(("name", format!("there is no Gateway {namespace}/{}", reference.name)));
    };
    let class = index.classes.get(&("", &*gateway.spec.gateway_class_name));
    if class.is_none_or(|class| !is_ours(index, class)) {
        return Err((
            "name",
            format!("Gateway {namespace}/{} is not served by Sheave", reference.name),
        ));
    }
    match reference.section {
        Some(section) if gateway.spec.listeners.iter().all(|listener| listener.name != section) => {
            Err(("sectionName", format!("Gateway {} has no listener of this name", reference.name)))
        }
        Some(_) | None => Ok(()),
    }
}
