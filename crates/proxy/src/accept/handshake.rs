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

use crate::accept::arrival::Presence;
use crate::accept::client::Client;
use crate::accept::{h1, h2};
use crate::buffer::Buffer;
use crate::clock;
use crate::deadline::Deadline;
use crate::failure::Failure;
use crate::forwarded::PSEUDONYM;
use crate::observe::HandshakeCounters;
use crate::observe::passage::Record;
use crate::stream::Stream;
use crate::tcp;
use crate::tls::{
    self, Greeting, Hello, MOST_HELLO_BYTES, Session, TlsStream, Treatment, Unsecured,
};
use crate::worker::{Stage, Worker};

/// Where steps of handshakes wait for one another.
pub(crate) struct Line(Semaphore);

impl Line {
    pub(crate) fn new() -> Self {
        Self(Semaphore::new(1))
    }

    /// Does one step of one handshake.
    async fn step<T>(&self, work: impl FnOnce() -> T) -> T {
        let place = self.0.acquire().await;
        let done = work();
        // Whatever else is ready goes before the next.
        tokio::task::yield_now().await;
        drop(place);
        done
    }
}

/// What is to be done with a connection that has greeted.
enum Begun {
    PassThrough,
    Decrypt(Box<Session>, Inside),
}

/// What is in a connection, whether we see it or not.
#[derive(Clone, Copy)]
enum Inside {
    Requests,
    Connections,
}

/// Hears what the client asks for, and gives the connection to who serves that.
pub(super) async fn serve(presence: Presence, client: Client) {
    let worker = Rc::clone(&presence.worker);
    let bound = Arc::clone(&client.bound);
    let counters = &bound.counters[worker.index].handshakes;
    counters.begun.add(1);
    let sleeping = poll_fn(|cx| Poll::Ready(worker.sleep_here(cx.waker().clone()))).await;
    let (client, result) = secure(&worker, client).await;
    worker.leave(sleeping);
    match result {
        Ok(inside) => {
            count(counters, &client);
            begin(presence, client, inside);
        }
        Err(unsecured) => {
            counters.failed[unsecured as usize].add(1);
            part(&worker, client, unsecured).await;
        }
    }
}

fn count(counters: &HandshakeCounters, client: &Client) {
    let Stream::Tls(tls) = &client.stream else { return counters.passed_through.add(1) };
    match tls.session.settled().handshake_kind() {
        Some(HandshakeKind::Resumed) => counters.resumed.add(1),
        Some(HandshakeKind::Full | HandshakeKind::FullWithHelloRetryRequest) | None => {
            counters.full.add(1);
        }
    }
}

fn begin(presence: Presence, client: Client, inside: Inside) {
    match inside {
        Inside::Requests if speaks_http2(&client) => {
            tokio::task::spawn_local(h2::serve(presence, client))
        }
        Inside::Requests => tokio::task::spawn_local(h1::serve(presence, client)),
        Inside::Connections => tokio::task::spawn_local(tcp::serve(presence, client)),
    };
}

/// Whether that was agreed on (ALPN).
fn speaks_http2(client: &Client) -> bool {
    let Stream::Tls(tls) = &client.stream else { return false };
    tls.session.settled().alpn_protocol() == Some(b"h2")
}

/// Ends a connection that is not secured.
async fn part(worker: &Rc<Worker>, mut client: Client, unsecured: Unsecured) {
    if unsecured == Unsecured::PlainHttp && answer_plainly(worker, &mut client).await.is_ok() {
        client.linger(worker).await;
    }
    let failure = match unsecured {
        Unsecured::Gone => Failure::ClientGone,
        other => Failure::Unsecured(other),
    };
    Record::of_connection(&client).close_failed(worker, failure);
}

/// Tells a client without TLS what is wrong, in words that it knows.
async fn answer_plainly(worker: &Worker, client: &mut Client) -> Result<(), Unsecured> {
    let reason = Unsecured::PlainHttp.reason();
    let length = reason.len() + 1;
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {length}\r\n\
         Proxy-Status: {PSEUDONYM}; error=http_request_error; details=\"{reason}\"\r\n\
         Connection: close\r\n\r\n{reason}\n"
    );
    let Client { stream, deadline, .. } = client;
    within(worker, deadline, stream.write_all(answer.as_bytes()))
        .await?
        .map_err(|_lost| Unsecured::Gone)
}

/// From the first byte to the last of the handshake.
async fn secure(worker: &Rc<Worker>, mut client: Client) -> (Client, Result<Inside, Unsecured>) {
    let begun = match greet(worker, &mut client).await {
        Ok(begun) => begun,
        Err(unsecured) => return (client, Err(unsecured)),
    };
    let Begun::Decrypt(session, inside) = begun else { return (client, Ok(Inside::Connections)) };
    client = client.secured(session);
    let Client { stream: Stream::Tls(tls), deadline, .. } = &mut client else {
        return (client, Err(Unsecured::Protocol));
    };
    let result = shake(worker, tls, deadline).await;
    let version = tls::version_word(tls.session.settled().protocol_version());
    if let Some(greeting) = client.greeting.as_mut().and_then(Arc::get_mut) {
        greeting.version = version;
    }
    client.since = clock::now();
    (client, result.map(|()| inside))
}

