//! TLS of listeners: certificates, and verification of client certificates.

use std::sync::Arc;

use super::client_options::ClientOptions;
use super::index::ObjectIndex;
use super::owner::OwnerObject;
use super::reference::{CertificateRefResolver, ReferenceReasons};
use super::report::{TranslationReport, ValidationFault};
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

/// The TLS mode of a listener.
#[derive(Clone, Debug)]
pub(super) enum ListenerTlsMode {
    Terminate(Arc<TlsTermination>),
    Passthrough,
}

/// The TLS of a listener, with its errors.
#[derive(Default)]
pub(super) struct ListenerTlsResult {
    /// The TLS mode; `None` if it cannot be served.
    pub(super) tls_mode: Option<ListenerTlsMode>,
    /// The reason why the listener is not accepted.
    pub(super) fault: Option<ValidationFault>,
    /// References that cannot be resolved.
    pub(super) unresolved: Vec<ValidationFault>,
    /// True if clients are asked for certificates, and another listener of the port might not ask.
    pub(super) asks_clients: bool,
}

/// Builds the TLS of one listener of a Gateway.
pub(super) struct ListenerTlsBuilder<'a> {
    pub(super) index: &'a ObjectIndex<'a>,
    pub(super) gateway: &'a TypedObject<GatewaySpec>,
    /// The Gateway or ListenerSet of the listener.
    pub(super) owner: OwnerObject<'a>,
    /// Index among the owner's listeners.
    pub(super) place: usize,
    pub(super) listener: &'a objects::ListenerSpec,
    pub(super) is_https: bool,
}

