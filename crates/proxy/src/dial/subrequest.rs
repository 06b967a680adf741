//! A request that this proxy sends on its own account: a copy of a client's request, or a question to an authorizer.
//!
//! It takes a slot and a connection as any request does, but has no client of its own whose connection it could watch:
//! the caller bounds its time.

use std::future::Future;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use balance::Time;
use codec::head::{BodyFraming, RequestHead};
use gateway::snapshot::EndpointProtocol;
use tokio::time::timeout_at;

use crate::accept::client::ClientConnection;
use crate::accept::intercepted_client::InterceptedClient;
use crate::backend::{BackendConfig, BackendRef, Slot};
use crate::clock;
use crate::dial::attempt;
use crate::dial::h3::{self, OpenedTransport, h1_fallback};
use crate::dial::pool::{self, Endpoint, EndpointConnection};
use crate::dial::stream_call::{RequestSource, StreamGrant, StreamRequest};
use crate::failure::Failure;
use crate::interception::ClientMark;
use crate::worker::Worker;

/// The backend of a request of this proxy, and what its connections need to know of the client.
pub(crate) struct SubrequestTarget {
    pub(crate) backend: BackendRef,
    /// Client address that a PROXY protocol header must announce, if the backend asks for one.
    announced_client: Option<SocketAddr>,
    /// Client whose address the connection has, if it keeps one.
    intercepted: Option<Arc<InterceptedClient>>,
    header: Vec<u8>,
}

impl SubrequestTarget {
    pub(crate) fn new(backend: BackendRef, client: &ClientConnection) -> Self {
        let current = backend.config();
        let announced_client = current.settings.proxy_protocol.map(|_| client.peer);
        Self {
            announced_client,
            intercepted: client.intercepted.clone(),
            header: client.proxy_protocol_header(&current.settings),
            backend,
        }
    }

    /// Returns the mark of a connection to this endpoint, if the connection has the client's address.
    fn mark_for(&self, worker: &Rc<Worker>, endpoint: &Endpoint) -> Option<Arc<ClientMark>> {
        self.intercepted.as_ref()?.mark_for(worker, endpoint)
    }
}

/// The attempt to send such a request to the endpoint of its slot.
pub(crate) struct SubrequestAttempt<'a> {
    pub(crate) worker: &'a Rc<Worker>,
    pub(crate) target: &'a SubrequestTarget,
    pub(crate) backend_config: &'a BackendConfig,
    pub(crate) slot: &'a Slot,
    /// True if the request can be sent again after an endpoint has closed an idle connection.
    pub(crate) replayable: bool,
    /// Start of the attempt.
    pub(crate) now: Time,
}

impl SubrequestAttempt<'_> {
    /// Returns an HTTP/1.1 connection.
    pub(crate) async fn open(&self) -> Result<Box<EndpointConnection>, Failure> {
        let requirements = self.connection_requirements();
        if let Some(connection) = pool::take(&self.slot.endpoint, &requirements) {
            return Ok(connection);
        }
        let opening = attempt::open(&self.slot.endpoint, &self.target.header, &requirements);
        self.within_connect_timeout(opening).await
    }

    async fn within_connect_timeout<T>(
        &self,
        opening: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let patience = clock::instant(self.now + self.backend_config.settings.connect_timeout);
        timeout_at(patience, opening).await.unwrap_or(Err(Failure::ConnectTimeout))
    }

    /// Opens a stream on which the head has been sent, or the HTTP/1.1 connection that replaces it.
    pub(crate) async fn open_stream(
        &self,
        request: &RequestHead,
        body: &[u8],
    ) -> Result<Box<EndpointConnection>, Failure> {
        let Self { worker, target, backend_config, slot, now, .. } = *self;
        let framing = match body.len() {
            0 => BodyFraming::None,
            length => BodyFraming::Length(length as u64),
        };
        let request_source = RequestSource { request, framing };
        let stream_request = StreamRequest {
            worker: worker.index,
            endpoint: &slot.endpoint,
            backend_config,
            proxy_protocol_client: target.announced_client,
            proxy_protocol_header: target.header.clone(),
            client_mark: target.mark_for(worker, &slot.endpoint),
            fresh: true,
            now,
            source: request_source,
        };
        if backend_config.settings.protocol == EndpointProtocol::Http2 {
            return match stream_request.acquire_http2_stream(None)? {
                StreamGrant::Opened(connection) => Ok(connection),
                StreamGrant::Wait(waiting) => {
                    self.within_connect_timeout(stream_request.wait_for_http2_stream(waiting)).await
                }
            };
        }
        if let Some(connection) = h3::try_open_existing(worker, &stream_request) {
            return Ok(connection);
        }
        match self.within_connect_timeout(h3::open(worker, stream_request)).await? {
            OpenedTransport::Stream(connection) => Ok(connection),
            OpenedTransport::Http1 => {
                let requirements = self.connection_requirements();
                let opening = h1_fallback::open(
                    &slot.endpoint,
                    false,
                    &target.header,
                    &requirements,
                    request_source,
                );
                self.within_connect_timeout(opening).await.map(|(connection, _)| connection)
            }
        }
    }

    /// Returns the requirements on an HTTP/1.1 connection.
    fn connection_requirements(&self) -> pool::ConnectionRequirements<'_> {
        pool::ConnectionRequirements {
            worker: self.worker.index,
            backend_config: self.backend_config,
            proxy_protocol_client: self.target.announced_client,
            client_mark: self.target.mark_for(self.worker, &self.slot.endpoint),
            replayable: self.replayable,
            now: self.now,
        }
    }
}
