//! The requests of one connection, and their responses.

use std::collections::HashMap;

use anyhow::{Result, bail, ensure};
use boring::sha::Sha256;
use quiche::Connection;
use quiche::h3::{self, Event, Header, NameValue};

use crate::InteropCase;

/// Name that the server's certificate has to have.
pub(crate) const NAME: &str = "localhost";
static UPLOAD: [u8; 100_000] = [b'x'; 100_000];

/// The requests of one connection.
pub(crate) struct RequestExchange {
    http3: h3::Connection,
    is_upload: bool,
    /// Requests that are not sent yet.
    waiting: usize,
    running: HashMap<u64, RunningRequest>,
    /// Bytes of all responses so far.
    pub(crate) received: usize,
}

/// A request that has been sent, and its response.
#[derive(Default)]
struct RunningRequest {
    uploaded: usize,
    status_is_ok: bool,
    length: usize,
    digest: Sha256,
}

impl RequestExchange {
    pub(crate) fn new(quic: &mut Connection, case: &InteropCase) -> Result<Self> {
        Ok(Self {
            http3: h3::Connection::with_transport(quic, &h3::Config::new()?)?,
            is_upload: case.is_upload(),
            waiting: case.requests,
            running: HashMap::new(),
            received: 0,
        })
    }

    pub(crate) fn is_done(&self) -> bool {
        self.waiting == 0 && self.running.is_empty()
    }

    /// Sends what the server has room for, and reads what has arrived.
    pub(crate) fn advance(&mut self, quic: &mut Connection) -> Result<()> {
        self.send_requests(quic)?;
        self.upload(quic)?;
        loop {
            match self.http3.poll(quic) {
                Ok((id, event)) => self.handle(quic, id, event)?,
                Err(h3::Error::Done) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn send_requests(&mut self, quic: &mut Connection) -> Result<()> {
        let length = UPLOAD.len().to_string();
        let method = if self.is_upload { "POST" } else { "GET" };
        let mut fields =
            vec![(":method", method), (":scheme", "https"), (":authority", NAME), (":path", "/")];
        fields.extend(self.is_upload.then_some(("content-length", &*length)));
        let header = |(name, value): &(&str, &str)| Header::new(name.as_bytes(), value.as_bytes());
        let headers: Vec<_> = fields.iter().map(header).collect();
        while self.waiting > 0 {
            match self.http3.send_request(quic, &headers, !self.is_upload) {
                Ok(id) => drop(self.running.insert(id, RunningRequest::default())),
                // The server permits no further stream, or the connection has no room.
                Err(
                    h3::Error::StreamBlocked
                    | h3::Error::TransportError(quiche::Error::StreamLimit),
                ) => break,
                Err(error) => return Err(error.into()),
            }
            self.waiting -= 1;
        }
        Ok(())
    }

    fn upload(&mut self, quic: &mut Connection) -> Result<()> {
        if !self.is_upload {
            return Ok(());
        }
        for (id, request) in &mut self.running {
            while request.uploaded < UPLOAD.len() {
                match self.http3.send_body(quic, *id, &UPLOAD[request.uploaded..], true) {
                    Ok(count) => request.uploaded += count,
                    Err(h3::Error::Done) => break,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    fn handle(&mut self, quic: &mut Connection, id: u64, event: Event) -> Result<()> {
        let Some(request) = self.running.get_mut(&id) else { return Ok(()) };
        match event {
            Event::Headers { list, .. } => {
                let is_ok = |field: &Header| field.name() == b":status" && field.value() == b"200";
                request.status_is_ok |= list.iter().any(is_ok);
            }
            Event::Data => {
                let mut buffer = [0; 16 * 1024];
                while let Ok(count) = self.http3.recv_body(quic, id, &mut buffer) {
                    request.digest.update(&buffer[..count]);
                    request.length += count;
                    self.received += count;
                }
            }
            Event::Finished => {
                let request = self.running.remove(&id).unwrap_or_default();
                ensure!(request.status_is_ok, "the status is not 200");
                let sum = request.digest.finish();
                let sum: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
                println!("response 200 {} {sum}", request.length);
            }
            Event::Reset(code) => bail!("the server resets a response with code {code:#x}"),
            Event::PriorityUpdate | Event::GoAway => {}
        }
        Ok(())
    }
}
