//! A closed loop over HTTP/2 or HTTP/3: so many connections, on each so many requests under way at any time.

mod wire;

use std::time::Instant;

use anyhow::{Result, bail};
use mio::Registry;

use self::wire::{Speech, Wire};
use crate::course::Course;
use crate::http::Fault;
use crate::job::{LoadJob, LoadReport};
use crate::message::{Event, Fields};

pub(crate) struct Multiplex {
    job: LoadJob,
    speech: Speech,
    expected: Expected,
    sessions: Vec<Session>,
    course: Course,
}

/// What every answer must be.
struct Expected {
    body_bytes: u64,
    grpc: bool,
}

/// One connection.
struct Session {
    wire: Wire,
    calls: Vec<Call>,
}

/// One request under way.
struct Call {
    stream: u32,
    began: Instant,
    status: Option<u16>,
    body_bytes: u64,
    grpc_status: Option<String>,
}

impl Multiplex {
    pub(crate) fn start(
        job: LoadJob,
        streams: usize,
        served: &[u64],
        registry: &Registry,
    ) -> Result<Self> {
        if job.request.close {
            bail!("a connection for each request has no streams");
        }
        let speech = Speech::of(&job)?;
        let sessions = (0..job.connections)
            .map(|index| Session::open(&speech, &job, index, streams, registry))
            .collect::<Result<Vec<_>>>()?;
        let issued = job.connections * streams;
        let course = Course::begin(job.extent, job.processes.clone(), issued, served)?;
        let expected =
            Expected { body_bytes: job.request.expected_bytes(), grpc: job.request.grpc };
        Ok(Self { speech, expected, sessions, course, job })
    }

    pub(crate) fn spins(&self) -> bool {
        self.job.spin
    }

    pub(crate) fn counts(&self) -> bool {
        self.course.counts()
    }

    /// Takes one connection as far as it goes. One that fails takes its requests with it, and is opened anew.
    pub(crate) fn advance(
        &mut self,
        index: usize,
        registry: &Registry,
        scratch: &mut [u8],
    ) -> Result<()> {
        let Err(fault) = self.try_to_advance(index, scratch) else { return Ok(()) };
        let lost = self.sessions[index].calls.len();
        let again = (0..lost).filter(|_| self.course.failed(&fault)).count();
        self.sessions[index] = Session::open(&self.speech, &self.job, index, again, registry)?;
        Ok(())
    }

    fn try_to_advance(&mut self, index: usize, scratch: &mut [u8]) -> Result<(), Fault> {
        let session = &mut self.sessions[index];
        // Timers may have something to say.
        session.wire.flush()?;
        loop {
            while let Some(event) = session.wire.next_event()? {
                let Some((call, reset)) = session.take(event)? else { continue };
                let verdict = reset.map_or_else(|| self.expected.judge(&call), Err);
                let again = match verdict {
                    Ok(()) => {
                        self.course.answered(call.began.elapsed());
                        self.course.issues()
                    }
                    Err(fault) => self.course.failed(&fault),
                };
                if again {
                    session.begin();
                }
            }
            session.wire.flush()?;
            if !session.wire.fill(scratch)? {
                return Ok(());
            }
        }
    }

    /// Lets timers of connections fire, and moves the course on.
    pub(crate) fn tick(
        &mut self,
        now: Instant,
        served: &[u64],
        registry: &Registry,
        scratch: &mut [u8],
    ) -> Result<Option<LoadReport>> {
        for index in 0..self.sessions.len() {
            if self.sessions[index].wire.is_due(now) {
                self.advance(index, registry, scratch)?;
            }
        }
        let sessions = &self.sessions;
        self.course.tick(now, served, || sessions.iter().all(|session| session.calls.is_empty()))
    }
}

impl Expected {
    fn judge(&self, call: &Call) -> Result<(), Fault> {
        if call.status != Some(200) {
            return Err(Fault::Status(call.status.unwrap_or(0)));
        }
        if self.grpc && call.grpc_status.as_deref() != Some("0") {
            return Err(Fault::Call(call.grpc_status.clone().unwrap_or_default()));
        }
        if call.body_bytes != self.body_bytes {
            return Err(Fault::Length(call.body_bytes));
        }
        Ok(())
    }
}

impl Session {
    /// Begins to connect, with so many requests to send.
    fn open(
        speech: &Speech,
        job: &LoadJob,
        index: usize,
        requests: usize,
        registry: &Registry,
    ) -> Result<Self> {
        let wire = speech.connect(job, index, registry)?;
        let mut session = Self { wire, calls: Vec::with_capacity(requests) };
        for _ in 0..requests {
            session.begin();
        }
        Ok(session)
    }

    fn begin(&mut self) {
        self.calls.push(Call {
            stream: self.wire.begin(),
            began: Instant::now(),
            status: None,
            body_bytes: 0,
            grpc_status: None,
        });
    }

    /// The request that has ended with this, and the fault if it was reset.
    fn take(&mut self, event: Event) -> Result<Option<(Call, Option<Fault>)>, Fault> {
        let (stream, last, fault) = match event {
            Event::Head { stream, fields, last } => {
                if let Some(call) = self.call(stream) {
                    call.take_fields(&fields);
                }
                (stream, last, None)
            }
            Event::Data { stream, bytes, last } => {
                if let Some(call) = self.call(stream) {
                    call.body_bytes += bytes;
                }
                (stream, last, None)
            }
            Event::Reset { stream, code } => (stream, true, Some(Fault::Reset(code))),
            Event::GoAway { code } => return Err(Fault::GoAway(code)),
        };
        if !last {
            return Ok(None);
        }
        let ended = self.calls.iter().position(|call| call.stream == stream);
        Ok(ended.map(|place| (self.calls.swap_remove(place), fault)))
    }

    fn call(&mut self, stream: u32) -> Option<&mut Call> {
        self.calls.iter_mut().find(|call| call.stream == stream)
    }
}

impl Call {
    /// A head that is not interim, or trailers.
    fn take_fields(&mut self, fields: &Fields) {
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
