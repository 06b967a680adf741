//! TLS in front and behind, over real sockets.

/// What client and listener agree on: version, protocol, certificate.
mod handshakes;
/// Clients that show certificates.
mod clients;
/// Names that are written in several ways.
mod names;
/// Certificates that change under load.
mod rotation;
/// Connections that do nothing, and what they cost.
mod idle;
/// Endpoints that are spoken to by TLS.
mod endpoints;
/// Connections that are passed on by their name.
mod passthrough;
/// Who speaks plainly where TLS is expected.
mod plain;
