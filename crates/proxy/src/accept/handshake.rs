//! TLS handshake of a client connection, from its first byte to the start of the inner protocol.
//!
//! A handshake costs far more than a request. Therefore each handshake step waits for a semaphore,
//! and between two steps all other ready tasks of the worker run: a flood of handshakes delays a
//! request by one step at a time. A client that sends nothing holds no more than its socket, and
//! only until the timeout.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, ready};

use gateway::matching::OwnedHostName;
use gateway::snapshot::TlsPayload;
use rustls::HandshakeKind;
use tls::{
    ClientHelloParse, ClientTlsError, MOST_HELLO_BYTES, ServerTlsMode, TlsInfo, TlsSession,
    TlsStream,
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

use crate::accept::accepted_connection::ConnectionGuard;
use crate::accept::client::ClientConnection;
use crate::accept::{h1, h2};
use crate::buffer::ReadBuffer;
use crate::clock;
use crate::deadline::Deadline;
use crate::failure::Failure;
use crate::forwarded::PSEUDONYM;
use crate::observe::HandshakeCounters;
use crate::observe::l4_record::L4Record;
use crate::stream::PeerStream;
use crate::tcp;
use crate::worker::{DrainStage, Worker};

/// Action for a connection whose ClientHello is complete.
enum TlsAction {
    PassThrough,
    Decrypt(Box<TlsSession>, PayloadKind),
}

/// Payload of a connection, whether it is decrypted here or not.
#[derive(Clone, Copy)]
enum PayloadKind {
    Requests,
    OpaqueBytes,
}

/// Performs the TLS handshake and starts the protocol that the connection carries.
pub(super) async fn serve(guard: ConnectionGuard, client: ClientConnection) {
    let worker = Rc::clone(&guard.worker);
    let bound = Arc::clone(&client.bound);
    let counters = &bound.counters[worker.index].handshakes;
    counters.begun.add(1);
    let waker_id = poll_fn(|cx| Poll::Ready(worker.register_waker(cx.waker().clone()))).await;
    let (client, result) = perform_handshake(&worker, client).await;
    worker.unregister_waker(waker_id);
    match result {
        Ok(payload) => {
            count_handshake(counters, &client);
            begin(guard, client, payload);
        }
        Err(tls_error) => {
            counters.failed[tls_error as usize].add(1);
            close_failed(&worker, client, tls_error).await;
        }
    }
}

fn count_handshake(counters: &HandshakeCounters, client: &ClientConnection) {
    let PeerStream::Tls(tls) = &client.stream else { return counters.passed_through.add(1) };
    match tls.session.common_state().handshake_kind() {
        Some(HandshakeKind::Resumed) => counters.resumed.add(1),
        Some(HandshakeKind::Full | HandshakeKind::FullWithHelloRetryRequest) | None => {
            counters.full.add(1);
        }
    }
}

fn begin(guard: ConnectionGuard, client: ClientConnection, payload: PayloadKind) {
    match payload {
        PayloadKind::Requests if speaks_http2(&client) => {
            tokio::task::spawn_local(h2::serve(guard, client))
        }
        PayloadKind::Requests => tokio::task::spawn_local(h1::serve(guard, client)),
        PayloadKind::OpaqueBytes => tokio::task::spawn_local(tcp::serve(guard, client)),
    };
}

/// True if ALPN negotiated HTTP/2.
fn speaks_http2(client: &ClientConnection) -> bool {
    let PeerStream::Tls(tls) = &client.stream else { return false };
    tls.session.common_state().alpn_protocol() == Some(b"h2")
}

/// Ends a connection whose handshake has failed.
async fn close_failed(
    worker: &Rc<Worker>,
    mut client: ClientConnection,
    tls_error: ClientTlsError,
) {
    if tls_error == ClientTlsError::PlainHttp
        && answer_in_plain_http(worker, &mut client).await.is_ok()
    {
        client.linger(worker).await;
    }
    let failure = match tls_error {
        ClientTlsError::Disconnected => Failure::ClientGone,
        other => Failure::ClientTls(other),
    };
    L4Record::of_connection(&client).close_failed(worker, failure);
}

/// Tells a plain-HTTP client, in plain HTTP, that this port expects TLS.
async fn answer_in_plain_http(
    worker: &Worker,
    client: &mut ClientConnection,
) -> Result<(), ClientTlsError> {
    let reason = ClientTlsError::PlainHttp.reason();
    let length = reason.len() + 1;
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {length}\r\n\
         Proxy-Status: {PSEUDONYM}; error=http_request_error; details=\"{reason}\"\r\n\
         Connection: close\r\n\r\n{reason}\n"
    );
    let ClientConnection { stream, deadline, .. } = client;
    within(worker, deadline, stream.write_all(answer.as_bytes()))
        .await?
        .map_err(|_lost| ClientTlsError::Disconnected)
}

