//! Load generator and endpoints for the lab, in one loop on one thread.
//!
//! A proxy is measured by the CPU time it takes, so the load generator must be light, fit on one other CPU and never
//! let the proxy pay for waking it up: the loop spins while a load runs. Jobs come as JSON lines on standard input,
//! reports go as JSON lines to standard output; `job` defines both.

// In reading order: jobs and reports; the client side; the endpoints; their common basis.
mod job;
mod request;
mod load;
mod multiplex;
mod handshake;
mod open_loop;
mod trace;
mod hold;
mod progress;
mod window;
mod http1_client;
mod endpoints;
mod service;
mod defect;
mod http;
mod message;
mod http2;
mod http3;
mod quic;
mod tls;
mod random;
mod latency;
mod process;

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token};

use crate::endpoints::EndpointServers;
use crate::handshake::HandshakeRun;
use crate::hold::HoldRun;
use crate::job::{JobReport, LoadJob, LoadgenArguments, LoadgenJob, ReadyLine};
use crate::load::Http1LoadRun;
use crate::multiplex::MultiplexedLoadRun;
use crate::open_loop::OpenLoopRun;
use crate::trace::TraceRun;

/// Size of the buffer for discarded bytes, as large as the largest body of the lab.
pub(crate) const SCRATCH_BYTES: usize = 1 << 20;

/// Target of an event: the upper half of a token selects the side, the lower half the socket.
#[derive(Clone, Copy)]
pub(crate) enum EventSource {
    Input = 0,
    Listener = 1,
    Endpoint = 2,
    Client = 3,
}

impl EventSource {
    pub(crate) fn token(self, index: usize) -> Token {
        Token((self as usize) << 32 | index)
    }

    fn of(token: Token) -> (Self, usize) {
        let index = token.0 & 0xffff_ffff;
        match token.0 >> 32 {
            0 => (Self::Input, index),
            1 => (Self::Listener, index),
            2 => (Self::Endpoint, index),
            _ => (Self::Client, index),
        }
    }
}

/// Activity of the client side. Endpoints serve all the time.
enum ClientActivity {
    Idle,
    Loading(Box<Http1LoadRun>),
    Multiplexing(Box<MultiplexedLoadRun>),
    Shaking(Box<HandshakeRun>),
    Pacing(Box<OpenLoopRun>),
    Tracing(Box<TraceRun>),
    Holding(Box<HoldRun>),
}

fn main() -> Result<()> {
    let arguments = LoadgenArguments::parse(std::env::args().skip(1))?;
    let poll = Poll::new().context("cannot create an epoll instance")?;
    poll.registry()
        .register(
            &mut SourceFd(&io::stdin().as_raw_fd()),
            EventSource::Input.token(0),
            Interest::READABLE,
        )
        .context("standard input must be a pipe or a terminal")?;
    let endpoints = EndpointServers::listen(arguments, poll.registry())?;
    emit(&ReadyLine { endpoints: endpoints.addresses() })?;

    let scratch = vec![0; SCRATCH_BYTES];
    EventLoop { poll, endpoints, scratch, activity: ClientActivity::Idle, input: Vec::new() }.run()
}

struct EventLoop {
    poll: Poll,
    endpoints: EndpointServers,
    scratch: Vec<u8>,
    activity: ClientActivity,
    /// Bytes of standard input that do not make a whole line yet.
    input: Vec<u8>,
}

impl EventLoop {
    /// Runs until standard input ends.
    fn run(mut self) -> Result<()> {
        let mut events = Events::with_capacity(1024);
        loop {
            match self.poll.poll(&mut events, self.poll_timeout()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            }
            for event in &events {
                let (side, index) = EventSource::of(event.token());
                match side {
                    EventSource::Input => {
                        if self.read_input()? == 0 {
                            return Ok(());
                        }
                    }
                    EventSource::Listener => self.endpoints.accept(index, self.poll.registry())?,
                    EventSource::Endpoint => self.endpoints.serve(index, &mut self.scratch),
                    EventSource::Client => self.advance_client(index)?,
                }
            }
            let now = Instant::now();
            self.endpoints.answer_due(now);
            self.endpoints.revive_due(now, self.poll.registry())?;
            self.tick(now)?;
        }
    }

    fn poll_timeout(&self) -> Option<Duration> {
        // Phases and delayed responses depend on the clock: poll often enough, but not more often.
        let soon = || self.endpoints.next_due().min(Duration::from_millis(1));
        match &self.activity {
            ClientActivity::Loading(load) if load.spins() => Some(Duration::ZERO),
            ClientActivity::Multiplexing(load) if load.spins() => Some(Duration::ZERO),
            ClientActivity::Shaking(shake) if shake.spins() => Some(Duration::ZERO),
            ClientActivity::Pacing(pace) if pace.spins() => Some(Duration::ZERO),
            ClientActivity::Tracing(trace) if trace.spins() => Some(Duration::ZERO),
            ClientActivity::Loading(_)
            | ClientActivity::Multiplexing(_)
            | ClientActivity::Shaking(_)
            | ClientActivity::Tracing(_) => Some(soon()),
            ClientActivity::Pacing(pace) => Some(soon().min(pace.next_due(Instant::now()))),
            ClientActivity::Idle | ClientActivity::Holding(_) => Some(self.endpoints.next_due()),
        }
    }

