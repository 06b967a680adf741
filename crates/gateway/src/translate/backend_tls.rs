//! BackendTLSPolicies: TLS of connections to endpoints, and verification of their certificates.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::backend_transport::endpoint_tls;
use super::index::{BACKEND_TLS_POLICY as KIND, NamespacedName, ObjectIndex, sorted_by_age};
use super::listener::GatewayContext;
use super::owner::OwnerObject;
use super::policy::{PolicyAttachments, PolicyTargetRef, find_service};
use super::reference::{CertificateRefResolver, ReferenceReasons};
use super::report::{TranslationReport, ValidationFault, condition};
use crate::matching::HostPattern;
use crate::objects::{
    BackendTlsPolicySpec, InvalidObject, ObjectMeta, SubjectAltName, SubjectAltNameType,
    TypedObject,
};
use crate::snapshot::{BackendKey, EndpointTls, SubjectName, TlsCertificate, TrustAnchors};
use crate::status::{ConditionReason, ConditionType, StatusCondition, StatusDetail, TargetStatus};

const AUTHORITY: ReferenceReasons = ReferenceReasons {
    kind: ConditionReason::InvalidKind,
    target: ConditionReason::InvalidCACertificateRef,
};

/// The Gateways that route to each backend, by index; the first is the oldest.
pub(super) type BackendAncestors = BTreeMap<BackendKey, BTreeSet<usize>>;

/// The BackendTLSPolicies of Services and their ports.
pub(super) struct BackendTlsPolicies<'a> {
    attachments: PolicyAttachments<'a>,
    /// The policies, the oldest first.
    policies: Vec<ResolvedTlsPolicy<'a>>,
}

/// The settings and the status of a policy.
struct ResolvedTlsPolicy<'a> {
    policy: OwnerObject<'a>,
    /// The names of the target Services.
    services: Vec<&'a str>,
    /// `None` if the policy is invalid.
    tls: Option<EndpointTls>,
    /// Conditions of the policy, with `Accepted` first.
    conditions: Vec<StatusCondition>,
}

/// A valid or invalid BackendTLSPolicy.
enum TlsPolicySource<'a> {
    Valid(&'a TypedObject<BackendTlsPolicySpec>),
    Invalid(&'a TypedObject<InvalidObject>),
}

/// Returns every BackendTLSPolicy with its targets, including invalid ones, so that traffic that is meant to be
/// encrypted is never sent in clear text.
pub(super) fn backend_tls_policies<'a>(
    index: &ObjectIndex<'a>,
    report: &mut TranslationReport,
) -> BackendTlsPolicies<'a> {
    let read = index.backend_tls_policies.values().copied().map(TlsPolicySource::Valid);
    let refused = index.invalid_objects.iter().copied().filter(|it| it.spec.kind == KIND);
    let asked =
        sorted_by_age(read.chain(refused.map(TlsPolicySource::Invalid)), TlsPolicySource::metadata);
    let mut policies =
        BackendTlsPolicies { attachments: PolicyAttachments::default(), policies: Vec::new() };
    for asked in asked {
        let made = match asked {
            TlsPolicySource::Valid(policy) => policies.add_valid(index, policy, report),
            TlsPolicySource::Invalid(policy) => policies.add_invalid(index, policy, report),
        };
        policies.policies.push(made);
    }
    policies
}

impl<'a> TlsPolicySource<'a> {
    fn metadata(&self) -> &'a ObjectMeta {
        match self {
            Self::Valid(policy) => &policy.metadata,
            Self::Invalid(policy) => &policy.metadata,
        }
    }
}

