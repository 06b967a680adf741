//! TLS to clients and to endpoints, over real sockets.

/// The handshake of client and listener: version, protocol, certificate.
mod handshakes;
/// Client certificates.
mod clients;
/// Client certificates of single hosts.
mod hosts;
/// Different spellings of one name.
mod names;
/// Sessions that are resumed at another replica.
mod replicas;
/// Certificate rotation under load.
mod rotation;
/// Memory cost of idle TLS connections.
mod idle;
/// TLS to endpoints.
mod endpoints;
/// TLS passthrough and termination by server name.
mod passthrough;
/// Cleartext on a TLS port.
mod plain;
