//! The TLS of listeners: with what connections are decrypted, and what clients must show.

use std::sync::Arc;

use super::index::ObjectIndex;
use super::owner::OwnerObject;
use super::reference::{CertificateRefResolver, ReferenceReasons};
use super::{TranslationReport, ValidationFault};
use crate::objects::{
    self, FrontendValidation, FrontendValidationMode, GatewaySpec, TlsModeType, TypedObject,
};
use crate::snapshot::{ClientCertificates, TlsCertificate, TlsTermination};
use crate::status::ConditionReason;

const CERTIFICATE: ReferenceReasons = ReferenceReasons {
    kind: ConditionReason::InvalidCertificateRef,
    target: ConditionReason::InvalidCertificateRef,
};
const AUTHORITY: ReferenceReasons = ReferenceReasons {
    kind: ConditionReason::InvalidCACertificateKind,
    target: ConditionReason::InvalidCACertificateRef,
};
const CLIENT_CERTIFICATE: ReferenceReasons = ReferenceReasons {
    kind: ConditionReason::InvalidClientCertificateRef,
    target: ConditionReason::InvalidClientCertificateRef,
};

/// With what the connections of a listener are decrypted.
#[derive(Clone, Debug)]
pub(super) enum ListenerTlsMode {
    Terminate(Arc<TlsTermination>),
    Passthrough,
}

/// What comes of a listener's TLS.
#[derive(Default)]
pub(super) struct ListenerTlsResult {
    /// None if it cannot be served.
    pub(super) tls_mode: Option<ListenerTlsMode>,
    /// Why it is not accepted.
    pub(super) fault: Option<ValidationFault>,
    /// References that lead nowhere.
    pub(super) unresolved: Vec<ValidationFault>,
}

/// The TLS of one listener of a Gateway, in the making.
pub(super) struct ListenerTlsBuilder<'a> {
    pub(super) index: &'a ObjectIndex<'a>,
    pub(super) gateway: &'a TypedObject<GatewaySpec>,
    /// Whose the listener is.
    pub(super) owner: OwnerObject<'a>,
    /// Its place among the owner's listeners.
    pub(super) place: usize,
    pub(super) listener: &'a objects::ListenerSpec,
    pub(super) is_https: bool,
}

