//! Streams to endpoints that run `h2`'s server, over loopback.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::num::NonZeroU32;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use balance::{EndpointRegistry, EndpointSet};
use bytes::Bytes;
use codec::head::{KnownFieldName, RequestHead, ResponseHead};
use gateway::snapshot::{BackendSettings, EndpointProtocol};
use h2::Reason;
use h2::server::{self, SendResponse};
use socket2::SockRef;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::spawn_local;

use super::sweep;
use crate::backend::BackendConfig;
use crate::clock;
use crate::dial::multiplex_connection::ConnectionCounts;
use crate::dial::pool::{Endpoint, EndpointConnection, EndpointData};
use crate::dial::stream_call::{RequestSource, StreamGrant, StreamRequest};
use crate::dial::stream_request::{is_unprocessed, poll_response};
use crate::failure::Failure;

type Incoming = server::Connection<TcpStream, Bytes>;

/// An endpoint, and the state of our pool.
struct H2PoolFixture {
    endpoint: Arc<Endpoint>,
    current: Rc<BackendConfig>,
    /// Connections that the endpoint has accepted, and those still open.
    accepted: Rc<Cell<u32>>,
    open: Rc<Cell<u32>>,
}

fn run(fixture: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build_local(tokio::runtime::LocalOptions::default());
    runtime.unwrap().block_on(async {
        tokio::time::timeout(Duration::from_secs(60), fixture)
            .await
            .expect("the test ends in time");
    });
}

fn settings() -> BackendSettings {
    BackendSettings { protocol: EndpointProtocol::Http2, ..BackendSettings::default() }
}

fn in_force(settings: BackendSettings) -> Rc<BackendConfig> {
    Rc::new(BackendConfig::new(Arc::new(EndpointSet::empty()), settings, None))
}

impl H2PoolFixture {
    /// Creates an endpoint with a limit of `most` concurrent streams that handles each request with `answer`.
    async fn new(most: u32, answer: fn(SendResponse<Bytes>, &mut Incoming)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (accepted, open) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let fixture = Self {
            endpoint: EndpointRegistry::new()
                .endpoint(address, || EndpointData::new(1, Arc::default(), None)),
            current: in_force(settings()),
            accepted: Rc::clone(&accepted),
            open: Rc::clone(&open),
        };
        spawn_local(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                accepted.set(accepted.get() + 1);
                let open = Rc::clone(&open);
                open.set(open.get() + 1);
                spawn_local(async move {
                    serve(socket, most, answer).await;
                    open.set(open.get() - 1);
                });
            }
        });
        fixture
    }

    fn ask(&self) -> impl Future<Output = Result<Box<EndpointConnection>, Failure>> + use<> {
        self.ask_for(request())
    }

    fn ask_for(
        &self,
        request: RequestHead,
    ) -> impl Future<Output = Result<Box<EndpointConnection>, Failure>> + use<> {
        let (endpoint, current) = (Arc::clone(&self.endpoint), Rc::clone(&self.current));
        async move {
            let source = RequestSource { request: &request, framing: request.framing };
            let call = StreamRequest {
                worker: 0,
                endpoint: &endpoint,
                backend_config: &current,
                proxy_protocol_client: None,
                proxy_protocol_header: Vec::new(),
                client_mark: None,
                fresh: false,
                now: clock::now(),
                source,
            };
            match call.acquire_http2_stream(None)? {
                StreamGrant::Opened(connection) => Ok(connection),
                StreamGrant::Wait(waiting) => call.wait_for_http2_stream(waiting).await,
            }
        }
    }

    /// Returns the number of connections and streams.
    fn open(&self) -> (u32, u32) {
        let ConnectionCounts { connections: links, streams } =
            &*self.endpoint.data.h2_pools[0].counts;
        (links.load(Ordering::Relaxed), streams.load(Ordering::Relaxed))
    }

    fn goaways(&self) -> u64 {
        self.endpoint.data.counters[0].http2.goaways.value()
    }

    /// Waits until the endpoint has no connection left.
    async fn all_closed(&self) {
        while self.open.get() > 0 {
            tokio::task::yield_now().await;
        }
    }
}

async fn serve(socket: TcpStream, most: u32, answer: fn(SendResponse<Bytes>, &mut Incoming)) {
    let handshake = server::Builder::new().max_concurrent_streams(most).handshake(socket).await;
    let Ok(mut connection) = handshake else { return };
    while let Some(Ok((_, respond))) = connection.accept().await {
        answer(respond, &mut connection);
    }
}

