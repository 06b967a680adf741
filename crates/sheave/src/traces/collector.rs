//! Requests to the collector: one message each, over a connection of its own, with limits of size and time.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE, HOST, RETRY_AFTER, USER_AGENT};
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Bytes;
use rustls::RootCertStore;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::message::ExportResponse;
use super::settings::CollectorSettings;
use crate::http_client::{self, connect, exchange};

/// Maximum size of an answer.
const MAX_ANSWER_BYTES: usize = 64 * 1024;
/// Number of addresses of the collector that are tried.
const MAX_ADDRESSES: usize = 4;
/// Longest pause for which the collector can ask.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// Maximum size of a file of authorities.
const MAX_AUTHORITIES_BYTES: u64 = 1 << 20;

/// The client of a collector.
pub(super) struct CollectorClient {
    settings: CollectorSettings,
    /// `None`: the collector is reached without TLS.
    tls: Option<TlsConnector>,
}

/// The result of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DeliveryResult {
    /// The collector took the spans, except this number of them.
    Accepted { rejected: u64 },
    /// The collector does not want the message, for the reason.
    Rejected(String),
    /// It may succeed later: after the pause, if the collector named one.
    Failed { problem: String, pause: Option<Duration> },
}

impl CollectorClient {
    /// Reads the authorities of the collector.
    pub(super) fn new(settings: CollectorSettings) -> Result<Self, String> {
        let config = match (&settings.authorities, settings.url.is_encrypted) {
            (_, false) => None,
            (None, true) => Some(http_client::client_config()?),
            (Some(file), true) => {
                let roots = read_authorities(&file.path).map_err(|error| {
                    format!("{}: {}: {error}", file.source, file.path.display())
                })?;
                Some(http_client::client_config_with(roots)?)
            }
        };
        Ok(Self { settings, tls: config.map(TlsConnector::from) })
    }

    pub(super) fn settings(&self) -> &CollectorSettings {
        &self.settings
    }

    /// Sends a message.
    pub(super) async fn send(&self, message: Bytes) -> DeliveryResult {
        let answer = timeout(self.settings.timeout, self.post(message)).await;
        match answer.unwrap_or_else(|_elapsed| Err("no answer in time".to_owned())) {
            Ok(answer) => of_answer(&answer),
            Err(problem) => DeliveryResult::Failed { problem, pause: None },
        }
    }

    async fn post(&self, message: Bytes) -> Result<Response<Bytes>, String> {
        let url = &self.settings.url;
        let addresses = self.addresses().await.map_err(|error| format!("{}: {error}", url.host))?;
        let stream = connect(&addresses, url.port).await?;
        let Some(tls) = &self.tls else { return self.exchange(stream, message).await };
        let name = ServerName::try_from(url.host.clone()).map_err(|error| error.to_string())?;
        let stream = tls.connect(name, stream).await.map_err(|error| format!("TLS: {error}"))?;
        self.exchange(stream, message).await
    }

    /// Resolves the host as other programs on the machine do: names of Services depend on its search domains.
    async fn addresses(&self) -> io::Result<Vec<IpAddr>> {
        let url = &self.settings.url;
        let found = tokio::net::lookup_host((url.host.as_str(), url.port)).await?;
        Ok(found.map(|address| address.ip()).take(MAX_ADDRESSES).collect())
    }

    async fn exchange(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        message: Bytes,
    ) -> Result<Response<Bytes>, String> {
        let mut request = Request::post(&*self.settings.target)
            .header(HOST, &*self.settings.url.authority)
            .header(CONTENT_TYPE, "application/x-protobuf")
            .header(ACCEPT, "application/x-protobuf")
            .header(USER_AGENT, concat!("sheave/", env!("CARGO_PKG_VERSION")));
        for (name, value) in &self.settings.fields {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(message)).map_err(|error| error.to_string())?;
        exchange(stream, request, MAX_ANSWER_BYTES, |_| Ok(())).await
    }
}

/// Interprets an answer as OTLP says.
fn of_answer(answer: &Response<Bytes>) -> DeliveryResult {
    let status = answer.status();
    match status.as_u16() {
        200..=299 => DeliveryResult::Accepted { rejected: ExportResponse::rejected(answer.body()) },
        429 | 502 | 503 | 504 => {
            let seconds = answer.headers().get(RETRY_AFTER);
            let seconds = seconds.and_then(|value| value.to_str().ok()?.trim().parse().ok());
            let pause = seconds.map(|seconds| Duration::from_secs(seconds).min(MAX_PAUSE));
            DeliveryResult::Failed { problem: format!("the answer has status {status}"), pause }
        }
        _ => DeliveryResult::Rejected(format!("the answer has status {status}")),
    }
}

fn read_authorities(path: &std::path::Path) -> Result<Arc<RootCertStore>, String> {
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    let mut text = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, MAX_AUTHORITIES_BYTES), &mut text)
        .map_err(|error| error.to_string())?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    if roots.is_empty() {
        return Err("there is no certificate in it".to_owned());
    }
    Ok(Arc::new(roots))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(status: u16, pause: Option<&str>) -> DeliveryResult {
        let mut answer = Response::builder().status(status);
        if let Some(pause) = pause {
            answer = answer.header(RETRY_AFTER, pause);
        }
        of_answer(&answer.body(Bytes::from_static(b"any")).unwrap())
    }

    #[test]
    fn answers_are_interpreted_as_otlp_says() {
        assert_eq!(answered(200, None), DeliveryResult::Accepted { rejected: 0 });
        assert!(matches!(answered(400, None), DeliveryResult::Rejected(_)));
        assert!(matches!(answered(301, None), DeliveryResult::Rejected(_)));
        let pause = |status, text: Option<&str>| match answered(status, text) {
            DeliveryResult::Failed { pause, .. } => pause.map(|pause| pause.as_secs()),
            other => panic!("{other:?}"),
        };
        assert_eq!(pause(429, Some("7")), Some(7));
        assert_eq!(pause(503, Some("999999")), Some(MAX_PAUSE.as_secs()));
        assert_eq!(pause(502, Some("soon")), None);
        assert_eq!(pause(504, None), None);
    }
}
