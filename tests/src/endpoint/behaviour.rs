//! What a server does, as data.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

/// What a server does with each connection and each request.
#[derive(Clone, Debug)]
pub struct EndpointBehaviour {
    pub connection_reuse: ConnectionReuse,
    /// Done in order for each request, beginning when its head has been read. Afterwards the body is read, if it has
    /// not been.
    pub steps: Vec<ServeStep>,
    /// Of the random service times.
    pub seed: u64,
}

/// What becomes of a connection after a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionReuse {
    /// It is kept for as long as the client likes.
    KeepAlive,
    /// It is closed, and the response said so.
    CloseAnnounced,
    /// It is closed, though the response did not say so: what uWSGI's `http-socket` does.
    CloseSilently,
    /// It is closed when no request has come for so long.
    CloseWhenIdle(Duration),
}

/// A part of serving a request.
#[derive(Clone, Debug)]
pub enum ServeStep {
    /// Reads the request's body, after `100 Continue` if the client expects it.
    ReadBody,
    /// Works for so long.
    Wait(Duration),
    /// Works for an exponentially distributed time with this mean.
    WaitExponential(Duration),
    /// Waits for one of these workers, who then works for an exponentially distributed time with this mean.
    WaitForWorker(Arc<Semaphore>, Duration),
    /// Where more than so many requests are under way, answers with these bytes, and does no more for this one.
    RefuseBeyond(usize, &'static str),
    /// Works until the test opens the gate.
    WaitForGate,
    /// 200 with the body `ok`.
    Answer,
    /// 200 with the pattern's first bytes as the body.
    AnswerPattern(u64),
    /// 200 with the request's body, sent while it comes.
    Echo,
    /// These bytes, whatever they are.
    Send(Vec<u8>),
    /// Sends back whatever comes, until it ends.
    Tunnel,
    /// Nothing, for ever.
    WaitForever,
    /// Waits for the other side to close, sending nothing more.
    WaitForClose,
    /// Ends the sending direction alone.
    FinishSending,
    /// Closes the connection.
    Close,
    /// Closes the connection if this is the request's target.
    CloseFor(&'static str),
    /// Resets the connection.
    Reset,
}

impl ServeStep {
    pub fn send(text: &str) -> Self {
        Self::Send(text.as_bytes().to_vec())
    }
}

impl EndpointBehaviour {
    /// Reads the request, answers `ok`, keeps the connection.
    pub fn ok() -> Self {
        vec![ServeStep::ReadBody, ServeStep::Answer].into()
    }

    /// As [`EndpointBehaviour::ok`], after working for so long.
    pub fn slow(service: Duration) -> Self {
        vec![ServeStep::ReadBody, ServeStep::Wait(service), ServeStep::Answer].into()
    }

    /// As [`EndpointBehaviour::ok`], after the test has opened the gate.
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
