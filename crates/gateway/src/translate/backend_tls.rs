//! BackendTLSPolicies: which connections to endpoints are encrypted, and whom they believe.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::index::{BACKEND_TLS_POLICY as KIND, Index, Name, sorted_by_age};
use super::listener::OurGateway;
use super::owner::Owner;
use super::policy::{Attached, Reference, find_service};
use super::reference::{Holder, Reasons};
use super::speech::believing;
use super::{Fault, Report, condition};
use crate::matching::HostPattern;
use crate::objects::{
    BackendTlsPolicySpec, Metadata, RefusedSpec, Resource, SubjectAltName, SubjectAltNameType,
};
use crate::snapshot::{BackendKey, Certificate, EndpointTls, Roots, SubjectName};
use crate::status::{Condition, ConditionType, Detail, Reason, TargetStatus};

const AUTHORITY: Reasons =
    Reasons { kind: Reason::InvalidKind, target: Reason::InvalidCACertificateRef };

/// Which Gateways lead to a backend, by their places; the first is the oldest.
pub(super) type Ancestors = BTreeMap<BackendKey, BTreeSet<usize>>;

/// The BackendTLSPolicies of Services and their ports.
pub(super) struct BackendTlsPolicies<'a> {
    attached: Attached<'a>,
    /// In order of age.
    made: Vec<Made<'a>>,
}

/// What a policy comes to.
struct Made<'a> {
    policy: Owner<'a>,
    /// The names of its targets.
    services: Vec<&'a str>,
    /// None if nobody can read it.
    tls: Option<EndpointTls>,
    /// Whether it is accepted, and what else its status says.
    conditions: Vec<Condition>,
}

/// A BackendTLSPolicy, whether it can be read or not.
enum Asked<'a> {
    Read(&'a Resource<BackendTlsPolicySpec>),
    Refused(&'a Resource<RefusedSpec>),
}

/// Every BackendTLSPolicy at its targets, also those that cannot be read: nothing is sent in clear text that somebody
/// wanted encrypted.
pub(super) fn backend_tls_policies<'a>(
    index: &Index<'a>,
    report: &mut Report,
) -> BackendTlsPolicies<'a> {
    let read = index.backend_tls_policies.values().copied().map(Asked::Read);
    let refused = index.refused.iter().copied().filter(|it| it.spec.kind == KIND);
    let asked = sorted_by_age(read.chain(refused.map(Asked::Refused)), Asked::metadata);
    let mut policies = BackendTlsPolicies { attached: Attached::default(), made: Vec::new() };
    for asked in asked {
        let made = match asked {
            Asked::Read(policy) => policies.read(index, policy, report),
            Asked::Refused(policy) => policies.refused(index, policy, report),
        };
        policies.made.push(made);
    }
    policies
}

impl<'a> Asked<'a> {
    fn metadata(&self) -> &'a Metadata {
        match self {
            Self::Read(policy) => &policy.metadata,
            Self::Refused(policy) => &policy.metadata,
        }
    }
}

