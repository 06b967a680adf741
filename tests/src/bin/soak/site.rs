//! Sheave, its configuration and its endpoints.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};
use tests::certificates::CertificateAuthority;
use tests::http2::{self, Http2TestEndpoint, ReceivedRequest};
use tests::raw::{RawServer, UdpEcho};
use tests::tls::TlsClientOptions;
use tests::{ConfigDirectory, Endpoint, EndpointBehaviour, ServeStep, SheaveProcess, objects};
use tokio::time::{Instant, sleep};

use crate::resources::ResourceUsage;

/// Service whose endpoints are healthy, and are replaced without loss.
pub(crate) const STEADY: &str = "steady";
/// Service whose endpoints fail in all ways.
pub(crate) const FAULTY: &str = "faulty";
/// Length of each response to a GET of [`LARGE_PATH`].
pub(crate) const LARGE_LENGTH: u64 = 300_000;
pub(crate) const LARGE_PATH: &str = "/large";

/// Number of endpoints of each of these two Services.
const ENDPOINTS: usize = 4;
/// Time after which idle connections and UDP flows have ended, by default, with a margin.
const REST: Duration = Duration::from_secs(150);

/// Addresses of the listeners.
#[derive(Clone, Copy)]
pub(crate) struct ListenerAddresses {
    pub(crate) http: SocketAddr,
    /// TLS over TCP, and QUIC at the UDP port of the same number.
    pub(crate) https: SocketAddr,
    pub(crate) tcp: SocketAddr,
    pub(crate) udp: SocketAddr,
}

pub(crate) struct SoakSite {
    pub(crate) sheave: SheaveProcess,
    pub(crate) configuration: ConfigDirectory,
    pub(crate) listeners: ListenerAddresses,
    pub(crate) steady: Vec<Endpoint>,
    pub(crate) faulty: Vec<Endpoint>,
    authority: CertificateAuthority,
    /// Servers that run until the end.
    _others: OtherServers,
}

/// Servers of the Services that are neither steady nor faulty.
struct OtherServers {
    large: Endpoint,
    tunnel: Endpoint,
    calls: Http2TestEndpoint,
    tcp: RawServer,
    udp: UdpEcho,
}

impl SoakSite {
    pub(crate) async fn start() -> Result<Self> {
        let configuration = ConfigDirectory::empty()?;
        let authority = CertificateAuthority::new();
        let others = OtherServers::start().await?;
        let steady = start_all(&healthy()).await?;
        let faulty = start_all(&healthy()).await?;
        configuration.write("main.yaml", &main_objects(8))?;
        configuration
            .write("certificate.yaml", &[authority.issue(&["test"]).secret("certificate")])?;
        write_endpoints(&configuration, STEADY, &addresses(&steady))?;
        write_endpoints(&configuration, FAULTY, &addresses(&faulty))?;
        others.write_endpoints(&configuration)?;
        let sheave = SheaveProcess::serve_with(&configuration, &["--workers", "2"]).await?;
        let listeners = ListenerAddresses::of(&sheave)?;
        Ok(Self { sheave, configuration, listeners, steady, faulty, authority, _others: others })
    }

    /// Returns the options of a client that trusts the certificate, also after its renewal.
    pub(crate) fn tls(&self) -> TlsClientOptions {
        TlsClientOptions::trusting(&self.authority)
    }

    pub(crate) async fn usage(&self) -> Result<ResourceUsage> {
        ResourceUsage::of(&self.sheave).await
    }

    /// Waits until connections and flows have ended, and returns what is in use then.
    pub(crate) async fn rest(&self) -> Result<ResourceUsage> {
        let end = Instant::now() + REST;
        let mut least: Option<ResourceUsage> = None;
        while Instant::now() < end {
            let usage = self.usage().await?;
            if usage.is_at_rest() && least.as_ref().is_none_or(|least| usage.is_less(least)) {
                least = Some(usage);
            }
            sleep(Duration::from_secs(1)).await; // The usage is sampled.
        }
        let last = self.usage().await?;
        least.with_context(|| format!("not at rest after {REST:?}: {last}"))
    }

