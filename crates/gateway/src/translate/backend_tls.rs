//! BackendTLSPolicies: which connections to endpoints are encrypted, and whom they believe.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::index::{Index, by_age};
use super::listener::OurGateway;
use super::owner::Owner;
use super::policy::{Attached, Reference, find_service};
use super::reference::{Holder, Reasons};
use super::{Fault, Report, condition};
use crate::matching::HostPattern;
use crate::objects::{
    BackendTlsPolicySpec, BackendTlsTarget, Resource, SubjectAltName, SubjectAltNameType,
};
use crate::snapshot::{BackendKey, Certificate, EndpointTls, Roots, SubjectName};
use crate::status::{ConditionType, Detail, Reason, TargetStatus};

const KIND: &str = "BackendTLSPolicy";
const AUTHORITY: Reasons =
    Reasons { kind: Reason::InvalidKind, target: Reason::InvalidCACertificateRef };

/// Which Gateways lead to a backend, by their places; the first is the oldest.
pub(super) type Ancestors = BTreeMap<BackendKey, BTreeSet<usize>>;

/// The BackendTLSPolicies of Services and their ports.
pub(super) struct BackendTlsPolicies<'a> {
    attached: Attached<'a, BackendTlsPolicySpec>,
    /// In order of age.
    made: Vec<Made<'a>>,
}

/// What a policy comes to.
struct Made<'a> {
    policy: &'a Resource<BackendTlsPolicySpec>,
    tls: EndpointTls,
    /// Why it is not accepted.
    fault: Option<Fault>,
    /// References that lead nowhere.
    unresolved: Vec<Fault>,
}

/// Every BackendTLSPolicy at its targets.
pub(super) fn backend_tls_policies<'a>(
    index: &Index<'a>,
    report: &mut Report,
) -> BackendTlsPolicies<'a> {
    let mut policies = BackendTlsPolicies { attached: Attached(BTreeMap::new()), made: Vec::new() };
    for policy in by_age(&index.backend_tls_policies) {
        let mut made = make(index, policy, report);
        let mut faults = validation_faults(&policy.spec);
        if !faults.is_empty() {
            made.tls.roots = Roots::Given(Vec::new());
        }
        for (n, target) in policy.spec.target_refs.iter().enumerate() {
            faults.extend(policies.attach(index, policy, n, target).err());
        }
        faults.iter().for_each(|fault| report.fault(KIND, policy, fault));
        let fault = faults.into_iter().next();
        made.fault = fault.or(made.fault);
        policies.made.push(made);
    }
    policies
}

impl<'a> BackendTlsPolicies<'a> {
    fn attach(
        &mut self,
        index: &Index<'_>,
        policy: &'a Resource<BackendTlsPolicySpec>,
        place: usize,
        target: &'a BackendTlsTarget,
    ) -> Result<(), Fault> {
        let field = format!("spec.targetRefs[{place}]");
        let missing = |part: &str, message: String| {
            Fault::new(Reason::TargetNotFound, format!("{field}.{part}"), message)
        };
        if !target.group.is_empty() || target.kind != "Service" {
            let message = format!("{} is not supported, only Service", target.kind);
            return Err(missing("kind", message));
        }
        let namespace = &policy.metadata.namespace;
        let reference = Reference { name: &target.name, section: target.section_name.as_deref() };
        find_service(index, namespace, &reference)
            .map_err(|(part, message)| missing(part, message))?;
        let target = (&**namespace, reference.name, reference.section);
        if let Some(older) = self.attached.0.get(&target) {
            let message = format!("{KIND} {} has this target and is older", older.metadata.name);
            return Err(Fault::new(Reason::Conflicted, field, message));
        }
        self.attached.0.insert(target, policy);
        Ok(())
    }

