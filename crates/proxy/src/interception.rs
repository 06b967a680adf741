//! Interception of connections on the node (transparent mode): the boundary to it, and the state that workers share.
//!
//! This module must not know how connections are intercepted, nor how an address is kept.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;

use crate::config_cell::ConfigCell;

/// The interception of connections on this node, as the data plane needs it.
pub trait ConnectionInterceptor: Send + Sync + 'static {
    /// Returns the address that the client of an intercepted connection wanted.
    ///
    /// # Errors
    /// If the connection was not intercepted, or the kernel no longer knows the address.
    fn original_destination(&self, socket: BorrowedFd<'_>) -> io::Result<SocketAddr>;

    /// Returns the mark (`SO_MARK`) of our own connections, which are never intercepted.
    fn own_mark(&self) -> u32;

    /// Returns the mark with which connections have this client's address. `None`: not possible now, and connections
    /// come from the node. May wait for the kernel.
    fn client_mark(&self, client: IpAddr) -> ClientMarkFuture;
}

/// The pending result of [`ConnectionInterceptor::client_mark`].
pub type ClientMarkFuture = Pin<Box<dyn Future<Output = Option<Arc<ClientMark>>> + Send>>;

/// The mark of a client. It stays the client's as long as a clone of its `Arc` is held outside the interceptor.
#[derive(Debug, PartialEq, Eq)]
pub struct ClientMark {
    /// The value of `SO_MARK`.
    pub value: u32,
    /// The client's address.
    pub address: IpAddr,
}

/// Counts of interception since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterceptionCounts {
    /// Intercepted connections that were accepted.
    pub accepted: u64,
    /// Those of them that were reset, because no listener has their destination.
    pub unknown: u64,
    /// Ticks of each worker. The count of a worker that hangs does not grow.
    pub worker_ticks: Vec<u64>,
}

/// Namespaces of clients by their address.
pub(crate) type ClientNamespaces = HashMap<IpAddr, Arc<str>>;

/// The state of interception that all workers share.
pub(crate) struct InterceptionState {
    /// `None`: connections are not intercepted.
    pub(crate) interceptor: Option<Arc<dyn ConnectionInterceptor>>,
    pub(crate) namespaces: ConfigCell<ClientNamespaces>,
}

impl InterceptionState {
    pub(crate) fn new(interceptor: Option<Arc<dyn ConnectionInterceptor>>) -> Self {
        Self { interceptor, namespaces: ConfigCell::new(ClientNamespaces::new()) }
    }

    /// Returns the address that the client of this connection wanted; `None` if it is not known.
    pub(crate) fn original_destination(&self, socket: &impl AsFd) -> Option<SocketAddr> {
        let destination = self.interceptor.as_ref()?.original_destination(socket.as_fd()).ok()?;
        Some(SocketAddr::new(destination.ip().to_canonical(), destination.port()))
    }
}