    /// Replaces the certificate by a new one of the same authority.
    pub(crate) fn renew_certificate(&self) -> Result<()> {
        let renewed = self.authority.issue(&["test"]);
        Ok(self.configuration.write("certificate.yaml", &[renewed.secret("certificate")])?)
    }

    /// Sets the limit of each endpoint of the steady Service.
    pub(crate) fn set_cap(&self, cap: u64) -> Result<()> {
        Ok(self.configuration.write("main.yaml", &main_objects(cap))?)
    }

    pub(crate) fn set_endpoints(&self, service: &str, to: &[SocketAddr]) -> Result<()> {
        write_endpoints(&self.configuration, service, to)
    }

    /// Replaces a steady endpoint as a rolling update does: the new one is ready before the old one
    /// is removed, and the old one ends when it serves nothing.
    pub(crate) async fn replace_steady(&mut self, index: usize) -> Result<()> {
        let new = Endpoint::start(healthy()).await?;
        let old = std::mem::replace(&mut self.steady[index], new);
        self.set_endpoints(STEADY, &addresses(&self.steady))?;
        let gone = async || {
            let backends = self.sheave.backends().await?.into_iter();
            let endpoints = backends.flat_map(|backend| backend.endpoints);
            Ok(endpoints.filter(|endpoint| endpoint.address == old.address.to_string()).count())
        };
        tests::eventually("a removed endpoint", gone, |count| *count == 0).await?;
        old.wait_for_counts("a drained endpoint", |counts| counts.in_flight == 0).await?;
        Ok(())
    }

    /// Ends the process as a rolling update does.
    pub(crate) async fn check_exit(mut self) -> Result<()> {
        self.sheave.signal(Signal::TERM)?;
        let status = self.sheave.wait_for_exit().await?;
        ensure!(status.success(), "exit status {status}");
        Ok(())
    }
}

impl ListenerAddresses {
    fn of(sheave: &SheaveProcess) -> Result<Self> {
        let find = |part: &str| {
            let found = sheave.listeners.iter().find(|(name, _)| name.ends_with(part));
            let found = found.with_context(|| format!("no {part} in {:?}", sheave.listeners))?;
            Ok::<_, anyhow::Error>(found.1)
        };
        Ok(Self {
            http: find("http")?,
            https: find("https")?,
            tcp: find("tcp")?,
            udp: find("udp")?,
        })
    }
}

impl OtherServers {
    async fn start() -> Result<Self> {
        let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\
            Upgrade: websocket\r\n\r\n";
        let tunnel = vec![ServeStep::send(switch), ServeStep::Tunnel, ServeStep::Close];
        let large = vec![ServeStep::ReadBody, ServeStep::AnswerPattern(LARGE_LENGTH)];
        let calls = |mut call: ReceivedRequest| async move {
            http2::read(&mut call.body).await?;
            call.reply(b"reply").await
        };
        Ok(Self {
            large: Endpoint::start(large).await?,
            tunnel: Endpoint::start(tunnel).await?,
            calls: Http2TestEndpoint::start(calls).await?,
            tcp: RawServer::echo().await?,
            udp: UdpEcho::start().await?,
        })
    }

    fn write_endpoints(&self, configuration: &ConfigDirectory) -> Result<()> {
        write_endpoints(configuration, "large", &[self.large.address])?;
        write_endpoints(configuration, "tunnel", &[self.tunnel.address])?;
        write_endpoints(configuration, "calls", &[self.calls.address])?;
        write_endpoints(configuration, "tcp", &[self.tcp.address])?;
        let slices = objects::slices("udp", &[self.udp.address]).into_iter();
        let slices: Vec<Value> =
            slices.map(|slice| objects::with_transport("UDP", slice)).collect();
        Ok(configuration.write("endpoints-udp.yaml", &slices)?)
    }
}

