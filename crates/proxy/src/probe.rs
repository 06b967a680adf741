//! Asks an endpoint whether it is well, by a connection of its own. Decides nothing; the caller bounds the time.

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use balance::health::ProbeResult;
use gateway::snapshot::{Probe, ProxyVersion};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::dial::attempt::RESPONSE_LIMITS;
use crate::dial::connect;
use crate::grpc::health::{self, Health, Question};
use crate::h1::parse;
use crate::head::{Method, ResponseHead};
use crate::proxy_protocol::{self, Header};
use crate::stream::Stream;
use crate::tls::Security;

/// What a probe has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finding {
    Good,
    /// And what is wrong, in words.
    Bad(&'static str),
    /// It says nothing.
    Unknown,
}

impl Finding {
    pub(crate) fn result(self) -> ProbeResult {
        match self {
            Self::Good => ProbeResult::Good,
            Self::Bad(_) => ProbeResult::Bad,
            Self::Unknown => ProbeResult::Unknown,
        }
    }

    pub(crate) fn fault(self) -> Option<&'static str> {
        match self {
            Self::Bad(fault) => Some(fault),
            Self::Good | Self::Unknown => None,
        }
    }
}

/// Sends the probe and judges the answer. An endpoint whose connections begin with a header (PROXY protocol) gets one that
/// speaks for ourselves, and is asked as its backend's connections are secured, both where it is asked on the port that it
/// serves on.
pub(crate) async fn ask(
    probe: &Probe,
    endpoint: SocketAddr,
    header: Option<ProxyVersion>,
    security: Security<'_>,
) -> Finding {
    let port = match probe {
        Probe::Http { port, .. } | Probe::Tcp { port } | Probe::Grpc { port, .. } => *port,
    };
    let address = SocketAddr::new(endpoint.ip(), port.map_or_else(|| endpoint.port(), Into::into));
    let stream = match TcpStream::connect(address).await {
        Ok(stream) => stream,
        // That we have no descriptors left says nothing of the endpoint.
        Err(error) if connect::is_our_fault(&error) => return Finding::Unknown,
        Err(_) => return Finding::Bad("it refuses connections"),
    };
    let host_or_address = |host: &Option<Box<str>>| {
        host.as_deref().map_or_else(|| address.to_string(), str::to_owned)
    };
    // On a port of its own it is asked without ado.
    let (header, security) = match port {
        Some(_) => (None, Security::Plain),
        None => (header, security),
    };
    match probe {
        Probe::Tcp { .. } => Finding::Good,
        Probe::Http { target, host, statuses, .. } => match begin(stream, header, security).await {
            Ok(stream) => ask_http(stream, target, &host_or_address(host), statuses).await,
            Err(finding) => finding,
        },
        Probe::Grpc { service, host, .. } => match begin(stream, header, security).await {
            Ok(stream) => ask_grpc(stream, service, &host_or_address(host)).await,
            Err(finding) => finding,
        },
    }
}

/// Begins the connection as the backend's connections begin.
async fn begin(
    mut socket: TcpStream,
    header: Option<ProxyVersion>,
    security: Security<'_>,
) -> Result<Stream, Finding> {
    if let Some(version) = header {
        let mut introduction = Vec::new();
        proxy_protocol::write(version, &Header::Local, &mut introduction);
        socket
            .write_all(&introduction)
            .await
            .map_err(|_lost| Finding::Bad("the connection broke"))?;
    }
    match security {
        Security::Plain => Ok(Stream::Tcp(socket)),
        Security::Tls(secret) => {
            let secured = connect::secure(socket, secret).await;
            secured.map_err(|failure| Finding::Bad(failure.details()))
        }
        // Nothing can be asked, which is not the endpoint's fault.
        Security::Impossible => Err(Finding::Unknown),
    }
}

async fn ask_http(
    mut stream: Stream,
    target: &str,
    host: &str,
    statuses: &RangeInclusive<u16>,
) -> Finding {
    let request = format!(
        "GET {target} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: sheave-probe\r\n\
         Connection: close\r\n\r\n"
    );
    if stream.write_all(request.as_bytes()).await.is_err() {
        return Finding::Bad("the connection broke");
    }
    match read_status(&mut stream).await {
        Some(status) if statuses.contains(&status) => Finding::Good,
        Some(_) => Finding::Bad("the status is another"),
        None => Finding::Bad("the answer is not HTTP"),
    }
}

async fn ask_grpc(stream: Stream, service: &str, authority: &str) -> Finding {
    let scheme = match stream {
        Stream::Tcp(_) | Stream::H2(_) => "http",
        Stream::Tls(_) => "https",
    };
    match health::ask(stream, &Question { scheme, authority, service }).await {
        Health::Serving => Finding::Good,
        other => Finding::Bad(other.word()),
    }
}

/// The status of a well-formed final response.
async fn read_status(stream: &mut Stream) -> Option<u16> {
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