impl<'a> BackendTlsPolicies<'a> {
    fn read(
        &mut self,
        index: &Index<'_>,
        policy: &'a Resource<BackendTlsPolicySpec>,
        report: &mut Report,
    ) -> Made<'a> {
        let owner = Owner::of(KIND, policy);
        let (mut tls, fault, unresolved) = make(index, policy, report);
        let mut faults = validation_faults(&policy.spec);
        if !faults.is_empty() {
            tls.roots = Roots::Given(Vec::new());
        }
        for (n, target) in policy.spec.target_refs.iter().enumerate() {
            let reference =
                Reference { name: &target.name, section: target.section_name.as_deref() };
            let attached = if target.group.is_empty() && target.kind == "Service" {
                self.attach(index, owner, n, &reference)
            } else {
                let message = format!("{} is not supported, only Service", target.kind);
                let field = format!("spec.targetRefs[{n}].kind");
                Err(Fault::new(Reason::TargetNotFound, field, message))
            };
            faults.extend(attached.err());
        }
        faults.iter().for_each(|fault| report.owner_fault(owner, fault));
        let fault = faults.into_iter().next().or(fault);
        let (resolved, unresolved) = (ConditionType::ResolvedRefs, unresolved.first());
        Made {
            policy: owner,
            services: policy.spec.target_refs.iter().map(|target| &*target.name).collect(),
            tls: Some(tls),
            conditions: vec![
                condition(ConditionType::Accepted, Reason::Accepted, fault.as_ref()),
                condition(resolved, Reason::ResolvedRefs, unresolved),
            ],
        }
    }

    /// One that cannot be read has its targets all the same, and believes nobody.
    fn refused(
        &mut self,
        index: &Index<'_>,
        policy: &'a Resource<RefusedSpec>,
        report: &mut Report,
    ) -> Made<'a> {
        let owner = Owner::of(KIND, policy);
        for (n, target) in policy.spec.services().enumerate() {
            let reference =
                Reference { name: &target.name, section: target.section_name.as_deref() };
            let attached = self.attach(index, owner, n, &reference);
            attached.err().iter().for_each(|fault| report.owner_fault(owner, fault));
        }
        let message = format!("{}; no endpoint is believed", policy.spec.message);
        Made {
            policy: owner,
            services: policy.spec.services().map(|target| &*target.name).collect(),
            tls: None,
            conditions: vec![Condition::no(ConditionType::Accepted, Reason::Invalid, message)],
        }
    }

    fn attach(
        &mut self,
        index: &Index<'_>,
        policy: Owner<'a>,
        number: usize,
        reference: &Reference<'a>,
    ) -> Result<(), Fault> {
        let (namespace, name) = policy.name();
        let field = format!("spec.targetRefs[{number}]");
        find_service(index, namespace, reference).map_err(|(part, message)| {
            Fault::new(Reason::TargetNotFound, format!("{field}.{part}"), message)
        })?;
        let target = (namespace, reference.name, reference.section);
        self.attached.give(target, self.made.len(), name).map_err(|older| {
            let message = format!("{KIND} {older} has this target and is older");
            Fault::new(Reason::Conflicted, field, message)
        })
    }

    /// How connections to a backend are encrypted; `port` is the name of its Service's port.
    pub(super) fn find(
        &self,
        key: &BackendKey,
        port: Option<&str>,
        client: Option<Arc<Certificate>>,
    ) -> Option<Arc<EndpointTls>> {
        let made = &self.made[self.attached.find((&key.namespace, &key.service, port))?];
        let believing_nobody = || believing(Roots::Given(Vec::new()), key);
        let tls = made.tls.clone().unwrap_or_else(believing_nobody);
        Some(Arc::new(EndpointTls { client, ..tls }))
    }

    /// Whether connections to a Service, or to one of its ports, are encrypted.
    pub(super) fn covers(&self, namespace: &str, service: &str, port: Option<&str>) -> bool {
        self.attached.covers(namespace, service, port)
    }

    /// What became of each policy, for each Gateway that leads to one of its targets.
    pub(super) fn statuses(
        &self,
        ancestors: &Ancestors,
        gateways: &[OurGateway<'_>],
        report: &mut Report,
    ) {
        let mut leading: BTreeMap<Name<'_>, BTreeSet<usize>> = BTreeMap::new();
        for (key, places) in ancestors {
            leading.entry((&key.namespace, &key.service)).or_default().extend(places);
        }
        for Made { policy, services, conditions, .. } in &self.made {
            let (namespace, _) = policy.name();
            let places = services.iter().filter_map(|service| leading.get(&(namespace, service)));
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
            report.owner_status(*policy, Detail::Policy(statuses));
        }
    }
}

/// What a policy says, why it is not accepted, and the references that lead nowhere. One that is wrong believes nobody,
/// so that nothing is sent that somebody wanted encrypted.
fn make(
    index: &Index<'_>,
    policy: &Resource<BackendTlsPolicySpec>,
    report: &mut Report,
) -> (EndpointTls, Option<Fault>, Vec<Fault>) {
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
    (tls, fault, unresolved)
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
