//! Client certificates: which requests need one, and the fields that tell endpoints of it.
//!
//! The certificate is that of the connection, which SNI selected the authorities for. A request for a host with other
//! authorities is not served on it: see [`tls::SniTable::is_misdirected`].

use codec::head::{FieldSection, ResponseHead};
use gateway::snapshot::{
    ClientCertificateAccess, ClientCertificateDetail, ClientCertificateMode, ForwardedCertificate,
    ForwardedCertificateMode, SslClientFields,
};
use tls::{ClientIdentity, TlsInfo};

use crate::failure::Failure;

const FORWARDED: &str = "X-Forwarded-Client-Cert";
/// The fields of ingress-nginx.
const VERIFY: &str = "ssl-client-verify";
const SUBJECT: &str = "ssl-client-subject-dn";
const ISSUER: &str = "ssl-client-issuer-dn";
const CERTIFICATE: &str = "ssl-client-cert";

/// Result of the check of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CertificateCheck {
    Admitted,
    /// The client is sent to another page.
    Redirected,
}

/// Checks the certificate of a request's client, and writes the fields about it. Those that the client has written are
/// removed, unless it is a trusted proxy.
pub(crate) fn check(
    access: &ClientCertificateAccess,
    tls_info: Option<&TlsInfo>,
    is_trusted: bool,
    fields: &mut FieldSection,
    response: &mut ResponseHead,
) -> Result<CertificateCheck, Failure> {
    let identity = tls_info.and_then(|it| it.client.as_ref());
    if !is_admitted(access.mode, identity) {
        let Some(page) = &access.error_page else { return Err(Failure::ClientCertificate) };
        response.clear();
        response.status = 302;
        response.fields.append("Location", page);
        return Ok(CertificateCheck::Redirected);
    }
    if let Some(forwarded) = &access.forward {
        write_forwarded(forwarded, identity, is_trusted, fields);
    }
    if let Some(extent) = access.ssl_client_fields {
        write_ssl_client_fields(extent, identity, fields);
    }
    Ok(CertificateCheck::Admitted)
}

fn is_admitted(mode: ClientCertificateMode, identity: Option<&ClientIdentity>) -> bool {
    let is_valid = |identity: &ClientIdentity| identity.fault().is_none();
    match mode {
        ClientCertificateMode::Required => identity.is_some_and(is_valid),
        ClientCertificateMode::ValidIfPresent => identity.is_none_or(is_valid),
        ClientCertificateMode::Any => true,
    }
}

/// Writes `X-Forwarded-Client-Cert` in the format of Envoy. Only a valid certificate has an element.
fn write_forwarded(
    forwarded: &ForwardedCertificate,
    identity: Option<&ClientIdentity>,
    is_trusted: bool,
    fields: &mut FieldSection,
) {
    let keeps = forwarded.mode == ForwardedCertificateMode::AppendForward && is_trusted;
    let mut elements: Vec<Vec<u8>> = Vec::new();
    if keeps {
        let is_it = |name: &[u8]| name.eq_ignore_ascii_case(FORWARDED.as_bytes());
        let earlier = fields.iter().filter(|(_, name, _)| is_it(name));
        elements.extend(earlier.map(|(.., value)| value.to_vec()));
    }
    fields.remove_spellings(FORWARDED.as_bytes());
    let identity = identity.filter(|it| it.fault().is_none());
    if let Some(identity) = identity
        && forwarded.mode != ForwardedCertificateMode::Sanitize
    {
        elements.push(element(&forwarded.details, identity).into_bytes());
    }
    if !elements.is_empty() {
        fields.append(FORWARDED, elements.join(&b","[..]));
    }
}

fn element(details: &[ClientCertificateDetail], identity: &ClientIdentity) -> String {
    let names = identity.names();
    let mut parts = Vec::new();
    for detail in details {
        match detail {
            ClientCertificateDetail::Hash => {
                parts.push(format!("Hash={}", identity.sha256()));
            }
            ClientCertificateDetail::Cert => {
                parts.push(format!("Cert=\"{}\"", identity.escaped_pem()));
            }
            // Envoy always quotes it.
            ClientCertificateDetail::Subject => {
                parts.push(format!("Subject={}", quoted(&names.subject)));
            }
            ClientCertificateDetail::Uri => {
                parts.extend(names.uris.iter().map(|uri| format!("URI={}", value(uri))));
            }
            ClientCertificateDetail::Dns => {
                parts.extend(names.dns.iter().map(|dns| format!("DNS={}", value(dns))));
            }
        }
    }
    parts.join(";")
}

