//! TLS to endpoints: verification of their certificates.
//!
//! ingress-nginx: with `proxy-ssl-verify: on`, the certificate of an endpoint must be issued by `ca.crt` of the Secret
//! and have the name in `proxy-ssl-name`. The Secret also has the client certificate. Without the annotations no
//! certificate is verified.

use super::value::parse_switch;
use crate::matching::HostPattern;
use crate::objects::BackendPolicySpec;

/// An annotation about TLS to endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum EndpointTlsAnnotation {
    Name,
    Secret,
    Verifies,
}

/// Annotations about TLS to endpoints.
#[derive(Default)]
pub(super) struct EndpointTlsAnnotations {
    name: Option<String>,
    secret: Option<String>,
    verifies: bool,
}

/// Verification of the certificates of endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct EndpointVerification {
    /// The name of the Secret with CA certificates.
    pub(in super::super) secret: String,
    /// The name in the certificates; `None`: that of the Service.
    pub(in super::super) hostname: Option<String>,
}

impl EndpointTlsAnnotations {
    pub(super) fn add(
        &mut self,
        setting: EndpointTlsAnnotation,
        value: &str,
    ) -> Result<(), String> {
        match setting {
            EndpointTlsAnnotation::Name => {
                let is_host = matches!(HostPattern::parse(value), Ok(HostPattern::Exact(_)));
                if !is_host {
                    return Err(format!("must be a host in lower case, is {value}"));
                }
                self.name = Some(value.to_owned());
            }
            EndpointTlsAnnotation::Secret => self.secret = Some(value.to_owned()),
            EndpointTlsAnnotation::Verifies => self.verifies = parse_switch(value)?,
        }
        Ok(())
    }

    /// Returns the verification. If certificates are to be verified and cannot be, returns the reason.
    pub(super) fn verification(
        &self,
        namespace: &str,
        policy: &BackendPolicySpec,
    ) -> Result<Option<EndpointVerification>, String> {
        // Connections that are encrypted and not verified: the protocol is HTTPS or GRPCS.
        if !self.verifies || !policy.tls.insecure_skip_verify {
            return Ok(None);
        }
        let secret = self.secret.as_deref().ok_or("proxy-ssl-verify needs proxy-ssl-secret")?;
        let name = own_secret(secret, namespace);
        let name = name.ok_or("proxy-ssl-secret must be of the Ingress's namespace")?;
        Ok(Some(EndpointVerification { secret: name.to_owned(), hostname: self.name.clone() }))
    }

    /// Returns the annotations that have no effect, and the reasons.
    pub(super) fn ineffective(&self, policy: &BackendPolicySpec) -> Vec<&'static str> {
        let mut faults = Vec::new();
        if self.verifies && !policy.tls.insecure_skip_verify {
            faults.push("proxy-ssl-verify has no effect: `backend-protocol` is not HTTPS or GRPCS");
        }
        if !self.verifies && self.name.is_some() {
            faults.push("proxy-ssl-name has no effect without proxy-ssl-verify");
        }
        if !self.verifies && self.secret.is_some() {
            faults.push(
                "proxy-ssl-secret is not supported without proxy-ssl-verify: endpoints get no client \
                 certificate",
            );
        }
        faults
    }
}

/// Returns the name of a Secret in `namespace/name`, if it is of this namespace.
pub(in super::super) fn own_secret<'s>(reference: &'s str, namespace: &str) -> Option<&'s str> {
    let (of, name) = reference.split_once('/').unwrap_or((namespace, reference));
    (of == namespace && !name.is_empty()).then_some(name)
}
