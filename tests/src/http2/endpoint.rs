//! Server whose behaviour is a function; it records the facts that tests assert.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};

use anyhow::{Context, Result};
use bytes::Bytes;
use h2::server::{Builder, Connection, SendResponse};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use super::{Http2Body, read, send, status};
use crate::waiting::PATIENCE;

/// Running server; it stops, with all its connections, when dropped.
pub struct Http2TestEndpoint {
    pub address: SocketAddr,
    shared: Arc<SharedCounts>,
    accepting: AbortHandle,
}

/// Options of each connection.
#[derive(Clone)]
pub struct Http2EndpointOptions {
    pub settings: Builder,
    /// Number of requests after which a connection sends GOAWAY; requests in flight are finished.
    pub max_requests_per_connection: Option<u64>,
}

/// Totals over everything that the server has recorded.
#[derive(Clone, Debug, Default)]
pub struct Http2EndpointCounts {
    pub requests: u64,
    /// Streams that are being served.
    pub in_flight: usize,
    pub max_in_flight: usize,
    /// Streams that ended without a complete answer: by a reset, or with their connection.
    pub unanswered: u64,
    /// Connections that were accepted and have not ended.
    pub connections: usize,
    pub accepted: u64,
    /// Heads of the requests, in order.
    pub heads: Vec<Request<()>>,
}

/// Request, with the means to answer it.
pub struct ReceivedRequest {
    /// Its number at this endpoint, from 1.
    pub number: u64,
    pub head: Request<()>,
    pub body: RecvStream,
    pub respond: SendResponse<Bytes>,
    running: CountedHttp2Stream,
}

type HandlerFuture = Pin<Box<dyn Future<Output = Result<(), h2::Error>> + Send>>;
type RequestHandler = Arc<dyn Fn(ReceivedRequest) -> HandlerFuture + Send + Sync>;

#[derive(Default)]
struct SharedCounts {
    counts: Mutex<Http2EndpointCounts>,
    changed: watch::Sender<()>,
}

impl Default for Http2EndpointOptions {
    fn default() -> Self {
        Self { settings: Builder::new(), max_requests_per_connection: None }
    }
}

impl Http2TestEndpoint {
    /// Starts a server that answers `ok` to every request.
    pub async fn ok() -> Result<Self> {
        Self::start(|call| async { call.answer("ok").await }).await
    }

    /// Starts a server that serves each request by this function.
    pub async fn start<F, A>(serve: F) -> Result<Self>
    where
        F: Fn(ReceivedRequest) -> A + Send + Sync + 'static,
        A: Future<Output = Result<(), h2::Error>> + Send + 'static,
    {
        Self::with(Http2EndpointOptions::default(), serve).await
    }

    /// Like [`Http2TestEndpoint::start`], with these options.
    pub async fn with<F, A>(options: Http2EndpointOptions, serve: F) -> Result<Self>
    where
        F: Fn(ReceivedRequest) -> A + Send + Sync + 'static,
        A: Future<Output = Result<(), h2::Error>> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let counts = Arc::<SharedCounts>::default();
        let serve: RequestHandler = Arc::new(move |call| Box::pin(serve(call)));
        let accepting = tokio::spawn(accept(listener, options, serve, counts.clone()));
        Ok(Self { address, shared: counts, accepting: accepting.abort_handle() })
    }

    pub fn counts(&self) -> Http2EndpointCounts {
        self.shared.lock().clone()
    }

    /// Closes the listener and all connections at once, like the end of a process; returns the
    /// counts until then.
    pub async fn kill(self) -> Result<Http2EndpointCounts> {
        self.accepting.abort();
        self.wait_for_counts("its connections are closed", |counts| counts.connections == 0).await
    }

    /// Returns the only request so far.
    pub fn only_request(&self) -> Request<()> {
        let mut heads = self.counts().heads;
        assert_eq!(heads.len(), 1, "one request was expected: {heads:#?}");
        heads.remove(0)
    }

    /// Waits until the counts are as wanted.
    pub async fn wait_for_counts(
        &self,
        what: &str,
        wanted: impl Fn(&Http2EndpointCounts) -> bool,
    ) -> Result<Http2EndpointCounts> {
        let mut changes = self.shared.changed.subscribe();
        let changed = async {
            while !wanted(&self.counts()) {
                changes.changed().await.expect("the counts live as long as the endpoint");
            }
            self.counts()
        };
        let outcome = timeout(PATIENCE, changed).await;
        outcome.with_context(|| format!("{what}: not true after {PATIENCE:?}: {:?}", self.counts()))
    }
}

impl Drop for Http2TestEndpoint {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl ReceivedRequest {
    /// Answers 200 with this body.
    pub async fn answer(self, body: impl Into<Bytes>) -> Result<(), h2::Error> {
        self.answer_with(status(200), body, HeaderMap::new()).await
    }

    /// Answers with this head, this body, and these trailers if there are any.
    pub async fn answer_with(
        mut self,
        head: Response<()>,
        body: impl Into<Bytes>,
        trailers: HeaderMap,
    ) -> Result<(), h2::Error> {
        let mut send_stream = self.respond.send_response(head, false)?;
        send(&mut send_stream, body.into()).await?;
        self.running.finish();
        if trailers.is_empty() {
            send_stream.send_data(Bytes::new(), true)
        } else {
            send_stream.send_trailers(trailers)
        }
    }

