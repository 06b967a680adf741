//! A client, as it introduces itself.

use crate::bootstrap::CERTIFICATE_PROVIDER;
use crate::limit::StreamNumber;
use crate::message::ClientNode;
use crate::name;
use crate::subscription::MAX_NAME_BYTES;

/// The name by which Envoy introduces itself.
const ENVOY: &str = "envoy";

/// The kind of a client, by which it gets resources that it can use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ClientKind {
    /// A gRPC client, which sends its own calls.
    #[default]
    Grpc,
    /// An Envoy, which forwards the HTTP requests of others.
    Envoy,
}

/// The field of a client's metadata that names the certificates of its bootstrap file.
pub(crate) const CERTIFICATES_FIELD: &str = "sheave.dev/certificate-provider";

/// The identity of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientIdentity {
    /// Its name, for logs; empty until it has introduced itself.
    pub(crate) name: String,
    /// Its zone; empty if not known.
    pub(crate) zone: String,
    pub(crate) kind: ClientKind,
    /// True if it has certificates for connections to endpoints.
    pub(crate) has_certificates: bool,
    /// Its stream, which has shares of limits.
    pub(crate) stream: StreamNumber,
}

impl From<ClientNode> for ClientIdentity {
    fn from(node: ClientNode) -> Self {
        let is_envoy = node.user_agent_name == ENVOY;
        let provider = node.metadata.as_ref().and_then(|it| it.fields.get(CERTIFICATES_FIELD));
        Self {
            name: client_name(&node, MAX_NAME_BYTES),
            zone: node.locality.map(|it| it.zone).unwrap_or_default(),
            has_certificates: provider.is_some_and(|it| it.string_value == CERTIFICATE_PROVIDER),
            kind: if is_envoy { ClientKind::Envoy } else { ClientKind::Grpc },
            stream: StreamNumber::default(),
        }
    }
}

/// Returns the name of a client for logs, with at most this number of bytes of it: its ID, else the program.
pub(crate) fn client_name(node: &ClientNode, max_bytes: usize) -> String {
    let id = if node.id.is_empty() { &node.user_agent_name } else { &node.id };
    name::quoted(id, max_bytes)
}
