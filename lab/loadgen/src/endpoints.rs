//! The endpoints: as little server as a proxy can be measured against.

use std::collections::VecDeque;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry};
use slab::Slab;

use crate::Side;
use crate::http::{Fault, Incoming, RequestHead, Wanted};
use crate::job::Arguments;

pub(crate) struct Endpoints {
    listeners: Vec<TcpListener>,
    connections: Slab<Connection>,
    /// Requests answered, by endpoint.
    served: Vec<u64>,
    answers: Answers,
    delay: Duration,
    /// Answers that wait for their time. One delay for all keeps them in order.
    due: VecDeque<Due>,
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

struct Due {
    at: Instant,
    index: usize,
    serial: u64,
    wanted: Wanted,
}

impl Endpoints {
    pub(crate) fn listen(arguments: &Arguments, registry: &Registry) -> Result<Self> {
        let mut listeners = Vec::new();
        for index in 0..arguments.endpoints {
            let mut listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))
                .context("cannot listen on loopback")?;
            registry.register(&mut listener, Side::Listener.token(index), Interest::READABLE)?;
            listeners.push(listener);
        }
        Ok(Self {
            served: vec![0; listeners.len()],
            listeners,
            connections: Slab::new(),
            answers: Answers::default(),
            delay: arguments.delay,
            due: VecDeque::new(),
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
        let Some(first) = self.due.front() else { return Duration::from_secs(1) };
        first.at.saturating_duration_since(Instant::now())
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
        if self.delay.is_zero() {
            return self.answer(index, &wanted);
        }
        let serial = self.connections[index].serial;
        self.due.push_back(Due { at: Instant::now() + self.delay, index, serial, wanted });
        Ok(())
    }

    /// Sends the answers whose time has come.
    pub(crate) fn answer_due(&mut self, now: Instant) {
        while self.due.front().is_some_and(|due| due.at <= now) {
            let Some(due) = self.due.pop_front() else { return };
            let lives = self.connections.get(due.index).is_some_and(|c| c.serial == due.serial);
            if lives && self.answer(due.index, &due.wanted).is_err() {
                self.connections.remove(due.index);
            }
        }
    }

    fn answer(&mut self, index: usize, wanted: &Wanted) -> Result<(), Fault> {
        let bytes = match wanted {
            Wanted::Bytes(length) => self.answers.of_length(*length),
            Wanted::Echo(head) => response(head).into(),
        };
        let connection = &mut self.connections[index];
        connection.answer = Some(Answer { bytes, sent: 0 });
        self.served[connection.endpoint] += 1;
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
        let bytes: Rc<[u8]> = response(&vec![b'x'; length]).into();
        self.0.push((length, Rc::clone(&bytes)));
        bytes
    }
}

fn response(body: &[u8]) -> Vec<u8> {
    let mut bytes = format!(
        "HTTP/1.1 200 OK\r\nServer: endpoint\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\n\
         Content-Type: text/plain\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}
