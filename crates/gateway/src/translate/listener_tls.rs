//! The TLS of listeners: with what connections are decrypted, and what clients must show.

use std::sync::Arc;

use super::index::Index;
use super::owner::Owner;
use super::reference::{Holder, Reasons};
use super::{Fault, Report};
use crate::objects::{
    self, FrontendValidation, FrontendValidationMode, GatewaySpec, Resource, TlsMode,
};
use crate::snapshot::{Certificate, ClientCertificates, TlsTerms};
use crate::status::Reason;

const CERTIFICATE: Reasons =
    Reasons { kind: Reason::InvalidCertificateRef, target: Reason::InvalidCertificateRef };
const AUTHORITY: Reasons =
    Reasons { kind: Reason::InvalidCACertificateKind, target: Reason::InvalidCACertificateRef };
const CLIENT_CERTIFICATE: Reasons = Reasons {
    kind: Reason::InvalidClientCertificateRef,
    target: Reason::InvalidClientCertificateRef,
};

/// With what the connections of a listener are decrypted.
#[derive(Clone, Debug)]
pub(super) enum Terms {
    Terminate(Arc<TlsTerms>),
    Passthrough,
}

/// What comes of a listener's TLS.
#[derive(Default)]
pub(super) struct Made {
    /// None if it cannot be served.
    pub(super) terms: Option<Terms>,
    /// Why it is not accepted.
    pub(super) fault: Option<Fault>,
    /// References that lead nowhere.
    pub(super) unresolved: Vec<Fault>,
}

/// The TLS of one listener of a Gateway, in the making.
pub(super) struct Making<'a> {
    pub(super) index: &'a Index<'a>,
    pub(super) gateway: &'a Resource<GatewaySpec>,
    /// Whose the listener is.
    pub(super) owner: Owner<'a>,
    /// Its place among the owner's listeners.
    pub(super) place: usize,
    pub(super) listener: &'a objects::Listener,
    pub(super) is_https: bool,
}

impl Making<'_> {
    /// What comes of it; all that is wrong with references is reported, what else is wrong is not yet.
    pub(super) fn make(&self, report: &mut Report) -> Made {
        let mut made = Made::default();
        let Some(tls) = &self.listener.tls else {
            made.fault = Some(self.refusal("tls", "is missing: give it certificateRefs"));
            return made;
        };
        if !tls.options.is_empty() {
            made.fault = Some(self.refusal("tls.options", "are not supported"));
            return made;
        }
        match tls.mode {
            TlsMode::Passthrough if self.is_https => {
                let message = "Passthrough is for the protocol TLS: nobody could read the requests";
                made.fault = Some(self.refusal("tls.mode", message));
            }
            TlsMode::Passthrough => made.terms = Some(Terms::Passthrough),
            TlsMode::Terminate if tls.certificate_refs.is_empty() => {
                made.fault = Some(self.refusal("tls.certificateRefs", "is empty"));
            }
            TlsMode::Terminate => self.terminate(tls, &mut made, report),
        }
        made
    }

    fn terminate(&self, tls: &objects::ListenerTls, made: &mut Made, report: &mut Report) {
        let holder = Holder { index: self.index, owner: self.owner };
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
                    made.fault = Some(Fault::new(Reason::NoValidCACertificate, field, message));
                    return;
                }
                clients
            }
        };
        if !certificates.is_empty() {
            made.terms = Some(Terms::Terminate(Arc::new(TlsTerms { certificates, clients })));
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
        made: &mut Made,
        report: &mut Report,
    ) -> Option<ClientCertificates> {
        let holder = holder(self.index, self.gateway);
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

    fn refusal(&self, part: &str, message: &str) -> Fault {
        Fault::new(Reason::UnsupportedValue, self.field(part), message)
    }
}

/// What a Gateway shows to endpoints that ask, if it shows anything.
pub(super) fn client_certificate(
    index: &Index<'_>,
    gateway: &Resource<GatewaySpec>,
    report: &mut Report,
) -> Option<Result<Arc<Certificate>, Fault>> {
    let backend = gateway.spec.tls.as_ref()?.backend.as_ref()?;
    let reference = backend.client_certificate_ref.as_ref()?;
    let field = "spec.tls.backend.clientCertificateRef";
    Some(holder(index, gateway).certificate(reference, field, CLIENT_CERTIFICATE, report))
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

fn holder<'a>(index: &'a Index<'a>, gateway: &'a Resource<GatewaySpec>) -> Holder<'a> {
    Holder { index, owner: Owner::of("Gateway", gateway) }
}
