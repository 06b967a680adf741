//! `BackendPolicy.spec.xdsServers`: gRPC servers that get their listener from Sheave.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::security_policy::ClientAddressAccess;

/// The clients that gRPC servers of the Service accept, if they get their listener from Sheave by xDS
/// (`sheave xds bootstrap --serve`). The servers check each call themselves, whichever way it has come: Sheave is one of
/// their clients. A call of another client fails with `PERMISSION_DENIED`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct XdsServers {
    /// If true, a client needs a certificate of an authority that the server trusts (mutual TLS). Default: true if
    /// `clientNames` is set. Needs a BackendTLSPolicy, without which servers accept plaintext.
    pub require_client_certificate: Option<bool>,
    /// Names of clients, of which the certificate must have one as DNS name or URI, such as
    /// spiffe://cluster.local/ns/shop/sa/cart. Default: any name.
    #[schemars(length(max = 100), inner(length(min = 1, max = 253)))]
    pub client_names: Vec<String>,
    /// The addresses of clients. Default: all.
    pub client_addresses: ClientAddressAccess,
}