fn ok(mut respond: SendResponse<Bytes>, _: &mut Incoming) {
    respond.send_response(http::Response::new(()), true).unwrap();
}

/// Responds with 200, then sends GOAWAY.
fn ok_and_leave(respond: SendResponse<Bytes>, connection: &mut Incoming) {
    ok(respond, connection);
    connection.graceful_shutdown();
}

fn refuse(mut respond: SendResponse<Bytes>, _: &mut Incoming) {
    respond.send_reset(Reason::REFUSED_STREAM);
}

fn request() -> RequestHead {
    let limits = codec::h1::HeadLimits { head_bytes: 4096, fields: 16, target_bytes: 100 };
    let mut head = RequestHead::new();
    let text = b"GET /a HTTP/1.1\r\nHost: a.example\r\n\r\n";
    codec::h1::parse::request(text, &limits, &mut head).unwrap().unwrap();
    head
}

/// Returns the status of the response, or the failure, and true if the request is known to be unprocessed.
async fn outcome(connection: &mut EndpointConnection) -> (Result<u16, Failure>, bool) {
    let (request, mut response) = (request(), ResponseHead::new());
    let read = poll_fn(|cx| poll_response(cx, connection, &request, &mut response)).await;
    (read.map(|()| response.status), is_unprocessed(connection))
}

#[test]
fn streams_share_one_connection() {
    run(async {
        let fixture = H2PoolFixture::new(100, ok).await;
        let asked: Vec<_> = (0..10).map(|_| spawn_local(fixture.ask())).collect();
        for asked in asked {
            let mut connection = asked.await.unwrap().unwrap();
            assert_eq!(outcome(&mut connection).await, (Ok(200), false));
        }
        assert_eq!(fixture.accepted.get(), 1);
        assert_eq!(fixture.open(), (1, 0));
    });
}

#[test]
fn another_connection_is_opened_when_all_are_full() {
    run(async {
        let fixture = H2PoolFixture::new(2, ok).await;
        let asked: Vec<_> = (0..5).map(|_| spawn_local(fixture.ask())).collect();
        let mut streams = Vec::new();
        for asked in asked {
            streams.push(asked.await.unwrap().unwrap());
        }
        assert_eq!(fixture.accepted.get(), 3);
        assert_eq!(fixture.open(), (3, 5));
    });
}

#[test]
fn request_waits_for_a_stream_when_all_connections_are_full() {
    run(async {
        let mut fixture = H2PoolFixture::new(1, ok).await;
        let connection_max = NonZeroU32::new(1);
        fixture.current = in_force(BackendSettings { connection_max, ..settings() });
        let first = fixture.ask().await.unwrap();
        let second = spawn_local(fixture.ask());
        tokio::task::yield_now().await;
        assert!(!second.is_finished());
        drop(first);
        let mut second = second.await.unwrap().unwrap();
        assert_eq!(outcome(&mut second).await, (Ok(200), false));
        assert_eq!(fixture.accepted.get(), 1);
    });
}

#[test]
fn requests_use_a_new_connection_after_goaway() {
    run(async {
        let fixture = H2PoolFixture::new(100, ok_and_leave).await;
        for _ in 0..3 {
            let mut connection = fixture.ask().await.unwrap();
            assert_eq!(outcome(&mut connection).await, (Ok(200), false));
            drop(connection);
            fixture.all_closed().await;
        }
        assert_eq!((fixture.accepted.get(), fixture.goaways()), (3, 2));
    });
}

#[test]
fn refused_stream_is_reported_as_unprocessed() {
    run(async {
        let fixture = H2PoolFixture::new(100, refuse).await;
        let mut connection = fixture.ask().await.unwrap();
        assert_eq!(outcome(&mut connection).await, (Err(Failure::StreamRefused), true));
    });
}

#[test]
fn all_waiting_requests_fail_when_the_connect_fails() {
    run(async {
        let mut fixture = H2PoolFixture::new(1, ok).await;
        let closed_port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        fixture.endpoint = EndpointRegistry::new()
            .endpoint(closed_port, || EndpointData::new(1, Arc::default(), None));
        let asked: Vec<_> = (0..3).map(|_| spawn_local(fixture.ask())).collect();
        for asked in asked {
            assert_eq!(asked.await.unwrap().err(), Some(Failure::ConnectFailed));
        }
        assert_eq!(fixture.endpoint.data.counters[0].connections.value(), 1);
    });
}

