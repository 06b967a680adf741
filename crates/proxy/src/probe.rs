//! Asks an endpoint whether it is well, by a connection of its own. Decides nothing; the caller bounds the time.

use std::net::SocketAddr;

use balance::health::ProbeResult;
use gateway::snapshot::{Probe, ProxyVersion};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::dial::attempt::RESPONSE_LIMITS;
use crate::dial::connect;
use crate::h1::parse;
use crate::head::{Method, ResponseHead};
use crate::proxy_protocol::{self, Header};

/// Sends the probe and judges the answer. An endpoint whose connections begin with a header (PROXY protocol) gets one that
/// speaks for ourselves, where it is asked on the port that it serves on.
pub(crate) async fn ask(
    probe: &Probe,
    endpoint: SocketAddr,
    header: Option<ProxyVersion>,
) -> ProbeResult {
    let port = match probe {
        Probe::Http { port, .. } | Probe::Tcp { port } | Probe::Grpc { port, .. } => *port,
    };
    let address = SocketAddr::new(endpoint.ip(), port.map_or_else(|| endpoint.port(), Into::into));
    let mut stream = match TcpStream::connect(address).await {
        Ok(stream) => stream,
        // That we have no descriptors left says nothing of the endpoint.
        Err(error) if connect::is_our_fault(&error) => return ProbeResult::Unknown,
        Err(_) => return ProbeResult::Bad,
    };
    let Probe::Http { target, host, statuses, .. } = probe else { return ProbeResult::Good };
    let host = host.as_deref().map_or_else(|| address.to_string(), str::to_owned);
    let mut request = Vec::new();
    if let (Some(version), None) = (header, port) {
        proxy_protocol::write(version, &Header::Local, &mut request);
    }
    request.extend_from_slice(
        format!(
            "GET {target} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: sheave-probe\r\n\
             Connection: close\r\n\r\n"
        )
        .as_bytes(),
    );
    if stream.write_all(&request).await.is_err() {
        return ProbeResult::Bad;
    }
    match read_status(&mut stream).await {
        Some(status) if statuses.contains(&status) => ProbeResult::Good,
        Some(_) | None => ProbeResult::Bad,
    }
}

/// The status of a well-formed final response.
async fn read_status(stream: &mut TcpStream) -> Option<u16> {
    let (mut read, mut start, mut head) = (Vec::new(), 0, ResponseHead::new());
    loop {
        match parse::response(&read[start..], &RESPONSE_LIMITS, Method::Get, &mut head) {
            Ok(Some(length)) if head.is_interim() => start += length,
            Ok(Some(_)) => return Some(head.status),
            // The parser refuses a head that is too long, so this ends.
            Ok(None) => match stream.read_buf(&mut read).await {
                Ok(count) if count > 0 => {}
                Ok(_) | Err(_) => return None,
            },
            Err(_) => return None,
        }
    }
}
