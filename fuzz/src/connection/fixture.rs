//! The data plane with one worker, one listener and one endpoint.

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::time::Instant;

use gateway::{TranslationSettings, parse, translate};
use proxy::{AccessLog, Proxy, ProxySettings};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::CertificateDer;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::task::yield_now;

use super::endpoint::Endpoint;
use super::quiescence::{PATIENCE, PAUSE, Quiescence};
use super::script::Answer;
use crate::reference::Seen;

/// The configuration, without what depends on the protocol and on the endpoint's address.
const OBJECTS: &str = include_str!("objects.yaml");
/// A listener without TLS.
const PLAIN: &str = "HTTP";
/// A listener with TLS, for clients over HTTP/3.
const TLS: &str = "HTTPS\n    tls: {certificateRefs: [{name: certificate}]}";
/// Its certificate.
const SECRET: &str = r"
---
apiVersion: v1
kind: Secret
metadata: {name: certificate}
stringData: {tls.crt: CHAIN, tls.key: KEY}
";
/// The name in the certificate.
pub(super) const SERVER_NAME: &str = "a";

thread_local! {
    /// Never dropped: the process ends while the worker runs.
    static OVER_TCP: &'static Fixture = Box::leak(Box::new(Fixture::start(PLAIN)));
    static OVER_QUIC: &'static Fixture = Box::leak(Box::new(Fixture::start(TLS)));
}

/// The parts that all scripts share.
pub(super) struct Fixture {
    runtime: LocalRuntime,
    proxy: Proxy,
    pub(super) address: SocketAddr,
    pub(super) certificate: CertificateDer<'static>,
    pub(super) quiescence: Rc<Quiescence>,
    endpoint: Rc<Endpoint>,
    clients: Cell<u32>,
}

impl Fixture {
    /// Returns the data plane whose clients connect over TCP.
    pub(super) fn over_tcp() -> &'static Self {
        OVER_TCP.with(|fixture| *fixture)
    }

    /// Returns the data plane whose clients connect over QUIC.
    pub(super) fn over_quic() -> &'static Self {
        OVER_QUIC.with(|fixture| *fixture)
    }

    fn start(protocol: &str) -> Self {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build_local(LocalOptions::default())
            .expect("a runtime");
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
        let listener = listener.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let identity =
            generate_simple_self_signed([SERVER_NAME.to_owned()]).expect("a certificate");
        let proxy = start_proxy(protocol, port, &identity);
        let address = proxy.listeners()[0].address;
        let quiescence = Rc::new(Quiescence::of_worker());
        let serve = async { Endpoint::serve(listener, Rc::clone(&quiescence)) };
        let endpoint = runtime.block_on(serve);
        let certificate = identity.cert.der().clone();
        let clients = Cell::new(0);
        Self { runtime, proxy, address, certificate, quiescence, endpoint, clients }
    }

    /// Runs a client while the endpoint gives these answers. Afterwards its connection must end, for which it returns a
    /// check. Returns the requests that the endpoint has received.
    pub(super) fn run<E: Fn() -> bool>(
        &self,
        answers: &[Answer],
        client: impl Future<Output = E>,
    ) -> Vec<Seen> {
        self.runtime.block_on(async {
            self.endpoint.begin(answers.iter().cloned());
            let is_ended = client.await;
            self.endpoint.close_connections();
            self.wait("the connection ends", is_ended).await;
            self.wait_for_idle_worker().await;
            // A connection that the worker opened late belongs to this script too.
            self.endpoint.close_connections();
            self.quiescence.settle().await;
            self.endpoint.take_received()
        })
    }

    /// Returns an address of its own for each client: the ports of one address would be used up.
    pub(super) fn source(&self, is_trusted: bool) -> SocketAddr {
        let number = self.clients.replace(self.clients.get().wrapping_add(2));
        let [.., a, b] = number.to_be_bytes();
        let network = if is_trusted { 1 } else { 2 };
        (Ipv4Addr::new(127, network, a, b | 1), 0).into()
    }

    async fn wait_for_idle_worker(&self) {
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

fn start_proxy(
    protocol: &str,
    endpoint_port: u16,
    identity: &CertifiedKey<rcgen::KeyPair>,
) -> Proxy {
    let quoted = |text: String| serde_json::Value::from(text).to_string();
    let secret = SECRET
        .replace("CHAIN", &quoted(identity.cert.pem()))
        .replace("KEY", &quoted(identity.signing_key.serialize_pem()));
    let objects =
        OBJECTS.replace("PROTOCOL", protocol).replace("ENDPOINT_PORT", &endpoint_port.to_string());
    let (objects, problems) = parse(&[objects, secret].concat(), "objects.yaml");
    assert!(problems.is_empty(), "{problems:?}");
    let translation = translate(&objects, &TranslationSettings::default());
    assert!(translation.problems.is_empty(), "{:?}", translation.problems);
    let proxy = Proxy::start(ProxySettings {
        workers: NonZeroUsize::MIN,
        access_log: Some(AccessLog { sample: 1.0, output: Box::new(std::io::sink()) }),
        exemplars: true,
        traces: None,
        memory_limit: None,
        max_descriptors: None,
        affinity_key: Some(vec![7; 32]),
        interceptor: None,
        leases_slots: false,
    });
    let proxy = proxy.expect("threads start");
    let errors = proxy.apply(&translation.snapshot);
    assert!(errors.is_empty(), "{errors:?}");
    proxy
}
