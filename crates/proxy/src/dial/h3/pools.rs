//! A worker's HTTP/3 connections to endpoints.
//!
//! QUIC's connections belong to the worker that opened them, down to the memory, so they lie with it and not with their
//! endpoints. Those of an endpoint that has left are let go at the next sweep; what runs on them is finished.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use balance::Time;
use gateway::snapshot::BackendSettings;
use tokio::time::timeout;

use super::connection::{self, H3ConnectionDriver, H3EndpointConnection};
use crate::clock;
use crate::dial::multiplex_pool::{self, MultiplexPool, PoolKey, StreamWaiter};
use crate::dial::pool::{Endpoint, EndpointConnection};
use crate::dial::stream_request::{StreamGrant, StreamRequest};
use crate::failure::Failure;
use crate::h3::H3ErrorCode;
use crate::quic::DialSettings;
use crate::tls::{EndpointTlsContext, EndpointTlsError, QuicClientTlsConfig};
use crate::worker::Worker;

/// A link on which nothing comes for as long as `unacknowledged` has broken. It is not for want of anything to say: while
/// it is open, the endpoint is asked to give a sign of life. Links that are not used end by the backend's policy.
fn dial_settings(unacknowledged: Duration) -> DialSettings {
    DialSettings { idle_timeout: unacknowledged, keep_alive: Some(unacknowledged / 3) }
}

/// The HTTP/3 connections of one worker.
#[derive(Default)]
pub(crate) struct H3WorkerPools(RefCell<HashMap<*const Endpoint, H3EndpointPools>>);

/// Those to one endpoint.
struct H3EndpointPools {
    /// Keeps the address from being used again, and nothing else.
    endpoint: Weak<Endpoint>,
    /// By what they are opened with: one, hardly ever two.
    pools: Vec<MultiplexPool<H3EndpointConnection>>,
}

impl H3WorkerPools {
    fn with_pool<R>(
        &self,
        endpoint: &Arc<Endpoint>,
        trust: Option<&Arc<EndpointTlsContext>>,
        does: impl FnOnce(&mut MultiplexPool<H3EndpointConnection>) -> R,
    ) -> R {
        let mut entries = self.0.borrow_mut();
        let entry = entries.entry(Arc::as_ptr(endpoint)).or_insert_with(|| H3EndpointPools {
            endpoint: Arc::downgrade(endpoint),
            pools: Vec::new(),
        });
        does(multiplex_pool::pool_for(
            &mut entry.pools,
            PoolKey { proxy_protocol_client: None, tls_context: trust },
        ))
    }

    fn with_pool_for<R>(
        &self,
        call: &StreamRequest<'_>,
        does: impl FnOnce(&mut MultiplexPool<H3EndpointConnection>) -> R,
    ) -> R {
        self.with_pool(call.endpoint, call.backend_config.tls_context.as_ref(), does)
    }

    /// A stream on which the head has been sent, if one can be had at once.
    pub(super) fn try_open_stream(
        &self,
        call: &StreamRequest<'_>,
    ) -> Result<Option<Box<EndpointConnection>>, Failure> {
        let counters = &call.endpoint.data.counters[call.worker].http3;
        self.with_pool_for(call, |trunk| {
            let usable = trunk.usable_connection(&call.backend_config.settings, counters, call.now);
            let Some(link) = usable else { return Ok(None) };
            let (stream, berth) = link.send(call)?;
            let connection = EndpointConnection::for_stream(stream, berth, call.worker, call.now);
            Ok(Some(Box::new(connection)))
        })
    }

    /// Asks for a stream; `waiting` tells since when.
    pub(super) fn acquire_stream(
        &self,
        worker: &Rc<Worker>,
        call: &StreamRequest<'_>,
        waiting: Option<&StreamWaiter>,
    ) -> Result<StreamGrant, Failure> {
        if let Some(connection) = self.try_open_stream(call)? {
            return Ok(StreamGrant::Opened(connection));
        }
        if let Some(failure) = self.with_pool_for(call, |trunk| trunk.failure_since(waiting)) {
            return Err(failure);
        }
        self.dial(worker, call);
        Ok(StreamGrant::Wait(self.with_pool_for(call, |trunk| trunk.waiter(waiting))))
    }

    /// Opens another link, unless that is being done or there are as many as may be.
    pub(super) fn dial(&self, worker: &Rc<Worker>, call: &StreamRequest<'_>) {
        let (settings, workers) =
            (&call.backend_config.settings, call.endpoint.data.h2_pools.len());
        let wanted =
            self.with_pool_for(call, |trunk| trunk.try_begin_dial(settings, workers, call.now));
        if wanted {
            let dial = H3DialTask {
                worker: Rc::clone(worker),
                endpoint: Arc::clone(call.endpoint),
                tls_context: call.backend_config.tls_context.clone(),
                connect_timeout: settings.connect_timeout,
                unacknowledged_timeout: settings.unacknowledged_timeout,
            };
            tokio::task::spawn_local(dial.run());
        }
    }