    fn advance_client(&mut self, index: usize) -> Result<()> {
        match &mut self.activity {
            ClientActivity::Idle => {}
            ClientActivity::Loading(load) => {
                load.advance(index, self.poll.registry(), &mut self.scratch)?
            }
            ClientActivity::Multiplexing(load) => {
                load.advance(index, self.poll.registry(), &mut self.scratch)?
            }
            ClientActivity::Shaking(shake) => {
                shake.advance(index, self.poll.registry(), &mut self.scratch)?
            }
            ClientActivity::Pacing(pace) => {
                pace.advance(index, self.poll.registry(), &mut self.scratch)?
            }
            ClientActivity::Tracing(trace) => {
                trace.advance(index, self.poll.registry(), &mut self.scratch)?
            }
            ClientActivity::Holding(hold) => {
                if hold.advance(index, self.poll.registry(), &mut self.scratch)? {
                    emit(&JobReport::Hold(hold.report()))?;
                }
            }
        }
        Ok(())
    }

    fn tick(&mut self, now: Instant) -> Result<()> {
        let registry = self.poll.registry();
        let served = self.endpoints.served();
        let (report, counts) = match &mut self.activity {
            ClientActivity::Idle | ClientActivity::Holding(_) => return Ok(()),
            ClientActivity::Loading(load) => {
                (load.tick(now, served)?.map(JobReport::Load), load.counts())
            }
            ClientActivity::Multiplexing(load) => {
                let report = load.tick(now, served, registry, &mut self.scratch)?;
                (report.map(JobReport::Load), load.counts())
            }
            ClientActivity::Shaking(shake) => {
                let report = shake.tick(now, served, registry, &mut self.scratch)?;
                (report.map(JobReport::Load), shake.counts())
            }
            ClientActivity::Pacing(pace) => {
                let report = pace.tick(now, served, registry, &mut self.scratch)?;
                (report.map(JobReport::Load), pace.is_counting())
            }
            ClientActivity::Tracing(trace) => {
                (trace.tick(now, served, self.endpoints.unanswered())?, trace.counts())
            }
        };
        if counts {
            self.endpoints.inject_defects(registry)?;
        }
        if let Some(report) = report {
            emit(&report)?;
            if !matches!(report, JobReport::Onset(_)) {
                self.activity = ClientActivity::Idle;
            }
        }
        Ok(())
    }

    /// Reads standard input and starts a job for every whole line. Returns the number of bytes read: 0 is the end.
    fn read_input(&mut self) -> Result<usize> {
        // One read per event is enough, because each job waits for the previous one.
        let mut chunk = [0; 1 << 16];
        let count = io::stdin().lock().read(&mut chunk).context("cannot read standard input")?;
        self.input.extend_from_slice(&chunk[..count]);
        while let Some(end) = self.input.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.input.drain(..=end).collect();
            let job = serde_json::from_slice(&line).context("a line of input is not a job")?;
            self.start(job)?;
        }
        Ok(count)
    }

    fn start(&mut self, job: LoadgenJob) -> Result<()> {
        let registry = self.poll.registry();
        match job {
            LoadgenJob::Load(job) => self.activity = load(job, self.endpoints.served(), registry)?,
            LoadgenJob::Shake(job) => {
                let shake = HandshakeRun::start(job, self.endpoints.served(), registry)?;
                self.activity = ClientActivity::Shaking(Box::new(shake));
            }
            LoadgenJob::Pace(job) => {
                self.activity =
                    ClientActivity::Pacing(Box::new(OpenLoopRun::start(job, registry)?));
            }
            LoadgenJob::Trace(job) => {
                self.activity = ClientActivity::Tracing(Box::new(TraceRun::start(job, registry)?));
            }
            LoadgenJob::Hold(job) => {
                self.activity = ClientActivity::Holding(Box::new(HoldRun::start(job, registry)?));
            }
            LoadgenJob::Release => {
                if let ClientActivity::Holding(hold) = &self.activity {
                    emit(&JobReport::Hold(hold.report()))?;
                }
                self.activity = ClientActivity::Idle;
            }
        }
        Ok(())
    }
}

fn load(job: LoadJob, served: &[u64], registry: &Registry) -> Result<ClientActivity> {
    Ok(match job.streams {
        None => ClientActivity::Loading(Box::new(Http1LoadRun::start(job, served, registry)?)),
        Some(streams) => ClientActivity::Multiplexing(Box::new(MultiplexedLoadRun::start(
            job, streams, served, registry,
        )?)),
    })
}

fn emit(line: &impl serde::Serialize) -> Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&text)?;
    out.flush().context("cannot write to standard output")
}
