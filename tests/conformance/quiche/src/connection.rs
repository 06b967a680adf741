//! A connection: its sockets and timers.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Context, Result, ensure};
use boring::rand::rand_bytes;
use mio::net::UdpSocket;
use mio::{Events, Interest, Poll, Token};
use quiche::{ConnectionId, Header, RecvInfo, Type};

use crate::InteropCase;
use crate::exchange::{NAME, RequestExchange};

/// Size of connection IDs, in bytes.
const ID_BYTES: usize = 16;
/// Bytes of a response after which a client moves.
const BYTES_BEFORE_MOVE: usize = 256 * 1024;
/// H3_NO_ERROR.
const NO_ERROR: u64 = 0x100;
/// What quiche calls early data that the server has accepted.
const EARLY_DATA_ACCEPTED: u32 = 2;

/// A connection.
pub(crate) struct ClientConnection<'c> {
    case: &'c InteropCase,
    quic: quiche::Connection,
    poll: Poll,
    /// The sockets, each with its address. Datagrams leave from the last one unless they belong to another path.
    sockets: Vec<(SocketAddr, UdpSocket)>,
    exchange: Option<RequestExchange>,
    /// Why quiche refused the last datagram that it refused.
    refused: Option<quiche::Error>,
}

impl<'c> ClientConnection<'c> {
    /// Begins a connection that resumes a session, if there is one.
    pub(crate) fn connect(case: &'c InteropCase, session: Option<&[u8]>) -> Result<Self> {
        let poll = Poll::new()?;
        let (local, socket) = socket(&poll, case.server, Token(0))?;
        let id = random_id()?;
        let mut config = case.config()?;
        let mut quic = quiche::connect(Some(NAME), &id, local, case.server, &mut config)?;
        if let Some(session) = session {
            quic.set_session(session)?;
        }
        Ok(Self { case, quic, poll, sockets: vec![(local, socket)], exchange: None, refused: None })
    }

    /// Runs until there is a response to each request. Returns the session, if the case resumes it.
    pub(crate) fn run(mut self) -> Result<Option<Vec<u8>>> {
        let mut events = Events::with_capacity(8);
        loop {
            // The first datagrams: after them there can be early data.
            self.send()?;
            self.advance()?;
            if self.is_done() {
                break;
            }
            self.send()?;
            match self.poll.poll(&mut events, self.quic.timeout()) {
                // The machine was suspended.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                waited => waited?,
            }
            self.receive()?;
            if self.quic.timeout().is_some_and(|left| left.is_zero()) {
                self.quic.on_timeout();
            }
            ensure!(!self.quic.is_closed(), "the connection ends: {}", self.reason());
        }
        if self.quic.early_data_reason() == EARLY_DATA_ACCEPTED {
            println!("fact early-data");
        }
        self.quic.close(true, NO_ERROR, b"")?;
        self.send()?;
        Ok(self.quic.session().map(<[u8]>::to_vec))
    }

    /// Returns the reason for the end of the connection.
    fn reason(&self) -> String {
        let (peer, local) = (self.quic.peer_error(), self.quic.local_error());
        let timed_out = self.quic.is_timed_out();
        let refused = self.refused;
        format!(
            "by the peer: {peer:?}, by us: {local:?}, timed out: {timed_out}, \
             last datagram refused: {refused:?}"
        )
    }

    fn is_done(&self) -> bool {
        let has_responses = self.exchange.as_ref().is_some_and(RequestExchange::is_done);
        has_responses && (!self.case.resumes() || self.quic.session().is_some())
    }

    fn advance(&mut self) -> Result<()> {
        if self.exchange.is_none() && (self.quic.is_established() || self.quic.is_in_early_data()) {
            self.exchange = Some(RequestExchange::new(&mut self.quic, self.case)?);
        }
        let Some(exchange) = &mut self.exchange else { return Ok(()) };
        exchange.advance(&mut self.quic)?;
        if self.case.migrates() && exchange.received >= BYTES_BEFORE_MOVE {
            self.migrate()?;
        }
        Ok(())
    }

    /// Moves to another port, once.
    fn migrate(&mut self) -> Result<()> {
        while self.quic.scids_left() > 0 {
            let mut token = [0; 16];
            rand_bytes(&mut token)?;
            self.quic.new_scid(&random_id()?, u128::from_be_bytes(token), false)?;
        }
        if self.sockets.len() == 1 && self.quic.available_dcids() > 0 {
            let (local, socket) = socket(&self.poll, self.case.server, Token(1))?;
            self.sockets.push((local, socket));
            self.quic.migrate_source(local)?;
        }
        Ok(())
    }

    fn send(&mut self) -> Result<()> {
        let mut datagram = [0; 1500];
        loop {
            let (length, info) = match self.quic.send(&mut datagram) {
                Ok(sent) => sent,
                Err(quiche::Error::Done) => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let of_path = self.sockets.iter().find(|(local, _)| *local == info.from);
            let (_, socket) = of_path.context("no socket of the path")?;
            match socket.send(&datagram[..length]) {
                // The line may lose any datagram.
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn receive(&mut self) -> Result<()> {
        let mut datagram = [0; 65_535];
        for (local, socket) in &self.sockets {
            loop {
                let length = match socket.recv(&mut datagram) {
                    Ok(length) => length,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error.into()),
                };
                if !is_for(&self.quic, &mut datagram[..length]) {
                    continue;
                }
                let info = RecvInfo { from: self.case.server, to: *local };
                // A datagram that is corrupted does not matter; the loop sees what ends the connection.
                let received = self.quic.recv(&mut datagram[..length], info);
                self.refused = received.err().or(self.refused);
            }
        }
        Ok(())
    }
}

/// Returns whether a datagram has an ID of the connection. After a move one with a retired ID can arrive late on the old
/// path, and quiche would end the connection for it.
fn is_for(quic: &quiche::Connection, datagram: &mut [u8]) -> bool {
    // One that is corrupted is quiche's to refuse.
    let Ok(header) = Header::from_slice(datagram, ID_BYTES) else { return true };
    header.ty != Type::Short || quic.source_ids().any(|id| *id == header.dcid)
}

fn socket(poll: &Poll, server: SocketAddr, token: Token) -> Result<(SocketAddr, UdpSocket)> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let mut socket = UdpSocket::bind((any, 0).into())?;
    socket.connect(server)?;
    poll.registry().register(&mut socket, token, Interest::READABLE)?;
    Ok((socket.local_addr()?, socket))
}

fn random_id() -> Result<ConnectionId<'static>> {
    let mut id = vec![0; ID_BYTES];
    rand_bytes(&mut id)?;
    Ok(ConnectionId::from_vec(id))
}