    /// How connections to a backend are encrypted; `port` is the name of its Service's port.
    pub(super) fn find(
        &self,
        key: &BackendKey,
        port: Option<&str>,
        client: Option<Arc<Certificate>>,
    ) -> Option<Arc<EndpointTls>> {
        let policy = self.attached.find((&key.namespace, &key.service, port))?;
        let made = self.made.iter().find(|made| std::ptr::eq(made.policy, policy))?;
        Some(Arc::new(EndpointTls { client, ..made.tls.clone() }))
    }

    /// Whether connections to a Service, or to one of its ports, are encrypted.
    pub(super) fn covers(&self, namespace: &str, service: &str, port: Option<&str>) -> bool {
        let is_meant = |&(of, name, section): &(&str, &str, Option<&str>)| {
            let same_port = port.is_none() || section.is_none() || section == port;
            (of, name) == (namespace, service) && same_port
        };
        self.attached.0.keys().any(is_meant)
    }

    /// What became of each policy, for each Gateway that leads to one of its targets.
    pub(super) fn statuses(
        &self,
        ancestors: &Ancestors,
        gateways: &[OurGateway<'_>],
        report: &mut Report,
    ) {
        for Made { policy, fault, unresolved, .. } in &self.made {
            let is_target = |key: &BackendKey| {
                let targets = &policy.spec.target_refs;
                *key.namespace == *policy.metadata.namespace
                    && targets.iter().any(|target| target.name == *key.service)
            };
            let keys = ancestors.iter().filter(|(key, _)| is_target(key));
            let places: BTreeSet<_> = keys.flat_map(|(_, places)| places).collect();
            let status = |place: &usize| {
                let metadata = &gateways[*place].object.metadata;
                let resolved = unresolved.first();
                TargetStatus {
                    kind: "Gateway",
                    namespace: metadata.namespace.clone(),
                    name: metadata.name.clone(),
                    section_name: None,
                    conditions: vec![
                        condition(ConditionType::Accepted, Reason::Accepted, fault.as_ref()),
                        condition(ConditionType::ResolvedRefs, Reason::ResolvedRefs, resolved),
                    ],
                }
            };
            let statuses = places.into_iter().map(status).collect();
            report.status(KIND, policy, Detail::Policy(statuses));
        }
    }
}

/// What a policy says. One that is wrong believes nobody, so that nothing is sent that somebody wanted encrypted.
fn make<'a>(
    index: &Index<'_>,
    policy: &'a Resource<BackendTlsPolicySpec>,
    report: &mut Report,
) -> Made<'a> {
    let validation = &policy.spec.validation;
    let holder = Holder { index, owner: Owner::of(KIND, policy) };
    let (mut roots, mut unresolved) = (Vec::new(), Vec::new());
    for (n, reference) in validation.ca_certificate_refs.iter().enumerate() {
        let field = format!("spec.validation.caCertificateRefs[{n}]");
        match holder.authorities(reference.into(), &field, AUTHORITY, report) {
            Ok(more) => roots.extend(more),
            Err(fault) => unresolved.push(fault),
        }
    }
    let is_system = validation.ca_certificate_refs.is_empty()
        && validation.well_known_ca_certificates.as_deref() == Some("System");
    let is_empty = roots.is_empty() && !unresolved.is_empty();
    let fault = is_empty.then(|| {
        let message = "none of the references leads to a certificate: no endpoint is believed";
        Fault::new(Reason::NoValidCACertificate, "spec.validation.caCertificateRefs", message)
    });
    let tls = EndpointTls {
        server_name: validation.hostname.trim_end_matches('.').into(),
        subject_names: validation.subject_alt_names.iter().filter_map(subject_name).collect(),
        roots: if is_system { Roots::System } else { Roots::Given(roots) },
        client: None,
    };
    Made { policy, tls, fault, unresolved }
}

/// Everything that cannot be, though each value alone is allowed.
fn validation_faults(spec: &BackendTlsPolicySpec) -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut refuse = |field: String, message: String| {
        faults.push(Fault::new(Reason::Invalid, format!("spec.{field}"), message));
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
            HostPattern::Below(name) => Some(SubjectName::Dns(format!("*.{name}").into())),
            HostPattern::Any => None,
        },
    }
}
