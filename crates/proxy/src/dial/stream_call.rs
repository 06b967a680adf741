//! One request that needs a stream on a connection, and what it gets.

use std::net::SocketAddr;
use std::sync::Arc;

use balance::Time;
use http::uri::Scheme;

use crate::backend::BackendConfig;
use crate::dial::multiplex_pool::{PoolKey, StreamWaiter};
use crate::dial::pool::{Endpoint, EndpointConnection};
use crate::interception::ClientMark;
use codec::head::{BodyFraming, RequestHead};

/// One request that needs a stream.
pub(crate) struct StreamRequest<'a> {
    pub(crate) worker: usize,
    pub(crate) endpoint: &'a Arc<Endpoint>,
    pub(crate) backend_config: &'a BackendConfig,
    /// The client whose address a connection must begin with (PROXY protocol), and the header with it.
    pub(crate) proxy_protocol_client: Option<SocketAddr>,
    pub(crate) proxy_protocol_header: Vec<u8>,
    /// The mark of the client whose address a connection must have.
    pub(crate) client_mark: Option<Arc<ClientMark>>,
    /// True if the request has just failed on another connection.
    pub(crate) fresh: bool,
    pub(crate) now: Time,
    pub(crate) source: RequestSource<'a>,
}

/// The first part of a request to send: the head, which may be all.
#[derive(Clone, Copy)]
pub(crate) struct RequestSource<'a> {
    pub(crate) request: &'a RequestHead,
    /// The framing of the body that follows.
    pub(crate) framing: BodyFraming,
}

impl RequestSource<'_> {
    pub(super) fn is_whole(&self) -> bool {
        !self.request.upgrade && self.framing.is_empty()
    }
}

/// The result of a request for a stream.
pub(crate) enum StreamGrant {
    Opened(Box<EndpointConnection>),
    /// All connections are full, and another is being opened if the limit allows.
    Wait(StreamWaiter),
}

impl StreamRequest<'_> {
    pub(super) fn pool_key(&self) -> PoolKey<'_> {
        PoolKey {
            proxy_protocol_client: self.proxy_protocol_client,
            client_mark: self.client_mark.as_ref(),
            tls_context: self.backend_config.tls_context.as_ref(),
        }
    }

    pub(super) fn scheme(&self) -> Scheme {
        if self.backend_config.tls_context.is_some() { Scheme::HTTPS } else { Scheme::HTTP }
    }
}
