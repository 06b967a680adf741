//! The TLS handshake of a client's connection: from its first byte to who serves it.
//!
//! A handshake costs far more than a request. So each of its steps waits in a line, and between two steps of any
//! everything else on the worker that is ready has its turn: a flood of handshakes delays a request by one step at a
//! time. A client that says nothing holds no more than its socket, and not for long.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, ready};

use gateway::matching::OwnedHostName;
use gateway::snapshot::TlsPayload;
use rustls::HandshakeKind;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::Semaphore;

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
use crate::tls::{
    self, ClientHelloParse, ClientTlsError, MOST_HELLO_BYTES, ServerTlsMode, TlsInfo, TlsSession,
    TlsStream,
};
use crate::worker::{DrainStage, Worker};

/// Where steps of handshakes wait for one another.
pub(crate) struct HandshakeLimiter(Semaphore);

impl HandshakeLimiter {
    pub(crate) fn new() -> Self {
        Self(Semaphore::new(1))
    }

    /// Does one step of one handshake.
    async fn run_step<T>(&self, work: impl FnOnce() -> T) -> T {
        let place = self.0.acquire().await;
        let done = work();
        // Whatever else is ready goes before the next.
        tokio::task::yield_now().await;
        drop(place);
        done
    }
}

/// What is to be done with a connection that has greeted.
enum TlsAction {
    PassThrough,
    Decrypt(Box<TlsSession>, PayloadKind),
}

/// What is in a connection, whether we see it or not.
#[derive(Clone, Copy)]
enum PayloadKind {
    Requests,
    OpaqueBytes,
}

