//! Requests and responses without the variant of the protocol: what both variants have in common.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use prost::Message;

use crate::message::{
    AnyMessage, ClientNode, ControlPlane, DeltaDiscoveryRequest, DeltaDiscoveryResponse,
    DiscoveryRequest, DiscoveryResponse, NamedResource, ResourceType, RpcStatus,
};

/// A variant of the transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProtocolVariant {
    /// State of the world: a request has all names, and a response of Listeners and Clusters all resources.
    StateOfTheWorld,
    /// Incremental ("delta"): requests and responses have changes alone.
    Incremental,
}

/// The messages of a variant.
pub(crate) trait VariantRequest:
    Message + Default + Into<SubscriptionRequest> + 'static
{
    /// The response.
    type Response: Message + Default + From<SubscriptionResponse> + 'static;
    /// The variant.
    const VARIANT: ProtocolVariant;
}

impl VariantRequest for DiscoveryRequest {
    type Response = DiscoveryResponse;
    const VARIANT: ProtocolVariant = ProtocolVariant::StateOfTheWorld;
}

impl VariantRequest for DeltaDiscoveryRequest {
    type Response = DeltaDiscoveryResponse;
    const VARIANT: ProtocolVariant = ProtocolVariant::Incremental;
}

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SubscriptionRequest {
    pub(crate) node: Option<ClientNode>,
    pub(crate) type_url: String,
    /// The number of the response that this is the reply to; empty if it is none.
    pub(crate) nonce: String,
    /// The reason why the client rejects that response.
    pub(crate) error: Option<RpcStatus>,
    pub(crate) names: NameChange,
}

/// The names of a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum NameChange {
    /// All names that the client asks for.
    All(Vec<String>),
    /// Changes of them.
    Edit {
        added: Vec<String>,
        removed: Vec<String>,
        /// Versions of resources that the client has already.
        known: HashMap<String, String>,
    },
}

impl NameChange {
    /// Returns the number of names.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::All(names) => names.len(),
            Self::Edit { added, removed, known } => added.len() + removed.len() + known.len(),
        }
    }

    /// Returns the names.
    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        let (names, removed, known) = match self {
            Self::All(names) => (names, None, None),
            Self::Edit { added, removed, known } => (added, Some(removed), Some(known)),
        };
        let known = known.into_iter().flat_map(|it| it.keys());
        names.iter().chain(removed.into_iter().flatten()).chain(known)
    }
}

impl From<DiscoveryRequest> for SubscriptionRequest {
    fn from(request: DiscoveryRequest) -> Self {
        Self {
            node: request.node,
            type_url: request.type_url,
            nonce: request.response_nonce,
            error: request.error_detail,
            names: NameChange::All(request.resource_names),
        }
    }
}

impl From<DeltaDiscoveryRequest> for SubscriptionRequest {
    fn from(request: DeltaDiscoveryRequest) -> Self {
        Self {
            node: request.node,
            type_url: request.type_url,
            nonce: request.response_nonce,
            error: request.error_detail,
            names: NameChange::Edit {
                added: request.resource_names_subscribe,
                removed: request.resource_names_unsubscribe,
                known: request.initial_resource_versions,
            },
        }
    }
}

/// A response.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SubscriptionResponse {
    pub(crate) kind: ResourceType,
    /// The number of the table.
    pub(crate) generation: u64,
    pub(crate) nonce: u64,
    pub(crate) resources: Vec<(Arc<str>, Bytes)>,
    /// Names without a resource. Only the incremental variant has a word for them.
    pub(crate) removed: Vec<Arc<str>>,
}

impl From<SubscriptionResponse> for DiscoveryResponse {
    fn from(response: SubscriptionResponse) -> Self {
        let type_url = response.kind.type_url();
        let any = |value| AnyMessage { type_url: type_url.to_owned(), value };
        Self {
            version_info: response.generation.to_string(),
            resources: response.resources.into_iter().map(|(_, value)| any(value)).collect(),
            type_url: type_url.to_owned(),
            nonce: response.nonce.to_string(),
            control_plane: Some(ControlPlane::sheave()),
        }
    }
}

impl From<SubscriptionResponse> for DeltaDiscoveryResponse {
    fn from(response: SubscriptionResponse) -> Self {
        let type_url = response.kind.type_url();
        let resource = |(name, value): (Arc<str>, Bytes)| NamedResource {
            version: content_version(&value),
            resource: Some(AnyMessage { type_url: type_url.to_owned(), value }),
            name: name.to_string(),
        };
        Self {
            system_version_info: response.generation.to_string(),
            resources: response.resources.into_iter().map(resource).collect(),
            type_url: type_url.to_owned(),
            nonce: response.nonce.to_string(),
            removed_resources: response.removed.iter().map(ToString::to_string).collect(),
            control_plane: Some(ControlPlane::sheave()),
        }
    }
}

/// Returns the version of a resource in the incremental variant. It depends on the content alone, so that a client that
/// connects to another replica, or to the successor of this process, is not sent again what it has.
pub(crate) fn content_version(content: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    hasher.write(content);
    format!("{:016x}", hasher.finish())
}
