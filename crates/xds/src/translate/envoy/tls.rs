//! TLS of Envoys to endpoints. They get the authorities of the policy, as they have no certificates of their own.

use data_encoding::BASE64;
use gateway::snapshot::{EndpointTls, SubjectName, TrustAnchors};

use crate::message::{
    CertificateValidation, CommonTlsContext, DataSource, EndpointTlsContext, StringMatcher,
    SubjectAltNameMatcher, TransportSocket,
};
use crate::translate::tls::no_name;

/// The file with the authorities that a machine trusts, in Envoy's images and in Debian.
const SYSTEM_AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";
/// The length of the lines of PEM (RFC 7468).
const PEM_LINE: usize = 64;

/// Returns the settings for connections to endpoints that speak this protocol.
pub(super) fn endpoint_socket(tls: &EndpointTls, alpn_protocols: Vec<String>) -> TransportSocket {
    let context = CommonTlsContext {
        validation_context: Some(validation(tls)),
        alpn_protocols,
        ..CommonTlsContext::default()
    };
    EndpointTlsContext { common_tls_context: Some(context), sni: tls.server_name.to_string() }
        .into()
}

fn validation(tls: &EndpointTls) -> CertificateValidation {
    let system =
        || DataSource { filename: Some(SYSTEM_AUTHORITIES.to_owned()), ..DataSource::default() };
    let (trusted_ca, names) = match &tls.roots {
        TrustAnchors::AcceptAny => {
            return CertificateValidation {
                trust_chain_verification: CertificateValidation::ACCEPT_UNTRUSTED,
                ..CertificateValidation::default()
            };
        }
        // Without authorities an Envoy would accept every certificate.
        TrustAnchors::Given(roots) if roots.is_empty() => {
            (system(), vec![matcher(SubjectAltNameMatcher::DNS, no_name())])
        }
        TrustAnchors::System => (system(), accepted_names(tls)),
        TrustAnchors::Given(roots) => {
            let pem = roots.iter().map(|der| pem(der)).collect();
            let given = DataSource { inline_string: Some(pem), ..DataSource::default() };
            (given, accepted_names(tls))
        }
    };
    CertificateValidation {
        trusted_ca: Some(trusted_ca),
        match_typed_subject_alt_names: names,
        ..CertificateValidation::default()
    }
}

/// Returns the names of which the certificate of an endpoint must have one.
fn accepted_names(tls: &EndpointTls) -> Vec<SubjectAltNameMatcher> {
    let of_type = |san_type, name: &str| matcher(san_type, StringMatcher::equal_to(name));
    let name = |name: &SubjectName| match name {
        SubjectName::Dns(name) => of_type(SubjectAltNameMatcher::DNS, name),
        SubjectName::Uri(name) => of_type(SubjectAltNameMatcher::URI, name),
    };
    match &*tls.subject_names {
        [] => vec![of_type(SubjectAltNameMatcher::DNS, &tls.server_name)],
        names => names.iter().map(name).collect(),
    }
}

fn matcher(san_type: i32, matcher: StringMatcher) -> SubjectAltNameMatcher {
    SubjectAltNameMatcher { san_type, matcher: Some(matcher) }
}

/// Returns a certificate in PEM.
fn pem(der: &[u8]) -> String {
    let text = BASE64.encode(der);
    let lines = text.as_bytes().chunks(PEM_LINE).map(String::from_utf8_lossy);
    let lines: Vec<_> = lines.collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}
