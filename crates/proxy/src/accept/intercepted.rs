//! Intercepted connections: each finds its listener by the address that its client wanted.
//!
//! A connection to an address that no listener has is reset: otherwise the proxy would be open to any address, or
//! connect to itself.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use tokio::net::TcpStream;

use crate::accept::intercepted_client::InterceptedClient;
use crate::accept::listen::{ConnectionAddresses, dispatch_connection};
use crate::stream::PeerStream;
use crate::worker::Worker;

/// Hands an intercepted connection to its listener, or resets it.
pub(super) fn dispatch(worker: &Rc<Worker>, stream: TcpStream, peer: SocketAddr) {
    let counters = worker.counters();
    counters.intercepted.add(1);
    let active_config = worker.config();
    let destination = worker.shared.interception.original_destination(&stream);
    let known = destination.and_then(|it| Some((it, active_config.intercepting_listener(it)?)));
    let Some((destination, listener)) = known else {
        counters.intercepted_unknown.add(1);
        PeerStream::Tcp(stream).reset_on_close();
        return;
    };
    let keeps_address = listener.interception.is_some_and(|it| it.keep_client_address);
    let client = InterceptedClient::new(peer.ip().to_canonical(), keeps_address);
    let addresses = ConnectionAddresses {
        peer,
        destination: Some(destination),
        intercepted: Some(Arc::new(client)),
    };
    dispatch_connection(worker, &listener.bound, stream, addresses);
}