/// Hears what the client asks for, and gives the connection to who serves that.
pub(super) async fn serve(presence: ConnectionGuard, client: ClientConnection) {
    let worker = Rc::clone(&presence.worker);
    let bound = Arc::clone(&client.bound);
    let counters = &bound.counters[worker.index].handshakes;
    counters.begun.add(1);
    let sleeping = poll_fn(|cx| Poll::Ready(worker.register_waker(cx.waker().clone()))).await;
    let (client, result) = perform_handshake(&worker, client).await;
    worker.unregister_waker(sleeping);
    match result {
        Ok(inside) => {
            count_handshake(counters, &client);
            begin(presence, client, inside);
        }
        Err(unsecured) => {
            counters.failed[unsecured as usize].add(1);
            close_failed(&worker, client, unsecured).await;
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

fn begin(presence: ConnectionGuard, client: ClientConnection, inside: PayloadKind) {
    match inside {
        PayloadKind::Requests if speaks_http2(&client) => {
            tokio::task::spawn_local(h2::serve(presence, client))
        }
        PayloadKind::Requests => tokio::task::spawn_local(h1::serve(presence, client)),
        PayloadKind::OpaqueBytes => tokio::task::spawn_local(tcp::serve(presence, client)),
    };
}

/// Whether that was agreed on (ALPN).
fn speaks_http2(client: &ClientConnection) -> bool {
    let PeerStream::Tls(tls) = &client.stream else { return false };
    tls.session.common_state().alpn_protocol() == Some(b"h2")
}

/// Ends a connection that is not secured.
async fn close_failed(
    worker: &Rc<Worker>,
    mut client: ClientConnection,
    unsecured: ClientTlsError,
) {
    if unsecured == ClientTlsError::PlainHttp
        && answer_in_plain_http(worker, &mut client).await.is_ok()
    {
        client.linger(worker).await;
    }
    let failure = match unsecured {
        ClientTlsError::Disconnected => Failure::ClientGone,
        other => Failure::ClientTls(other),
    };
    L4Record::of_connection(&client).close_failed(worker, failure);
}

/// Tells a client without TLS what is wrong, in words that it knows.
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

/// From the first byte to the last of the handshake.
async fn perform_handshake(
    worker: &Rc<Worker>,
    mut client: ClientConnection,
) -> (ClientConnection, Result<PayloadKind, ClientTlsError>) {
    let begun = match read_client_hello(worker, &mut client).await {
        Ok(begun) => begun,
        Err(unsecured) => return (client, Err(unsecured)),
    };
    let TlsAction::Decrypt(session, inside) = begun else {
        return (client, Ok(PayloadKind::OpaqueBytes));
    };
    client = client.with_tls(session);
    let ClientConnection { stream: PeerStream::Tls(tls), deadline, .. } = &mut client else {
        return (client, Err(ClientTlsError::Protocol));
    };
    let result = complete_handshake(worker, tls, deadline).await;
    let version = tls::version_word(tls.session.common_state().protocol_version());
    if let Some(greeting) = client.tls_info.as_mut().and_then(Arc::get_mut) {
        greeting.version = version;
    }
    client.last_event_at = clock::now();
    (client, result.map(|()| inside))
}

/// Hears what the client asks for, and finds out what is to be done with it.
async fn read_client_hello(
    worker: &Rc<Worker>,
    client: &mut ClientConnection,
) -> Result<TlsAction, ClientTlsError> {
    let patience = {
        let live = worker.config();
        client.listener(&live).ok_or(ClientTlsError::Disconnected)?.client.head_timeout
    };
    client.deadline.set(client.accepted + patience);
    let mut said = client.take_unread(worker);
    let server_name = loop {
        match ClientHelloParse::parse(&said) {
            ClientHelloParse::Complete(name) => break name,
            ClientHelloParse::PlainHttp => return Err(ClientTlsError::PlainHttp),
            ClientHelloParse::Invalid(error, alert) => {
                write_now(client, &alert).await;
                return Err((&error).into());
            }
            ClientHelloParse::Incomplete if said.len() >= MOST_HELLO_BYTES => {
                return Err(ClientTlsError::Protocol);
            }
            ClientHelloParse::Incomplete => read_more(worker, client, &mut said).await?,
        }
    };
    let live = worker.config();
    let sites = live
        .listener(&client.bound)
        .and_then(|it| it.sni_table.as_ref())
        .ok_or(ClientTlsError::Disconnected)?;
    let site = sites.find(server_name.as_ref().map(OwnedHostName::borrowed));
    let greeting = TlsInfo { server_name, sni_entry: site.cloned(), version: None };
    client.tls_info = Some(Arc::new(greeting));
    let (alert, unsecured) = match site.map(|site| (&site.mode, &site.carries)) {
        Some((ServerTlsMode::PassThrough, _)) => {
            client.buffer = Some(ReadBuffer::from_bytes(said));
            return Ok(TlsAction::PassThrough);
        }
        Some((ServerTlsMode::Decrypt(decryption), carries)) => {
            let inside = match carries {
                TlsPayload::Requests => PayloadKind::Requests,
                TlsPayload::Connections(_) => PayloadKind::OpaqueBytes,
            };
            let session = TlsSession::server(Arc::clone(&decryption.over_tcp));
            let mut session = session.map_err(|_unusable| ClientTlsError::UnusableConfig)?;
            session.receive_ciphertext(&said);
            return Ok(TlsAction::Decrypt(Box::new(session), inside));
        }
        Some((ServerTlsMode::Refuse, _)) => (INTERNAL_ERROR, ClientTlsError::UnusableConfig),
        // Where we only pass through, TLS is others' to speak: the connection is closed without a word.
        None if sites.only_pass_through() => return Err(ClientTlsError::UnknownName),
        None => (UNRECOGNIZED_NAME, ClientTlsError::UnknownName),
    };
    drop(live);
    write_now(client, &[21, 3, 3, 0, 2, 2, alert]).await;
    Err(unsecured)
}

/// Alerts that we send before there is a session (RFC 8446 §6.2).
const INTERNAL_ERROR: u8 = 80;
const UNRECOGNIZED_NAME: u8 = 112;

/// Says a few bytes before the end; a client that does not take them at once does without.
async fn write_now(client: &mut ClientConnection, bytes: &[u8]) {
    let sent = poll_fn(|cx| Poll::Ready(Pin::new(&mut client.stream).poll_write(cx, bytes))).await;
    drop(sent);
}

/// Reads on by way of the worker's large buffer, so that a client keeps no more memory than it has filled.
async fn read_more(
    worker: &Worker,
    client: &mut ClientConnection,
    said: &mut Vec<u8>,
) -> Result<(), ClientTlsError> {
    let ClientConnection { stream, deadline, .. } = client;
    let reading = poll_fn(|cx| {
        let mut large = worker.scratch.copy_buffer();
        let mut space = ReadBuf::new(&mut large[..MOST_HELLO_BYTES - said.len()]);
        let result = ready!(Pin::new(&mut *stream).poll_read(cx, &mut space));
        said.extend_from_slice(space.filled());
        let gone = result.is_err() || space.filled().is_empty();
        Poll::Ready(if gone { Err(ClientTlsError::Disconnected) } else { Ok(()) })
    });
    within(worker, deadline, reading).await?
}

/// Goes on until the handshake is over.
async fn complete_handshake(
    worker: &Worker,
    tls: &mut TlsStream,
    deadline: &mut Deadline,
) -> Result<(), ClientTlsError> {
    loop {
        let step = worker.handshake_limiter.run_step(|| tls.session.advance_handshake());
        let shaken = within(worker, deadline, step).await?;
        // An alert too.
        let pushed = within(worker, deadline, poll_fn(|cx| tls.poll_write_ciphertext(cx))).await?;
        shaken.map_err(|error| ClientTlsError::from(&error))?;
        pushed.map_err(|_lost| ClientTlsError::Disconnected)?;
        if !tls.session.common_state().is_handshaking() {
            return Ok(());
        }
        let heard = within(worker, deadline, poll_fn(|cx| tls.poll_read_ciphertext(cx, 0))).await?;
        heard.map_err(|_lost| ClientTlsError::Disconnected)?;
    }
}

/// Awaits `future`, but not beyond the deadline, and not when idle connections are to close.
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
