//! Load of clients until they are stopped: each sends one request after another on a connection of
//! its own, and each request has a unique target.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use tests::tls::TlsClientOptions;
use tests::{Http1TestClient, eventually, grpc, http2, http3};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// The protocol of each client, and its requests.
#[derive(Clone)]
pub(crate) enum LoadProtocol {
    /// Requests with this method, the client's own key, and the first cookie that it received.
    Http1(&'static str),
    Http2Gets,
    Http3Gets(Box<TlsClientOptions>),
    Grpc,
}

/// Running clients.
pub(crate) struct RecordedLoad {
    clients: JoinSet<Vec<RequestRecord>>,
    control: Arc<LoadControl>,
}

#[derive(Default)]
struct LoadControl {
    is_stopped: AtomicBool,
    answered: AtomicUsize,
}

/// One request, and its response.
#[derive(Clone, Debug)]
pub(crate) struct RequestRecord {
    pub(crate) target: String,
    pub(crate) begun: Instant,
    pub(crate) took: Duration,
    /// Why the request failed, if it did.
    pub(crate) failure: Option<String>,
}

impl RecordedLoad {
    pub(crate) fn start(address: SocketAddr, clients: usize, calls: &LoadProtocol) -> Self {
        let control = Arc::<LoadControl>::default();
        let client = |number| {
            let (connection, cookie) = (None, None);
            let worker = LoadClient { number, address, calls: calls.clone(), connection, cookie };
            worker.run(Arc::clone(&control))
        };
        Self { clients: (0..clients).map(client).collect(), control: Arc::clone(&control) }
    }

    /// Waits until this number of further requests has been answered.
    pub(crate) async fn wait_for_responses(&self, more: usize) -> Result<()> {
        let answered = || self.control.answered.load(Ordering::Relaxed);
        let expected = answered() + more;
        eventually("answers", async || Ok(answered()), |answered| *answered >= expected).await?;
        Ok(())
    }

    /// Stops the clients after their requests in flight.
    pub(crate) async fn stop(self) -> Vec<RequestRecord> {
        self.control.is_stopped.store(true, Ordering::Relaxed);
        self.clients.join_all().await.into_iter().flatten().collect()
    }
}

/// Returns the failed requests.
pub(crate) fn failed(answers: &[RequestRecord]) -> Vec<&RequestRecord> {
    answers.iter().filter(|answer| answer.failure.is_some()).collect()
}

/// Asserts that no request failed.
pub(crate) fn assert_all_served(answers: &[RequestRecord]) -> Result<()> {
    let failed = failed(answers);
    let (all, some) = (answers.len(), failed.iter().take(5).collect::<Vec<_>>());
    ensure!(all > 0 && failed.is_empty(), "{} of {all} requests failed: {some:#?}", failed.len());
    Ok(())
}

/// Asserts that every failed request began before the death.
pub(crate) fn assert_none_failed_after(death: Instant, answers: &[RequestRecord]) -> Result<()> {
    let failed = failed(answers);
    ensure!(failed.iter().all(|answer| answer.begun < death), "begun after {death:?}: {failed:#?}");
    Ok(())
}

/// Returns the longest duration of a request.
pub(crate) fn longest(answers: &[RequestRecord]) -> Duration {
    answers.iter().map(|answer| answer.took).max().unwrap_or_default()
}

/// One client of a load.
struct LoadClient {
    number: usize,
    address: SocketAddr,
    calls: LoadProtocol,
    connection: Option<LoadClientConnection>,
    /// The first cookie that it received.
    cookie: Option<String>,
}

/// A client's connection.
enum LoadClientConnection {
    Http1(Http1TestClient),
    Http2(http2::Http2TestClient),
    Http3(http3::Http3TestClient),
}

impl LoadClientConnection {
    async fn open(address: SocketAddr, calls: &LoadProtocol) -> Result<Self> {
        Ok(match calls {
            LoadProtocol::Http1(_) => Self::Http1(Http1TestClient::connect(address).await?),
            LoadProtocol::Http2Gets | LoadProtocol::Grpc => {
                Self::Http2(http2::Http2TestClient::connect(address).await?)
            }
            LoadProtocol::Http3Gets(options) => {
                Self::Http3(http3::Http3TestClient::connect(address, options).await?)
            }
        })
    }
}

impl LoadClient {
    async fn run(mut self, control: Arc<LoadControl>) -> Vec<RequestRecord> {
        let mut answers: Vec<RequestRecord> = Vec::new();
        while !control.is_stopped.load(Ordering::Relaxed) && failed(&answers).len() < 10 {
            let target = format!("/{}/{}", self.number, answers.len());
            let begun = Instant::now();
            let failure = self.exchange(&target).await.err().map(|error| format!("{error:#}"));
            answers.push(RequestRecord { target, begun, took: begun.elapsed(), failure });
            control.answered.fetch_add(1, Ordering::Relaxed);
        }
        answers
    }

    /// Sends a request on the connection, or on a new one if there is none. Keeps the connection if
    /// the request succeeds.
    async fn exchange(&mut self, target: &str) -> Result<()> {
        let mut open = match self.connection.take() {
            Some(open) => open,
            None => LoadClientConnection::open(self.address, &self.calls).await?,
        };
        match (&mut open, &self.calls) {
            (LoadClientConnection::Http1(client), LoadProtocol::Http1(method)) => {
                let key = self.number.to_string();
                let cookie = self.cookie.clone().unwrap_or_default();
                let fields = [("X-Key", key.as_str()), ("Cookie", cookie.as_str())];
                let fields = if cookie.is_empty() { &fields[..1] } else { &fields[..] };
                let response = client.exchange(method, target, fields, b"").await?;
                let reason = response.field("proxy-status");
                ensure!(response.status() == 200, "{}: {reason:?}", response.status());
                ensure!(!response.closes(), "the connection is closed");
                if self.cookie.is_none() {
                    let cookie = response.field("set-cookie");
                    self.cookie = cookie.and_then(|it| Some(it.split(';').next()?.to_owned()));
                }
            }
            (LoadClientConnection::Http2(client), LoadProtocol::Grpc) => {
                let reply = client.call(target, b"once").await?;
                ensure!(reply.code == grpc::OK, "{reply:?}");
            }
            (LoadClientConnection::Http2(client), _) => is_ok(&client.get(target).await?)?,
            (LoadClientConnection::Http3(client), _) => is_ok(&client.get(target).await?)?,
            (LoadClientConnection::Http1(_), _) => {
                unreachable!("an HTTP/1.1 connection sends HTTP/1.1 requests")
            }
        }
        self.connection = Some(open);
        Ok(())
    }
}

fn is_ok(response: &http2::CompleteResponse) -> Result<()> {
    let reason = response.field("proxy-status");
    ensure!(response.status() == 200, "{}: {reason:?}", response.status());
    Ok(())
}
