//! Transparent mode: the annotations of a Service, and which of its addresses are taken. How they are taken is decided
//! elsewhere.

use std::net::SocketAddr;
use std::sync::Arc;

/// The annotation that turns transparent mode on: `requests` takes the ClusterIP of the Service.
pub const BALANCE_ANNOTATION: &str = "sheave.dev/balance";
/// The annotation for connections that existed before: `new` leaves them alone (default), `reset` ends them.
pub const ADOPT_ANNOTATION: &str = "sheave.dev/adopt";
/// The annotation for the address that endpoints see: `keep` is the client's (default), `node` the node's.
pub const CLIENT_ADDRESS_ANNOTATION: &str = "sheave.dev/client-address";
/// The annotation that prefers endpoints of the client's node: `true` or `false` (default).
pub const PREFER_LOCAL_ANNOTATION: &str = "sheave.dev/prefer-local";

/// The annotation for `X-Forwarded-For` of requests: `keep` forwards it as it came (default), `append` appends the
/// client's address.
pub const FORWARDED_FOR_ANNOTATION: &str = "sheave.dev/forwarded-for";

/// The annotations of a Service that a translation reads in transparent mode.
pub const ANNOTATIONS: [&str; 5] = [
    BALANCE_ANNOTATION,
    ADOPT_ANNOTATION,
    CLIENT_ADDRESS_ANNOTATION,
    PREFER_LOCAL_ANNOTATION,
    FORWARDED_FOR_ANNOTATION,
];

/// A Service with the annotation [`BALANCE_ANNOTATION`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransparentService {
    /// The namespace.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
    /// The UID, if it has one.
    pub uid: Option<Arc<str>>,
    /// The addresses that are taken: each ClusterIP with each TCP port. Empty if the Service is not taken.
    pub addresses: Vec<SocketAddr>,
    /// The treatment of connections that existed before.
    pub adopt: AdoptMode,
    /// Everything of the Service that is not taken, and why.
    pub findings: Vec<TransparentFinding>,
}

/// The treatment of connections that clients had made before the Service was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdoptMode {
    /// They stay with their endpoint; only new connections are taken.
    #[default]
    New,
    /// They are reset, at a bounded rate, so that clients connect anew.
    Reset,
}

/// A part of a Service that is not taken, or a setting that has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransparentFinding {
    /// The reason for programs, in CamelCase: the reason of an Event.
    pub reason: &'static str,
    /// A sentence for people.
    pub message: String,
}
