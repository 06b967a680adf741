//! A client's HTTP/3 connection: many requests at a time, each on a stream and in a task of its own.
//!
//! Packets are QUIC's (`quic`), frames and fields `h3`'s. Here it is decided how long a connection goes on: it leaves by
//! GOAWAY in two steps (RFC 9114 §5.2), so that nothing is lost that a client had sent; a client for which there is no
//! use (`Fault`) is told so and cut off. Whoever the client was when the connection began it is for all requests, though
//! its address may change: where packets claim to come from later is nobody's word but theirs.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;

use crate::accept::accepted_connection::{AcceptedConnection, ConnectionGuard};
use crate::accept::multiplexed_client::MultiplexedClient;
use crate::clock;
use crate::demand::RefusalHistory;
use crate::h3::H3ErrorCode;
use crate::quic::QuicConnection;

/// The connection from its first request to its end.
mod connection;
/// The task of one request.
mod request_task;
/// For what a connection is ended before its time.
mod fault;

pub(crate) use fault::H3ClientFault;

use connection::H3Connection;

/// Serves the connection from now on, in a task of its own. Its handshake may not be over: then what comes is 0-RTT.
pub(crate) fn begin(presence: ConnectionGuard, connection: QuicConnection) {
    let (worker, bound) = (&presence.worker, &presence.bound);
    let destination = connection.local_ip().map(|ip| SocketAddr::new(ip, bound.address.port()));
    let arrival = AcceptedConnection {
        peer: connection.peer(),
        destination,
        bound: Arc::clone(bound),
        tls_info: Some(Arc::clone(connection.tls_info())),
        accepted: clock::now(),
        refusals: RefusalHistory::default(),
        moved: false,
    };
    match H3Connection::new(connection.clone(), MultiplexedClient::new(worker, arrival)) {
        Some(talk) => drop(tokio::task::spawn_local(serve(presence, talk))),
        None => connection.close(H3ErrorCode::NO_ERROR.0, H3ErrorCode::NO_ERROR.reason()),
    }
}

/// Serves requests until the connection ends.
async fn serve(presence: ConnectionGuard, mut talk: H3Connection) {
    let worker = &presence.worker;
    let sleeping = poll_fn(|cx| Poll::Ready(worker.register_waker(cx.waker().clone()))).await;
    let end = poll_fn(|cx| talk.poll(cx)).await;
    worker.unregister_waker(sleeping);
    if let Some(fault) = end {
        worker.counters().http3_ended[fault as usize].add(1);
    }
}
