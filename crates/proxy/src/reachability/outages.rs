//! Endpoints that are marked unreachable.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use balance::Time;

use crate::backend::Backend;
use crate::clock;
use crate::dial::pool::Endpoint;
use crate::mutex::lock;
use crate::worker::ProxyState;

/// Marks an endpoint unreachable for all workers and backends: a connection attempt has failed.
pub(crate) fn mark_unreachable(
    shared: &ProxyState,
    backend: &Arc<Backend>,
    endpoint: &Arc<Endpoint>,
    cause: &'static str,
) {
    if !endpoint.mark_unreachable(clock::now()) {
        return;
    }
    let name = endpoint.address;
    tracing::warn!(backend = %backend.key, endpoint = %name, cause, "endpoint is unreachable");
    let reachability = &endpoint.data.reachability;
    reachability.outages.fetch_add(1, Ordering::Relaxed);
    reachability.failed_attempts.store(0, Ordering::Relaxed);
    shared.outages.add(backend, endpoint);
    retry_waiting_requests(endpoint);
    shared.health_waker.wake();
    if let Some(leases) = &shared.leases {
        leases.record_outage();
    }
}

/// Handles an answer, to a request that began at `started`, from an endpoint that is marked unreachable. Unless the
/// request is older than the mark, the endpoint is reachable again.
#[cold]
pub(crate) fn mark_reachable_if_newer(backend: &Backend, endpoint: &Endpoint, started: Time) {
    if endpoint.unreachable_since().is_some_and(|since| since < started) {
        mark_reachable(backend, endpoint);
    }
}

pub(super) fn mark_reachable(backend: &Backend, endpoint: &Endpoint) {
    let since = endpoint.unreachable_since();
    let now = clock::now();
    if endpoint.mark_reachable(now) {
        let name = endpoint.address;
        let outage = since.map(|since| now.saturating_since(since));
        tracing::info!(backend = %backend.key, endpoint = %name, ?outage, "endpoint is reachable again");
        retry_waiting_requests(endpoint);
    }
}

fn retry_waiting_requests(endpoint: &Endpoint) {
    endpoint.data.backends().iter().for_each(|backend| backend.reachability_changed());
}

/// Endpoints that are marked unreachable, for the background attempts of the health thread.
#[derive(Default)]
pub(crate) struct OutageList(pub(super) Mutex<Vec<EndpointOutage>>);

pub(super) struct EndpointOutage {
    /// The backend whose policy the attempts use.
    pub(super) backend: Arc<Backend>,
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) is_attempted: bool,
}

impl OutageList {
    /// Returns the addresses of the endpoints that were marked last, at most this many.
    pub(crate) fn newest(&self, most: usize) -> Vec<SocketAddr> {
        let outages = lock(&self.0);
        let lasting = outages.iter().rev().filter(|outage| !outage.endpoint.is_reachable());
        lasting.map(|outage| outage.endpoint.address).take(most).collect()
    }

    fn add(&self, backend: &Arc<Backend>, endpoint: &Arc<Endpoint>) {
        let mut outages = lock(&self.0);
        if !outages.iter().any(|outage| Arc::ptr_eq(&outage.endpoint, endpoint)) {
            let (backend, endpoint) = (Arc::clone(backend), Arc::clone(endpoint));
            outages.push(EndpointOutage { backend, endpoint, is_attempted: false });
        }
    }
}

impl EndpointOutage {
    /// True if the endpoint is still unreachable and still belongs to a backend.
    pub(super) fn lasts(&self) -> bool {
        if self.endpoint.data.backends().is_empty() {
            // It may be configured again while requests still hold it; then it begins without a mark.
            self.endpoint.mark_reachable(clock::now());
        }
        !self.endpoint.is_reachable()
    }
}
