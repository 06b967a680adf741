//! Listeners of gRPC servers that get them by xDS: `xdsServers` of a BackendPolicy, and the TLS of its Service.

use std::sync::Arc;

use super::report::ValidationFault;
use crate::objects::XdsServers;
use crate::snapshot::{XdsServerAccess, XdsServerClients, XdsServerSettings, XdsServerTls};
use crate::status::ConditionReason;

/// Returns the settings of the servers behind a port. `is_encrypted` is true if their clients use TLS.
pub(super) fn settings(servers: Option<&XdsServers>, is_encrypted: bool) -> XdsServerSettings {
    let is_mutual = servers.is_some_and(needs_client_certificate);
    XdsServerSettings {
        tls: match (is_encrypted, is_mutual) {
            (false, _) => XdsServerTls::Off,
            (true, false) => XdsServerTls::Simple,
            (true, true) => XdsServerTls::Mutual,
        },
        access: match servers {
            // A client without a certificate has no name.
            Some(servers) if is_mutual && !is_encrypted || has_unneeded_names(servers) => {
                XdsServerAccess::None
            }
            Some(servers) => access(servers),
            None => XdsServerAccess::All,
        },
    }
}

fn access(servers: &XdsServers) -> XdsServerAccess {
    let clients = XdsServerClients {
        names: servers.client_names.iter().map(|it| (&**it).into()).collect(),
        addresses: (&servers.client_addresses).into(),
    };
    match clients == XdsServerClients::default() {
        true => XdsServerAccess::All,
        false => XdsServerAccess::Some(Arc::new(clients)),
    }
}

/// Returns the faults of a policy. `is_encrypted` returns true if TLS is on for all of its targets.
pub(super) fn faults(
    servers: &XdsServers,
    is_encrypted: impl FnOnce() -> bool,
) -> Option<ValidationFault> {
    let fault = |field: &str, message| {
        let field = format!("spec.xdsServers.{field}");
        Some(ValidationFault::new(ConditionReason::Invalid, field, message))
    };
    if has_unneeded_names(servers) {
        let message = "must not be false with `clientNames`, which are those of certificates: \
                       no client is accepted";
        return fault("requireClientCertificate", message);
    }
    if needs_client_certificate(servers) && !is_encrypted() {
        let field = match servers.client_names.is_empty() {
            true => "requireClientCertificate",
            false => "clientNames",
        };
        let message = "needs a BackendTLSPolicy for each target: no client is accepted without TLS";
        return fault(field, message);
    }
    None
}

fn needs_client_certificate(servers: &XdsServers) -> bool {
    servers.require_client_certificate.unwrap_or(!servers.client_names.is_empty())
}

fn has_unneeded_names(servers: &XdsServers) -> bool {
    !needs_client_certificate(servers) && !servers.client_names.is_empty()
}