/// Returns the value, quoted if it has a separator.
fn value(text: &str) -> String {
    if text.contains([',', ';', '=', '"', '\\']) { quoted(text) } else { text.to_owned() }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Writes the fields that ingress-nginx writes.
fn write_ssl_client_fields(
    extent: SslClientFields,
    identity: Option<&ClientIdentity>,
    fields: &mut FieldSection,
) {
    for name in [VERIFY, SUBJECT, ISSUER, CERTIFICATE] {
        fields.remove_spellings(name.as_bytes());
    }
    let Some(identity) = identity else { return fields.append(VERIFY, "NONE") };
    match identity.fault() {
        None => fields.append(VERIFY, "SUCCESS"),
        Some(fault) => fields.append(VERIFY, format!("FAILED:{fault}")),
    }
    let names = identity.names();
    for (name, text) in [(SUBJECT, &names.subject), (ISSUER, &names.issuer)] {
        if !text.is_empty() {
            fields.append(name, text);
        }
    }
    if extent == SslClientFields::NamesAndCertificate && !identity.der().is_empty() {
        fields.append(CERTIFICATE, identity.escaped_pem());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCESS: ClientCertificateAccess = ClientCertificateAccess {
        mode: ClientCertificateMode::Any,
        error_page: None,
        forward: None,
        ssl_client_fields: None,
    };

    fn checked(access: &ClientCertificateAccess, sent: &[&str], is_trusted: bool) -> Vec<String> {
        let (mut fields, mut response) = (FieldSection::new(), ResponseHead::new());
        sent.iter().for_each(|name| fields.append(name, "forged"));
        let result = check(access, None, is_trusted, &mut fields, &mut response);
        assert_eq!(result, Ok(CertificateCheck::Admitted));
        let line = |(_, name, value): (_, &[u8], &[u8])| {
            format!("{}: {}", String::from_utf8_lossy(name), String::from_utf8_lossy(value))
        };
        fields.iter().map(line).collect()
    }

    const FORGED: [&str; 6] = [
        "x_forwarded_client_cert",
        "X-Forwarded-Client-Cert",
        "SSL_Client-Verify",
        "ssl-client-subject-dn",
        "Ssl-Client-Issuer-Dn",
        "ssl_client_cert",
    ];

    #[test]
    fn fields_of_clients_are_removed_in_every_spelling() {
        let forward = ForwardedCertificate {
            mode: ForwardedCertificateMode::AppendForward,
            details: Vec::new(),
        };
        let ssl_client_fields = Some(SslClientFields::NamesAndCertificate);
        let access =
            ClientCertificateAccess { forward: Some(forward), ssl_client_fields, ..ACCESS };
        assert_eq!(checked(&access, &FORGED, false), ["ssl-client-verify: NONE"]);
        assert_eq!(
            checked(&access, &FORGED, true),
            ["X-Forwarded-Client-Cert: forged", "ssl-client-verify: NONE"]
        );
        let forward =
            ForwardedCertificate { mode: ForwardedCertificateMode::Sanitize, details: Vec::new() };
        let access = ClientCertificateAccess { forward: Some(forward), ..ACCESS };
        assert_eq!(checked(&access, &FORGED[..2], true), [""; 0]);
    }

    #[test]
    fn client_without_a_certificate_is_rejected_or_redirected() {
        let required = ClientCertificateAccess { mode: ClientCertificateMode::Required, ..ACCESS };
        let (mut fields, mut response) = (FieldSection::new(), ResponseHead::new());
        let rejected = check(&required, None, true, &mut fields, &mut response);
        assert_eq!(rejected, Err(Failure::ClientCertificate));
        let page = Some("https://example.com/help".to_owned());
        let required = ClientCertificateAccess { error_page: page, ..required };
        let redirected = check(&required, None, true, &mut fields, &mut response);
        assert_eq!(redirected, Ok(CertificateCheck::Redirected));
        assert_eq!(response.status, 302);
        assert_eq!(response.fields.get("location"), Some(&b"https://example.com/help"[..]));
    }

    #[test]
    fn separators_in_names_are_quoted() {
        assert_eq!(value("spiffe://a/b"), "spiffe://a/b");
        assert_eq!(value("http://a/;Hash=1,\"x\""), "\"http://a/;Hash=1,\\\"x\\\"\"");
    }
}