    /// Sends this head, and returns the stream of the body.
    pub fn begin(&mut self, head: Response<()>) -> Result<SendStream<Bytes>, h2::Error> {
        self.respond.send_response(head, false)
    }

    /// Answers with this head and nothing else.
    pub fn end_with(mut self, head: Response<()>) -> Result<(), h2::Error> {
        self.running.finish();
        self.respond.send_response(head, true)?;
        Ok(())
    }

    /// Sends the body back while it arrives, and then the trailers.
    pub async fn echo(mut self) -> Result<(), h2::Error> {
        let mut send_stream = self.respond.send_response(status(200), false)?;
        while let Some(piece) = self.body.data().await {
            let piece = piece?;
            self.body.flow_control().release_capacity(piece.len())?;
            send(&mut send_stream, piece).await?;
        }
        let trailers = self.body.trailers().await?.unwrap_or_default();
        self.running.finish();
        send_stream.send_trailers(trailers)
    }

    /// Reads the whole body of the request.
    pub async fn read(&mut self) -> Result<Http2Body, h2::Error> {
        read(&mut self.body).await
    }

    /// Resets the stream, for this reason.
    pub fn reset(mut self, reason: h2::Reason) {
        self.respond.send_reset(reason);
    }

    /// Sends no answer, and waits until the client resets the stream; returns the reason.
    pub async fn wait_for_reset(&mut self) -> Result<h2::Reason, h2::Error> {
        poll_fn(|context| self.respond.poll_reset(context)).await
    }
}

async fn accept(
    listener: TcpListener,
    options: Http2EndpointOptions,
    serve: RequestHandler,
    counts: Arc<SharedCounts>,
) {
    // Aborting this task drops the set, which aborts the connections.
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        stream.set_nodelay(true).expect("a connected socket takes options");
        let open = CountedHttp2Connection::new(&counts);
        let (options, serve, counts) = (options.clone(), serve.clone(), counts.clone());
        connections.spawn(async move {
            let _open = open;
            // The error is the client's disconnect.
            drop(serve_connection(stream, &options, &serve, &counts).await);
        });
        while connections.try_join_next().is_some() {}
    }
}

async fn serve_connection(
    stream: TcpStream,
    options: &Http2EndpointOptions,
    serve: &RequestHandler,
    counts: &Arc<SharedCounts>,
) -> Result<(), h2::Error> {
    let mut connection: Connection<TcpStream, Bytes> = options.settings.handshake(stream).await?;
    let mut streams = JoinSet::new();
    let mut served = 0;
    while let Some(accepted) = connection.accept().await {
        let (request, respond) = accepted?;
        let (parts, body) = request.into_parts();
        let head = Request::from_parts(parts, ());
        let (number, running) = counts.begin(&head);
        streams.spawn(serve(ReceivedRequest { number, head, body, respond, running }));
        served += 1;
        if options.max_requests_per_connection == Some(served) {
            connection.graceful_shutdown();
        }
        while streams.try_join_next().is_some() {}
    }
    Ok(())
}

impl SharedCounts {
    fn change<T>(&self, change: impl FnOnce(&mut Http2EndpointCounts) -> T) -> T {
        let result = change(&mut self.lock());
        self.changed.send_replace(());
        result
    }

    fn lock(&self) -> MutexGuard<'_, Http2EndpointCounts> {
        self.counts.lock().expect("no holder of the lock panics")
    }

    fn begin(self: &Arc<Self>, head: &Request<()>) -> (u64, CountedHttp2Stream) {
        let number = self.change(|counts| {
            counts.requests += 1;
            counts.in_flight += 1;
            counts.max_in_flight = counts.max_in_flight.max(counts.in_flight);
            counts.heads.push(head.clone());
            counts.requests
        });
        (number, CountedHttp2Stream { shared: self.clone(), finished: false })
    }
}

/// Guard that counts an open connection. Its task drops it last, even if the task is aborted.
struct CountedHttp2Connection(Arc<SharedCounts>);

impl CountedHttp2Connection {
    fn new(counts: &Arc<SharedCounts>) -> Self {
        counts.change(|counts| {
            counts.accepted += 1;
            counts.connections += 1;
        });
        Self(counts.clone())
    }
}

impl Drop for CountedHttp2Connection {
    fn drop(&mut self) {
        self.0.change(|counts| counts.connections -= 1);
    }
}

/// Guard that counts a stream in flight.
struct CountedHttp2Stream {
    shared: Arc<SharedCounts>,
    finished: bool,
}

impl CountedHttp2Stream {
    /// Marks the stream as answered, before the last frame is sent: a client that has received it
    /// may rely on that.
    fn finish(mut self) {
        self.finished = true;
    }
}

impl Drop for CountedHttp2Stream {
    fn drop(&mut self) {
        self.shared.change(|counts| {
            counts.in_flight -= 1;
            counts.unanswered += u64::from(!self.finished);
        });
    }
}
