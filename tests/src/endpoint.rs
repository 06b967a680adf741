//! HTTP/1.1 server with a configurable behaviour; it records the facts that tests assert.
//!
//! It serves like a pool of synchronous workers: while it works on a request it does not notice
//! that the client has disconnected. So its counts show the work that a real worker would have had.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use socket2::SockRef;
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::http1::{Http1Error, Http1Reader, ParsedHead, RemainingBody};
use crate::payload::{self, BodyDigest};
use crate::random::SeededRandom;

/// Behaviour of a server, as data.
mod behaviour;
/// Requests and counts that a server records.
mod recorder;

pub use behaviour::{ConnectionReuse, EndpointBehaviour, ServeStep};
pub use recorder::{EndpointCounts, EndpointRecorder, RecordedRequest};

/// Running server; it stops, with all its connections, when dropped.
pub struct Endpoint {
    pub address: SocketAddr,
    recorder: Arc<EndpointRecorder>,
    accepting: AbortHandle,
}

impl Endpoint {
    /// Starts a server on a free port.
    pub async fn start(behaviour: impl Into<EndpointBehaviour>) -> Result<Self> {
        Self::start_at("127.0.0.1:0".parse()?, behaviour).await
    }

    /// Starts a server on this address, such as that of a server that has stopped.
    pub async fn start_at(
        address: SocketAddr,
        behaviour: impl Into<EndpointBehaviour>,
    ) -> Result<Self> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        let listener = socket.listen(1024)?;
        let address = listener.local_addr()?;
        let recorder = Arc::new(EndpointRecorder::default());
        let accepting =
            tokio::spawn(accept(listener, Arc::new(behaviour.into()), recorder.clone()));
        Ok(Self { address, recorder, accepting: accepting.abort_handle() })
    }

    pub fn counts(&self) -> EndpointCounts {
        self.recorder.counts()
    }

    /// Returns the requests so far, in the order in which their heads were read.
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.recorder.requests()
    }

    /// Returns the only request so far.
    pub fn only_request(&self) -> RecordedRequest {
        let mut seen = self.requests();
        assert_eq!(seen.len(), 1, "one request was expected: {seen:#?}");
        seen.remove(0)
    }

    /// Waits until the counts are as wanted.
    pub async fn wait_for_counts(
        &self,
        what: &str,
        wanted: impl Fn(&EndpointCounts) -> bool,
    ) -> Result<EndpointCounts> {
        self.recorder.wait_for_counts(what, wanted).await
    }

    /// Closes the listener and all connections at once, like the end of a process; returns the
    /// requests recorded until then.
    pub async fn kill(self) -> Result<Vec<RecordedRequest>> {
        self.accepting.abort();
        self.wait_for_counts("its connections are closed", |counts| counts.connections == 0)
            .await?;
        Ok(self.requests())
    }

    /// Lets this many requests pass a [`ServeStep::WaitForGate`], now or later.
    pub fn open_gate(&self, requests: usize) {
        self.recorder.gate.add_permits(requests);
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Returns an address without a listener: connections to it are refused.
pub async fn refusing_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0").await?.local_addr()?)
}

/// Takes the time that an endpoint works on a request.
async fn work(time: Duration) {
    sleep(time).await; // The work itself.
}

/// Returns the response that opens a WebSocket (RFC 6455 §4.2.2).
fn websocket_response(key: &str, fields: &str) -> String {
    let text = format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11");
    let digest =
        aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes());
    let accept = data_encoding::BASE64.encode(digest.as_ref());
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Accept: {accept}\r\n{fields}\r\n"
    )
}

/// Returns the status that a request asks for, or 200.
fn requested_status(head: &ParsedHead) -> u16 {
    let of_target = || {
        let (_, rest) = head.target().split_once("/status/")?;
        rest.get(..3).map(str::to_owned)
    };
    let asked = head.field("x-answer-status").or_else(of_target);
    asked.and_then(|it| it.parse().ok()).unwrap_or(200)
}

async fn accept(
    listener: TcpListener,
    behaviour: Arc<EndpointBehaviour>,
    recorder: Arc<EndpointRecorder>,
) {
    // Aborting this task drops the set, which aborts the connections.
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let behaviour = behaviour.clone();
        let recorder = recorder.clone();
        connections.spawn(async move {
            // The error is the client's disconnect; protocol errors are in the recorder.
            drop(Http1ServerConnection::new(stream, behaviour, recorder).serve().await);
        });
        while connections.try_join_next().is_some() {}
    }
}

struct Http1ServerConnection {
    // Before the sockets, so that the connection is removed from the records before they close.
    entry: recorder::RecordedConnection,
    reader: Http1Reader,
    writer: OwnedWriteHalf,
    socket: OwnedFd,
    behaviour: Arc<EndpointBehaviour>,
    random: SeededRandom,
}

/// State of a connection after a step.
#[derive(PartialEq)]
enum StepResult {
    Continue,
    /// The request has been answered.
    Answered,
    Close,
    Reset,
}

