//! The endpoints: as little server as a proxy can be measured against.

use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpStream as StdStream};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry};
use slab::Slab;

use crate::Side;
use crate::defect::{Defect, deafen};
use crate::http::{Fault, Incoming, RequestHead, Wanted};
use crate::job::Arguments;
use crate::service::{Pending, Service};

pub(crate) struct Endpoints {
    listeners: Vec<TcpListener>,
    connections: Slab<Connection>,
    /// Requests answered, by endpoint; a 500 is no answer.
    served: Vec<u64>,
    answers: Answers,
    service: Service,
    /// What will go wrong, and where.
    defects: Vec<(usize, Defect)>,
    /// What keeps the backlogs of black holes full.
    fillers: Vec<StdStream>,
    /// Tells a connection from an earlier one that had its place.
    next_serial: u64,
}

struct Connection {
    socket: TcpStream,
    endpoint: usize,
    serial: u64,
    incoming: Incoming<RequestHead>,
    answer: Option<Answer>,
}

struct Answer {
    bytes: Rc<[u8]>,
    sent: usize,
}

impl Endpoints {
    pub(crate) fn listen(arguments: Arguments, registry: &Registry) -> Result<Self> {
        let mut listeners = Vec::new();
        for index in 0..arguments.endpoints {
            let mut listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))
                .context("cannot listen on loopback")?;
            registry.register(&mut listener, Side::Listener.token(index), Interest::READABLE)?;
            listeners.push(listener);
        }
        Ok(Self {
            served: vec![0; listeners.len()],
            service: Service::new(arguments.service_time, listeners.len()),
            listeners,
            connections: Slab::new(),
            answers: Answers::default(),
            defects: arguments.defects,
            fillers: Vec::new(),
            next_serial: 0,
        })
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners
            .iter()
            .map(|listener| listener.local_addr().expect("a bound socket has an address"))
            .collect()
    }

    pub(crate) fn served(&self) -> &[u64] {
        &self.served
    }

    /// How long until an answer falls due.
    pub(crate) fn next_due(&self) -> Duration {
        let Some(next) = self.service.next_due() else { return Duration::from_secs(1) };
        next.saturating_duration_since(Instant::now())
    }

    /// From now on every endpoint has the defect that was announced for it.
    pub(crate) fn break_down(&mut self, registry: &Registry) -> Result<()> {
        for (endpoint, defect) in std::mem::take(&mut self.defects) {
            self.service.break_down(endpoint, defect);
            if defect == Defect::BlackHole {
                self.connections.retain(|_, connection| connection.endpoint != endpoint);
                self.fillers.extend(deafen(&mut self.listeners[endpoint], registry)?);
            }
        }
        Ok(())
    }

    pub(crate) fn accept(&mut self, endpoint: usize, registry: &Registry) -> Result<()> {
        loop {
            let mut socket = match self.listeners[endpoint].accept() {
                Ok((socket, _)) => socket,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error).context("an endpoint cannot accept"),
            };
            socket.set_nodelay(true)?;
            let place = self.connections.vacant_entry();
            let interest = Interest::READABLE | Interest::WRITABLE;
            registry.register(&mut socket, Side::Endpoint.token(place.key()), interest)?;
            place.insert(Connection {
                socket,
                endpoint,
                serial: self.next_serial,
                incoming: Incoming::new(),
                answer: None,
            });
            self.next_serial += 1;
        }
    }

    /// Takes a connection as far as it goes; one that closes or fails is dropped. The client side counts
    /// what that does to a request.
    pub(crate) fn serve(&mut self, index: usize, scratch: &mut [u8]) {
        if self.connections.contains(index) && self.try_to_serve(index, scratch).is_err() {
            self.connections.remove(index);
        }
    }

    fn try_to_serve(&mut self, index: usize, scratch: &mut [u8]) -> Result<(), Fault> {
        self.write_answer(index)?;
        let connection = &mut self.connections[index];
        if connection.answer.is_some() {
            return Ok(());
        }
        match connection.incoming.read(&connection.socket, scratch)? {
            Some(head) => self.answer_or_wait(index, head.wanted),
            None => Ok(()),
        }
    }

    fn answer_or_wait(&mut self, index: usize, wanted: Wanted) -> Result<(), Fault> {
        let &Connection { endpoint, serial, .. } = &self.connections[index];
        if self.service.fails(endpoint) {
            return self.send(index, response("500 Internal Server Error", b"broken").into());
        }
        if self.service.takes_no_time() {
            return self.answer(index, &wanted);
        }
        let pending = Pending { connection: index, serial, wanted };
        self.service.arrive(endpoint, pending, Instant::now());
        Ok(())
    }

    /// Sends the answers whose time has come.
    pub(crate) fn answer_due(&mut self, now: Instant) {
        while let Some(Pending { connection, serial, wanted }) = self.service.finish_one(now) {
            let lives = self.connections.get(connection).is_some_and(|c| c.serial == serial);
            if lives && self.answer(connection, &wanted).is_err() {
                self.connections.remove(connection);
            }
        }
    }

    fn answer(&mut self, index: usize, wanted: &Wanted) -> Result<(), Fault> {
        let bytes = match wanted {
            Wanted::Bytes(length) => self.answers.of_length(*length),
            Wanted::Echo(head) => response("200 OK", head).into(),
        };
        self.served[self.connections[index].endpoint] += 1;
        self.send(index, bytes)
    }

    fn send(&mut self, index: usize, bytes: Rc<[u8]>) -> Result<(), Fault> {
        self.connections[index].answer = Some(Answer { bytes, sent: 0 });
        self.write_answer(index)
    }

    fn write_answer(&mut self, index: usize) -> Result<(), Fault> {
        let connection = &mut self.connections[index];
        let Some(answer) = &mut connection.answer else { return Ok(()) };
        while answer.sent < answer.bytes.len() {
            match connection.socket.write(&answer.bytes[answer.sent..]) {
                Ok(count) => answer.sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(Fault::Io(error)),
            }
        }
        connection.answer = None;
        Ok(())
    }
}

/// Whole responses, made once for each length. An experiment asks for one or two.
#[derive(Default)]
struct Answers(Vec<(usize, Rc<[u8]>)>);

impl Answers {
    fn of_length(&mut self, length: usize) -> Rc<[u8]> {
        if let Some((_, bytes)) = self.0.iter().find(|(known, _)| *known == length) {
            return Rc::clone(bytes);
        }
        let bytes: Rc<[u8]> = response("200 OK", &vec![b'x'; length]).into();
        self.0.push((length, Rc::clone(&bytes)));
        bytes
    }
}

fn response(status: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!(
        "HTTP/1.1 {status}\r\nServer: endpoint\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\n\
         Content-Type: text/plain\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}
