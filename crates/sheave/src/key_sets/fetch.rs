//! One fetch of a key set: a GET request over a connection of its own, with limits of size and time. Redirects are not
//! followed: they would lead around the filter of addresses.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use gateway::jwks::{JsonWebKeySet, JwksHost, JwksSubscription, JwksUrl, MAX_KEY_SET_BYTES};
use http::Request;
use http::header::{ACCEPT, HOST, USER_AGENT};
use http_body_util::Empty;
use hyper::body::Bytes;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::{FetchResult, SharedFilter};
use crate::dns::NameResolver;
use crate::http_client::{client_config, connect, exchange};

/// Time limit of a fetch.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
/// Number of addresses of a server that are tried.
const MAX_ADDRESSES: usize = 4;

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
            return fetch_body(stream, url).await;
        }
        let name = match &url.host {
            JwksHost::Name(name) => {
                ServerName::try_from(name.to_string()).map_err(|error| error.to_string())?
            }
            JwksHost::Address(address) => ServerName::from(*address),
        };
        let config = self.tls.get_or_init(client_config).clone()?;
        let stream = TlsConnector::from(config).connect(name, stream).await;
        fetch_body(stream.map_err(|error| format!("TLS: {error}"))?, url).await
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

/// Sends the request and returns the body of the answer.
async fn fetch_body(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    url: &JwksUrl,
) -> Result<Bytes, String> {
    let request = Request::get(&*url.target)
        .header(HOST, &*url.authority)
        .header(ACCEPT, "application/jwk-set+json, application/json")
        .header(USER_AGENT, concat!("sheave/", env!("CARGO_PKG_VERSION")))
        .body(Empty::<Bytes>::new())
        .map_err(|error| error.to_string())?;
    let takes = |head: &http::response::Parts| match head.status.as_u16() {
        200 => Ok(()),
        status => Err(format!("the answer has status {status}, not 200")),
    };
    Ok(exchange(stream, request, MAX_KEY_SET_BYTES, takes).await?.into_body())
}