impl Http1ServerConnection {
    fn new(
        stream: TcpStream,
        behaviour: Arc<EndpointBehaviour>,
        recorder: Arc<EndpointRecorder>,
    ) -> Self {
        stream.set_nodelay(true).expect("a connected socket takes options");
        let entry = recorder.add_connection(&stream);
        let random = SeededRandom::new(behaviour.seed ^ entry.number());
        let socket = rustix::io::dup(&stream).expect("a descriptor is free");
        let (read, write) = stream.into_split();
        Self { entry, reader: Http1Reader::new(read), writer: write, socket, behaviour, random }
    }

    async fn serve(mut self) -> Result<(), Http1Error> {
        while let Some(head) = self.next_head().await? {
            let mut request = RequestInProgress::new(head, &self.entry)?;
            for step in &self.behaviour.clone().steps {
                match self.run_step(step, &mut request).await? {
                    StepResult::Continue => {}
                    StepResult::Answered => break,
                    StepResult::Close => return Ok(()),
                    StepResult::Reset => {
                        self.reset();
                        return Ok(());
                    }
                }
            }
            self.read_body(&mut request).await?;
            match self.behaviour.connection_reuse {
                ConnectionReuse::KeepAlive | ConnectionReuse::CloseWhenIdle(_) => {}
                ConnectionReuse::CloseAnnounced | ConnectionReuse::CloseSilently => return Ok(()),
            }
        }
        Ok(())
    }

    async fn next_head(&mut self) -> Result<Option<ParsedHead>, Http1Error> {
        let head = match self.behaviour.connection_reuse {
            ConnectionReuse::CloseWhenIdle(idle) => match timeout(idle, self.reader.head()).await {
                Ok(head) => head,
                Err(_) => return Ok(None),
            },
            ConnectionReuse::KeepAlive
            | ConnectionReuse::CloseAnnounced
            | ConnectionReuse::CloseSilently => self.reader.head().await,
        };
        match head {
            Ok(head) => Ok(Some(head)),
            Err(Http1Error::Closed) => Ok(None),
            Err(error) => {
                self.entry.add_protocol_error(error.to_string());
                Err(error)
            }
        }
    }

    async fn run_step(
        &mut self,
        step: &ServeStep,
        request: &mut RequestInProgress,
    ) -> Result<StepResult, Http1Error> {
        match step {
            ServeStep::ReadBody => self.read_body(request).await?,
            ServeStep::Wait(time) => work(*time).await,
            ServeStep::WaitExponential(mean) => work(self.random.exponential(*mean)).await,
            ServeStep::WaitForWorker(workers, mean) => {
                let worker = workers.acquire().await.expect("the semaphore is never closed");
                work(self.random.exponential(*mean)).await;
                drop(worker);
            }
            ServeStep::RefuseBeyond(most, answer) => {
                if self.entry.in_flight() > *most {
                    request.finish();
                    self.writer.write_all(answer.as_bytes()).await?;
                    return Ok(StepResult::Answered);
                }
            }
            ServeStep::WaitForGate => self.entry.wait_for_gate().await,
            ServeStep::Answer => self.answer(request).await?,
            ServeStep::AnswerPattern(length) => self.answer_pattern(*length, request).await?,
            ServeStep::AnswerAsRequested(text) => self.answer_as_requested(text, request).await?,
            ServeStep::Echo => self.echo(request).await?,
            ServeStep::Send(bytes) => {
                request.finish();
                self.writer.write_all(bytes).await?;
            }
            ServeStep::AcceptWebSocket(fields) => {
                let key = request.head.field("sec-websocket-key").unwrap_or_default();
                request.finish();
                self.writer.write_all(websocket_response(&key, fields).as_bytes()).await?;
            }
            ServeStep::Tunnel => self.tunnel().await?,
            ServeStep::WaitForever => std::future::pending().await,
            ServeStep::WaitForClose => self.reader.expect_end().await?,
            ServeStep::FinishSending => self.writer.shutdown().await?,
            ServeStep::Close => return Ok(StepResult::Close),
            ServeStep::CloseFor(target) if *target == request.head.target() => {
                return Ok(StepResult::Close);
            }
            ServeStep::CloseFor(_) => {}
            ServeStep::AnswerFor(target, answer) => {
                if *target == request.head.target() {
                    request.finish();
                    self.writer.write_all(answer.as_bytes()).await?;
                    return Ok(StepResult::Answered);
                }
            }
            ServeStep::Reset => return Ok(StepResult::Reset),
        }
        Ok(StepResult::Continue)
    }

