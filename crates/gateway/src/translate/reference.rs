//! References to certificates: checks permissions, and resolves them.

use std::sync::Arc;

use super::certificate::{self, BadValue};
use super::grant::permits;
use super::index::ObjectIndex;
use super::owner::OwnerObject;
use super::report::{TranslationReport, ValidationFault};
use crate::certificate_object::CertificateObject;
use crate::objects::{LocalRef, ObjectRef, TypedObject};
use crate::snapshot::TlsCertificate;
use crate::status::ConditionReason;

/// Resolves the certificate references of an object.
pub(super) struct CertificateRefResolver<'a> {
    pub(super) index: &'a ObjectIndex<'a>,
    pub(super) owner: OwnerObject<'a>,
}

/// Status reasons for a reference that cannot be resolved.
#[derive(Clone, Copy)]
pub(super) struct ReferenceReasons {
    /// The reason if the kind cannot hold certificates.
    pub(super) kind: ConditionReason,
    /// The reason if the object is missing or invalid.
    pub(super) target: ConditionReason,
}

/// A reference to an object, from either type of reference.
#[derive(Clone, Copy)]
pub(super) struct CertificateRef<'a> {
    group: &'a str,
    kind: &'a str,
    namespace: Option<&'a str>,
    name: &'a str,
}

impl<'a> CertificateRef<'a> {
    /// Parses the name of a Secret, perhaps after its namespace and `/`.
    pub(super) fn of_secret(text: &'a str) -> Option<Self> {
        let (namespace, name) = match text.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, text),
        };
        let is_valid = !name.is_empty() && !name.contains('/') && namespace != Some("");
        is_valid.then_some(Self { group: "", kind: "Secret", namespace, name })
    }
}

impl<'a> From<&'a ObjectRef> for CertificateRef<'a> {
    fn from(reference: &'a ObjectRef) -> Self {
        let ObjectRef { group, kind, namespace, name } = reference;
        let kind = kind.as_deref().unwrap_or("Secret");
        Self { group, kind, namespace: namespace.as_deref(), name }
    }
}

impl<'a> From<&'a LocalRef> for CertificateRef<'a> {
    fn from(LocalRef { group, kind, name }: &'a LocalRef) -> Self {
        Self { group, kind, namespace: None, name }
    }
}

impl CertificateRefResolver<'_> {
    /// Returns a certificate and its key. All errors are reported. `field` is the field path of the reference.
    pub(super) fn certificate(
        &self,
        reference: &ObjectRef,
        field: &str,
        reasons: ReferenceReasons,
        report: &mut TranslationReport,
    ) -> Result<Arc<TlsCertificate>, ValidationFault> {
        let name = CertificateRef::from(reference);
        let namespace = self.check(name, &["Secret"], field, reasons, report)?;
        let key = (namespace, name.name);
        let secret = self.index.secrets.get(&key).zip(self.index.certificates.get(&key));
        let Some((secret, cached)) = secret else {
            return Err(self.not_found(name, namespace, field, reasons, report));
        };
        match cached.get_or_init(|| certificate::of_secret(secret)) {
            Ok((certificate, validity)) => {
                report.certificate_validities.extend(validity.iter().cloned());
                Ok(Arc::clone(certificate))
            }
            Err(bad) => Err(invalid_value("Secret", secret, bad, field, reasons, report)),
        }
    }

    /// Returns CA certificates. All errors are reported. `field` is the field path of the reference.
    pub(super) fn authorities(
        &self,
        name: CertificateRef<'_>,
        field: &str,
        reasons: ReferenceReasons,
        report: &mut TranslationReport,
    ) -> Result<Vec<Box<[u8]>>, ValidationFault> {
        let namespace = self.check(name, &["ConfigMap", "Secret"], field, reasons, report)?;
        let key = (namespace, name.name);
        if name.kind == "Secret" {
            let Some(secret) = self.index.secrets.get(&key) else {
                return Err(self.not_found(name, namespace, field, reasons, report));
            };
            certificate::authorities_of_secret(secret)
                .map_err(|bad| invalid_value("Secret", secret, &bad, field, reasons, report))
        } else {
            let Some(map) = self.index.config_maps.get(&key) else {
                return Err(self.not_found(name, namespace, field, reasons, report));
            };
            certificate::authorities_of_map(map)
                .map_err(|bad| invalid_value("ConfigMap", map, &bad, field, reasons, report))
        }
    }

    /// Returns the referenced object, if it can hold certificates and the reference is permitted.
    pub(super) fn permitted_object(&self, name: CertificateRef<'_>) -> Option<CertificateObject> {
        let target = ConditionReason::InvalidCertificateRef;
        let reasons = ReferenceReasons { kind: target, target };
        let (kinds, report) = (["ConfigMap", "Secret"], &mut TranslationReport::default());
        let namespace = self.check(name, &kinds, "", reasons, report).ok()?;
        Some(CertificateObject::new(name.kind, namespace, name.name))
    }

    /// Returns the namespace of the referenced object, if the reference is permitted.
    fn check<'n>(
        &'n self,
        name: CertificateRef<'n>,
        kinds: &[&str],
        field: &str,
        reasons: ReferenceReasons,
        report: &mut TranslationReport,
    ) -> Result<&'n str, ValidationFault> {
        let CertificateRef { group, kind, .. } = name;
        if !group.is_empty() || !kinds.contains(&kind) {
            let wanted = kinds.join(" and ");
            let message = format!("{kind} of group \"{group}\" is not supported, only {wanted}");
            let fault = ValidationFault::new(reasons.kind, format!("{field}.kind"), message);
            return Err(self.report_once(fault, report));
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
            let fault = ValidationFault::new(
                ConditionReason::RefNotPermitted,
                format!("{field}.namespace"),
                message,
            );
            return Err(self.report_once(fault, report));
        }
        Ok(namespace)
    }

    fn not_found(
        &self,
        name: CertificateRef<'_>,
        namespace: &str,
        field: &str,
        reasons: ReferenceReasons,
        report: &mut TranslationReport,
    ) -> ValidationFault {
        let object = CertificateObject::new(name.kind, namespace, name.name);
        let message = self.index.absence(&object);
        self.report_once(
            ValidationFault::new(reasons.target, format!("{field}.name"), message),
            report,
        )
    }

    fn report_once(
        &self,
        fault: ValidationFault,
        report: &mut TranslationReport,
    ) -> ValidationFault {
        report.problem_once(self.owner.problem(&fault.field, &fault.message));
        fault
    }
}

/// Reports an invalid value at its own object, once, regardless of the number of references.
fn invalid_value<S>(
    kind: &str,
    object: &TypedObject<S>,
    bad: &BadValue,
    field: &str,
    reasons: ReferenceReasons,
    report: &mut TranslationReport,
) -> ValidationFault {
    let problem = object.problem(kind, &bad.field, &bad.message);
    let message = format!("{}: {} {}", problem.object, bad.field, bad.message);
    report.problem_once(problem);
    ValidationFault::new(reasons.target, field, message)
}
