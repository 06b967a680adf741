//! TLS of gRPC clients and servers (gRFC A29): the certificates are those of their own bootstrap files, which name them
//! as [`CERTIFICATE_PROVIDER`](crate::bootstrap::CERTIFICATE_PROVIDER).

use gateway::snapshot::{EndpointTls, SubjectName, TrustAnchors};

use crate::bootstrap::CERTIFICATE_PROVIDER;
use crate::message::{
    CertificateProvider, CertificateValidation, CommonTlsContext, EndpointTlsContext, RegexMatcher,
    StringMatcher, TransportSocket,
};

/// A regular expression that matches no name of a certificate, as none is empty.
const NO_NAME: &str = "^$";

/// Returns the settings of a client for connections to endpoints.
pub(super) fn endpoint_socket(tls: &EndpointTls) -> TransportSocket {
    let validation = CertificateValidation {
        match_subject_alt_names: accepted_names(tls),
        ca_certificate_provider_instance: Some(certificate_provider()),
        ..CertificateValidation::default()
    };
    let common_tls_context = Some(tls_context(Some(validation)));
    EndpointTlsContext { common_tls_context, ..EndpointTlsContext::default() }.into()
}

/// Returns the names of which the certificate of an endpoint must have one; none if each is accepted.
fn accepted_names(tls: &EndpointTls) -> Vec<StringMatcher> {
    match &tls.roots {
        TrustAnchors::AcceptAny => return Vec::new(),
        TrustAnchors::Given(roots) if roots.is_empty() => {
            return vec![no_name()];
        }
        TrustAnchors::System | TrustAnchors::Given(_) => {}
    }
    let name = |name: &SubjectName| match name {
        SubjectName::Dns(name) | SubjectName::Uri(name) => StringMatcher::equal_to(name),
    };
    match &*tls.subject_names {
        [] => vec![StringMatcher::equal_to(&tls.server_name)],
        names => names.iter().map(name).collect(),
    }
}

pub(super) fn no_name() -> StringMatcher {
    let regex = RegexMatcher { regex: NO_NAME.to_owned() };
    StringMatcher { safe_regex: Some(regex), ..StringMatcher::default() }
}

/// Returns what clients and servers have: their own certificate, and the check of the other side's.
pub(super) fn tls_context(validation: Option<CertificateValidation>) -> CommonTlsContext {
    CommonTlsContext {
        validation_context: validation,
        tls_certificate_provider_instance: Some(certificate_provider()),
        ..CommonTlsContext::default()
    }
}

pub(super) fn certificate_provider() -> CertificateProvider {
    CertificateProvider { instance_name: CERTIFICATE_PROVIDER.to_owned() }
}
