//! Listeners of clients: no address, but a chain of filters for the calls to a name.

use prost::Message;

use super::discovery::ConfigSource;
use super::well_known::AnyMessage;

/// `Listener`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ListenerResource {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, optional, tag = "19")]
    pub(crate) api_listener: Option<ApiListener>,
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

/// `envoy.extensions.filters.http.router.v3.Router`: the last filter.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct RouterConfig {}

impl RouterConfig {
    /// The name of the type.
    pub(crate) const NAME: &str = "envoy.extensions.filters.http.router.v3.Router";
}
