//! Opens HTTP/3 connections for the requests of one worker.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use quic::DialSettings;
use tls::{EndpointTlsContext, EndpointTlsError, QuicClientTlsConfig};
use tokio::time::timeout;

use super::connection::{self, H3ConnectionDriver, H3EndpointConnection};
use super::pools::H3WorkerPools;
use crate::clock;
use crate::dial::marked_socket::{self, MarkGuard};
use crate::dial::multiplex_pool::{MultiplexPool, PoolKey, StreamWaiter};
use crate::dial::pool::Endpoint;
use crate::dial::stream_call::{StreamGrant, StreamRequest};
use crate::failure::Failure;
use crate::interception::ClientMark;
use crate::worker::Worker;
use codec::h3::H3ErrorCode;

/// Returns the settings of a connection that is considered broken if nothing arrives on it for the time
/// `unacknowledged`. An idle connection stays open, because we send PINGs to the endpoint. Unused connections end by
/// the backend's policy.
fn dial_settings(unacknowledged: Duration, mark: Option<u32>) -> DialSettings {
    DialSettings { idle_timeout: unacknowledged, keep_alive: Some(unacknowledged / 3), mark }
}

impl H3WorkerPools {
    /// Acquires a stream; `waiting` is set if the request has waited already.
    pub(super) fn acquire_stream(
        &self,
        worker: &Rc<Worker>,
        call: &StreamRequest<'_>,
        waiting: Option<&StreamWaiter>,
    ) -> Result<StreamGrant, Failure> {
        if let Some(connection) = self.try_open_stream(call)? {
            return Ok(StreamGrant::Opened(connection));
        }
        if let Some(failure) = self.with_pool_for(call, |pool| pool.failure_since(waiting)) {
            return Err(failure);
        }
        self.dial(worker, call);
        Ok(StreamGrant::Wait(self.with_pool_for(call, |pool| pool.waiter(waiting))))
    }

    /// Opens another connection, unless a dial is in progress or the limit is reached.
    pub(super) fn dial(&self, worker: &Rc<Worker>, call: &StreamRequest<'_>) {
        let (settings, workers) =
            (&call.backend_config.settings, call.endpoint.data.h2_pools.len());
        let wanted =
            self.with_pool_for(call, |pool| pool.try_begin_dial(settings, workers, call.now));
        if wanted {
            let dial = H3DialTask {
                worker: Rc::clone(worker),
                endpoint: Arc::clone(call.endpoint),
                client_mark: call.client_mark.clone(),
                tls_context: call.backend_config.tls_context.clone(),
                connect_timeout: settings.connect_timeout,
                unacknowledged_timeout: settings.unacknowledged_timeout,
            };
            tokio::task::spawn_local(dial.run());
        }
    }
}

/// Opens a connection in the background.
struct H3DialTask {
    worker: Rc<Worker>,
    endpoint: Arc<Endpoint>,
    /// The mark of the client whose address the connection has.
    client_mark: Option<Arc<ClientMark>>,
    tls_context: Option<Arc<EndpointTlsContext>>,
    connect_timeout: Duration,
    /// The endpoint is considered dead if it acknowledges nothing for this time.
    unacknowledged_timeout: Duration,
}

impl H3DialTask {
    /// Opens the connection, wakes the waiting requests, and drives it as long as it lives.
    async fn run(self) {
        let (opened, driver) = match self.open().await {
            Ok((link, driver)) => (Ok(link), Some(driver)),
            Err(failure) => (Err(failure), None),
        };
        self.record_result(opened.as_ref().err().copied());
        self.with_pool(|pool| pool.finish_dial(opened));
        // Connections must not keep a removed endpoint alive.
        drop(self);
        if let Some(driver) = driver {
            driver.run().await;
        }
    }

    fn record_result(&self, failure: Option<Failure>) {
        let reachability = &self.endpoint.data.http3_reachability;
        let (was_open, endpoint) = (reachability.is_available(), self.endpoint.address);
        match failure {
            None => {
                reachability.record_success();
                if !was_open {
                    tracing::info!(%endpoint, "HTTP/3 works again");
                }
            }
            // The fault is ours; or the endpoint answers over QUIC, but with the wrong certificate.
            Some(
                Failure::OutOfDescriptors
                | Failure::EndpointTls(
                    EndpointTlsError::UnusableConfig | EndpointTlsError::Certificate,
                ),
            ) => {}
            Some(failure) => {
                reachability.record_failure(clock::now());
                if was_open {
                    let cause = failure.details();
                    tracing::warn!(%endpoint, cause, "HTTP/3 is unavailable: requests fall back to TCP");
                }
            }
        }
    }

    async fn open(&self) -> Result<(H3EndpointConnection, H3ConnectionDriver), Failure> {
        let Self {
            worker,
            endpoint,
            client_mark,
            tls_context,
            connect_timeout: patience,
            unacknowledged_timeout: unacknowledged,
        } = self;
        let tls_config = tls_context.as_ref().and_then(|tls_context| tls_context.quic());
        let tls_config =
            tls_config.ok_or(Failure::EndpointTls(EndpointTlsError::UnusableConfig))?;
        endpoint.data.counters[worker.index].connections.add(1);
        let QuicClientTlsConfig { config, name } = tls_config;
        let mark = marked_socket::mark(endpoint, client_mark.as_ref());
        let settings = dial_settings(*unacknowledged, mark);
        let guard = MarkGuard::of(endpoint, client_mark.as_ref());
        let begun_at = clock::now();
        let address = marked_socket::address(endpoint, client_mark.as_ref());
        let connection = worker.quic.dial(address, name, config, settings)?;
        let room = self.with_pool(|pool| pool.stream_available());
        let counts = Arc::clone(&endpoint.data.h3_counts[worker.index]);
        let result = timeout(*patience, connection::handshake(&connection, room, counts)).await;
        let result = result.unwrap_or(Err(Failure::ConnectTimeout));
        match &result {
            Ok(_) => {
                let took = clock::now().saturating_since(begun_at);
                endpoint.data.reachability.record_connect_time(took);
            }
            Err(_) => {
                connection.close(H3ErrorCode::NO_ERROR.0, "handshake failed");
                if address != endpoint.address {
                    endpoint.data.other_address.avoid();
                }
            }
        }
        result.map(|(link, driver)| (link, driver.with_mark(guard)))
    }

    fn with_pool<R>(&self, run: impl FnOnce(&mut MultiplexPool<H3EndpointConnection>) -> R) -> R {
        let key = PoolKey {
            proxy_protocol_client: None,
            client_mark: self.client_mark.as_ref(),
            tls_context: self.tls_context.as_ref(),
        };
        self.worker.h3_pools.with_pool(&self.endpoint, key, run)
    }
}