/// Hears what the client asks for, and finds out what is to be done with it.
async fn greet(worker: &Rc<Worker>, client: &mut Client) -> Result<Begun, Unsecured> {
    let patience = {
        let live = worker.live();
        client.listener(&live).ok_or(Unsecured::Gone)?.client.head_timeout
    };
    client.deadline.set(client.accepted + patience);
    let mut said = client.take_unread(worker);
    let server_name = loop {
        match Hello::parse(&said) {
            Hello::Greets(name) => break name,
            Hello::PlainHttp => return Err(Unsecured::PlainHttp),
            Hello::Bad(error, alert) => {
                say(client, &alert).await;
                return Err((&error).into());
            }
            Hello::Unfinished if said.len() >= MOST_HELLO_BYTES => return Err(Unsecured::Protocol),
            Hello::Unfinished => hear(worker, client, &mut said).await?,
        }
    };
    let live = worker.live();
    let sites =
        live.listener(&client.bound).and_then(|it| it.tls.as_ref()).ok_or(Unsecured::Gone)?;
    let site = sites.find(server_name.as_ref().map(OwnedHostName::borrowed));
    let greeting = Greeting { server_name, site: site.cloned(), version: None };
    client.greeting = Some(Arc::new(greeting));
    let (alert, unsecured) = match site.map(|site| (&site.treatment, &site.carries)) {
        Some((Treatment::PassThrough, _)) => {
            client.buffer = Some(Buffer::holding(said));
            return Ok(Begun::PassThrough);
        }
        Some((Treatment::Decrypt(decryption), carries)) => {
            let inside = match carries {
                TlsPayload::Requests => Inside::Requests,
                TlsPayload::Connections(_) => Inside::Connections,
            };
            let session = Session::server(Arc::clone(&decryption.over_tcp));
            let mut session = session.map_err(|_unusable| Unsecured::Unusable)?;
            session.hear(&said);
            return Ok(Begun::Decrypt(Box::new(session), inside));
        }
        Some((Treatment::Refuse, _)) => (INTERNAL_ERROR, Unsecured::Unusable),
        // Where we only pass through, TLS is others' to speak: the connection is closed without a word.
        None if sites.only_pass_through() => return Err(Unsecured::UnknownName),
        None => (UNRECOGNIZED_NAME, Unsecured::UnknownName),
    };
    drop(live);
    say(client, &[21, 3, 3, 0, 2, 2, alert]).await;
    Err(unsecured)
}

/// Alerts that we send before there is a session (RFC 8446 §6.2).
const INTERNAL_ERROR: u8 = 80;
const UNRECOGNIZED_NAME: u8 = 112;

/// Says a few bytes before the end; a client that does not take them at once does without.
async fn say(client: &mut Client, bytes: &[u8]) {
    let sent = poll_fn(|cx| Poll::Ready(Pin::new(&mut client.stream).poll_write(cx, bytes))).await;
    drop(sent);
}

/// Reads on by way of the worker's large buffer, so that a client keeps no more memory than it has filled.
async fn hear(worker: &Worker, client: &mut Client, said: &mut Vec<u8>) -> Result<(), Unsecured> {
    let Client { stream, deadline, .. } = client;
    let reading = poll_fn(|cx| {
        let mut large = worker.scratch.large();
        let mut space = ReadBuf::new(&mut large[..MOST_HELLO_BYTES - said.len()]);
        let result = ready!(Pin::new(&mut *stream).poll_read(cx, &mut space));
        said.extend_from_slice(space.filled());
        let gone = result.is_err() || space.filled().is_empty();
        Poll::Ready(if gone { Err(Unsecured::Gone) } else { Ok(()) })
    });
    within(worker, deadline, reading).await?
}

/// Goes on until the handshake is over.
async fn shake(
    worker: &Worker,
    tls: &mut TlsStream,
    deadline: &mut Deadline,
) -> Result<(), Unsecured> {
    loop {
        let step = worker.handshakes.step(|| tls.session.shake());
        let shaken = within(worker, deadline, step).await?;
        // An alert too.
        let pushed = within(worker, deadline, poll_fn(|cx| tls.poll_push(cx))).await?;
        shaken.map_err(|error| Unsecured::from(&error))?;
        pushed.map_err(|_lost| Unsecured::Gone)?;
        if !tls.session.settled().is_handshaking() {
            return Ok(());
        }
        let heard = within(worker, deadline, poll_fn(|cx| tls.poll_hear(cx, 0))).await?;
        heard.map_err(|_lost| Unsecured::Gone)?;
    }
}

/// Awaits `future`, but not beyond the deadline, and not when idle connections are to close.
async fn within<T>(
    worker: &Worker,
    deadline: &mut Deadline,
    future: impl Future<Output = T>,
) -> Result<T, Unsecured> {
    let mut future = pin!(future);
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        if worker.stage() == Stage::Closing {
            return Poll::Ready(Err(Unsecured::Gone));
        }
        deadline.poll(cx).map(|()| Err(Unsecured::Late))
    })
    .await
}
