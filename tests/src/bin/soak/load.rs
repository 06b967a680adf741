//! Clients of all protocols: honest ones, ones that leave, and ones that are slow on purpose.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use tests::client::request as http1_request;
use tests::http2::Http2TestClient;
use tests::http3::Http3TestClient;
use tests::payload::BodyDigest;
use tests::random::SeededRandom;
use tests::raw::{request_server_port, send_and_read_echo, udp_client};
use tests::tls::TlsClientOptions;
use tests::{Http1TestClient, within};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::results::RequestResults;
use crate::site::{LARGE_LENGTH, LARGE_PATH, ListenerAddresses, SoakSite};

/// Number of requests that a client sends on a connection before it opens another.
const REQUESTS_PER_CONNECTION: usize = 30;
/// Mean pause of a client between two requests.
const MEAN_PAUSE: Duration = Duration::from_millis(40);
/// Largest body that a client sends.
const LARGEST_BODY: u64 = 200_000;

const UPGRADE: &[(&str, &str)] = &[
    ("Connection", "upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
];

/// Running clients.
pub(crate) struct MixedLoad {
    clients: JoinSet<()>,
    stopped: Arc<AtomicBool>,
    results: RequestResults,
}

/// What a client has.
#[derive(Clone)]
struct SoakClient {
    listeners: ListenerAddresses,
    tls: TlsClientOptions,
    random: SeededRandom,
    stopped: Arc<AtomicBool>,
    results: RequestResults,
}

type ClientFuture<'a> = Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;
/// One connection of a client, from its beginning to its end.
type Session = for<'a> fn(&'a mut SoakClient) -> ClientFuture<'a>;

impl MixedLoad {
    pub(crate) fn start(site: &SoakSite, random: &mut SeededRandom) -> Result<Self> {
        let sessions: [(usize, &'static str, Session); 10] = [
            (4, "HTTP/1.1", |client| Box::pin(client.http1_session(false))),
            (2, "HTTP/1.1 over TLS", |client| Box::pin(client.http1_session(true))),
            (2, "HTTP/2", |client| Box::pin(client.http2_session())),
            (2, "HTTP/3", |client| Box::pin(client.http3_session())),
            (2, "gRPC", |client| Box::pin(client.grpc_session())),
            (2, "WebSocket", |client| Box::pin(client.websocket_session())),
            (1, "TCP", |client| Box::pin(client.tcp_session())),
            (1, "UDP", |client| Box::pin(client.udp_session())),
            (2, "clients that leave", |client| Box::pin(client.leaving_session())),
            (2, "slow clients", |client| Box::pin(client.slow_session())),
        ];
        let stopped = Arc::new(AtomicBool::new(false));
        let results = RequestResults::default();
        let mut clients = JoinSet::new();
        let mut client = || SoakClient {
            listeners: site.listeners,
            tls: site.tls(),
            random: SeededRandom::new(random.next_u64()),
            stopped: stopped.clone(),
            results: results.clone(),
        };
        for (count, kind, session) in sessions {
            for _ in 0..count {
                clients.spawn(client().run(kind, session));
            }
        }
        for _ in 0..4 {
            clients.spawn(client().run_against_faulty());
        }
        Ok(Self { clients, stopped, results })
    }

    pub(crate) fn results(&self) -> &RequestResults {
        &self.results
    }

    /// Stops the clients, after their current connections.
    pub(crate) async fn stop(self) -> Result<RequestResults> {
        self.stopped.store(true, Ordering::Relaxed);
        let ended = timeout(Duration::from_secs(120), self.clients.join_all());
        ended.await.context("a client does not end")?;
        Ok(self.results)
    }
}

impl SoakClient {
    /// Runs sessions one after another; each must succeed.
    async fn run(mut self, kind: &'static str, session: Session) {
        let results = self.results.clone();
        while !self.stopped.load(Ordering::Relaxed) {
            let result = session(&mut self).await;
            results.add(kind, &result);
            self.pause().await;
        }
    }

