//! Client HTTP/3 connection: many concurrent requests, each with a stream and a task of its own.
//!
//! Module `quic` handles packets, module `h3` frames and fields. This module decides how long a
//! connection stays open: it ends by GOAWAY in two steps (RFC 9114 §5.2), so that no request that
//! the client has sent is lost. A misbehaving client (`H3ClientFault`) gets an error code, and
//! its connection is closed. The client address at the start of the connection holds for all
//! requests, although the address may change: the source address of later packets is only their
//! own claim.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;

use codec::h3::H3ErrorCode;

use crate::accept::accepted_connection::{AcceptedConnection, ConnectionGuard};
use crate::accept::multiplexed_client::MultiplexedClient;
use crate::clock;
use crate::demand::refusal_history::RefusalHistory;

/// The connection from its first request to its end.
mod connection;
/// The task of one request.
mod request_task;
/// Reasons for which a connection is ended early.
mod fault;

pub(crate) use fault::H3ClientFault;

use connection::H3Connection;
use quic::QuicConnection;

/// Serves the connection in a task of its own. If its handshake is not complete, the data that
/// arrives is 0-RTT.
pub(crate) fn begin(guard: ConnectionGuard, connection: QuicConnection) {
    let (worker, bound) = (&guard.worker, &guard.bound);
    let destination = connection.local_ip().map(|ip| SocketAddr::new(ip, bound.address.port()));
    let arrival = AcceptedConnection {
        peer: connection.peer(),
        destination,
        intercepted: None,
        bound: Arc::clone(bound),
        tls_info: Some(Arc::clone(connection.tls_info())),
        accepted: clock::now(),
        refusals: RefusalHistory::default(),
        moved: false,
    };
    match H3Connection::new(connection.clone(), MultiplexedClient::new(worker, arrival)) {
        Some(h3_connection) => drop(tokio::task::spawn_local(serve(guard, h3_connection))),
        None => connection.close(H3ErrorCode::NO_ERROR.0, H3ErrorCode::NO_ERROR.reason()),
    }
}

/// Serves requests until the connection ends.
async fn serve(guard: ConnectionGuard, mut h3_connection: H3Connection) {
    let worker = &guard.worker;
    let waker_id = poll_fn(|cx| Poll::Ready(worker.register_waker(cx.waker().clone()))).await;
    let end = poll_fn(|cx| h3_connection.poll(cx)).await;
    worker.unregister_waker(waker_id);
    if let Some(fault) = end {
        worker.counters().http3_ended[fault as usize].add(1);
    }
}
