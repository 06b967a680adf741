//! The endpoints: the lightest server a proxy can be measured against. They speak HTTP/1.1 and HTTP/2 at the same
//! address, selected by the first bytes of the client.

mod http1;
mod http2;

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream as StdStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry};
use slab::Slab;

use self::http1::Http1Server;
use self::http2::Http2Server;
use crate::EventSource;
use crate::defect::{EndpointDefect, fill_backlog};
use crate::http::{MessageError, ResponseSpec};
use crate::job::LoadgenArguments;
use crate::service::{PendingRequest, ServiceModel};

pub(crate) struct EndpointServers {
    addresses: Vec<SocketAddr>,
    /// Listeners by endpoint; none while an endpoint is dead.
    listeners: Vec<Option<TcpListener>>,
    connections: Slab<ServerConnection>,
    /// Answered requests, by endpoint; a 500 does not count.
    served: Vec<u64>,
    /// Requests that an endpoint had received, in part or whole, and not answered when it died.
    unanswered: Vec<u64>,
    answers: CachedResponses,
    service: ServiceModel,
    /// Defects to inject, with their endpoints.
    defects: Vec<(usize, EndpointDefect)>,
    /// Dead endpoints that return, with the time of their return.
    revivals: Vec<(Instant, usize)>,
    /// Connections that keep the backlogs of black holes full.
    backlog_fillers: Vec<StdStream>,
    /// Serial number that distinguishes a connection from an earlier one at the same index.
    next_serial: u64,
}

struct ServerConnection {
    endpoint: usize,
    serial: u64,
    protocol: ServerProtocol,
    /// Requests that were read and have not been answered.
    in_flight: u64,
}

enum ServerProtocol {
    /// The client has not sent anything yet.
    Undetected(TcpStream),
    Http1(Http1Server),
    Http2(Box<Http2Server>),
    /// Placeholder while the protocol changes.
    Taken,
}

impl EndpointServers {
    pub(crate) fn listen(arguments: LoadgenArguments, registry: &Registry) -> Result<Self> {
        let count = arguments.endpoints;
        let mut listeners = Vec::with_capacity(count);
        let mut addresses = Vec::with_capacity(count);
        for index in 0..count {
            let loopback = || Ok::<_, anyhow::Error>(SocketAddr::new(host(index)?, 0));
            let listener = listen(index, arguments.listen.map_or_else(loopback, Ok)?, registry)?;
            addresses.push(listener.local_addr()?);
            listeners.push(Some(listener));
        }
        Ok(Self {
            addresses,
            listeners,
            served: vec![0; count],
            unanswered: vec![0; count],
            service: ServiceModel::new(arguments.service_time, count),
            connections: Slab::new(),
            answers: CachedResponses::default(),
            defects: arguments.defects,
            revivals: Vec::new(),
            backlog_fillers: Vec::new(),
            next_serial: 0,
        })
    }

    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    pub(crate) fn served(&self) -> &[u64] {
        &self.served
    }

    pub(crate) fn unanswered(&self) -> &[u64] {
        &self.unanswered
    }

    /// Returns the time until a response is due or an endpoint returns.
    pub(crate) fn next_due(&self) -> Duration {
        let returns = self.revivals.iter().map(|(at, _)| *at);
        let Some(next) = returns.chain(self.service.next_due()).min() else {
            return Duration::from_secs(1);
        };
        next.saturating_duration_since(Instant::now())
    }

    /// Injects the configured defect into every endpoint.
    pub(crate) fn inject_defects(&mut self, registry: &Registry) -> Result<()> {
        for (endpoint, defect) in std::mem::take(&mut self.defects) {
            self.service.inject_defect(endpoint, defect);
            match defect {
                EndpointDefect::Slow(_) | EndpointDefect::Errors => {}
                EndpointDefect::BlackHole => {
                    self.connections.retain(|_, connection| connection.endpoint != endpoint);
                    if let Some(listener) = &mut self.listeners[endpoint] {
                        self.backlog_fillers.extend(fill_backlog(listener, registry)?);
                    }
                }
                EndpointDefect::Dead { back_after } => {
                    self.kill(endpoint, registry)?;
                    self.revivals
                        .extend(back_after.map(|after| (Instant::now() + after, endpoint)));
                }
            }
        }
        Ok(())
    }

