//! Messages of the protocol, as far as they are used, with the numbers of the `.proto` files of Envoy's API. Members of a
//! oneof are optional fields.

use std::collections::BTreeMap;

use prost::Message;

/// A question about a request.
#[derive(Clone, PartialEq, Message)]
pub(super) struct CheckRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) attributes: Option<AttributeContext>,
}

/// A request with the connection on which it came.
#[derive(Clone, PartialEq, Message)]
pub(super) struct AttributeContext {
    #[prost(message, optional, tag = "1")]
    pub(super) source: Option<SocketPeer>,
    #[prost(message, optional, tag = "2")]
    pub(super) destination: Option<SocketPeer>,
    #[prost(message, optional, tag = "4")]
    pub(super) request: Option<RequestAttributes>,
    #[prost(message, optional, tag = "12")]
    pub(super) tls_session: Option<TlsSession>,
}

/// `Peer`: an end of a connection.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SocketPeer {
    #[prost(message, optional, tag = "1")]
    address: Option<HostAddress>,
}

impl SocketPeer {
    /// Returns the end with this address.
    pub(super) fn of(socket_address: SocketAddress) -> Self {
        Self { address: Some(HostAddress { socket_address: Some(socket_address) }) }
    }
}

/// `Address`, of a socket.
#[derive(Clone, PartialEq, Message)]
struct HostAddress {
    #[prost(message, optional, tag = "1")]
    socket_address: Option<SocketAddress>,
}

/// An address and a port.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SocketAddress {
    #[prost(string, tag = "2")]
    pub(super) address: String,
    #[prost(uint32, tag = "3")]
    pub(super) port_value: u32,
}

/// `TLSSession`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TlsSession {
    #[prost(string, tag = "1")]
    pub(super) sni: String,
}

/// `Request`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RequestAttributes {
    #[prost(message, optional, tag = "2")]
    pub(super) http: Option<HttpAttributes>,
}

/// `HttpRequest`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HttpAttributes {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(string, tag = "2")]
    pub(super) method: String,
    #[prost(btree_map = "string, string", tag = "3")]
    pub(super) headers: BTreeMap<String, String>,
    /// Path and query.
    #[prost(string, tag = "4")]
    pub(super) path: String,
    #[prost(string, tag = "5")]
    pub(super) host: String,
    #[prost(string, tag = "6")]
    pub(super) scheme: String,
    #[prost(int64, tag = "9")]
    pub(super) size: i64,
    #[prost(string, tag = "10")]
    pub(super) protocol: String,
    #[prost(string, tag = "11")]
    pub(super) body: String,
    #[prost(bytes = "vec", tag = "12")]
    pub(super) raw_body: Vec<u8>,
}

/// An answer.
#[derive(Clone, PartialEq, Message)]
pub(super) struct CheckResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<RpcStatus>,
    #[prost(message, optional, tag = "2")]
    pub(super) denied_response: Option<DeniedHttpResponse>,
    #[prost(message, optional, tag = "3")]
    pub(super) ok_response: Option<OkHttpResponse>,
    /// The authorizer could not decide.
    #[prost(message, optional, tag = "5")]
    pub(super) error_response: Option<DeniedHttpResponse>,
}

/// `google.rpc.Status`: a request is allowed if the code is 0.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RpcStatus {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
}

/// Changes of a request that is allowed.
#[derive(Clone, PartialEq, Message)]
pub(super) struct OkHttpResponse {
    #[prost(message, repeated, tag = "2")]
    pub(super) headers: Vec<HeaderValueOption>,
    #[prost(string, repeated, tag = "5")]
    pub(super) headers_to_remove: Vec<String>,
    #[prost(message, repeated, tag = "6")]
    pub(super) response_headers_to_add: Vec<HeaderValueOption>,
    #[prost(message, repeated, tag = "7")]
    pub(super) query_parameters_to_set: Vec<QueryParameter>,
    #[prost(string, repeated, tag = "8")]
    pub(super) query_parameters_to_remove: Vec<String>,
}

/// The response to a request that is denied.
#[derive(Clone, PartialEq, Message)]
pub(super) struct DeniedHttpResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<HttpStatus>,
    #[prost(message, repeated, tag = "2")]
    pub(super) headers: Vec<HeaderValueOption>,
    #[prost(string, tag = "3")]
    pub(super) body: String,
}

/// A status of HTTP.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HttpStatus {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
}

/// A field, and what is done with those of its name.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HeaderValueOption {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<HeaderValue>,
    #[prost(message, optional, tag = "2")]
    pub(super) append: Option<BoolValue>,
    #[prost(int32, tag = "3")]
    pub(super) append_action: i32,
}

/// A field.
#[derive(Clone, PartialEq, Message)]
pub(super) struct HeaderValue {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
    /// The value, if it is no text.
    #[prost(bytes = "vec", tag = "3")]
    pub(super) raw_value: Vec<u8>,
}

/// A truth value that may be absent.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct BoolValue {
    #[prost(bool, tag = "1")]
    pub(super) value: bool,
}

/// A query parameter.
#[derive(Clone, PartialEq, Message)]
pub(super) struct QueryParameter {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
}
