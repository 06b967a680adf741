//! A client that has sent nothing, on a listener that detects the protocol.
//!
//! The client is connected to an endpoint. If the endpoint speaks first, bytes are relayed as in any TCP session. If the
//! client does, or neither, the session is given up and the client's first bytes decide: it may be a client of HTTP that
//! keeps a connection in reserve, whose requests are to be balanced one by one.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use super::{TcpSession, conclude};
use crate::accept::accepted_connection::ConnectionGuard;
use crate::accept::client::ClientConnection;
use crate::accept::detect::{self, DetectedProtocol};
use crate::clock;
use crate::observe::l4_record::L4Record;

/// Time for which the endpoint may begin to speak.
const FIRST_WORD_TIMEOUT: Duration = Duration::from_secs(30);
/// The same at a capped endpoint: a session that is silent for longer would only hold a slot.
const FIRST_WORD_TIMEOUT_OF_SLOT: Duration = Duration::from_secs(1);

/// Serves the client to its end.
pub(crate) async fn serve(guard: ConnectionGuard, mut client: ClientConnection) {
    let worker = Rc::clone(&guard.worker);
    let mut record = L4Record::of_connection(&client);
    let mut session = match TcpSession::open(&worker, &mut client, &mut record).await {
        Ok(session) => session,
        Err(failure) => return conclude(&worker, &client, record, Err(failure)),
    };
    if !session.endpoint_speaks_first(&mut client).await {
        drop(session);
        tokio::task::spawn_local(detect::serve_late(guard, client));
        return;
    }
    DetectedProtocol::ServerFirst.count(&worker);
    let end = session.relay(&worker, &mut client, &mut record).await;
    conclude(&worker, &client, record, end);
}

impl TcpSession {
    /// Returns true when the endpoint has sent something, or closed the connection, before the client did.
    async fn endpoint_speaks_first(&mut self, client: &mut ClientConnection) -> bool {
        let is_capped = self.slot.backend.config().limits.cap.is_some();
        let patience = if is_capped { FIRST_WORD_TIMEOUT_OF_SLOT } else { FIRST_WORD_TIMEOUT };
        client.deadline.set(clock::now() + patience);
        poll_fn(|cx| {
            if self.connection.stream.poll_read_ready(cx).is_ready() {
                return Poll::Ready(true);
            }
            if client.stream.poll_read_ready(cx).is_ready() {
                return Poll::Ready(false);
            }
            client.deadline.poll(cx).map(|()| false)
        })
        .await
    }
}