    /// Closes all sockets of an endpoint. The kernel resets connections with unread bytes, closes the others, and
    /// refuses new ones.
    fn kill(&mut self, endpoint: usize, registry: &Registry) -> Result<()> {
        // Connections in the backlog may have received bytes.
        self.accept(endpoint, registry)?;
        self.listeners[endpoint] = None;
        for (_, connection) in self.connections.iter().filter(|(_, c)| c.endpoint == endpoint) {
            self.unanswered[endpoint] += connection.unanswered();
        }
        self.connections.retain(|_, connection| connection.endpoint != endpoint);
        Ok(())
    }

    /// Lets endpoints listen again when their return is due.
    pub(crate) fn revive_due(&mut self, now: Instant, registry: &Registry) -> Result<()> {
        while let Some(index) = self.revivals.iter().position(|(at, _)| *at <= now) {
            let (_, endpoint) = self.revivals.swap_remove(index);
            let listener = listen(endpoint, self.addresses[endpoint], registry)?;
            self.listeners[endpoint] = Some(listener);
        }
        Ok(())
    }

    pub(crate) fn accept(&mut self, endpoint: usize, registry: &Registry) -> Result<()> {
        loop {
            // An event may have been pending when the endpoint died.
            let Some(listener) = &self.listeners[endpoint] else { return Ok(()) };
            let mut socket = match listener.accept() {
                Ok((socket, _)) => socket,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error).context("an endpoint cannot accept"),
            };
            socket.set_nodelay(true)?;
            let place = self.connections.vacant_entry();
            let interest = Interest::READABLE | Interest::WRITABLE;
            registry.register(&mut socket, EventSource::Endpoint.token(place.key()), interest)?;
            place.insert(ServerConnection {
                endpoint,
                serial: self.next_serial,
                protocol: ServerProtocol::Undetected(socket),
                in_flight: 0,
            });
            self.next_serial += 1;
        }
    }

    /// Advances a connection as far as its socket allows; drops it if it closes or fails. The client side counts the
    /// effect on a request.
    pub(crate) fn serve(&mut self, index: usize, scratch: &mut [u8]) {
        if self.connections.contains(index) && self.try_to_serve(index, scratch).is_err() {
            self.connections.remove(index);
        }
    }

    fn try_to_serve(&mut self, index: usize, scratch: &mut [u8]) -> Result<(), MessageError> {
        self.connections[index].detect_protocol()?;
        loop {
            let request = match &mut self.connections[index].protocol {
                ServerProtocol::Undetected(_) | ServerProtocol::Taken => return Ok(()),
                ServerProtocol::Http1(http1) => http1.next_request(scratch)?,
                ServerProtocol::Http2(http2) => http2.next_request(scratch)?,
            };
            let Some((stream, wanted)) = request else { return Ok(()) };
            self.answer_or_wait(index, stream, wanted)?;
            if stream == 0 {
                // Over HTTP/1.1 the next request comes after the response, with an event of its own.
                return Ok(());
            }
        }
    }

    fn answer_or_wait(
        &mut self,
        index: usize,
        stream: u32,
        wanted: ResponseSpec,
    ) -> Result<(), MessageError> {
        let ServerConnection { endpoint, serial, .. } = self.connections[index];
        if self.service.always_fails(endpoint) {
            return self.connections[index].protocol.refuse(stream);
        }
        if self.service.is_instant() {
            return self.answer(index, stream, &wanted);
        }
        let pending = PendingRequest { connection: index, serial, stream, wanted };
        self.connections[index].in_flight += 1;
        self.service.arrive(endpoint, pending, Instant::now());
        Ok(())
    }

    /// Sends the responses that are due.
    pub(crate) fn answer_due(&mut self, now: Instant) {
        while let Some(pending) = self.service.finish_one(now) {
            let PendingRequest { connection, serial, stream, wanted } = pending;
            let lives = self.connections.get(connection).is_some_and(|c| c.serial == serial);
            if lives && self.answer(connection, stream, &wanted).is_err() {
                self.connections.remove(connection);
            }
        }
    }

    fn answer(
        &mut self,
        index: usize,
        stream: u32,
        wanted: &ResponseSpec,
    ) -> Result<(), MessageError> {
        let connection = &mut self.connections[index];
        self.served[connection.endpoint] += 1;
        connection.in_flight = connection.in_flight.saturating_sub(1);
        connection.protocol.answer(stream, wanted, &mut self.answers)
    }
}

