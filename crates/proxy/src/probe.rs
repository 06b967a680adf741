//! Sends one active health check over a connection of its own. The caller bounds the time and decides on the result.

use std::net::SocketAddr;
use std::ops::RangeInclusive;

use balance::ConcurrencyCap;
use balance::health::ProbeResult;
use codec::h1::parse;
use codec::head::{RequestMethod, ResponseHead};
use codec::proxy_protocol::ProxyHeader;
use gateway::snapshot::{EndpointProtocol, ProbeSettings, ProxyVersion};
use http::{Request, Uri};
use tls::ConnectionSecurity;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::backend::{Backend, BackendConfig};
use crate::clock;
use crate::dial::RESPONSE_LIMITS;
use crate::dial::connect;
use crate::dial::marked_socket;
use crate::dial::pool::Endpoint;
use crate::grpc::health::{self, HealthCheckRequest, HealthCheckResult};
use crate::proxy_header;
use crate::stream::PeerStream;

/// The finding of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeFinding {
    Good,
    /// The probe failed, with the reason.
    Bad(&'static str),
    /// The probe is inconclusive.
    Unknown,
}

impl ProbeFinding {
    pub(crate) fn result(self) -> ProbeResult {
        match self {
            Self::Good => ProbeResult::Good,
            Self::Bad(_) => ProbeResult::Bad,
            Self::Unknown => ProbeResult::Unknown,
        }
    }

    pub(crate) fn failure_reason(self) -> Option<&'static str> {
        match self {
            Self::Bad(reason) => Some(reason),
            Self::Good | Self::Unknown => None,
        }
    }
}

/// Sends the probe and judges the answer.
///
/// If the probe goes to the serving port, it uses the protocol and the TLS settings of the backend. If the backend's
/// connections begin with a PROXY protocol header, the probe sends one with the command LOCAL. On a port of its own the
/// probe uses plain HTTP/1.1.
pub(crate) async fn send_probe(
    probe: &ProbeSettings,
    endpoint: &Endpoint,
    current: &BackendConfig,
) -> ProbeFinding {
    let port = match probe {
        ProbeSettings::Http { port, .. }
        | ProbeSettings::Tcp { port }
        | ProbeSettings::Grpc { port, .. } => *port,
    };
    let serving = endpoint.address;
    let address = SocketAddr::new(serving.ip(), port.map_or_else(|| serving.port(), Into::into));
    let mark = marked_socket::mark(endpoint, None);
    let stream = match marked_socket::connect_tcp(address, mark).await {
        Ok(stream) => stream,
        // A lack of file descriptors in the proxy says nothing about the endpoint.
        Err(error) if connect::is_out_of_descriptors(&error) => return ProbeFinding::Unknown,
        Err(_) => return ProbeFinding::Bad("connection refused"),
    };
    let host_or_address = |host: &Option<Box<str>>| {
        host.as_deref().map_or_else(|| address.to_string(), str::to_owned)
    };
    // On a port of its own the probe uses no PROXY protocol and no TLS.
    let settings = &current.settings;
    let (header, security, protocol) = match port {
        Some(_) => (None, ConnectionSecurity::Plain, EndpointProtocol::Http1),
        None => {
            let security = ConnectionSecurity::of_requests(current.tls_context.as_ref());
            (settings.proxy_protocol, security, settings.protocol)
        }
    };
    match probe {
        ProbeSettings::Tcp { .. } => ProbeFinding::Good,
        ProbeSettings::Http { target, host, statuses, .. } => {
            match open_stream(stream, header, security).await {
                Ok(stream) => {
                    let host = host_or_address(host);
                    let is_http1 = match protocol {
                        EndpointProtocol::Http1 => true,
                        EndpointProtocol::Http2 => false,
                        // The probe's connection is TCP, so ALPN decides between HTTP/1.1 and HTTP/2.
                        EndpointProtocol::Http3 => stream.has_settled_on_http1(),
                    };
                    let status = match is_http1 {
                        true => probe_http1(stream, target, &host).await,
                        false => probe_http2(stream, target, &host).await,
                    };
                    judge(status, statuses)
                }
                Err(finding) => finding,
            }
        }
        ProbeSettings::Grpc { service, host, .. } => {
            match open_stream(stream, header, security).await {
                Ok(stream) => probe_grpc(stream, service, &host_or_address(host)).await,
                Err(finding) => finding,
            }
        }
    }
}

/// Starts the connection like the backend's connections: PROXY protocol header, then TLS.
pub(crate) async fn open_stream(
    mut socket: TcpStream,
    header: Option<ProxyVersion>,
    security: ConnectionSecurity<'_>,
) -> Result<PeerStream, ProbeFinding> {
    if let Some(version) = header {
        let mut introduction = Vec::new();
        proxy_header::write(version, &ProxyHeader::Local, &mut introduction);
        socket
            .write_all(&introduction)
            .await
            .map_err(|_lost| ProbeFinding::Bad("connection broken"))?;
    }
    match security {
        ConnectionSecurity::Plain => Ok(PeerStream::Tcp(socket)),
        ConnectionSecurity::Tls(secret) => {
            let secured = connect::tls_handshake(socket, secret).await;
            secured.map_err(|failure| ProbeFinding::Bad(failure.details()))
        }
        // The probe cannot be sent, which is not the endpoint's fault.
        ConnectionSecurity::Unusable => Err(ProbeFinding::Unknown),
    }
}

