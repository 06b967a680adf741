//! A router that breaks the protocol: bytes that are none of BGP, and routes without end.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

use anyhow::{Context, Result};
use tests::waiting::PATIENCE;

use super::network::Network;

/// Bytes of UPDATE messages that are sent.
const FLOOD_BYTES: usize = 64 << 20;

const OPEN: u8 = 1;
const UPDATE: u8 = 2;
const KEEPALIVE: u8 = 4;

/// A router that waits for connections at the port of BGP.
pub(crate) struct BrokenRouter(TcpListener);

pub(crate) fn listen(network: &Network) -> Result<BrokenRouter> {
    Ok(BrokenRouter(network.router.run(|| TcpListener::bind("10.9.0.254:179"))??))
}

impl BrokenRouter {
    fn accept(&self) -> Result<TcpStream> {
        let (stream, _) = self.0.accept()?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    /// Answers a session with bytes that are none of BGP, and waits for its end.
    pub(crate) fn answer_with_garbage(&self) -> Result<()> {
        let mut stream = self.accept()?;
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")?;
        read_to_end(&mut stream)
    }

    /// Opens a session and announces routes without end; returns the number of bytes that were sent.
    pub(crate) fn flood_with_routes(&self) -> Result<usize> {
        let mut stream = self.accept()?;
        let asn = 65001_u16.to_be_bytes();
        let hold_time = 90_u16.to_be_bytes();
        let open = [&[4][..], &asn, &hold_time, &[10, 9, 0, 254], &[0]].concat();
        stream.write_all(&message(OPEN, &open))?;
        stream.write_all(&message(KEEPALIVE, &[]))?;
        // No withdrawals, no attributes, and routes up to the longest message.
        let routes = [24, 198, 51, 100].repeat(1000);
        let update = message(UPDATE, &[&[0; 4][..], &routes].concat());
        let mut sent = 0;
        while sent < FLOOD_BYTES {
            stream.write_all(&update).context("the session has ended")?;
            sent += update.len();
        }
        Ok(sent)
    }
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(19 + body.len()).expect("it is short").to_be_bytes();
    [&[0xff; 16][..], &length, &[kind], body].concat()
}

/// Reads until the other side closes.
fn read_to_end(stream: &mut TcpStream) -> Result<()> {
    match stream.read_to_end(&mut Vec::new()) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => Err(error.into()),
        _ => Ok(()),
    }
}