    /// Since when a link is being opened.
    pub(super) fn dialing_since(&self, call: &StreamRequest<'_>) -> Option<Time> {
        self.with_pool_for(call, |trunk| trunk.dialing_since())
    }

    /// Lets go of links to the endpoint that are spent, or that nobody has used for long.
    pub(crate) fn sweep(
        &self,
        endpoint: &Arc<Endpoint>,
        worker: usize,
        settings: &BackendSettings,
        now: Time,
    ) {
        let mut entries = self.0.borrow_mut();
        if let Some(entry) = entries.get_mut(&Arc::as_ptr(endpoint)) {
            let counters = &endpoint.data.counters[worker].http3;
            multiplex_pool::sweep(&mut entry.pools, settings, counters, now);
        }
    }

    /// Lets go of what leads to endpoints that have left.
    pub(crate) fn remove_dropped_endpoints(&self) {
        let stays =
            |entry: &H3EndpointPools| entry.endpoint.strong_count() > 0 && !entry.pools.is_empty();
        self.0.borrow_mut().retain(|_, entry| stays(entry));
    }
}

/// A link that is to be opened.
struct H3DialTask {
    worker: Rc<Worker>,
    endpoint: Arc<Endpoint>,
    tls_context: Option<Arc<EndpointTlsContext>>,
    connect_timeout: Duration,
    /// The endpoint is gone that acknowledges nothing for so long.
    unacknowledged_timeout: Duration,
}

impl H3DialTask {
    /// Opens the link, tells who waits for it, and serves it as long as it lives.
    async fn run(self) {
        let (opened, driver) = match self.open().await {
            Ok((link, driver)) => (Ok(link), Some(driver)),
            Err(failure) => (Err(failure), None),
        };
        self.record_result(opened.as_ref().err().copied());
        self.with_pool(|trunk| trunk.finish_dial(opened));
        // An endpoint that has left is not kept by its links, but they by it.
        drop(self);
        if let Some(driver) = driver {
            driver.run().await;
        }
    }

    fn record_result(&self, failure: Option<Failure>) {
        let reach = &self.endpoint.data.http3_reachability;
        let (was_open, endpoint) = (reach.is_available(), self.endpoint.address);
        match failure {
            None => {
                reach.record_success();
                if !was_open {
                    tracing::info!(%endpoint, "HTTP/3 works again");
                }
            }
            // We are at fault; or it answers by QUIC, as somebody else than it has to be.
            Some(
                Failure::OutOfDescriptors
                | Failure::EndpointTls(
                    EndpointTlsError::UnusableConfig | EndpointTlsError::Certificate,
                ),
            ) => {}
            Some(failure) => {
                reach.record_failure(clock::now());
                if was_open {
                    let fault = failure.details();
                    tracing::warn!(%endpoint, fault, "HTTP/3 does not work: requests go by TCP");
                }
            }
        }
    }

    async fn open(&self) -> Result<(H3EndpointConnection, H3ConnectionDriver), Failure> {
        let Self {
            worker,
            endpoint,
            tls_context: trust,
            connect_timeout: patience,
            unacknowledged_timeout: unacknowledged,
        } = self;
        let secret = trust.as_ref().and_then(|trust| trust.quic());
        let secret = secret.ok_or(Failure::EndpointTls(EndpointTlsError::UnusableConfig))?;
        endpoint.data.counters[worker.index].connections.add(1);
        let QuicClientTlsConfig { config, name } = secret;
        let settings = dial_settings(*unacknowledged);
        let begun_at = clock::now();
        let connection = worker.quic.dial(endpoint.address, name, config, settings)?;
        let room = self.with_pool(|trunk| trunk.stream_available());
        let tally = Arc::clone(&endpoint.data.h3_counts[worker.index]);
        let begun = timeout(*patience, connection::handshake(&connection, room, tally)).await;
        let begun = begun.unwrap_or(Err(Failure::ConnectTimeout));
        match &begun {
            Ok(_) => {
                let took = clock::now().saturating_since(begun_at);
                endpoint.data.reachability.record_connect_time(took);
            }
            Err(_) => connection.close(H3ErrorCode::NO_ERROR.0, "not in time"),
        }
        begun
    }

    fn with_pool<R>(&self, does: impl FnOnce(&mut MultiplexPool<H3EndpointConnection>) -> R) -> R {
        self.worker.h3_pools.with_pool(&self.endpoint, self.tls_context.as_ref(), does)
    }
}
