//! Load and endpoints for the lab, in one loop on one thread.
//!
//! A proxy is measured by the CPU time it takes, so what surrounds it must be light, fit on one other
//! CPU and never let the proxy pay for waking it up: the loop spins while a load runs. Jobs come as JSON
//! lines on standard input, reports go as JSON lines to standard output; `job` holds both.

// What is asked and what is reported; then the two sides of the wire; then what both rest on.
mod job;
mod request;
mod load;
mod multiplex;
mod shake;
mod pace;
mod trace;
mod hold;
mod course;
mod window;
mod exchange;
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

use crate::endpoints::Endpoints;
use crate::hold::Hold;
use crate::job::{Arguments, Job, LoadJob, Ready, Report};
use crate::load::Load;
use crate::multiplex::Multiplex;
use crate::pace::Pace;
use crate::shake::Shake;
use crate::trace::Trace;

/// Discarded bytes are counted in here, never read back. As large as the largest body of the lab.
pub(crate) const SCRATCH_BYTES: usize = 1 << 20;

/// Whom an event is for: the upper half of a token says which side, the lower half which socket.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    Input = 0,
    Listener = 1,
    Endpoint = 2,
    Client = 3,
}

impl Side {
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

/// What the client side is busy with. Endpoints serve all the time.
enum Activity {
    Idle,
    Loading(Box<Load>),
    Multiplexing(Box<Multiplex>),
    Shaking(Box<Shake>),
    Pacing(Box<Pace>),
    Tracing(Box<Trace>),
    Holding(Box<Hold>),
}

fn main() -> Result<()> {
    let arguments = Arguments::parse(std::env::args().skip(1))?;
    let poll = Poll::new().context("cannot create an epoll instance")?;
    poll.registry()
        .register(&mut SourceFd(&io::stdin().as_raw_fd()), Side::Input.token(0), Interest::READABLE)
        .context("standard input must be a pipe or a terminal")?;
    let endpoints = Endpoints::listen(arguments, poll.registry())?;
    emit(&Ready { endpoints: endpoints.addresses() })?;

    let scratch = vec![0; SCRATCH_BYTES];
    Loop { poll, endpoints, scratch, activity: Activity::Idle, input: Vec::new() }.run()
}

struct Loop {
    poll: Poll,
    endpoints: Endpoints,
    scratch: Vec<u8>,
    activity: Activity,
    /// Bytes of standard input that do not yet make a line.
    input: Vec<u8>,
}

impl Loop {
    /// Runs until standard input ends.
    fn run(mut self) -> Result<()> {
        let mut events = Events::with_capacity(1024);
        loop {
            match self.poll.poll(&mut events, self.patience()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            }
            for event in &events {
                let (side, index) = Side::of(event.token());
                match side {
                    Side::Input => {
                        if self.read_input()? == 0 {
                            return Ok(());
                        }
                    }
                    Side::Listener => self.endpoints.accept(index, self.poll.registry())?,
                    Side::Endpoint => self.endpoints.serve(index, &mut self.scratch),
                    Side::Client => self.advance_client(index)?,
                }
            }
            let now = Instant::now();
            self.endpoints.answer_due(now);
            self.endpoints.return_due(now, self.poll.registry())?;
            self.tick(now)?;
        }
    }

    fn patience(&self) -> Option<Duration> {
        // Phases end and delayed answers fall due by the clock: look often enough, and no oftener.
        let soon = || self.endpoints.next_due().min(Duration::from_millis(1));
        match &self.activity {
            Activity::Loading(load) if load.spins() => Some(Duration::ZERO),
            Activity::Multiplexing(load) if load.spins() => Some(Duration::ZERO),
            Activity::Shaking(shake) if shake.spins() => Some(Duration::ZERO),
            Activity::Pacing(pace) if pace.spins() => Some(Duration::ZERO),
            Activity::Tracing(trace) if trace.spins() => Some(Duration::ZERO),
            Activity::Loading(_)
            | Activity::Multiplexing(_)
            | Activity::Shaking(_)
            | Activity::Tracing(_) => Some(soon()),
            Activity::Pacing(pace) => Some(soon().min(pace.next_due(Instant::now()))),
            Activity::Idle | Activity::Holding(_) => Some(self.endpoints.next_due()),
        }
    }

