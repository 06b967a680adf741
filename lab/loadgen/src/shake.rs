//! A closed loop of handshakes, of TLS 1.3 over TCP or of QUIC: each connection ends as soon as it is there.

mod tcp;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail};
use mio::Registry;
use quinn_proto::Event;

use crate::Side;
use crate::course::Course;
use crate::http::Fault;
use crate::job::{LoadReport, ShakeJob};
use crate::quic::{self, Quic};
use crate::tls;

pub(crate) struct Shake {
    job: ShakeJob,
    places: Vec<Place>,
    course: Course,
}

/// One connection after another.
struct Place {
    dialer: Dialer,
    /// None once no more are wanted.
    connection: Option<Connection>,
    began: Instant,
}

enum Dialer {
    Tcp(tcp::Dialer),
    Quic(Rc<quic::Dialer>),
}

enum Connection {
    Tcp(Box<tcp::Connection>),
    Quic(Box<Quic>),
}

impl Shake {
    pub(crate) fn start(job: ShakeJob, served: &[u64], registry: &Registry) -> Result<Self> {
        let mut places = dialers(&job)?.into_iter().map(Place::new).collect::<Vec<_>>();
        for (index, place) in places.iter_mut().enumerate() {
            place.connect(&job, index, registry)?;
        }
        let course = Course::begin(job.extent, job.processes.clone(), places.len(), served)?;
        Ok(Self { job, places, course })
    }

    pub(crate) fn spins(&self) -> bool {
        self.job.spin
    }

    pub(crate) fn counts(&self) -> bool {
        self.course.counts()
    }

    /// Takes one connection as far as it goes; when it is over, the next one begins.
    pub(crate) fn advance(
        &mut self,
        index: usize,
        registry: &Registry,
        scratch: &mut [u8],
    ) -> Result<()> {
        let place = &mut self.places[index];
        let Some(connection) = &mut place.connection else { return Ok(()) };
        // The first of a place that resumes has nothing to resume, and is no part of the load.
        let counts = connection.resumes() == self.job.resume;
        let again = match connection.advance(scratch) {
            Ok(false) => return Ok(()),
            Ok(true) if counts => {
                self.course.answered(place.began.elapsed());
                self.course.issues()
            }
            Ok(true) => true,
            Err(fault) => self.course.failed(&fault),
        };
        place.connection = None;
        if again { place.connect(&self.job, index, registry) } else { Ok(()) }
    }

    /// Lets timers of connections fire, and moves the course on.
    pub(crate) fn tick(
        &mut self,
        now: Instant,
        served: &[u64],
        registry: &Registry,
        scratch: &mut [u8],
    ) -> Result<Option<LoadReport>> {
        for index in 0..self.places.len() {
            if self.places[index].is_due(now) {
                self.advance(index, registry, scratch)?;
            }
        }
        let places = &self.places;
        self.course.tick(now, served, || places.iter().all(|place| place.connection.is_none()))
    }
}

/// One for each place.
fn dialers(job: &ShakeJob) -> Result<Vec<Dialer>> {
    if job.http3 {
        if job.resume || job.ask {
            bail!("over QUIC sessions are not resumed, and nothing is asked");
        }
        let dialer = Rc::new(quic::Dialer::new()?);
        return Ok((0..job.connections).map(|_| Dialer::Quic(Rc::clone(&dialer))).collect());
    }
    let provider = Arc::new(tls::provider());
    let dialer = |_| tcp::Dialer::new(&provider, job.resume).map(Dialer::Tcp);
    (0..job.connections).map(dialer).collect()
}

impl Place {
    fn new(dialer: Dialer) -> Self {
        Self { dialer, connection: None, began: Instant::now() }
    }

    fn connect(&mut self, job: &ShakeJob, index: usize, registry: &Registry) -> Result<()> {
        let token = Side::Client.token(index);
        self.began = Instant::now();
        self.connection = Some(match &self.dialer {
            Dialer::Tcp(dialer) => Connection::Tcp(Box::new(dialer.connect(job, registry, token)?)),
            Dialer::Quic(dialer) => {
                Connection::Quic(Box::new(dialer.connect(job.target, &job.host, registry, token)?))
            }
        });
        Ok(())
    }

    /// Whether a timer of its connection is due, which TCP has in the kernel.
    fn is_due(&self, now: Instant) -> bool {
        matches!(&self.connection, Some(Connection::Quic(quic)) if quic.is_due(now))
    }
}

impl Connection {
    fn resumes(&self) -> bool {
        match self {
            Self::Tcp(connection) => connection.resumes,
            Self::Quic(_) => false,
        }
    }

    /// True when it is over.
    fn advance(&mut self, scratch: &mut [u8]) -> Result<bool, Fault> {
        match self {
            Self::Tcp(connection) => connection.advance(),
            Self::Quic(quic) => shake_hands(quic, scratch),
        }
    }
}

/// Over when the server has said that it has the client's last word; what is dropped then says good-bye.
fn shake_hands(quic: &mut Quic, scratch: &mut [u8]) -> Result<bool, Fault> {
    loop {
        quic.flush()?;
        while let Some(event) = quic.next_event() {
            if let Event::ConnectionLost { reason } = event {
                return Err(Fault::Quic(reason));
            }
        }
        if quic.is_confirmed() {
            return Ok(true);
        }
        if !quic.fill(scratch)? {
            return Ok(false);
        }
    }
}
