//! Requests and responses of both variants of the transport protocol, and where a client finds further resources.

use std::collections::HashMap;

use prost::Message;

use super::well_known::{AnyMessage, EmptyMessage, TextFields};

/// A request for resources of one type, or the reply to a response.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DiscoveryRequest {
    #[prost(string, tag = "1")]
    pub(crate) version_info: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) node: Option<ClientNode>,
    #[prost(string, repeated, tag = "3")]
    pub(crate) resource_names: Vec<String>,
    #[prost(string, tag = "4")]
    pub(crate) type_url: String,
    #[prost(string, tag = "5")]
    pub(crate) response_nonce: String,
    #[prost(message, optional, tag = "6")]
    pub(crate) error_detail: Option<RpcStatus>,
}

/// A change of the names that a client asks for, or the reply to a response, in the incremental variant.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DeltaDiscoveryRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) node: Option<ClientNode>,
    #[prost(string, tag = "2")]
    pub(crate) type_url: String,
    #[prost(string, repeated, tag = "3")]
    pub(crate) resource_names_subscribe: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    pub(crate) resource_names_unsubscribe: Vec<String>,
    /// Names and versions of resources that the client has from a stream before.
    #[prost(map = "string, string", tag = "5")]
    pub(crate) initial_resource_versions: HashMap<String, String>,
    #[prost(string, tag = "6")]
    pub(crate) response_nonce: String,
    #[prost(message, optional, tag = "7")]
    pub(crate) error_detail: Option<RpcStatus>,
}

/// `Node`: the client.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ClientNode {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(message, optional, tag = "3")]
    pub(crate) metadata: Option<TextFields>,
    #[prost(message, optional, tag = "4")]
    pub(crate) locality: Option<ClientLocality>,
    #[prost(string, tag = "6")]
    pub(crate) user_agent_name: String,
}

/// `Locality`: where a client or an endpoint is.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ClientLocality {
    #[prost(string, tag = "1")]
    pub(crate) region: String,
    #[prost(string, tag = "2")]
    pub(crate) zone: String,
    #[prost(string, tag = "3")]
    pub(crate) sub_zone: String,
}

/// `google.rpc.Status`: the reason why a client has rejected a response.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RpcStatus {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
}

/// Resources of one type.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DiscoveryResponse {
    #[prost(string, tag = "1")]
    pub(crate) version_info: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) resources: Vec<AnyMessage>,
    #[prost(string, tag = "4")]
    pub(crate) type_url: String,
    #[prost(string, tag = "5")]
    pub(crate) nonce: String,
    #[prost(message, optional, tag = "6")]
    pub(crate) control_plane: Option<ControlPlane>,
}

/// Resources of one type that have changed, in the incremental variant.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DeltaDiscoveryResponse {
    #[prost(string, tag = "1")]
    pub(crate) system_version_info: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) resources: Vec<NamedResource>,
    #[prost(string, tag = "4")]
    pub(crate) type_url: String,
    #[prost(string, tag = "5")]
    pub(crate) nonce: String,
    /// Names of resources that do not exist, or not any more.
    #[prost(string, repeated, tag = "6")]
    pub(crate) removed_resources: Vec<String>,
    #[prost(message, optional, tag = "7")]
    pub(crate) control_plane: Option<ControlPlane>,
}

/// `Resource`: a resource with its name and version.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct NamedResource {
    #[prost(string, tag = "1")]
    pub(crate) version: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) resource: Option<AnyMessage>,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
}

/// `ControlPlane`: the server.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ControlPlane {
    #[prost(string, tag = "1")]
    pub(crate) identifier: String,
}

/// The source of resources that a resource refers to.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ConfigSource {
    /// The stream on which the resource with this field has come.
    #[prost(message, optional, tag = "3")]
    ads: Option<EmptyMessage>,
    /// The server from which the resource with this field has come (`self`).
    #[prost(message, optional, tag = "5")]
    own_server: Option<EmptyMessage>,
    #[prost(int32, tag = "6")]
    resource_api_version: i32,
}

impl ConfigSource {
    const V3: i32 = 2;

    /// Returns the source of all resources: the same stream.
    pub(crate) fn same_stream() -> Self {
        let ads = Some(EmptyMessage {});
        Self { ads, own_server: None, resource_api_version: Self::V3 }
    }

    /// Returns the server of other services of xDS: the same one.
    pub(crate) fn same_server() -> Self {
        let own_server = Some(EmptyMessage {});
        Self { ads: None, own_server, resource_api_version: Self::V3 }
    }
}

impl ControlPlane {
    /// Returns the name of this server.
    pub(crate) fn sheave() -> Self {
        Self { identifier: "sheave".to_owned() }
    }
}