    fn advance_client(&mut self, index: usize) -> Result<()> {
        match &mut self.activity {
            Activity::Idle => {}
            Activity::Loading(load) => {
                load.advance(index, self.poll.registry(), &mut self.scratch)?
            }
            Activity::Multiplexing(load) => {
                load.advance(index, self.poll.registry(), &mut self.scratch)?
            }
            Activity::Shaking(shake) => {
                shake.advance(index, self.poll.registry(), &mut self.scratch)?
            }
            Activity::Pacing(pace) => {
                pace.advance(index, self.poll.registry(), &mut self.scratch)?
            }
            Activity::Tracing(trace) => {
                trace.advance(index, self.poll.registry(), &mut self.scratch)?
            }
            Activity::Holding(hold) => {
                if hold.advance(index, self.poll.registry(), &mut self.scratch)? {
                    emit(&Report::Hold(hold.report()))?;
                }
            }
        }
        Ok(())
    }

    fn tick(&mut self, now: Instant) -> Result<()> {
        let registry = self.poll.registry();
        let served = self.endpoints.served();
        let (report, counts) = match &mut self.activity {
            Activity::Idle | Activity::Holding(_) => return Ok(()),
            Activity::Loading(load) => (load.tick(now, served)?.map(Report::Load), load.counts()),
            Activity::Multiplexing(load) => {
                let report = load.tick(now, served, registry, &mut self.scratch)?;
                (report.map(Report::Load), load.counts())
            }
            Activity::Shaking(shake) => {
                let report = shake.tick(now, served, registry, &mut self.scratch)?;
                (report.map(Report::Load), shake.counts())
            }
            Activity::Pacing(pace) => {
                let report = pace.tick(now, served, registry, &mut self.scratch)?;
                (report.map(Report::Load), pace.counts())
            }
            Activity::Tracing(trace) => {
                (trace.tick(now, served, self.endpoints.unanswered())?, trace.counts())
            }
        };
        if counts {
            self.endpoints.break_down(registry)?;
        }
        if let Some(report) = report {
            emit(&report)?;
            if !matches!(report, Report::Onset(_)) {
                self.activity = Activity::Idle;
            }
        }
        Ok(())
    }

    /// Takes what standard input has; every whole line is a job. Returns the bytes read: 0 is the end.
    fn read_input(&mut self) -> Result<usize> {
        // One read for each event: far more than the jobs that can wait, since each waits for the last.
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

    fn start(&mut self, job: Job) -> Result<()> {
        let registry = self.poll.registry();
        match job {
            Job::Load(job) => self.activity = load(job, self.endpoints.served(), registry)?,
            Job::Shake(job) => {
                let shake = Shake::start(job, self.endpoints.served(), registry)?;
                self.activity = Activity::Shaking(Box::new(shake));
            }
            Job::Pace(job) => {
                self.activity = Activity::Pacing(Box::new(Pace::start(job, registry)?));
            }
            Job::Trace(job) => {
                self.activity = Activity::Tracing(Box::new(Trace::start(job, registry)?));
            }
            Job::Hold(job) => {
                self.activity = Activity::Holding(Box::new(Hold::start(job, registry)?));
            }
            Job::Release => {
                if let Activity::Holding(hold) = &self.activity {
                    emit(&Report::Hold(hold.report()))?;
                }
                self.activity = Activity::Idle;
            }
        }
        Ok(())
    }
}

fn load(job: LoadJob, served: &[u64], registry: &Registry) -> Result<Activity> {
    Ok(match job.streams {
        None => Activity::Loading(Box::new(Load::start(job, served, registry)?)),
        Some(streams) => {
            Activity::Multiplexing(Box::new(Multiplex::start(job, streams, served, registry)?))
        }
    })
}

fn emit(line: &impl serde::Serialize) -> Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&text)?;
    out.flush().context("nobody reads standard output")
}
