//! A worker's HTTP/3 connections to endpoints.
//!
//! A QUIC connection belongs to the worker that opened it, including its memory, so it is stored with the worker and
//! not with its endpoint. Connections to a removed endpoint are released at the next sweep; their requests complete.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

use balance::Time;
use gateway::snapshot::BackendSettings;

use super::connection::H3EndpointConnection;
use crate::dial::multiplex_pool::{self, MultiplexPool, PoolKey, PoolSweep};
use crate::dial::pool::{Endpoint, EndpointConnection};
use crate::dial::stream_call::StreamRequest;
use crate::failure::Failure;

/// The HTTP/3 connections of one worker.
#[derive(Default)]
pub(crate) struct H3WorkerPools(RefCell<HashMap<*const Endpoint, H3EndpointPools>>);

/// The connections to one endpoint.
struct H3EndpointPools {
    /// Keeps the address from being reused, and nothing else.
    endpoint: Weak<Endpoint>,
    /// By pool key: one, hardly ever two.
    pools: Vec<MultiplexPool<H3EndpointConnection>>,
}

impl H3WorkerPools {
    pub(super) fn with_pool<R>(
        &self,
        endpoint: &Arc<Endpoint>,
        key: PoolKey<'_>,
        run: impl FnOnce(&mut MultiplexPool<H3EndpointConnection>) -> R,
    ) -> R {
        let mut entries = self.0.borrow_mut();
        let entry = entries.entry(Arc::as_ptr(endpoint)).or_insert_with(|| H3EndpointPools {
            endpoint: Arc::downgrade(endpoint),
            pools: Vec::new(),
        });
        run(multiplex_pool::pool_for(&mut entry.pools, key))
    }

    pub(super) fn with_pool_for<R>(
        &self,
        call: &StreamRequest<'_>,
        run: impl FnOnce(&mut MultiplexPool<H3EndpointConnection>) -> R,
    ) -> R {
        // A connection that begins with a PROXY protocol header uses TCP.
        let key = PoolKey { proxy_protocol_client: None, ..call.pool_key() };
        self.with_pool(call.endpoint, key, run)
    }

    /// Opens a stream on which the head has been sent, if a connection has capacity now.
    pub(super) fn try_open_stream(
        &self,
        call: &StreamRequest<'_>,
    ) -> Result<Option<Box<EndpointConnection>>, Failure> {
        let counters = &call.endpoint.data.counters[call.worker].http3;
        self.with_pool_for(call, |pool| {
            let usable = pool.usable_connection(&call.backend_config.settings, counters, call.now);
            let Some(link) = usable else { return Ok(None) };
            let (stream, stream_guard) = link.send(call)?;
            let connection =
                EndpointConnection::for_stream(stream, stream_guard, call.worker, call.now);
            Ok(Some(Box::new(connection)))
        })
    }

    /// Returns the start of the current dial.
    pub(super) fn dialing_since(&self, call: &StreamRequest<'_>) -> Option<Time> {
        self.with_pool_for(call, |pool| pool.dialing_since())
    }

    /// Releases connections to the endpoint that are retired, or that have been idle for long.
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
            let keeps_marked = endpoint.data.budgets.descriptors.keeps_marked();
            let sweep = PoolSweep { settings, counters, now, keeps_marked };
            multiplex_pool::sweep(&mut entry.pools, &sweep);
        }
    }

    /// Removes the connections to endpoints that have been removed.
    pub(crate) fn remove_dropped_endpoints(&self) {
        let stays =
            |entry: &H3EndpointPools| entry.endpoint.strong_count() > 0 && !entry.pools.is_empty();
        self.0.borrow_mut().retain(|_, entry| stays(entry));
    }
}