fn judge(status: Option<u16>, statuses: &RangeInclusive<u16>) -> ProbeFinding {
    match status {
        Some(status) if statuses.contains(&status) => ProbeFinding::Good,
        Some(_) => ProbeFinding::Bad("unexpected status"),
        None => ProbeFinding::Bad("response is not valid in the backend's protocol"),
    }
}

/// Returns the status of the response to a GET.
async fn probe_http1(mut stream: PeerStream, target: &str, host: &str) -> Option<u16> {
    let request = format!(
        "GET {target} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: sheave-probe\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.ok()?;
    read_status(&mut stream).await
}

/// Returns the status of the response to a GET.
async fn probe_http2(stream: PeerStream, target: &str, host: &str) -> Option<u16> {
    let uri = Uri::builder().scheme(scheme(&stream)).authority(host).path_and_query(target);
    let request = Request::get(uri.build().ok()?)
        .version(http::Version::HTTP_2)
        .header("user-agent", "sheave-probe")
        .body(())
        .ok()?;
    let (requests, connection) = h2::client::handshake(stream).await.ok()?;
    let answered = async {
        let (response, _) = requests.ready().await?.send_request(request, true)?;
        Ok::<_, h2::Error>(response.await?.status().as_u16())
    };
    tokio::select! {
        status = answered => status.ok(),
        _ = connection => None,
    }
}

fn scheme(stream: &PeerStream) -> &'static str {
    match stream {
        PeerStream::Tcp(_) | PeerStream::H2(_) => "http",
        PeerStream::Tls(_) | PeerStream::Framed(_) | PeerStream::H3(_) => "https",
    }
}

async fn probe_grpc(stream: PeerStream, service: &str, authority: &str) -> ProbeFinding {
    let scheme = scheme(&stream);
    match health::check_health(stream, &HealthCheckRequest { scheme, authority, service }).await {
        HealthCheckResult::Serving => ProbeFinding::Good,
        other => ProbeFinding::Bad(other.description()),
    }
}

/// Returns the status of a well-formed final response.
async fn read_status(stream: &mut PeerStream) -> Option<u16> {
    let (mut read, mut start, mut head) = (Vec::new(), 0, ResponseHead::new());
    loop {
        match parse::response(&read[start..], &RESPONSE_LIMITS, RequestMethod::Get, &mut head) {
            Ok(Some(length)) if head.is_interim() => start += length,
            Ok(Some(_)) => return Some(head.status),
            // The parser rejects a head that is too long, so the loop ends.
            Ok(None) => match stream.read_buf(&mut read).await {
                Ok(count) if count > 0 => {}
                Ok(_) | Err(_) => return None,
            },
            Err(_) => return None,
        }
    }
}

/// A slot that a probe holds; empty for an uncapped endpoint.
pub(crate) struct ProbeSlot<'a>(Option<(&'a Backend, &'a Endpoint)>);

impl<'a> ProbeSlot<'a> {
    pub(crate) fn take(
        backend: &'a Backend,
        endpoint: &'a Endpoint,
        current: &BackendConfig,
    ) -> Option<Self> {
        let cap = current.limits.cap;
        if cap == ConcurrencyCap::None {
            return Some(Self(None));
        }
        current.set.find(endpoint.address)?.take(cap, clock::now()).then(|| {
            endpoint.data.close_oldest_idle();
            Self(Some((backend, endpoint)))
        })
    }
}

impl Drop for ProbeSlot<'_> {
    fn drop(&mut self) {
        if let Some((backend, endpoint)) = self.0 {
            backend.release(endpoint);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn probe_uses_the_protocol_of_the_endpoint() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let status = runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let ask = async {
                let stream = PeerStream::Tcp(TcpStream::connect(address).await.unwrap());
                probe_http2(stream, "/healthz?deep", "a.test").await
            };
            let answer = async {
                let (socket, _) = listener.accept().await.unwrap();
                let mut connection = h2::server::handshake(socket).await.unwrap();
                let (request, mut respond) = connection.accept().await.unwrap().unwrap();
                assert_eq!(request.uri(), "http://a.test/healthz?deep");
                let mut head = http::Response::new(());
                *head.status_mut() = http::StatusCode::NO_CONTENT;
                respond.send_response(head, true).unwrap();
                while let Some(Ok(_)) = connection.accept().await {}
            };
            tokio::join!(ask, answer).0
        });
        assert_eq!(status, Some(204));
        assert_eq!(judge(status, &(200..=299)), ProbeFinding::Good);
        assert_eq!(judge(status, &(200..=200)).result(), ProbeResult::Bad);
        assert_eq!(judge(None, &(200..=200)).result(), ProbeResult::Bad);
    }
}