/// Performs the whole handshake, from its first byte to its last.
async fn perform_handshake(
    worker: &Rc<Worker>,
    mut client: ClientConnection,
) -> (ClientConnection, Result<PayloadKind, ClientTlsError>) {
    let begun = match read_client_hello(worker, &mut client).await {
        Ok(begun) => begun,
        Err(tls_error) => return (client, Err(tls_error)),
    };
    let TlsAction::Decrypt(session, payload) = begun else {
        return (client, Ok(PayloadKind::OpaqueBytes));
    };
    client = client.with_tls(session);
    let ClientConnection { stream: PeerStream::Tls(tls), deadline, .. } = &mut client else {
        return (client, Err(ClientTlsError::Protocol));
    };
    let result = complete_handshake(worker, tls, deadline).await;
    let state = tls.session.common_state();
    let version = tls::version_label(state.protocol_version());
    let presented = state.peer_certificates().map(<[_]>::to_vec);
    if let Some(tls_info) = client.tls_info.as_mut().and_then(Arc::get_mut) {
        tls_info.version = version;
        let entry = tls_info.sni_entry.as_ref();
        tls_info.client = entry.and_then(|entry| entry.client_identity(presented?));
    }
    client.last_event_at = clock::now();
    (client, result.map(|()| payload))
}

/// Reads the ClientHello and selects the action for its server name.
async fn read_client_hello(
    worker: &Rc<Worker>,
    client: &mut ClientConnection,
) -> Result<TlsAction, ClientTlsError> {
    let timeout = {
        let active_config = worker.config();
        client.listener(&active_config).ok_or(ClientTlsError::Disconnected)?.client.head_timeout
    };
    client.deadline.set(client.accepted + timeout);
    let mut received = client.take_unread(worker);
    let server_name = loop {
        match ClientHelloParse::parse(&received) {
            ClientHelloParse::Complete(name) => break name,
            ClientHelloParse::PlainHttp => return Err(ClientTlsError::PlainHttp),
            ClientHelloParse::Invalid(error, alert) => {
                write_now(client, &alert).await;
                return Err((&error).into());
            }
            ClientHelloParse::Incomplete if received.len() >= MOST_HELLO_BYTES => {
                return Err(ClientTlsError::Protocol);
            }
            ClientHelloParse::Incomplete => read_more(worker, client, &mut received).await?,
        }
    };
    let active_config = worker.config();
    let sni_table = active_config
        .listener(&client.bound)
        .and_then(|it| it.sni_table.as_ref())
        .ok_or(ClientTlsError::Disconnected)?;
    let sni_entry = sni_table.find(server_name.as_ref().map(OwnedHostName::borrowed));
    let tls_info =
        TlsInfo { server_name, sni_entry: sni_entry.cloned(), version: None, client: None };
    client.tls_info = Some(Arc::new(tls_info));
    let (alert, tls_error) = match sni_entry.map(|sni_entry| (&sni_entry.mode, &sni_entry.carries))
    {
        Some((ServerTlsMode::PassThrough, _)) => {
            client.buffer = Some(ReadBuffer::from_bytes(received));
            return Ok(TlsAction::PassThrough);
        }
        Some((ServerTlsMode::Terminate(decryption), carries)) => {
            let payload = match carries {
                TlsPayload::Requests => PayloadKind::Requests,
                TlsPayload::Connections(_) => PayloadKind::OpaqueBytes,
            };
            let session = TlsSession::server(Arc::clone(&decryption.over_tcp));
            let mut session = session.map_err(|_unusable| ClientTlsError::UnusableConfig)?;
            session.receive_ciphertext(&received);
            return Ok(TlsAction::Decrypt(Box::new(session), payload));
        }
        Some((ServerTlsMode::Refuse, _)) => (INTERNAL_ERROR, ClientTlsError::UnusableConfig),
        // If every entry of this listener is TLS passthrough, we do not speak TLS here: the
        // connection is closed without an alert.
        None if sni_table.only_pass_through() => return Err(ClientTlsError::UnknownName),
        None => (UNRECOGNIZED_NAME, ClientTlsError::UnknownName),
    };
    drop(active_config);
    write_now(client, &[21, 3, 3, 0, 2, 2, alert]).await;
    Err(tls_error)
}

