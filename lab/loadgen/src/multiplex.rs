//! A closed loop over HTTP/2: so many connections, on each so many requests under way at any time.

use std::rc::Rc;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use mio::net::TcpStream;
use mio::{Interest, Registry};

use crate::Side;
use crate::course::Course;
use crate::http::Fault;
use crate::http2::message::{Event, Fields, Message};
use crate::http2::{MAX_BODY_BYTES, Wire};
use crate::job::{LoadJob, LoadReport};

pub(crate) struct Multiplex {
    job: LoadJob,
    message: Rc<Message>,
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
    next_stream: u32,
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
        let message = Rc::new(job.request.to_message());
        if message.body.len() > MAX_BODY_BYTES {
            bail!("{}", Fault::TooLong(message.body.len()));
        }
        let sessions = (0..job.connections)
            .map(|index| Session::open(&job, index, streams, &message, registry))
            .collect::<Result<Vec<_>>>()?;
        let issued = job.connections * streams;
        let course = Course::begin(job.extent, job.processes.clone(), issued, served)?;
        let expected =
            Expected { body_bytes: job.request.expected_bytes(), grpc: job.request.grpc };
        Ok(Self { message, expected, sessions, course, job })
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
        self.sessions[index] = Session::open(&self.job, index, again, &self.message, registry)?;
        Ok(())
    }

    fn try_to_advance(&mut self, index: usize, scratch: &mut [u8]) -> Result<(), Fault> {
        let session = &mut self.sessions[index];
        session.wire.flush()?;
        while session.wire.fill(scratch)? {
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
                    session.begin(&self.message);
                }
            }
            session.wire.flush()?;
        }
        Ok(())
    }

    pub(crate) fn tick(&mut self, now: Instant, served: &[u64]) -> Result<Option<LoadReport>> {
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
        job: &LoadJob,
        index: usize,
        requests: usize,
        message: &Rc<Message>,
        registry: &Registry,
    ) -> Result<Self> {
        let target = job.target_of(index);
        let mut socket =
            TcpStream::connect(target).with_context(|| format!("cannot connect to {target}"))?;
        socket.set_nodelay(true)?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        registry.register(&mut socket, Side::Client.token(index), interest)?;
        let wire = Wire::of_client(socket);
        let mut session = Self { wire, calls: Vec::with_capacity(requests), next_stream: 1 };
        (0..requests).for_each(|_| session.begin(message));
        Ok(session)
    }

    fn begin(&mut self, message: &Rc<Message>) {
        self.wire.send(self.next_stream, Rc::clone(message));
        self.calls.push(Call {
            stream: self.next_stream,
            began: Instant::now(),
            status: None,
            body_bytes: 0,
            grpc_status: None,
        });
        self.next_stream += 2;
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