#[test]
fn http1_endpoint_is_detected() {
    run(async {
        let mut fixture = H2PoolFixture::new(1, ok).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        fixture.endpoint = EndpointRegistry::new()
            .endpoint(address, || EndpointData::new(1, Arc::default(), None));
        let asked = spawn_local(fixture.ask());
        let (mut socket, _) = listener.accept().await.unwrap();
        socket.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        assert_eq!(asked.await.unwrap().err(), Some(Failure::NotHttp2));
    });
}

#[test]
fn idle_connections_are_closed() {
    run(async {
        let fixture = H2PoolFixture::new(100, ok).await;
        drop(fixture.ask().await.unwrap());
        let now = clock::now();
        let settings = &fixture.current.settings;
        sweep(&fixture.endpoint, 0, settings, now);
        assert_eq!(fixture.open().0, 1);
        sweep(&fixture.endpoint, 0, settings, now + settings.connection_idle_timeout);
        fixture.all_closed().await;
        assert_eq!((fixture.open().0, fixture.goaways()), (0, 0));
    });
}

#[test]
fn connections_close_with_their_endpoint_after_running_requests() {
    run(async {
        let fixture = H2PoolFixture::new(100, ok).await;
        let mut connection = fixture.ask().await.unwrap();
        let H2PoolFixture { endpoint, open, .. } = fixture;
        drop(endpoint);
        assert_eq!(outcome(&mut connection).await, (Ok(200), false), "the request completes");
        drop(connection);
        while open.get() > 0 {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn connections_close_by_age_and_request_count() {
    run(async {
        let mut fixture = H2PoolFixture::new(100, ok).await;
        let connection_max_requests = NonZeroU32::new(2);
        fixture.current = in_force(BackendSettings { connection_max_requests, ..settings() });
        for _ in 0..4 {
            let mut connection = fixture.ask().await.unwrap();
            assert_eq!(outcome(&mut connection).await, (Ok(200), false));
        }
        assert_eq!(fixture.accepted.get(), 2);
        let connection_max_age = Some(Duration::ZERO);
        let settings = BackendSettings { connection_max_age, ..settings() };
        sweep(&fixture.endpoint, 0, &settings, clock::now());
        fixture.all_closed().await;
    });
}

#[test]
fn upgrade_fails_without_extended_connect_support() {
    run(async {
        let fixture = H2PoolFixture::new(100, ok).await;
        let mut head = request();
        head.upgrade = true;
        head.fields.add(KnownFieldName::Upgrade, "websocket");
        assert_eq!(fixture.ask_for(head).await.err(), Some(Failure::UpgradeRefused));
    });
}

/// Runs an endpoint that responds to the first request, and resets its connection on command or at the next request.
async fn resetting(listener: TcpListener, reset: oneshot::Receiver<()>, done: oneshot::Sender<()>) {
    let (socket, _) = listener.accept().await.unwrap();
    SockRef::from(&socket).set_linger(Some(Duration::ZERO)).unwrap();
    let mut connection = server::Builder::new().handshake::<_, Bytes>(socket).await.unwrap();
    let (_, respond) = connection.accept().await.unwrap().unwrap();
    ok(respond, &mut connection);
    tokio::select! {
        _ = connection.accept() => {}
        _ = reset => {}
    }
    drop(connection);
    done.send(()).unwrap();
}

/// Returns true if a request is known to be unacknowledged after a reset of its connection, either `before` it is sent
/// or when the endpoint has read it.
async fn is_unacknowledged(before: bool) -> bool {
    let mut fixture = H2PoolFixture::new(100, ok).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    fixture.endpoint =
        EndpointRegistry::new().endpoint(address, || EndpointData::new(1, Arc::default(), None));
    let ((reset, is_reset), (done, is_done)) = (oneshot::channel(), oneshot::channel());
    spawn_local(resetting(listener, is_reset, done));
    assert_eq!(outcome(&mut fixture.ask().await.unwrap()).await, (Ok(200), false));
    if before {
        reset.send(()).unwrap();
        // The runtime does not poll sockets before the request is sent.
        is_done.await.unwrap();
    }
    let mut connection = fixture.ask().await.unwrap();
    assert_eq!(outcome(&mut connection).await, (Err(Failure::EndpointClosed), false));
    connection.stream_guard.as_ref().expect("it is a stream").is_unacknowledged()
}

#[test]
fn request_written_to_a_reset_connection_is_unacknowledged() {
    run(async { assert!(is_unacknowledged(true).await) });
}

#[test]
fn request_read_by_the_endpoint_is_acknowledged() {
    run(async { assert!(!is_unacknowledged(false).await) });
}