/// TLS alerts that we send before there is a session (RFC 8446 §6.2).
const INTERNAL_ERROR: u8 = 80;
const UNRECOGNIZED_NAME: u8 = 112;

/// Writes a few bytes before the close; if the socket does not accept them at once, they are
/// dropped.
async fn write_now(client: &mut ClientConnection, bytes: &[u8]) {
    let sent = poll_fn(|cx| Poll::Ready(Pin::new(&mut client.stream).poll_write(cx, bytes))).await;
    drop(sent);
}

/// Reads more through the worker's large buffer, so that a client holds no more memory than it has
/// filled.
async fn read_more(
    worker: &Worker,
    client: &mut ClientConnection,
    received: &mut Vec<u8>,
) -> Result<(), ClientTlsError> {
    let ClientConnection { stream, deadline, .. } = client;
    let reading = poll_fn(|cx| {
        let mut large = worker.scratch.copy_buffer();
        let mut space = ReadBuf::new(&mut large[..MOST_HELLO_BYTES - received.len()]);
        let result = ready!(Pin::new(&mut *stream).poll_read(cx, &mut space));
        received.extend_from_slice(space.filled());
        let gone = result.is_err() || space.filled().is_empty();
        Poll::Ready(if gone { Err(ClientTlsError::Disconnected) } else { Ok(()) })
    });
    within(worker, deadline, reading).await?
}

/// Runs the handshake to its end.
async fn complete_handshake(
    worker: &Worker,
    tls: &mut TlsStream,
    deadline: &mut Deadline,
) -> Result<(), ClientTlsError> {
    loop {
        let step = worker.handshake_limiter.run_step(|| tls.session.advance_handshake());
        let step_result = within(worker, deadline, step).await?;
        // Also sends an alert, if the step has failed.
        let write_result =
            within(worker, deadline, poll_fn(|cx| tls.poll_write_ciphertext(cx))).await?;
        step_result.map_err(|error| ClientTlsError::from(&error))?;
        write_result.map_err(|_lost| ClientTlsError::Disconnected)?;
        if !tls.session.common_state().is_handshaking() {
            return Ok(());
        }
        let read_result =
            within(worker, deadline, poll_fn(|cx| tls.poll_read_ciphertext(cx, 0))).await?;
        read_result.map_err(|_lost| ClientTlsError::Disconnected)?;
    }
}

/// Awaits `future` until the deadline, or until the worker closes its idle connections.
async fn within<T>(
    worker: &Worker,
    deadline: &mut Deadline,
    future: impl Future<Output = T>,
) -> Result<T, ClientTlsError> {
    let mut future = pin!(future);
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        if worker.stage() == DrainStage::Closing {
            return Poll::Ready(Err(ClientTlsError::Disconnected));
        }
        deadline.poll(cx).map(|()| Err(ClientTlsError::Timeout))
    })
    .await
}