impl<'a> BackendTlsPolicies<'a> {
    fn add_valid(
        &mut self,
        index: &ObjectIndex<'_>,
        policy: &'a TypedObject<BackendTlsPolicySpec>,
        report: &mut TranslationReport,
    ) -> ResolvedTlsPolicy<'a> {
        let owner = OwnerObject::of(KIND, policy);
        let (mut tls, fault, unresolved) = resolve_policy(index, policy, report);
        let mut faults = validation_faults(&policy.spec);
        if !faults.is_empty() {
            tls.roots = TrustAnchors::Given(Vec::new());
        }
        for (n, target) in policy.spec.target_refs.iter().enumerate() {
            let reference =
                PolicyTargetRef { name: &target.name, section: target.section_name.as_deref() };
            let attached = if target.group.is_empty() && target.kind == "Service" {
                self.attach(index, owner, n, &reference)
            } else {
                let message = format!("{} is not supported, only Service", target.kind);
                let field = format!("spec.targetRefs[{n}].kind");
                Err(ValidationFault::new(ConditionReason::TargetNotFound, field, message))
            };
            faults.extend(attached.err());
        }
        faults.iter().for_each(|fault| report.owner_fault(owner, fault));
        let fault = faults.into_iter().next().or(fault);
        let (resolved, unresolved) = (ConditionType::ResolvedRefs, unresolved.first());
        ResolvedTlsPolicy {
            policy: owner,
            services: policy.spec.target_refs.iter().map(|target| &*target.name).collect(),
            tls: Some(tls),
            conditions: vec![
                condition(ConditionType::Accepted, ConditionReason::Accepted, fault.as_ref()),
                condition(resolved, ConditionReason::ResolvedRefs, unresolved),
            ],
        }
    }

    /// Attaches an invalid policy to its targets. It trusts no certificate.
    fn add_invalid(
        &mut self,
        index: &ObjectIndex<'_>,
        policy: &'a TypedObject<InvalidObject>,
        report: &mut TranslationReport,
    ) -> ResolvedTlsPolicy<'a> {
        let owner = OwnerObject::of(KIND, policy);
        for (n, target) in policy.spec.services().enumerate() {
            let reference =
                PolicyTargetRef { name: &target.name, section: target.section_name.as_deref() };
            let attached = self.attach(index, owner, n, &reference);
            attached.err().iter().for_each(|fault| report.owner_fault(owner, fault));
        }
        let message = format!("{}; no endpoint is trusted", policy.spec.message);
        ResolvedTlsPolicy {
            policy: owner,
            services: policy.spec.services().map(|target| &*target.name).collect(),
            tls: None,
            conditions: vec![StatusCondition::no(
                ConditionType::Accepted,
                ConditionReason::Invalid,
                message,
            )],
        }
    }

    fn attach(
        &mut self,
        index: &ObjectIndex<'_>,
        policy: OwnerObject<'a>,
        number: usize,
        reference: &PolicyTargetRef<'a>,
    ) -> Result<(), ValidationFault> {
        let (namespace, name) = policy.name();
        let field = format!("spec.targetRefs[{number}]");
        find_service(index, namespace, reference).map_err(|(part, message)| {
            ValidationFault::new(
                ConditionReason::TargetNotFound,
                format!("{field}.{part}"),
                message,
            )
        })?;
        let target = (namespace, reference.name, reference.section);
        self.attachments.attach(target, self.policies.len(), name).map_err(|older| {
            let message = format!("{KIND} {older} has this target and is older");
            ValidationFault::new(ConditionReason::Conflicted, field, message)
        })
    }

    /// Returns the TLS of connections to a backend; `port` is the name of the Service port.
    pub(super) fn find(
        &self,
        key: &BackendKey,
        port: Option<&str>,
        client: Option<Arc<TlsCertificate>>,
    ) -> Option<Arc<EndpointTls>> {
        let made = &self.policies[self.attachments.find((&key.namespace, &key.service, port))?];
        let trusts_none = || endpoint_tls(TrustAnchors::Given(Vec::new()), key);
        let tls = made.tls.clone().unwrap_or_else(trusts_none);
        Some(Arc::new(EndpointTls { client, ..tls }))
    }

    /// True if connections to a port of a Service are encrypted, by a policy for it or for the whole Service.
    pub(super) fn find_port(&self, namespace: &str, service: &str, port: &str) -> bool {
        self.attachments.find((namespace, service, Some(port))).is_some()
    }

    /// True if connections to a Service, or to one of its ports, are encrypted.
    pub(super) fn covers(&self, namespace: &str, service: &str, port: Option<&str>) -> bool {
        self.attachments.covers(namespace, service, port)
    }

    /// Reports the status of each policy, for each Gateway that routes to one of its targets.
    pub(super) fn statuses(
        &self,
        ancestors: &BackendAncestors,
        gateways: &[GatewayContext<'_>],
        report: &mut TranslationReport,
    ) {
        let mut by_service: BTreeMap<NamespacedName<'_>, BTreeSet<usize>> = BTreeMap::new();
        for (key, places) in ancestors {
            by_service.entry((&key.namespace, &key.service)).or_default().extend(places);
        }
        for ResolvedTlsPolicy { policy, services, conditions, .. } in &self.policies {
            let (namespace, _) = policy.name();
            let places =
                services.iter().filter_map(|service| by_service.get(&(namespace, service)));
            let places: BTreeSet<_> = places.flatten().collect();
            let status = |place: &usize| {
                let metadata = &gateways[*place].object.metadata;
                TargetStatus {
                    kind: "Gateway",
                    namespace: metadata.namespace.clone(),
                    name: metadata.name.clone(),
                    section_name: None,
                    slots: None,
                    conditions: conditions.clone(),
                }
            };
            let statuses = places.into_iter().map(status).collect();
            report.owner_status(*policy, StatusDetail::Policy(statuses));
        }
    }
}

