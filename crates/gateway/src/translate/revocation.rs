//! Revocation of client certificates: the lists of a ClientPolicy, for the listeners that it applies to.
//!
//! It fails closed: a listener that requires certificates and whose lists cannot be read is not served, because it could
//! not tell revoked certificates from others. If it only requests them, none is valid.

use std::sync::Arc;

use super::certificate::{self, BadValue};
use super::index::ObjectIndex;
use super::listener::{GatewayContext, ListenerContext};
use super::listener_tls::ListenerTlsMode;
use super::policy::ClientPolicies;
use super::report::ValidationFault;
use crate::certificate_object::CertificateObject;
use crate::objects::{
    ClientPolicySpec, ClientRevocation, RevocationDepth, RevocationFallback, RevocationListKind,
    RevocationListRef,
};
use crate::snapshot::{ClientCertificates, RevocationCheck, TlsTermination};
use crate::status::ConditionReason;

/// The revocation check of a policy, or the reason why its lists cannot be read.
pub(super) type RevocationResult = Result<Arc<RevocationCheck>, ValidationFault>;

/// Reads the revocation lists of a policy in this namespace; returns `None` if it has no check.
pub(super) fn read(
    index: &ObjectIndex<'_>,
    namespace: &str,
    spec: &ClientPolicySpec,
) -> Option<RevocationResult> {
    let revocation = spec.revocation.as_ref()?;
    let ClientRevocation { crl_refs, depth, unknown_status, expired_lists } = revocation;
    let mut lists = Vec::new();
    for (n, reference) in crl_refs.iter().enumerate() {
        match lists_of(index, namespace, reference) {
            Ok(more) => lists.extend(more),
            Err(message) => {
                let field = format!("spec.revocation.crlRefs[{n}]");
                return Some(Err(ValidationFault::new(ConditionReason::Invalid, field, message)));
            }
        }
    }
    Some(Ok(Arc::new(RevocationCheck {
        lists,
        only_end_entity: *depth == RevocationDepth::EndEntity,
        accepts_unknown: *unknown_status == RevocationFallback::Accept,
        accepts_expired: *expired_lists == RevocationFallback::Accept,
    })))
}

/// Returns the fault of a policy whose `revocation` is invalid.
pub(super) fn unreadable() -> RevocationResult {
    Err(ValidationFault::new(ConditionReason::Invalid, "spec.revocation", "is invalid"))
}

fn lists_of(
    index: &ObjectIndex<'_>,
    namespace: &str,
    RevocationListRef { kind, name }: &RevocationListRef,
) -> Result<Vec<Box<[u8]>>, String> {
    let key = (namespace, &**name);
    let object = CertificateObject::of_list(*kind, namespace, name);
    let lists = match kind {
        RevocationListKind::ConfigMap => {
            index.config_maps.get(&key).map(|map| certificate::revocation_lists_of_map(map))
        }
        RevocationListKind::Secret => {
            index.secrets.get(&key).map(|secret| certificate::revocation_lists_of_secret(secret))
        }
    };
    let lists = lists.ok_or_else(|| index.absence(&object))?;
    lists.map_err(|BadValue { field, message }| {
        format!("{kind:?} {namespace}/{name}: {field} {message}")
    })
}

/// Adds the revocation check of its policy to each listener that requests client certificates.
pub(super) fn add(gateways: &mut [GatewayContext<'_>], policies: &ClientPolicies<'_>) {
    for gateway in gateways {
        for listener in &mut gateway.listeners {
            if let Some(revocation) = policies.revocation(gateway.object, listener.section()) {
                add_to_listener(listener, revocation);
            }
        }
    }
}

fn add_to_listener(listener: &mut ListenerContext<'_>, revocation: &RevocationResult) {
    let Some(ListenerTlsMode::Terminate(termination)) = &mut listener.tls_mode else { return };
    let Some(clients) = &termination.clients else { return };
    match revocation {
        Ok(check) => {
            let clients =
                ClientCertificates { revocation: Some(Arc::clone(check)), ..clients.clone() };
            let certificates = termination.certificates.clone();
            *termination = Arc::new(TlsTermination { certificates, clients: Some(clients) });
        }
        // Handshakes do not depend on certificates, but policies may: none is valid.
        Err(_) if !clients.required => {
            let revocation = Some(Arc::new(RevocationCheck::default()));
            let clients = ClientCertificates { revocation, ..clients.clone() };
            let certificates = termination.certificates.clone();
            *termination = Arc::new(TlsTermination { certificates, clients: Some(clients) });
        }
        Err(fault) => {
            let message = format!("revoked client certificates are unknown: {}", fault.message);
            listener.tls_mode = None;
            let field = format!("spec.listeners[{}].tls", listener.place);
            let fault =
                || ValidationFault::new(ConditionReason::NoValidCACertificate, field, message);
            listener.fault.get_or_insert_with(fault);
        }
    }
}
