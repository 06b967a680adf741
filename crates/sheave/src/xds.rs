//! The xDS server: gRPC clients get routes and endpoints of Services from it and balance each call themselves.
//!
//! What clients get is the task of the crate `xds`. Here are its address, its certificates, the health of endpoints as
//! the data plane sees it, and what an operator sees.

/// Connections of clients, with or without TLS.
mod connection;
/// Certificates of the server.
mod certificates;
/// Load that clients report.
mod load;
/// Metrics of the server.
mod metrics;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ::xds::{
    BootstrapSettings, ClientCredentials, EndpointHealth, EnvoySettings, ResourcePublisher,
    bootstrap, envoy_bootstrap,
};
use anyhow::Context;
use proxy::{BackendView, EndpointView, Proxy};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{MissedTickBehavior, interval};
use tonic::transport::Server;

use crate::admin::BoundedListener;
use crate::check;
use crate::failure::Failure;
use crate::flags::{BootstrapFlags, XdsClient, XdsCommand, XdsFlags};
use crate::report::{ProcessPhase, ProcessReport};
use certificates::XdsCertificates;
pub(crate) use metrics::{XDS_BACKEND_METRICS, XDS_LOAD_METRICS, XDS_METRICS};

/// Time from a byte of a client until a byte is sent to it: pings alone keep it.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of connections. Each client process has one.
const MAX_CONNECTIONS: usize = 4_096;
/// Maximum number of streams of one connection. A client has one, and another while it reconnects.
const MAX_STREAMS: u32 = 16;
/// Interval of HTTP/2 keepalive pings, well below the idle timeout of a connection: a stream may be silent for hours.
const PING_INTERVAL: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which the health of endpoints is read.
const HEALTH_INTERVAL: Duration = Duration::from_millis(250);

/// Address and routes of the listener of an Envoy.
const DEFAULT_ENVOY_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10_000);
const DEFAULT_ENVOY_ROUTES: &str = "services:80";

/// Runs `sheave xds`.
pub(crate) fn run(command: XdsCommand) -> Result<(), Failure> {
    let XdsCommand::Bootstrap(flags) = command;
    let BootstrapFlags { server, certs, workload_certs, serve, client, listen, routes, node, zone } =
        flags;
    let is_of_servers = serve.is_some() || workload_certs.is_some();
    let workload_certificates = workload_certs.or_else(|| certs.clone());
    let credentials = certs.map_or(ClientCredentials::Insecure, ClientCredentials::Folder);
    let settings = |name: &str| {
        let node_id = node.unwrap_or_else(|| name.to_owned());
        BootstrapSettings {
            server,
            credentials,
            workload_certificates,
            served_port: serve,
            node_id,
            zone,
        }
    };
    let file = match client {
        XdsClient::Grpc if listen.is_some() || routes.is_some() => {
            return Err(Failure::input("--listen and --routes are of an Envoy: add --for envoy"));
        }
        XdsClient::Grpc => bootstrap(&settings("grpc")),
        XdsClient::Envoy if is_of_servers => {
            let message = "--serve and --workload-certs are of gRPC: remove --for envoy";
            return Err(Failure::input(message));
        }
        XdsClient::Envoy => {
            let envoy = EnvoySettings {
                listen: listen.unwrap_or(DEFAULT_ENVOY_ADDRESS),
                routes: routes.unwrap_or_else(|| DEFAULT_ENVOY_ROUTES.to_owned()),
            };
            envoy_bootstrap(&settings("envoy"), &envoy)
                .map_err(|error| Failure::input(format_args!("--server: {error}")))?
        }
    };
    check::print(&[file])
}

/// The server before it serves.
pub(crate) struct PreparedServer {
    listener: BoundedListener,
    certificates: Option<XdsCertificates>,
    publisher: Arc<ResourcePublisher>,
}

impl PreparedServer {
    /// Reads the certificates, if there are any. Needs a running tokio runtime.
    ///
    /// # Errors
    /// If they cannot be used.
    pub(crate) fn new(
        listener: BoundedListener,
        flags: &XdsFlags,
        publisher: Arc<ResourcePublisher>,
    ) -> Result<Self, Failure> {
        let certificates = flags.xds_certs.as_deref().map(|folder| {
            let watched = XdsCertificates::new(folder).context("cannot watch --xds-certs")?;
            anyhow::Ok(watched)
        });
        let mut certificates = certificates.transpose()?;
        if let Some(certificates) = &mut certificates {
            certificates
                .load()
                .map_err(|error| Failure::input(format_args!("--xds-certs: {error:#}")))?;
        }
        let listener = listener.with_max_connections(MAX_CONNECTIONS);
        Ok(Self { listener, certificates, publisher })
    }

    /// Serves clients, until the returned task is aborted. Open streams end when the process drains.
    pub(crate) fn serve(
        self,
        proxy: Arc<Proxy>,
        report: watch::Receiver<ProcessReport>,
    ) -> AbortHandle {
        let Self { listener, certificates, publisher } = self;
        let address = listener.address;
        let has_tls = certificates.is_some();
        let configs = certificates.map(XdsCertificates::follow);
        let (connections, accepting) = connection::accept(listener, configs);
        let server = Server::builder()
            .http2_keepalive_interval(Some(PING_INTERVAL))
            .http2_keepalive_timeout(Some(PING_TIMEOUT))
            .max_concurrent_streams(MAX_STREAMS)
            .add_service(publisher.service())
            .add_service(publisher.load_service())
            .serve_with_incoming(connections);
        tokio::spawn(async move {
            let served = server.await;
            tracing::error!(?served, "the xDS server has stopped");
        });
        tokio::spawn(load::follow(Arc::clone(&proxy), Arc::clone(&publisher)));
        tokio::spawn(load::divide_limits(Arc::clone(&proxy), Arc::clone(&publisher)));
        tokio::spawn(follow_health(proxy, Arc::clone(&publisher)));
        tokio::spawn(close_with_process(report, publisher));
        tracing::info!(%address, tls = has_tls, "xDS server for gRPC clients");
        accepting
    }
}

/// Tells clients which endpoints are not healthy.
async fn follow_health(proxy: Arc<Proxy>, publisher: Arc<ResourcePublisher>) {
    let mut ticks = interval(HEALTH_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        publisher.set_health(health(&proxy.backends()));
    }
}

/// Returns the endpoints that the data plane would not choose. In panic mode it ignores health.
fn health(backends: &[BackendView]) -> EndpointHealth {
    let mut health = EndpointHealth::default();
    let is_unhealthy = |it: &&EndpointView| ["ejected", "unhealthy"].contains(&it.health);
    for backend in backends.iter().filter(|it| !it.panicking) {
        for endpoint in backend.endpoints.iter().filter(is_unhealthy) {
            health.add_unhealthy(&backend.key, endpoint.address);
        }
    }
    health
}

/// Ends the streams of clients when the process leaves, so that they connect to another one.
async fn close_with_process(
    mut report: watch::Receiver<ProcessReport>,
    publisher: Arc<ResourcePublisher>,
) {
    let is_leaving = |report: &ProcessReport| {
        matches!(report.phase, ProcessPhase::Leaving | ProcessPhase::Draining)
    };
    // The sender of the report lives as long as the process.
    drop(report.wait_for(is_leaving).await);
    publisher.close();
}
