//! The data plane with one worker, one listener and one endpoint; and the client of one script.

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::time::Instant;

use gateway::{TranslationSettings, parse, translate};
use proxy::{AccessLog, Proxy, ProxySettings};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::task::{JoinHandle, spawn_local, yield_now};
use tokio::time::timeout;

use super::endpoint::Endpoint;
use super::quiescence::{PATIENCE, PAUSE, Quiescence};
use super::script::{ClientStep, Script};
use crate::reference::Seen;

/// The configuration, without the endpoint's address.
const OBJECTS: &str = include_str!("objects.yaml");

thread_local! {
    /// Never dropped: the process ends while the worker runs.
    static FIXTURE: &'static Fixture = Box::leak(Box::new(Fixture::start()));
}

/// The parts that all scripts share.
pub(super) struct Fixture {
    runtime: LocalRuntime,
    proxy: Proxy,
    address: SocketAddr,
    quiescence: Rc<Quiescence>,
    endpoint: Rc<Endpoint>,
    clients: Cell<u32>,
}

impl Fixture {
    /// Runs a script, whose client begins with `start`. Returns the requests that arrived at the endpoint.
    pub(super) fn run(start: &[u8], script: &Script) -> Vec<Seen> {
        FIXTURE.with(|fixture| fixture.runtime.block_on(fixture.execute(start, script)))
    }

    fn start() -> Self {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build_local(LocalOptions::default())
            .expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
        let listener = listener.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let proxy = start_proxy(port);
        let address = proxy.listeners()[0].address;
        let quiescence = Rc::new(Quiescence::of_worker());
        let serve = async { Endpoint::serve(listener, Rc::clone(&quiescence)) };
        let endpoint = runtime.block_on(serve);
        Self { runtime, proxy, address, quiescence, endpoint, clients: Cell::new(0) }
    }

    async fn execute(&self, start: &[u8], script: &Script) -> Vec<Seen> {
        self.endpoint.begin(script.answers.iter().cloned());
        let (reader, writer) = self.connect(script).await.into_split();
        let reading = spawn_local(read_all(reader, Rc::clone(&self.quiescence)));
        self.act(start, script, writer, &reading).await;
        self.endpoint.close_connections();
        self.wait("the connection ends", || reading.is_finished()).await;
        self.wait("the listener has no connection", || {
            self.proxy.listeners().iter().all(|listener| listener.connections == 0)
        })
        .await;
        self.wait("all slots are free", || {
            let is_idle = |backend: &proxy::BackendView| {
                backend.waiting == 0 && backend.endpoints.iter().all(|it| it.in_flight == 0)
            };
            self.proxy.backends().iter().all(is_idle)
        })
        .await;
        // A connection that the worker opened late belongs to this script too.
        self.endpoint.close_connections();
        self.quiescence.settle().await;
        self.endpoint.take_received()
    }

    /// Connects from an address of its own: the ports of one address would be used up.
    async fn connect(&self, script: &Script) -> TcpStream {
        let number = self.clients.replace(self.clients.get().wrapping_add(2));
        let [.., a, b] = number.to_be_bytes();
        let network = if script.is_trusted { 1 } else { 2 };
        let source = Ipv4Addr::new(127, network, a, b | 1);
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_nodelay(true).expect("an option of TCP");
        socket.bind((source, 0).into()).expect("an address of loopback");
        socket.connect(self.address).await.expect("the listener accepts")
    }

    /// Does the client's steps, and closes the sending side.
    async fn act(
        &self,
        start: &[u8],
        script: &Script,
        mut writer: OwnedWriteHalf,
        reading: &JoinHandle<()>,
    ) {
        if !start.is_empty() {
            self.send(&mut writer, start).await;
        }
        for step in &script.client {
            match step {
                ClientStep::Send(bytes) => self.send(&mut writer, bytes).await,
                ClientStep::HalfClose => break,
                ClientStep::Reset => {
                    drop(writer.as_ref().set_zero_linger());
                    reading.abort();
                    break;
                }
            }
        }
        // Without a reader this is the reset.
        drop(writer);
        self.quiescence.settle().await;
    }

    /// Sends bytes, and lets the worker do all that they make it do. The connection may have ended already.
    async fn send(&self, writer: &mut OwnedWriteHalf, bytes: &[u8]) {
        drop(timeout(PATIENCE, writer.write_all(bytes)).await.expect("the worker reads"));
        self.quiescence.settle().await;
    }

    async fn wait(&self, what: &str, is_done: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_done() {
            assert!(Instant::now() < deadline, "{what}: not after {PATIENCE:?}");
            yield_now().await;
            std::thread::sleep(PAUSE);
        }
    }
}

/// Reads until the connection ends.
async fn read_all(mut reader: OwnedReadHalf, quiescence: Rc<Quiescence>) {
    let mut bytes = vec![0; 16 * 1024];
    while let Ok(1..) = reader.read(&mut bytes).await {
        quiescence.note_event();
    }
    quiescence.note_event();
}

fn start_proxy(endpoint_port: u16) -> Proxy {
    let objects = OBJECTS.replace("ENDPOINT_PORT", &endpoint_port.to_string());
    let (objects, problems) = parse(&objects, "objects.yaml");
    assert!(problems.is_empty(), "{problems:?}");
    let translation = translate(&objects, &TranslationSettings::default());
    assert!(translation.problems.is_empty(), "{:?}", translation.problems);
    let proxy = Proxy::start(ProxySettings {
        workers: NonZeroUsize::MIN,
        access_log: Some(AccessLog { sample: 1.0, output: Box::new(std::io::sink()) }),
        exemplars: true,
        memory_limit: None,
        max_descriptors: None,
        affinity_key: Some(vec![7; 32]),
    });
    let proxy = proxy.expect("threads start");
    let errors = proxy.apply(&translation.snapshot);
    assert!(errors.is_empty(), "{errors:?}");
    proxy
}
