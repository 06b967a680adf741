//! One HTTP/1.1 request over a connection of its own. Redirects are not followed.

use std::convert::Infallible;
use std::future::pending;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Bytes};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Time limit of a connection to one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum size of the head of an answer.
const MAX_HEAD_BYTES: usize = 16 * 1024;

/// Connects to the first address that accepts.
pub(crate) async fn connect(addresses: &[IpAddr], port: u16) -> Result<TcpStream, String> {
    let mut problem = "the name has no address".to_owned();
    for address in addresses {
        let address = SocketAddr::new(*address, port);
        match timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => problem = format!("cannot connect to {address}: {error}"),
            Err(_elapsed) => problem = format!("cannot connect to {address}: timeout"),
        }
    }
    Err(problem)
}

/// Sends a request, and returns the answer with at most this number of bytes of its body, if it `takes` the head.
pub(crate) async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<impl Body<Data = Bytes, Error = Infallible> + Send + 'static>,
    max_body_bytes: usize,
    takes: impl FnOnce(&http::response::Parts) -> Result<(), String>,
) -> Result<Response<Bytes>, String> {
    let mut builder = http1::Builder::new();
    builder.max_buf_size(MAX_HEAD_BYTES);
    let (mut sender, connection) =
        builder.handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let (head, body) = response.into_parts();
        takes(&head)?;
        let body = Limited::new(body, max_body_bytes).collect().await;
        let body = body.map_err(|error| format!("the answer is not complete: {error}"))?;
        Ok(Response::from_parts(head, body.to_bytes()))
    };
    let driven = async {
        // Its end shows in the answer.
        connection.await.ok();
        pending::<Infallible>().await
    };
    tokio::select! {
        answer = answer => answer,
        never = driven => match never {},
    }
}

/// Returns TLS with the authorities that the machine trusts.
pub(crate) fn client_config() -> Result<Arc<ClientConfig>, String> {
    client_config_with(proxy::system_roots())
}

/// Returns TLS with these authorities.
pub(crate) fn client_config_with(roots: Arc<RootCertStore>) -> Result<Arc<ClientConfig>, String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?;
    Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}