impl ListenerTlsBuilder<'_> {
    /// What comes of it; all that is wrong with references is reported, what else is wrong is not yet.
    pub(super) fn build(&self, report: &mut TranslationReport) -> ListenerTlsResult {
        let mut made = ListenerTlsResult::default();
        let Some(tls) = &self.listener.tls else {
            made.fault = Some(self.refusal("tls", "is missing: give it certificateRefs"));
            return made;
        };
        if !tls.options.is_empty() {
            made.fault = Some(self.refusal("tls.options", "are not supported"));
            return made;
        }
        match tls.mode {
            TlsModeType::Passthrough if self.is_https => {
                let message = "Passthrough is for the protocol TLS: nobody could read the requests";
                made.fault = Some(self.refusal("tls.mode", message));
            }
            TlsModeType::Passthrough => made.tls_mode = Some(ListenerTlsMode::Passthrough),
            TlsModeType::Terminate if tls.certificate_refs.is_empty() => {
                made.fault = Some(self.refusal("tls.certificateRefs", "is empty"));
            }
            TlsModeType::Terminate => self.terminate(tls, &mut made, report),
        }
        made
    }

    fn terminate(
        &self,
        tls: &objects::ListenerTlsConfig,
        made: &mut ListenerTlsResult,
        report: &mut TranslationReport,
    ) {
        let holder = CertificateRefResolver { index: self.index, owner: self.owner };
        let mut certificates = Vec::new();
        for (n, reference) in tls.certificate_refs.iter().enumerate() {
            let field = self.field(&format!("tls.certificateRefs[{n}]"));
            match holder.certificate(reference, &field, CERTIFICATE, report) {
                Ok(certificate) => certificates.push(certificate),
                Err(fault) => made.unresolved.push(fault),
            }
        }
        let clients = match self.validation() {
            None => None,
            Some((validation, field)) => {
                let clients = self.clients(validation, &field, made, report);
                if clients.is_none() {
                    let message = "there is no certificate of an authority to check clients by";
                    made.fault = Some(ValidationFault::new(
                        ConditionReason::NoValidCACertificate,
                        field,
                        message,
                    ));
                    return;
                }
                clients
            }
        };
        if !certificates.is_empty() {
            made.tls_mode = Some(ListenerTlsMode::Terminate(Arc::new(TlsTermination {
                certificates,
                clients,
            })));
        }
    }

    /// What is asked of clients, and where that stands. Gateway API has it for HTTPS alone.
    fn validation(&self) -> Option<(&FrontendValidation, String)> {
        let frontend =
            self.gateway.spec.tls.as_ref()?.frontend.as_ref().filter(|_| self.is_https)?;
        let mut ports = frontend.per_port.iter().enumerate();
        let (config, field) = match ports.find(|(_, it)| it.port == self.listener.port) {
            Some((n, it)) => (&it.tls, format!("spec.tls.frontend.perPort[{n}].tls.validation")),
            None => (&frontend.default, "spec.tls.frontend.default.validation".to_owned()),
        };
        Some((config.validation.as_ref()?, field))
    }

    /// None if no reference leads anywhere.
    fn clients(
        &self,
        validation: &FrontendValidation,
        field: &str,
        made: &mut ListenerTlsResult,
        report: &mut TranslationReport,
    ) -> Option<ClientCertificates> {
        let holder = certificate_resolver(self.index, self.gateway);
        let mut roots = Vec::new();
        for (n, reference) in validation.ca_certificate_refs.iter().enumerate() {
            let field = format!("{field}.caCertificateRefs[{n}]");
            match holder.authorities(reference.into(), &field, AUTHORITY, report) {
                Ok(more) => roots.extend(more),
                Err(fault) => made.unresolved.push(fault),
            }
        }
        let required = match validation.mode {
            FrontendValidationMode::AllowValidOnly => true,
            FrontendValidationMode::AllowInsecureFallback => false,
        };
        (!roots.is_empty()).then_some(ClientCertificates { roots, required })
    }

    fn field(&self, part: &str) -> String {
        format!("spec.listeners[{}].{part}", self.place)
    }

    fn refusal(&self, part: &str, message: &str) -> ValidationFault {
        ValidationFault::new(ConditionReason::UnsupportedValue, self.field(part), message)
    }
}

/// What a Gateway shows to endpoints that ask, if it shows anything.
pub(super) fn client_certificate(
    index: &ObjectIndex<'_>,
    gateway: &TypedObject<GatewaySpec>,
    report: &mut TranslationReport,
) -> Option<Result<Arc<TlsCertificate>, ValidationFault>> {
    let backend = gateway.spec.tls.as_ref()?.backend.as_ref()?;
    let reference = backend.client_certificate_ref.as_ref()?;
    let field = "spec.tls.backend.clientCertificateRef";
    Some(certificate_resolver(index, gateway).certificate(
        reference,
        field,
        CLIENT_CERTIFICATE,
        report,
    ))
}

/// Whether a Gateway lets clients in without a certificate that is believed, though it asks for one.
pub(super) fn is_insecure(gateway: &GatewaySpec) -> bool {
    let frontend = gateway.tls.as_ref().and_then(|tls| tls.frontend.as_ref());
    let configs = frontend.into_iter().flat_map(|frontend| {
        frontend.per_port.iter().map(|port| &port.tls).chain([&frontend.default])
    });
    let mut modes = configs.filter_map(|config| Some(config.validation.as_ref()?.mode));
    modes.any(|mode| mode == FrontendValidationMode::AllowInsecureFallback)
}

fn certificate_resolver<'a>(
    index: &'a ObjectIndex<'a>,
    gateway: &'a TypedObject<GatewaySpec>,
) -> CertificateRefResolver<'a> {
    CertificateRefResolver { index, owner: OwnerObject::of("Gateway", gateway) }
}
