//! Settings of gRPC servers that get their listener from Sheave.

use std::sync::Arc;

use super::security::ClientAddressRules;

/// The listener of the gRPC servers at a port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdsServerSettings {
    /// TLS of connections of clients.
    pub tls: XdsServerTls,
    /// The clients whose calls are accepted.
    pub access: XdsServerAccess,
}

/// TLS of a gRPC server, by the certificates of its own bootstrap file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdsServerTls {
    /// Plaintext.
    Off,
    /// Clients need no certificate.
    Simple,
    /// Clients need a certificate.
    Mutual,
}

/// The clients of a gRPC server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XdsServerAccess {
    /// All.
    All,
    /// Those with one of the names, if there are any, and one of the addresses.
    Some(Arc<XdsServerClients>),
    /// None: the settings are invalid.
    None,
}

/// The names and addresses of clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XdsServerClients {
    /// DNS names and URIs of certificates; empty: any.
    pub names: Vec<Box<str>>,
    /// Addresses.
    pub addresses: ClientAddressRules,
}
