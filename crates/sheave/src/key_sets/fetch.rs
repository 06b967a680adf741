//! One fetch of a key set: a GET request over a connection of its own, with limits of size and time. Redirects are not
//! followed: they would lead around the filter of addresses.

use std::convert::Infallible;
use std::future::pending;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use gateway::jwks::{JsonWebKeySet, JwksHost, JwksSubscription, JwksUrl, MAX_KEY_SET_BYTES};
use http::Request;
use http::header::{ACCEPT, HOST, USER_AGENT};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::{FetchResult, SharedFilter};
use crate::dns::NameResolver;

/// Time limit of a fetch.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit of a connection to one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Number of addresses of a server that are tried.
const MAX_ADDRESSES: usize = 4;
/// Maximum size of the head of an answer.
const MAX_HEAD_BYTES: usize = 16 * 1024;

/// Fetches key sets.
pub(super) struct KeySetClient {
    names: NameResolver,
    filter: SharedFilter,
    /// Built on first use: most installations fetch nothing.
    tls: OnceLock<Result<Arc<ClientConfig>, String>>,
}

impl KeySetClient {
    pub(super) fn new(names: NameResolver, filter: SharedFilter) -> Self {
        Self { names, filter, tls: OnceLock::new() }
    }

    pub(super) async fn fetch(&self, subscription: &JwksSubscription) -> FetchResult {
        let body = timeout(FETCH_TIMEOUT, self.body(subscription)).await;
        let body = body.unwrap_or_else(|_elapsed| Err("no answer in time".to_owned()))?;
        JsonWebKeySet::parse(&body).map_err(|message| format!("the answer {message}"))
    }

    async fn body(&self, subscription: &JwksSubscription) -> Result<Bytes, String> {
        let url = &subscription.url;
        let addresses = self.addresses(subscription).await?;
        let stream = connect(&addresses, url.port).await?;
        if !url.is_encrypted {
            return exchange(stream, url).await;
        }
        let name = match &url.host {
            JwksHost::Name(name) => {
                ServerName::try_from(name.to_string()).map_err(|error| error.to_string())?
            }
            JwksHost::Address(address) => ServerName::from(*address),
        };
        let config = self.tls.get_or_init(client_config).clone()?;
        let stream = TlsConnector::from(config).connect(name, stream).await;
        exchange(stream.map_err(|error| format!("TLS: {error}"))?, url).await
    }

    /// Returns the addresses of the server that may be used.
    async fn addresses(&self, subscription: &JwksSubscription) -> Result<Vec<IpAddr>, String> {
        let mut addresses = match &subscription.url.host {
            JwksHost::Address(address) => vec![*address],
            JwksHost::Name(name) => self.names.addresses(name).await?,
        };
        if subscription.is_filtered {
            let filter = self.filter.lock();
            let mut rejected = None;
            let port = subscription.url.port;
            addresses.retain(|address| {
                match filter.check_server(SocketAddr::new(*address, port)) {
                    Ok(()) => true,
                    Err(rejection) => {
                        rejected.get_or_insert_with(|| format!("{address} {rejection}"));
                        false
                    }
                }
            });
            if let (true, Some(rejected)) = (addresses.is_empty(), rejected) {
                return Err(rejected);
            }
        }
        addresses.truncate(MAX_ADDRESSES);
        Ok(addresses)
    }
}

/// Connects to the first address that accepts.
async fn connect(addresses: &[IpAddr], port: u16) -> Result<TcpStream, String> {
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

/// Sends the request and reads the body of the answer.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    url: &JwksUrl,
) -> Result<Bytes, String> {
    let mut builder = http1::Builder::new();
    builder.max_buf_size(MAX_HEAD_BYTES);
    let (mut sender, connection) =
        builder.handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    let request = Request::get(&*url.target)
        .header(HOST, &*url.authority)
        .header(ACCEPT, "application/jwk-set+json, application/json")
        .header(USER_AGENT, concat!("sheave/", env!("CARGO_PKG_VERSION")))
        .body(Empty::<Bytes>::new())
        .map_err(|error| error.to_string())?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let status = response.status().as_u16();
        if status != 200 {
            return Err(format!("the answer has status {status}, not 200"));
        }
        let body = Limited::new(response.into_body(), MAX_KEY_SET_BYTES).collect().await;
        body.map(|it| it.to_bytes()).map_err(|error| format!("the answer is not complete: {error}"))
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
fn client_config() -> Result<Arc<ClientConfig>, String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| error.to_string())?;
    let roots = proxy::system_roots();
    Ok(Arc::new(builder.with_root_certificates(roots).with_no_client_auth()))
}
