//! The client of an intercepted connection, and the mark with which connections to endpoints have its address.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use balance::Time;
use tokio::time::timeout;

use crate::clock;
use crate::dial::marked_socket;
use crate::dial::pool::Endpoint;
use crate::interception::ClientMark;
use crate::worker::Worker;

/// Time for which a new connection waits for its client's mark. The kernel changes its rules in less than a
/// millisecond, unless another program holds them for long.
const MARK_TIMEOUT: Duration = Duration::from_secs(1);
/// Time after which a mark that was not available is requested again.
const MARK_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The client of an intercepted connection.
pub(crate) struct InterceptedClient {
    pub(crate) address: IpAddr,
    /// True if connections to endpoints have the client's address.
    keeps_address: bool,
    /// The client's mark, once it is available; held as long as the client is connected.
    mark: OnceLock<Arc<ClientMark>>,
    /// Time, in nanoseconds, from which a mark that was not available is requested again.
    retry_at: AtomicU64,
}

impl InterceptedClient {
    pub(super) fn new(address: IpAddr, keeps_address: bool) -> Self {
        Self { address, keeps_address, mark: OnceLock::new(), retry_at: AtomicU64::new(0) }
    }

    /// True if the connection has to wait for the client's mark before it is served.
    pub(super) fn needs_mark(&self) -> bool {
        self.keeps_address && self.mark.get().is_none()
    }

    /// Obtains the client's mark, within a time limit. Without it, connections to endpoints come from the node.
    pub(super) async fn acquire_mark(&self, worker: &Worker) {
        let Some(interceptor) = &worker.shared.interception.interceptor else { return };
        self.retry_at.store((clock::now() + MARK_RETRY_INTERVAL).as_nanos(), Ordering::Relaxed);
        let acquired = timeout(MARK_TIMEOUT, interceptor.client_mark(self.address)).await;
        match acquired.ok().flatten() {
            Some(mark) => drop(self.mark.set(mark)),
            None => worker.counters().client_marks_unavailable.add(1),
        }
    }

    /// Returns the mark of a connection to this endpoint, if the connection has the client's address.
    ///
    /// It does not if the endpoint is the client, because a host drops packets that come from its own address, or if
    /// the endpoint has no address of the client's IP version.
    pub(crate) fn mark_for(
        self: &Arc<Self>,
        worker: &Rc<Worker>,
        endpoint: &Endpoint,
    ) -> Option<Arc<ClientMark>> {
        if !self.keeps_address {
            return None;
        }
        let address = marked_socket::address_for(endpoint, self.address)?;
        if self.address == address.ip().to_canonical() {
            return None;
        }
        let mark = self.mark.get().cloned();
        if mark.is_none() {
            self.request_mark_again(worker);
        }
        mark
    }

    /// Requests the mark in the background, for later connections, unless it was requested recently.
    fn request_mark_again(self: &Arc<Self>, worker: &Rc<Worker>) {
        if clock::now() < Time::from_nanos(self.retry_at.load(Ordering::Relaxed)) {
            return;
        }
        let (client, worker) = (Arc::clone(self), Rc::clone(worker));
        tokio::task::spawn_local(async move { client.acquire_mark(&worker).await });
    }
}
