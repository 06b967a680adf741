//! HTTP/3 endpoints built with the `h3` and `quinn` crates.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use bytes::{Buf, Bytes};
use gateway::snapshot::{BackendSettings, EndpointProtocol, EndpointTls, TrustAnchors};
use h3::error::Code;
use h3::server::RequestStream;
use h3_quinn::BidiStream;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use quinn::crypto::rustls::QuicServerConfig;
use quinn::{Endpoint, EndpointConfig, ServerConfig, TokioRuntime, TransportConfig, VarInt};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

/// Server name of the endpoints.
const NAME: &str = "endpoint.example";

/// Certificate and key of an endpoint.
pub(crate) struct Identity {
    certificate: CertificateDer<'static>,
    key: Vec<u8>,
}

impl Identity {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let signed = CertificateParams::new([NAME.to_owned()]).unwrap().self_signed(&key).unwrap();
        Self { certificate: signed.der().clone(), key: key.serialize_der() }
    }

    /// Returns the backend settings of a client that trusts only this certificate.
    pub(crate) fn settings(&self) -> BackendSettings {
        settings(TrustAnchors::Given(vec![(*self.certificate).into()]))
    }

    pub(crate) fn tls(&self, protocols: &[&[u8]]) -> rustls::ServerConfig {
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(self.key.clone()));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.clone()], key)
            .unwrap();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        config
    }

    /// Listens for HTTP/3 on the socket, with at most `streams` concurrent requests on each connection.
    pub(crate) fn listen(&self, socket: UdpSocket, streams: u32) -> Endpoint {
        let crypto = QuicServerConfig::try_from(self.tls(&[b"h3"])).unwrap();
        let mut config = ServerConfig::with_crypto(Arc::new(crypto));
        let mut transport = TransportConfig::default();
        transport.max_concurrent_bidi_streams(VarInt::from_u32(streams));
        config.transport_config(Arc::new(transport));
        let runtime = Arc::new(TokioRuntime);
        Endpoint::new(EndpointConfig::default(), Some(config), socket, runtime).unwrap()
    }
}

pub(crate) fn settings(roots: TrustAnchors) -> BackendSettings {
    let tls =
        EndpointTls { server_name: NAME.into(), subject_names: Vec::new(), roots, client: None };
    let protocol = EndpointProtocol::Http3;
    BackendSettings { protocol, tls: Some(Arc::new(tls)), ..BackendSettings::default() }
}

/// An endpoint that acts as the request path says.
pub(crate) struct Server {
    pub(crate) identity: Identity,
    pub(crate) address: SocketAddr,
    /// Number of connections so far.
    pub(crate) connections: Arc<AtomicU32>,
    pub(crate) quic: Endpoint,
}

impl Server {
    pub(crate) fn new() -> Self {
        Self::with_streams(100)
    }

    /// Starts an endpoint that accepts at most `streams` concurrent requests on each connection.
    pub(crate) fn with_streams(streams: u32) -> Self {
        Self::at(UdpSocket::bind("127.0.0.1:0").unwrap(), Identity::new(), streams)
    }

    pub(crate) fn at(socket: UdpSocket, identity: Identity, streams: u32) -> Self {
        let address = socket.local_addr().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let quic = {
            let _inside = runtime.enter();
            identity.listen(socket, streams)
        };
        let connections = Arc::new(AtomicU32::new(0));
        let (accepting, counting) = (quic.clone(), Arc::clone(&connections));
        thread::spawn(move || runtime.block_on(serve(accepting, &counting)));
        Self { identity, address, connections, quic }
    }

    /// Closes all connections at once, so that their requests fail.
    pub(crate) fn kill(&self) {
        self.quic.close(VarInt::from_u32(0x102), b"");
    }
}

async fn serve(quic: Endpoint, connections: &AtomicU32) {
    while let Some(incoming) = quic.accept().await {
        connections.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(async move {
            // A client that does not trust the certificate fails the handshake.
            let Ok(connection) = incoming.await else { return };
            let below = connection.clone();
            let connection = h3_quinn::Connection::new(connection);
            let mut connection: h3::server::Connection<_, Bytes> =
                h3::server::Connection::new(connection).await.unwrap();
            let mut leaves = false;
            while let Ok(Some(request)) = connection.accept().await {
                let Ok((request, stream)) = request.resolve_request().await else { continue };
                if request.uri().path() == "/leave" && !leaves {
                    leaves = true;
                    // Requests in flight are served, as RFC 9114 §5.2 advises.
                    connection.shutdown(8).await.unwrap();
                }
                tokio::spawn(answer(request, stream));
            }
            // Keeps the connection until the client has closed it, so that all data is delivered.
            below.closed().await;
            drop(connection);
        });
    }
    // After the close, waits until every client has been notified.
    quic.wait_idle().await;
}

type Stream = RequestStream<BidiStream<Bytes>, Bytes>;

async fn answer(request: Request<()>, mut stream: Stream) {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    match request.uri().path() {
        "/empty" => {
            let mut head = Response::new(());
            *head.status_mut() = StatusCode::NO_CONTENT;
            stream.send_response(head).await.unwrap();
            stream.finish().await.unwrap();
        }
        "/early" => {
            let hints = Response::builder().status(103).header("link", "</a.css>");
            stream.send_response(hints.body(()).unwrap()).await.unwrap();
            echo(request, stream).await;
        }
        "/break" => {
            stream.send_response(Response::new(())).await.unwrap();
            stream.send_data("half".into()).await.unwrap();
            // The client sends a byte after it has received the data.
            stream.recv_data().await.unwrap().unwrap();
            stream.stop_stream(Code::H3_INTERNAL_ERROR);
        }
        "/reset" => reset(stream, Code::H3_INTERNAL_ERROR),
        "/refuse-first" if ASKED.fetch_add(1, Ordering::Relaxed) == 0 => {
            reset(stream, Code::H3_REQUEST_REJECTED);
        }
        "/refuse" => reset(stream, Code::H3_REQUEST_REJECTED),
        "/never" => std::future::pending().await,
        _ => echo(request, stream).await,
    }
}

fn reset(mut stream: Stream, code: Code) {
    stream.stop_sending(code);
    stream.stop_stream(code);
}

/// Responds with the request's method, URI and fields, and sends back the body.
async fn echo(request: Request<()>, mut stream: Stream) {
    let method = request.method().clone();
    let mut head = Response::builder().header("x-asked", format!("{method} {}", request.uri()));
    for (name, value) in request.headers() {
        head = head.header(format!("x-got-{name}"), value);
    }
    stream.send_response(head.body(()).unwrap()).await.unwrap();
    if method != Method::HEAD {
        while let Ok(Some(mut data)) = stream.recv_data().await {
            let data = data.copy_to_bytes(data.remaining());
            if stream.send_data(data).await.is_err() {
                return;
            }
        }
        let mut trailers = HeaderMap::new();
        trailers.insert("x-after", "all".parse().unwrap());
        if let Ok(Some(more)) = stream.recv_trailers().await {
            trailers.extend(more);
        }
        drop(stream.send_trailers(trailers).await);
    }
    drop(stream.finish().await);
}