    /// Sends requests to endpoints that fail. Each must end in time, and with a whole message or an
    /// end of the connection.
    async fn run_against_faulty(mut self) {
        while !self.stopped.load(Ordering::Relaxed) {
            let result = self.faulty_session().await;
            self.results.add_of_faulty("faulty endpoints", &result);
            self.pause().await;
        }
    }

    async fn http1_session(&mut self, over_tls: bool) -> Result<()> {
        let mut client = if over_tls {
            Http1TestClient::connect_tls(self.listeners.https, "test", &self.tls).await?
        } else {
            Http1TestClient::connect(self.listeners.http).await?
        };
        for _ in 0..REQUESTS_PER_CONNECTION {
            let response = if self.random.chance(20) {
                let response = within("a response", client.get(LARGE_PATH)).await??;
                let expected = BodyDigest::of_pattern(LARGE_LENGTH);
                ensure!(BodyDigest::of(&response.body) == expected, "another body");
                response
            } else {
                let body = self.body();
                let response = within("a response", client.post("/", &body)).await??;
                check_echo(response.status(), &response.body, &body)?;
                response
            };
            ensure!(response.status() == 200, "status {}", response.status());
            if response.closes() || self.stopped.load(Ordering::Relaxed) {
                return Ok(());
            }
            self.pause().await;
        }
        Ok(())
    }

    async fn http2_session(&mut self) -> Result<()> {
        let client = Http2TestClient::connect_tls(self.listeners.https, &self.tls).await?;
        for _ in 0..REQUESTS_PER_CONNECTION {
            let bodies = [self.body(), self.body(), self.body()];
            let [first, second, third] =
                bodies.each_ref().map(|body| client.post("/", body.clone()));
            let (first, second, third) = tokio::try_join!(first, second, third)?;
            for (response, body) in [first, second, third].iter().zip(&bodies) {
                check_echo(response.status(), &response.body, body)?;
            }
            self.pause().await;
        }
        Ok(())
    }

    async fn http3_session(&mut self) -> Result<()> {
        let client = Http3TestClient::connect(self.listeners.https, &self.tls).await?;
        for number in 0..REQUESTS_PER_CONNECTION {
            let bodies = [self.body(), self.body()];
            let [first, second] = bodies.each_ref().map(|body| client.post("/", body.clone()));
            let (first, second) = tokio::try_join!(first, second)?;
            for (response, body) in [first, second].iter().zip(&bodies) {
                check_echo(response.status(), &response.body, body)?;
            }
            if number == REQUESTS_PER_CONNECTION / 2 {
                client.change_port()?;
            }
            self.pause().await;
        }
        Ok(())
    }

    async fn grpc_session(&mut self) -> Result<()> {
        let client = Http2TestClient::connect(self.listeners.http).await?;
        for _ in 0..REQUESTS_PER_CONNECTION {
            let reply = client.call("/soak.Calls/Call", b"question").await?;
            ensure!(
                reply.code == 0 && reply.messages == [Bytes::from_static(b"reply")],
                "{reply:?}"
            );
            self.pause().await;
        }
        Ok(())
    }

    async fn websocket_session(&mut self) -> Result<()> {
        let mut client = Http1TestClient::connect(self.listeners.http).await?;
        client.send(http1_request("GET", "/tunnel", UPGRADE, b"")).await?;
        let (head, _) = within("a switch", client.read_final_head()).await??;
        ensure!(head.status() == 101, "status {}", head.status());
        for _ in 0..REQUESTS_PER_CONNECTION {
            let message = self.body_up_to(4_000);
            client.send(&message).await?;
            let echo = within("an echo", client.reader.read_exact(message.len())).await??;
            ensure!(echo == message, "another echo");
            self.pause().await;
        }
        Ok(())
    }