/// Returns the TLS settings of a policy, why it is not accepted, and the unresolved references. A policy that is in
/// error trusts no certificate, so that traffic that is meant to be encrypted is never sent in clear text.
fn resolve_policy(
    index: &ObjectIndex<'_>,
    policy: &TypedObject<BackendTlsPolicySpec>,
    report: &mut TranslationReport,
) -> (EndpointTls, Option<ValidationFault>, Vec<ValidationFault>) {
    let validation = &policy.spec.validation;
    let resolver = CertificateRefResolver { index, owner: OwnerObject::of(KIND, policy) };
    let (mut roots, mut unresolved) = (Vec::new(), Vec::new());
    for (n, reference) in validation.ca_certificate_refs.iter().enumerate() {
        let field = format!("spec.validation.caCertificateRefs[{n}]");
        match resolver.authorities(reference.into(), &field, AUTHORITY, report) {
            Ok(more) => roots.extend(more),
            Err(fault) => unresolved.push(fault),
        }
    }
    let is_system = validation.ca_certificate_refs.is_empty()
        && validation.well_known_ca_certificates.as_deref() == Some("System");
    let is_empty = roots.is_empty() && !unresolved.is_empty();
    let fault = is_empty.then(|| {
        let message = "none of the references leads to a certificate: no endpoint is trusted";
        ValidationFault::new(
            ConditionReason::NoValidCACertificate,
            "spec.validation.caCertificateRefs",
            message,
        )
    });
    let tls = EndpointTls {
        server_name: validation.hostname.trim_end_matches('.').into(),
        subject_names: validation.subject_alt_names.iter().filter_map(subject_name).collect(),
        roots: if is_system { TrustAnchors::System } else { TrustAnchors::Given(roots) },
        client: None,
    };
    (tls, fault, unresolved)
}

/// Returns all contradictions between values that are allowed individually.
fn validation_faults(spec: &BackendTlsPolicySpec) -> Vec<ValidationFault> {
    let mut faults = Vec::new();
    let mut refuse = |field: String, message: String| {
        faults.push(ValidationFault::new(
            ConditionReason::Invalid,
            format!("spec.{field}"),
            message,
        ));
    };
    if !spec.options.is_empty() {
        refuse("options".to_owned(), "are not supported".to_owned());
    }
    let has_refs = !spec.validation.ca_certificate_refs.is_empty();
    let field = "validation.wellKnownCACertificates".to_owned();
    match spec.validation.well_known_ca_certificates.as_deref() {
        Some(_) if has_refs => refuse(field, "and `caCertificateRefs` exclude each other".into()),
        None if !has_refs => refuse(field, "or `caCertificateRefs` must be given".into()),
        Some(name) if name != "System" => {
            refuse(field, format!("{name} is not supported, only System"));
        }
        Some(_) | None => {}
    }
    for (n, name) in spec.validation.subject_alt_names.iter().enumerate() {
        let (part, other, given, surplus) = match name.kind {
            SubjectAltNameType::Hostname => {
                ("hostname", "uri", name.hostname.is_some(), name.uri.is_some())
            }
            SubjectAltNameType::Uri => {
                ("uri", "hostname", name.uri.is_some(), name.hostname.is_some())
            }
        };
        let field = |part: &str| format!("validation.subjectAltNames[{n}].{part}");
        if !given {
            refuse(field(part), "is missing".to_owned());
        }
        if surplus {
            refuse(field(other), "is not for this type".to_owned());
        }
    }
    faults
}

fn subject_name(name: &SubjectAltName) -> Option<SubjectName> {
    match name.kind {
        SubjectAltNameType::Uri => Some(SubjectName::Uri(name.uri.as_deref()?.into())),
        SubjectAltNameType::Hostname => match &name.hostname.as_ref()?.0 {
            HostPattern::Exact(name) => Some(SubjectName::Dns(name.clone())),
            HostPattern::Wildcard(name) => Some(SubjectName::Dns(format!("*.{name}").into())),
            HostPattern::Any => None,
        },
    }
}