impl ListenerTlsBuilder<'_> {
    /// Builds the TLS. Unresolved references are reported here; the `fault` of the result is not.
    pub(super) fn build(&self, report: &mut TranslationReport) -> ListenerTlsResult {
        let asks_clients = self.asks_clients();
        let mut result = ListenerTlsResult { asks_clients, ..ListenerTlsResult::default() };
        let Some(tls) = &self.listener.tls else {
            result.fault = Some(self.refusal("tls", "is missing: set certificateRefs"));
            return result;
        };
        let options = match ClientOptions::parse(&tls.options) {
            Ok(options) => options,
            Err(message) => {
                result.fault = Some(self.refusal("tls.options", &message));
                return result;
            }
        };
        if options.is_some() && (!self.is_https || tls.mode == TlsModeType::Passthrough) {
            let message = "need protocol HTTPS, and TLS that is terminated";
            result.fault = Some(self.refusal("tls.options", message));
            return result;
        }
        match tls.mode {
            TlsModeType::Passthrough if self.is_https => {
                let message = "Passthrough needs protocol TLS: encrypted requests cannot be routed";
                result.fault = Some(self.refusal("tls.mode", message));
            }
            TlsModeType::Passthrough => result.tls_mode = Some(ListenerTlsMode::Passthrough),
            TlsModeType::Terminate if tls.certificate_refs.is_empty() => {
                result.fault = Some(self.refusal("tls.certificateRefs", "is empty"));
            }
            TlsModeType::Terminate => self.terminate(tls, options.as_ref(), &mut result, report),
        }
        result
    }

    fn terminate(
        &self,
        tls: &objects::ListenerTlsConfig,
        options: Option<&ClientOptions<'_>>,
        result: &mut ListenerTlsResult,
        report: &mut TranslationReport,
    ) {
        let resolver = CertificateRefResolver { index: self.index, owner: self.owner };
        let mut certificates = Vec::new();
        for (n, reference) in tls.certificate_refs.iter().enumerate() {
            let field = self.field(&format!("tls.certificateRefs[{n}]"));
            match resolver.certificate(reference, &field, CERTIFICATE, report) {
                Ok(certificate) => certificates.push(certificate),
                Err(fault) => result.unresolved.push(fault),
            }
        }
        // What a listener says of its hosts precedes what its Gateway says of the port, if both have one owner.
        let (clients, field) = match (options, self.validation()) {
            (Some(_), Some(_)) if self.owner.kind != "Gateway" => {
                let message = "are not for this port: its Gateway verifies client certificates";
                result.fault = Some(self.refusal("tls.options", message));
                return;
            }
            (Some(options), _) => {
                let field = self.field("tls.options");
                (self.clients_by_options(options, &field, result, report), field)
            }
            (None, Some((validation, field))) => {
                (self.clients(validation, &field, result, report), field)
            }
            (None, None) => (None, String::new()),
        };
        if clients.is_none() && !field.is_empty() {
            let message = "there is no CA certificate to verify clients with";
            let reason = ConditionReason::NoValidCACertificate;
            result.fault = Some(ValidationFault::new(reason, field, message));
            return;
        }
        if !certificates.is_empty() {
            result.tls_mode = Some(ListenerTlsMode::Terminate(Arc::new(TlsTermination {
                certificates,
                clients,
            })));
        }
    }

    /// True if clients are to be asked for certificates, and another listener of the port might ask for others, or for none.
    fn asks_clients(&self) -> bool {
        let has_options = |listener: &objects::ListenerSpec| {
            listener.tls.as_ref().is_some_and(|tls| ClientOptions::are_meant(&tls.options))
        };
        let of_port = self.gateway.spec.listeners.iter().filter(|it| it.port == self.listener.port);
        has_options(self.listener)
            || self.validation().is_some() && of_port.into_iter().any(has_options)
    }

    /// Returns the validation of client certificates, and its field path. Gateway API has it for HTTPS only.
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

    /// Returns the client certificate settings, or `None` if no reference can be resolved.
    fn clients(
        &self,
        validation: &FrontendValidation,
        field: &str,
        result: &mut ListenerTlsResult,
        report: &mut TranslationReport,
    ) -> Option<ClientCertificates> {
        let resolver = certificate_resolver(self.index, self.gateway);
        let mut roots = Vec::new();
        for (n, reference) in validation.ca_certificate_refs.iter().enumerate() {
            let field = format!("{field}.caCertificateRefs[{n}]");
            match resolver.authorities(reference.into(), &field, AUTHORITY, report) {
                Ok(more) => roots.extend(more),
                Err(fault) => result.unresolved.push(fault),
            }
        }
        let required = match validation.mode {
            FrontendValidationMode::AllowValidOnly => true,
            FrontendValidationMode::AllowInsecureFallback => false,
        };
        clients_of(roots, required, None)
    }

    /// Returns the client certificate settings of the listener's own options, or `None` if the Secret cannot be read.
    fn clients_by_options(
        &self,
        options: &ClientOptions<'_>,
        field: &str,
        result: &mut ListenerTlsResult,
        report: &mut TranslationReport,
    ) -> Option<ClientCertificates> {
        let ClientOptions { authority, required, max_intermediates } = *options;
        let resolver = CertificateRefResolver { index: self.index, owner: self.owner };
        match resolver.authorities(authority, field, AUTHORITY, report) {
            Ok(roots) => clients_of(roots, required, max_intermediates),
            Err(fault) => {
                result.unresolved.push(fault);
                None
            }
        }
    }

    fn field(&self, part: &str) -> String {
        format!("spec.listeners[{}].{part}", self.place)
    }

    fn refusal(&self, part: &str, message: &str) -> ValidationFault {
        ValidationFault::new(ConditionReason::UnsupportedValue, self.field(part), message)
    }
}

fn clients_of(
    roots: Vec<Box<[u8]>>,
    required: bool,
    max_intermediates: Option<u8>,
) -> Option<ClientCertificates> {
    let clients = ClientCertificates { roots, required, revocation: None, max_intermediates };
    (!clients.roots.is_empty()).then_some(clients)
}

/// Returns the certificate that a Gateway presents to endpoints, if it has one.
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

/// True if a Gateway validates client certificates but also accepts clients without a valid one.
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
