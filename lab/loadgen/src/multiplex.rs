//! Closed loop over HTTP/2 or HTTP/3: a number of connections, with a number of concurrent requests on each.

mod session;

use std::time::Instant;

use anyhow::{Result, bail};
use mio::Registry;

use self::session::{SessionConnector, StreamSession};
use crate::http::MessageError;
use crate::job::{LoadJob, LoadReport};
use crate::message::{DecodedFields, MessageEvent};
use crate::progress::RunProgress;

pub(crate) struct MultiplexedLoadRun {
    job: LoadJob,
    connector: SessionConnector,
    expected: ExpectedResponse,
    sessions: Vec<LoadSession>,
    course: RunProgress,
}

/// Expected properties of every response.
struct ExpectedResponse {
    body_bytes: u64,
    grpc: bool,
}

/// One connection.
struct LoadSession {
    transport: StreamSession,
    calls: Vec<StreamCall>,
}

/// One request in flight.
struct StreamCall {
    stream: u32,
    began: Instant,
    status: Option<u16>,
    body_bytes: u64,
    grpc_status: Option<String>,
}

impl MultiplexedLoadRun {
    pub(crate) fn start(
        job: LoadJob,
        streams: usize,
        served: &[u64],
        registry: &Registry,
    ) -> Result<Self> {
        if job.request.close {
            bail!("a connection per request cannot have concurrent streams");
        }
        let connector = SessionConnector::of(&job)?;
        let sessions = (0..job.connections)
            .map(|index| LoadSession::open(&connector, &job, index, streams, registry))
            .collect::<Result<Vec<_>>>()?;
        let issued = job.connections * streams;
        let course = RunProgress::begin(job.extent, job.processes.clone(), issued, served)?;
        let expected =
            ExpectedResponse { body_bytes: job.request.expected_bytes(), grpc: job.request.grpc };
        Ok(Self { connector, expected, sessions, course, job })
    }

    pub(crate) fn spins(&self) -> bool {
        self.job.spin
    }

    pub(crate) fn counts(&self) -> bool {
        self.course.is_counting()
    }

    /// Advances one connection as far as its socket allows. If it fails, its requests fail too, and it is reopened.
    pub(crate) fn advance(
        &mut self,
        index: usize,
        registry: &Registry,
        scratch: &mut [u8],
    ) -> Result<()> {
        let Err(fault) = self.try_to_advance(index, scratch) else { return Ok(()) };
        let lost = self.sessions[index].calls.len();
        let again = (0..lost).filter(|_| self.course.record_failure(&fault)).count();
        self.sessions[index] =
            LoadSession::open(&self.connector, &self.job, index, again, registry)?;
        Ok(())
    }

    fn try_to_advance(&mut self, index: usize, scratch: &mut [u8]) -> Result<(), MessageError> {
        let session = &mut self.sessions[index];
        // Timers may have data to send.
        session.transport.flush()?;
        loop {
            while let Some(event) = session.transport.next_event()? {
                let Some((call, reset)) = session.take(event)? else { continue };
                let result = reset.map_or_else(|| self.expected.check(&call), Err);
                let again = match result {
                    Ok(()) => {
                        self.course.record_success(call.began.elapsed());
                        self.course.should_issue()
                    }
                    Err(fault) => self.course.record_failure(&fault),
                };
                if again {
                    session.begin();
                }
            }
            session.transport.flush()?;
            if !session.transport.fill(scratch)? {
                return Ok(());
            }
        }
    }

    /// Handles due timers of connections, and updates the progress.
    pub(crate) fn tick(
        &mut self,
        now: Instant,
        served: &[u64],
        registry: &Registry,
        scratch: &mut [u8],
    ) -> Result<Option<LoadReport>> {
        for index in 0..self.sessions.len() {
            if self.sessions[index].transport.is_due(now) {
                self.advance(index, registry, scratch)?;
            }
        }
        let sessions = &self.sessions;
        self.course.tick(now, served, || sessions.iter().all(|session| session.calls.is_empty()))
    }
}

impl ExpectedResponse {
    fn check(&self, call: &StreamCall) -> Result<(), MessageError> {
        if call.status != Some(200) {
            return Err(MessageError::Status(call.status.unwrap_or(0)));
        }
        if self.grpc && call.grpc_status.as_deref() != Some("0") {
            return Err(MessageError::GrpcStatus(call.grpc_status.clone().unwrap_or_default()));
        }
        if call.body_bytes != self.body_bytes {
            return Err(MessageError::Length(call.body_bytes));
        }
        Ok(())
    }
}

impl LoadSession {
    /// Starts to connect, with this number of requests to send.
    fn open(
        connector: &SessionConnector,
        job: &LoadJob,
        index: usize,
        requests: usize,
        registry: &Registry,
    ) -> Result<Self> {
        let transport = connector.connect(job, index, registry)?;
        let mut session = Self { transport, calls: Vec::with_capacity(requests) };
        for _ in 0..requests {
            session.begin();
        }
        Ok(session)
    }

    fn begin(&mut self) {
        self.calls.push(StreamCall {
            stream: self.transport.begin(),
            began: Instant::now(),
            status: None,
            body_bytes: 0,
            grpc_status: None,
        });
    }

    /// Returns the request that this event ends, with the error if it was reset.
    fn take(
        &mut self,
        event: MessageEvent,
    ) -> Result<Option<(StreamCall, Option<MessageError>)>, MessageError> {
        let (stream, last, fault) = match event {
            MessageEvent::Head { stream, fields, last } => {
                if let Some(call) = self.call(stream) {
                    call.take_fields(&fields);
                }
                (stream, last, None)
            }
            MessageEvent::Data { stream, bytes, last } => {
                if let Some(call) = self.call(stream) {
                    call.body_bytes += bytes;
                }
                (stream, last, None)
            }
            MessageEvent::Reset { stream, code } => (stream, true, Some(MessageError::Reset(code))),
            MessageEvent::GoAway { code } => return Err(MessageError::GoAway(code)),
        };
        if !last {
            return Ok(None);
        }
        let ended = self.calls.iter().position(|call| call.stream == stream);
        Ok(ended.map(|index| (self.calls.swap_remove(index), fault)))
    }

    fn call(&mut self, stream: u32) -> Option<&mut StreamCall> {
        self.calls.iter_mut().find(|call| call.stream == stream)
    }
}

impl StreamCall {
    /// Records a final head, or trailers.
    fn take_fields(&mut self, fields: &DecodedFields) {
        let text =
            |name| fields.value(name).map(|value| String::from_utf8_lossy(value).into_owned());
        let status = text(":status").and_then(|status| status.parse().ok());
        if self.status.is_none() {
            self.status = status.filter(|status| *status >= 200);
        }
        if let Some(status) = text("grpc-status") {
            self.grpc_status = Some(status);
        }
    }
}