/// Returns the address of an endpoint. Each has its own, so that packet filter rules can tell them apart. Clients use
/// 127.0.0.1 and cannot be assigned the address of a dead endpoint as their own.
fn host(endpoint: usize) -> Result<IpAddr> {
    let last = u8::try_from(endpoint + 1).context("there are at most 254 endpoints")?;
    Ok(IpAddr::from([127, 0, 1, last]))
}

fn listen(endpoint: usize, address: SocketAddr, registry: &Registry) -> Result<TcpListener> {
    let mut listener =
        TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    registry.register(&mut listener, EventSource::Listener.token(endpoint), Interest::READABLE)?;
    Ok(listener)
}

impl ServerConnection {
    /// Returns the number of requests that were received, at least in part, and have not been
    /// answered.
    fn unanswered(&self) -> u64 {
        let partial = match &self.protocol {
            ServerProtocol::Undetected(socket) => http1::has_unread_bytes(socket),
            ServerProtocol::Http1(http1) => http1.has_part_of_a_request(),
            ServerProtocol::Http2(_) | ServerProtocol::Taken => false,
        };
        self.in_flight.max(u64::from(partial))
    }

    /// Detects the protocol of the client from its first bytes.
    fn detect_protocol(&mut self) -> Result<(), MessageError> {
        let ServerProtocol::Undetected(socket) = &self.protocol else { return Ok(()) };
        let mut beginning = [0; 3];
        match socket.peek(&mut beginning) {
            // The client closed without sending; the next read detects it.
            Ok(0) => {}
            Ok(count) if count < beginning.len() => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(MessageError::Io(error)),
        }
        let ServerProtocol::Undetected(socket) =
            std::mem::replace(&mut self.protocol, ServerProtocol::Taken)
        else {
            return Ok(());
        };
        self.protocol = match &beginning {
            b"PRI" => ServerProtocol::Http2(Box::new(Http2Server::new(socket))),
            _ => ServerProtocol::Http1(Http1Server::new(socket)),
        };
        Ok(())
    }
}

impl ServerProtocol {
    fn answer(
        &mut self,
        stream: u32,
        wanted: &ResponseSpec,
        answers: &mut CachedResponses,
    ) -> Result<(), MessageError> {
        match self {
            Self::Undetected(_) | Self::Taken => Ok(()),
            Self::Http1(http1) => http1.send(answers.http1.of(wanted)),
            Self::Http2(http2) => http2.send(stream, answers.http2.of(wanted)?),
        }
    }

    fn refuse(&mut self, stream: u32) -> Result<(), MessageError> {
        match self {
            Self::Undetected(_) | Self::Taken => Ok(()),
            Self::Http1(http1) => {
                http1.send(http1::response("500 Internal Server Error", b"broken"))
            }
            Self::Http2(http2) => http2.send(stream, http2::failure()),
        }
    }
}

/// Complete responses, cached per length. An experiment uses one or two lengths.
#[derive(Default)]
struct CachedResponses {
    http1: http1::Http1Responses,
    http2: http2::Http2Responses,
}
