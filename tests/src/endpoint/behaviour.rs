//! Behaviour of a server, as data.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

/// Behaviour of a server on each connection and each request.
#[derive(Clone, Debug)]
pub struct EndpointBehaviour {
    pub connection_reuse: ConnectionReuse,
    /// Steps performed in order for each request, from when its head has been read. Afterwards the
    /// body is read, if it has not been.
    pub steps: Vec<ServeStep>,
    /// Seed of the random service times.
    pub seed: u64,
}

/// Fate of a connection after a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionReuse {
    /// Keeps it open for as long as the client wants.
    KeepAlive,
    /// Closes it, and the response announces that.
    CloseAnnounced,
    /// Closes it, although the response did not announce that, as uWSGI's `http-socket` does.
    CloseSilently,
    /// Closes it if no request arrives for this time.
    CloseWhenIdle(Duration),
}

/// Step of serving a request.
#[derive(Clone, Debug)]
pub enum ServeStep {
    /// Reads the request's body, after `100 Continue` if the client expects it.
    ReadBody,
    /// Works for this time.
    Wait(Duration),
    /// Works for an exponentially distributed time with this mean.
    WaitExponential(Duration),
    /// Waits for one of these workers, which then works for an exponentially distributed time with
    /// this mean.
    WaitForWorker(Arc<Semaphore>, Duration),
    /// If more than this many requests are in flight, answers with these bytes and ends the
    /// request.
    RefuseBeyond(usize, &'static str),
    /// Works until the test opens the gate.
    WaitForGate,
    /// Answers 200 with the body `ok`.
    Answer,
    /// Answers 200 with the pattern's first bytes as the body.
    AnswerPattern(u64),
    /// Answers with this text, and the status, field lines and delay that the request asks for: `/status/CODE` in its
    /// target, or its fields `X-Answer-Status`, `X-Answer-Field` and `X-Answer-Wait` (in milliseconds).
    AnswerAsRequested(String),
    /// Answers 200 with the request's body, sent while it arrives.
    Echo,
    /// Sends these bytes unchanged.
    Send(Vec<u8>),
    /// Answers the request's WebSocket key with 101 and these further field lines.
    AcceptWebSocket(&'static str),
    /// Sends back all bytes that arrive, until the stream ends.
    Tunnel,
    /// Waits for ever.
    WaitForever,
    /// Waits for the client to close, and sends nothing more.
    WaitForClose,
    /// Closes the sending side alone.
    FinishSending,
    /// Closes the connection.
    Close,
    /// Closes the connection if this is the request's target.
    CloseFor(&'static str),
    /// If this is the request's target, answers with these bytes and ends the request.
    AnswerFor(&'static str, &'static str),
    /// Resets the connection.
    Reset,
}

impl ServeStep {
    pub fn send(text: &str) -> Self {
        Self::Send(text.as_bytes().to_vec())
    }
}

impl EndpointBehaviour {
    /// Reads the request, answers `ok`, and keeps the connection open.
    pub fn ok() -> Self {
        vec![ServeStep::ReadBody, ServeStep::Answer].into()
    }

    /// Like [`EndpointBehaviour::ok`], after working for this time.
    pub fn slow(service: Duration) -> Self {
        vec![ServeStep::ReadBody, ServeStep::Wait(service), ServeStep::Answer].into()
    }

    /// Like [`EndpointBehaviour::ok`], after the test has opened the gate.
    pub fn gated() -> Self {
        vec![ServeStep::ReadBody, ServeStep::WaitForGate, ServeStep::Answer].into()
    }

    /// Reads the request and answers with these bytes.
    pub fn answering(response: &str) -> Self {
        vec![ServeStep::ReadBody, ServeStep::send(response)].into()
    }

    pub fn with_connection_reuse(self, keep: ConnectionReuse) -> Self {
        Self { connection_reuse: keep, ..self }
    }
}

impl From<Vec<ServeStep>> for EndpointBehaviour {
    fn from(steps: Vec<ServeStep>) -> Self {
        Self { connection_reuse: ConnectionReuse::KeepAlive, steps, seed: 1 }
    }
}