    async fn tcp_session(&mut self) -> Result<()> {
        let mut stream = TcpStream::connect(self.listeners.tcp).await?;
        for _ in 0..REQUESTS_PER_CONNECTION {
            let message = self.body_up_to(10_000);
            ensure!(send_and_read_echo(&mut stream, &message).await? == message, "another echo");
            self.pause().await;
        }
        Ok(())
    }

    async fn udp_session(&mut self) -> Result<()> {
        let socket = udp_client(self.listeners.udp).await?;
        for _ in 0..REQUESTS_PER_CONNECTION {
            let message = self.body_up_to(1_200);
            request_server_port(&socket, &message).await?;
            self.pause().await;
        }
        Ok(())
    }

    /// Begins a request and leaves in the middle of it.
    async fn leaving_session(&mut self) -> Result<()> {
        let mut client = Http1TestClient::connect(self.listeners.http).await?;
        let path = if self.random.chance(50) { LARGE_PATH } else { "/faulty" };
        let request = format!("POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: 1000\r\n\r\n");
        let sent = self.random.below(request.len() as u64) as usize;
        client.send(&request.as_bytes()[..sent]).await?;
        if self.random.chance(50) {
            client.send(&request.as_bytes()[sent..]).await?;
            client.send(vec![b'x'; self.random.below(1_000) as usize]).await?;
        }
        self.pause().await;
        client.reset();
        Ok(())
    }

    /// Sends a head or a body too slowly, and waits for the end that Sheave must make.
    async fn slow_session(&mut self) -> Result<()> {
        let mut client = Http1TestClient::connect(self.listeners.http).await?;
        let head = "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 1000000\r\n\r\n";
        let sent = if self.random.chance(50) { head.len() } else { head.len() / 2 };
        client.send(&head.as_bytes()[..sent]).await?;
        let end = async {
            while client.reader.read_available().await.is_ok_and(|bytes| !bytes.is_empty()) {}
        };
        let until_stopped = async {
            while !self.stopped.load(Ordering::Relaxed) {
                sleep(Duration::from_millis(100)).await; // Polls the end of the load.
            }
        };
        tokio::select! {
            ended = timeout(Duration::from_secs(90), end) => ended.context("a slow request does not end"),
            () = until_stopped => Ok(()),
        }
    }

    async fn faulty_session(&mut self) -> Result<()> {
        let mut client = Http1TestClient::connect(self.listeners.http).await?;
        for _ in 0..REQUESTS_PER_CONNECTION {
            let body = if self.random.chance(50) { self.body() } else { Bytes::new() };
            let method = if body.is_empty() { "GET" } else { "POST" };
            let exchange = client.exchange(method, "/faulty", &[], &body);
            let response = within("a response", exchange).await??;
            let status = response.status();
            ensure!(status == 200, "status {status}");
            if response.closes() || self.stopped.load(Ordering::Relaxed) {
                return Ok(());
            }
            self.pause().await;
        }
        Ok(())
    }

    async fn pause(&mut self) {
        sleep(self.random.exponential(MEAN_PAUSE)).await; // The pause of a client.
    }

    /// Returns a body: mostly small, sometimes large.
    fn body(&mut self) -> Bytes {
        let most = if self.random.chance(10) { LARGEST_BODY } else { 2_000 };
        self.body_up_to(most).into()
    }

    fn body_up_to(&mut self, most: u64) -> Vec<u8> {
        let length = 1 + self.random.below(most) as usize;
        let first = self.random.next_u64() as u8;
        (0..length).map(|index| first.wrapping_add(index as u8)).collect()
    }
}

fn check_echo(status: u16, received: &[u8], sent: &[u8]) -> Result<()> {
    ensure!(status == 200, "status {status}: {}", String::from_utf8_lossy(received));
    ensure!(received == sent, "{} of {} bytes came back, or others", received.len(), sent.len());
    Ok(())
}
