//! References to certificates: whether they may be followed, and what they lead to.

use std::sync::Arc;

use super::certificate::{self, BadValue};
use super::grant::permits;
use super::index::Index;
use super::owner::Owner;
use super::{Fault, Report};
use crate::objects::{LocalRef, ObjectRef, Resource};
use crate::snapshot::Certificate;
use crate::status::Reason;

/// Who refers to certificates.
pub(super) struct Holder<'a> {
    pub(super) index: &'a Index<'a>,
    pub(super) owner: Owner<'a>,
}

/// What a status says of a reference that leads nowhere.
#[derive(Clone, Copy)]
pub(super) struct Reasons {
    /// To something of a kind that holds no certificates.
    pub(super) kind: Reason,
    /// To something that is not there, or is broken.
    pub(super) target: Reason,
}

/// An object by its name, as references of both kinds have it.
#[derive(Clone, Copy)]
pub(super) struct Name<'a> {
    group: &'a str,
    kind: &'a str,
    namespace: Option<&'a str>,
    name: &'a str,
}

impl<'a> From<&'a ObjectRef> for Name<'a> {
    fn from(reference: &'a ObjectRef) -> Self {
        let ObjectRef { group, kind, namespace, name } = reference;
        let kind = kind.as_deref().unwrap_or("Secret");
        Self { group, kind, namespace: namespace.as_deref(), name }
    }
}

impl<'a> From<&'a LocalRef> for Name<'a> {
    fn from(LocalRef { group, kind, name }: &'a LocalRef) -> Self {
        Self { group, kind, namespace: None, name }
    }
}

impl Holder<'_> {
    /// A certificate and its key. All that is wrong is reported; `field` is where the reference stands.
    pub(super) fn certificate(
        &self,
        reference: &ObjectRef,
        field: &str,
        reasons: Reasons,
        report: &mut Report,
    ) -> Result<Arc<Certificate>, Fault> {
        let name = Name::from(reference);
        let namespace = self.check(name, &["Secret"], field, reasons, report)?;
        let place = (namespace, name.name);
        let secret = self.index.secrets.get(&place).zip(self.index.certificates.get(&place));
        let Some((secret, checked)) = secret else {
            return Err(self.absent(name, namespace, field, reasons, report));
        };
        match checked.get_or_init(|| certificate::of_secret(secret)) {
            Ok((certificate, dated)) => {
                report.dated.extend(dated.iter().cloned());
                Ok(Arc::clone(certificate))
            }
            Err(bad) => Err(broken("Secret", secret, bad, field, reasons, report)),
        }
    }

    /// The certificates of authorities. All that is wrong is reported; `field` is where the reference stands.
    pub(super) fn authorities(
        &self,
        name: Name<'_>,
        field: &str,
        reasons: Reasons,
        report: &mut Report,
    ) -> Result<Vec<Box<[u8]>>, Fault> {
        let namespace = self.check(name, &["ConfigMap", "Secret"], field, reasons, report)?;
        let place = (namespace, name.name);
        if name.kind == "Secret" {
            let Some(secret) = self.index.secrets.get(&place) else {
                return Err(self.absent(name, namespace, field, reasons, report));
            };
            certificate::authorities_of_secret(secret)
                .map_err(|bad| broken("Secret", secret, &bad, field, reasons, report))
        } else {
            let Some(map) = self.index.config_maps.get(&place) else {
                return Err(self.absent(name, namespace, field, reasons, report));
            };
            certificate::authorities_of_map(map)
                .map_err(|bad| broken("ConfigMap", map, &bad, field, reasons, report))
        }
    }

    /// The namespace in which to look, if the reference may be followed there.
    fn check<'n>(
        &'n self,
        name: Name<'n>,
        kinds: &[&str],
        field: &str,
        reasons: Reasons,
        report: &mut Report,
    ) -> Result<&'n str, Fault> {
        let Name { group, kind, .. } = name;
        if !group.is_empty() || !kinds.contains(&kind) {
            let wanted = kinds.join(" and ");
            let message = format!("{kind} of group \"{group}\" is not supported, only {wanted}");
            let fault = Fault::new(reasons.kind, format!("{field}.kind"), message);
            return Err(self.reported(fault, report));
        }
        let own = &self.owner.metadata.namespace;
        let namespace = name.namespace.unwrap_or(own);
        if namespace != own
            && !permits(self.index, (self.owner.kind, own), (kind, namespace, name.name))
        {
            let message = format!(
                "no ReferenceGrant of namespace {namespace} lets {}s of {own} use this {kind}",
                self.owner.kind
            );
            let fault = Fault::new(Reason::RefNotPermitted, format!("{field}.namespace"), message);
            return Err(self.reported(fault, report));
        }
        Ok(namespace)
    }

    fn absent(
        &self,
        name: Name<'_>,
        namespace: &str,
        field: &str,
        reasons: Reasons,
        report: &mut Report,
    ) -> Fault {
        let message = format!("there is no {} {namespace}/{}", name.kind, name.name);
        self.reported(Fault::new(reasons.target, format!("{field}.name"), message), report)
    }

    fn reported(&self, fault: Fault, report: &mut Report) -> Fault {
        report.once(self.owner.problem(&fault.field, &fault.message));
        fault
    }
}

/// What is broken is a problem of its own, once, however many refer to it.
fn broken<S>(
    kind: &str,
    object: &Resource<S>,
    bad: &BadValue,
    field: &str,
    reasons: Reasons,
    report: &mut Report,
) -> Fault {
    let problem = object.problem(kind, &bad.field, &bad.message);
    let message = format!("{}: {} {}", problem.object, bad.field, bad.message);
    report.once(problem);
    Fault::new(reasons.target, field, message)
}
