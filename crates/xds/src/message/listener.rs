//! Listeners. Those of clients have no address, but a chain of filters for the calls to a name. Those of servers have
//! the address of the server.

use prost::Message;

use super::discovery::ConfigSource;
use super::endpoint::HostAddress;
use super::route::RouteConfiguration;
use super::tls::TransportSocket;
use super::well_known::AnyMessage;

/// `Listener`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ListenerResource {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) address: Option<HostAddress>,
    #[prost(int32, tag = "16")]
    pub(crate) traffic_direction: i32,
    #[prost(message, optional, tag = "19")]
    pub(crate) api_listener: Option<ApiListener>,
    #[prost(message, optional, tag = "25")]
    pub(crate) default_filter_chain: Option<FilterChain>,
}

impl ListenerResource {
    /// The direction of calls that a server gets.
    pub(crate) const INBOUND: i32 = 1;
}

/// The filters of connections to a server.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct FilterChain {
    #[prost(message, repeated, tag = "3")]
    pub(crate) filters: Vec<NetworkFilter>,
    #[prost(message, optional, tag = "6")]
    pub(crate) transport_socket: Option<TransportSocket>,
    #[prost(string, tag = "7")]
    pub(crate) name: String,
}

/// `Filter`: a filter of connections.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct NetworkFilter {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, optional, tag = "4")]
    pub(crate) typed_config: Option<AnyMessage>,
}

/// The part of a listener that a client without a socket uses.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ApiListener {
    #[prost(message, optional, tag = "1")]
    pub(crate) api_listener: Option<AnyMessage>,
}

/// `envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HttpConnectionManager {
    #[prost(string, tag = "2")]
    pub(crate) stat_prefix: String,
    #[prost(message, optional, tag = "3")]
    pub(crate) rds: Option<RouteSource>,
    /// The routes, if they are no resource of their own.
    #[prost(message, optional, tag = "4")]
    pub(crate) route_config: Option<RouteConfiguration>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) http_filters: Vec<HttpFilter>,
}

impl HttpConnectionManager {
    /// The name of the type.
    pub(crate) const NAME: &str =
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
}

/// `Rds`: the routes of a listener.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RouteSource {
    #[prost(message, optional, tag = "1")]
    pub(crate) config_source: Option<ConfigSource>,
    #[prost(string, tag = "2")]
    pub(crate) route_config_name: String,
}

/// A filter of requests.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HttpFilter {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, optional, tag = "4")]
    pub(crate) typed_config: Option<AnyMessage>,
}

impl HttpFilter {
    /// Returns the last filter.
    pub(crate) fn router() -> Self {
        Self {
            name: "router".to_owned(),
            typed_config: Some(AnyMessage::of(RouterConfig::NAME, &RouterConfig {})),
        }
    }
}

/// `envoy.extensions.filters.http.router.v3.Router`: the last filter.
#[derive(Clone, Copy, PartialEq, Message)]
struct RouterConfig {}

impl RouterConfig {
    /// The name of the type.
    const NAME: &str = "envoy.extensions.filters.http.router.v3.Router";
}