    /// Reads the rest of the request's body, once; sends `100 Continue` first if the client expects
    /// it.
    async fn read_body(&mut self, request: &mut RequestInProgress) -> Result<(), Http1Error> {
        if request.left == RemainingBody::Nothing && request.body_read {
            return Ok(());
        }
        if request.head.field_lists("expect", "100-continue") {
            self.writer.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        let left = std::mem::replace(&mut request.left, RemainingBody::Nothing);
        request.body_read = true;
        let digest = match self.reader.digest(left).await {
            Ok(digest) => digest,
            Err(error) => {
                self.entry.add_protocol_error(error.to_string());
                return Err(error);
            }
        };
        let trailers = self.reader.take_trailers();
        self.entry.set_body(request.number, digest, trailers);
        Ok(())
    }

    async fn answer(&mut self, request: &mut RequestInProgress) -> Result<(), Http1Error> {
        let body: &[u8] = if request.head.method() == "HEAD" { b"" } else { b"ok" };
        let head = self.head_of(2);
        request.finish();
        self.writer.write_all(&[head.as_bytes(), body].concat()).await?;
        Ok(())
    }

    async fn answer_pattern(
        &mut self,
        length: u64,
        request: &mut RequestInProgress,
    ) -> Result<(), Http1Error> {
        self.writer.write_all(self.head_of(length).as_bytes()).await?;
        for piece in payload::pieces(length) {
            self.writer.write_all(piece).await?;
            self.entry.add_pattern_bytes(piece.len());
        }
        request.finish();
        Ok(())
    }

    async fn answer_as_requested(
        &mut self,
        text: &str,
        request: &mut RequestInProgress,
    ) -> Result<(), Http1Error> {
        let head = &request.head;
        if let Some(wait) = head.field("x-answer-wait").and_then(|it| it.parse().ok()) {
            work(Duration::from_millis(wait)).await;
        }
        let status = requested_status(head);
        let fields: String =
            head.field_values("x-answer-field").iter().map(|line| format!("{line}\r\n")).collect();
        let mut answer = format!("HTTP/1.1 {status} Requested\r\n{fields}");
        if status != 204 && status != 304 {
            answer += &format!("Content-Length: {}\r\n", text.len());
        }
        answer += "\r\n";
        if head.method() != "HEAD" && status != 204 && status != 304 {
            answer += text;
        }
        request.finish();
        self.writer.write_all(answer.as_bytes()).await?;
        Ok(())
    }

    /// Sends the request's body back as it arrives.
    async fn echo(&mut self, request: &mut RequestInProgress) -> Result<(), Http1Error> {
        let head = match request.left {
            RemainingBody::Bytes(length) => self.head_of(length),
            RemainingBody::Nothing => self.head_of(0),
            RemainingBody::ChunkHead | RemainingBody::Chunk(_) | RemainingBody::UntilClose => {
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned()
            }
        };
        let chunked = request.left == RemainingBody::ChunkHead;
        self.writer.write_all(head.as_bytes()).await?;
        let mut digest = BodyDigest::default();
        while let Some(piece) = self.reader.read_piece(&mut request.left).await? {
            digest.add(&piece);
            let sent = if chunked { chunk(&piece) } else { piece };
            self.writer.write_all(&sent).await?;
        }
        request.body_read = true;
        let trailers = self.reader.take_trailers();
        self.entry.set_body(request.number, digest, trailers);
        request.finish();
        if chunked {
            self.writer.write_all(b"0\r\n\r\n").await?;
        }
        Ok(())
    }

    fn head_of(&self, length: u64) -> String {
        let connection = match self.behaviour.connection_reuse {
            ConnectionReuse::CloseAnnounced => "Connection: close\r\n",
            ConnectionReuse::KeepAlive
            | ConnectionReuse::CloseSilently
            | ConnectionReuse::CloseWhenIdle(_) => "",
        };
        format!("HTTP/1.1 200 OK\r\n{connection}Content-Length: {length}\r\n\r\n")
    }

    /// Sends all bytes back, and closes the sending side when the client has.
    async fn tunnel(&mut self) -> Result<(), Http1Error> {
        loop {
            let bytes = self.reader.read_available().await?;
            if bytes.is_empty() {
                return Ok(self.writer.shutdown().await?);
            }
            self.writer.write_all(&bytes).await?;
        }
    }

    fn reset(self) {
        let socket = SockRef::from(&self.socket);
        socket.set_linger(Some(Duration::ZERO)).expect("linger can be set");
        // Dropping the writer would send a FIN first.
        self.writer.forget();
    }
}

struct RequestInProgress {
    head: ParsedHead,
    number: usize,
    left: RemainingBody,
    body_read: bool,
    running: Option<recorder::InFlightGuard>,
}

impl RequestInProgress {
    fn new(head: ParsedHead, entry: &recorder::RecordedConnection) -> Result<Self, Http1Error> {
        let left =
            head.request_body().inspect_err(|error| entry.add_protocol_error(error.to_string()))?;
        let (number, running) = entry.begin_request(&head);
        Ok(Self { head, number, left, body_read: false, running: Some(running) })
    }

    /// Ends the in-flight count, before the answer is complete: a client that has read all of it
    /// may rely on that.
    fn finish(&mut self) {
        self.running = None;
    }
}

fn chunk(data: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat()
}