/// Returns the behaviour of a healthy endpoint: it echoes bodies.
pub(crate) fn healthy() -> EndpointBehaviour {
    vec![ServeStep::Wait(Duration::from_millis(2)), ServeStep::Echo].into()
}

pub(crate) fn addresses(endpoints: &[Endpoint]) -> Vec<SocketAddr> {
    endpoints.iter().map(|endpoint| endpoint.address).collect()
}

async fn start_all(behaviour: &EndpointBehaviour) -> Result<Vec<Endpoint>> {
    tests::fixture::start_endpoints(ENDPOINTS, behaviour).await
}

fn write_endpoints(
    configuration: &ConfigDirectory,
    service: &str,
    to: &[SocketAddr],
) -> Result<()> {
    let file = format!("endpoints-{service}.yaml");
    Ok(configuration.write(&file, &objects::slices(service, to))?)
}

/// Returns all objects except the certificate and the endpoints.
fn main_objects(cap: u64) -> Vec<Value> {
    let certificates = json!([{ "name": "certificate" }]);
    let tls = json!({ "mode": "Terminate", "certificateRefs": certificates });
    // Each on an address of its own: all ask for port 0.
    let mut all = vec![
        gateway("127.0.0.1", json!({ "name": "http", "protocol": "HTTP", "port": 0 })),
        gateway(
            "127.0.0.2",
            json!({ "name": "https", "protocol": "HTTPS", "port": 0, "tls": tls }),
        ),
        gateway("127.0.0.3", json!({ "name": "tcp", "protocol": "TCP", "port": 0 })),
        gateway("127.0.0.4", json!({ "name": "udp", "protocol": "UDP", "port": 0 })),
    ];
    all.push(http_routes());
    all.extend([listener_route("TCPRoute", "tcp"), listener_route("UDPRoute", "udp")]);
    all.extend([STEADY, FAULTY, "large", "tunnel", "tcp"].map(objects::service));
    all.push(objects::with_app_protocol("kubernetes.io/h2c", objects::service("calls")));
    all.push(objects::with_transport("UDP", objects::service("udp")));
    all.push(objects::backend_policy(STEADY, json!({ "maxInFlightPerEndpoint": cap })));
    let mut http3 = objects::client_policy(json!({ "http3": { "enabled": true } }));
    http3["spec"]["targetRefs"][0]["name"] = "https".into();
    all.push(http3);
    let timeouts = json!({ "request": "5s" });
    let policy = json!({ "maxInFlightPerEndpoint": 4, "timeouts": timeouts });
    all.push(objects::backend_policy(FAULTY, policy));
    all
}

/// Returns a Gateway with this listener, whose name is also its own.
fn gateway(address: &str, listener: Value) -> Value {
    let mut gateway = objects::gateway_at(address, "HTTP").remove(1);
    gateway["metadata"]["name"] = listener["name"].clone();
    gateway["spec"]["listeners"] = json!([listener]);
    gateway
}

fn http_routes() -> Value {
    let rule = |path: &str, service: &str| {
        json!({
            "matches": [{ "path": { "type": "PathPrefix", "value": path } }],
            "backendRefs": [{ "name": service, "port": 80 }],
        })
    };
    let rules = json!([
        rule("/", STEADY),
        rule("/faulty", FAULTY),
        rule(LARGE_PATH, "large"),
        rule("/tunnel", "tunnel"),
        rule("/soak.Calls", "calls"),
    ]);
    let mut route = objects::route_with("requests", json!({ "rules": rules }));
    route["spec"]["parentRefs"] = json!([{ "name": "http" }, { "name": "https" }]);
    route
}

fn listener_route(kind: &str, service: &str) -> Value {
    let mut route = objects::stream_route(kind, service);
    route["spec"]["parentRefs"] = json!([{ "name": service }]);
    route
}
