//! `sheave announce`: announces the addresses that the Sheave on this node serves, on the link or by BGP.
//!
//! It asks only that Sheave which addresses to announce. So no traffic goes to a node where no Sheave accepts it, and
//! the announcer needs no permission in the cluster except for its own Leases, its node and the passwords of routers.

/// Routers of this node, with their passwords.
mod routers;
/// Routes to addresses.
mod route_announcer;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context;
use bgp::{BgpSpeaker, SpeakerIdentity};
use gateway::load_balancer::BgpRouter;
use gateway::objects::GATEWAY_CONTROLLER;
use kube::{AnnouncerConfig, ClusterClient, EndpointCountsByAddress};
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::{self, JoinHandle};
use tokio::time::{sleep, timeout};

use crate::admin::{self, AddressRoute, AddressesResponse, BoundedListener};
use crate::cluster;
use crate::failure::Failure;
use crate::flags::AnnounceFlags;
use crate::log;
use crate::process;
use route_announcer::RouteAnnouncer;
use routers::RouterResolver;

/// Interval between two queries to the admin API.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Time limit for the release of all addresses.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);

/// Runs until a signal ends it.
pub(crate) fn run(flags: AnnounceFlags) -> Result<(), Failure> {
    let _log = log::start(flags.log_format)?;
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start its thread")?;
    let result = runtime.block_on(announce(flags));
    // Do not wait for a query that is still unanswered.
    runtime.shutdown_background();
    result
}

async fn announce(flags: AnnounceFlags) -> Result<(), Failure> {
    let cluster = cluster::connect().await?;
    let namespace = flags.namespace.clone().unwrap_or_else(|| cluster.namespace().to_owned());
    let node = flags.node.clone().unwrap_or_else(process::host_name);
    let announcing = AnnouncerConfig { node, namespace, interface: flags.interface.clone() };
    let mut terminate = signal(SignalKind::terminate()).context("cannot handle signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot handle signals")?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), node = announcing.node, "sheave announces");
    let (sender, counts) = watch::channel(EndpointCountsByAddress::new());
    let (routes, routers, routing) = start_routing(&cluster, &announcing, &flags).await?;
    let served = ServedAddresses { counts: sender, routes, routers };
    let mut carrying = std::pin::pin!(kube::announce(&cluster, &announcing, counts));
    let signalled = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        sleep(flags.drain_delay).await;
    };
    tokio::select! {
        () = &mut carrying => {}
        () = served.poll(flags.admin) => {}
        () = signalled => {}
    }
    tracing::info!("releasing all addresses");
    drop(served);
    let released = async { tokio::join!(timeout(RELEASE_TIMEOUT, carrying), routing) };
    let (released, routing) = released.await;
    if released.is_err() {
        tracing::warn!(
            "the API server does not answer: other nodes take over when the Leases expire"
        );
    }
    routing.context("the task of BGP sessions failed")?;
    Ok(())
}

/// Starts the announcement of routes; returns the channels for routes and routers, and the task.
async fn start_routing(
    cluster: &ClusterClient,
    announcing: &AnnouncerConfig,
    flags: &AnnounceFlags,
) -> Result<RoutingHandles, Failure> {
    let (routes, routes_wanted) = watch::channel(Vec::new());
    let (routers, routers_wanted) = watch::channel(Vec::new());
    let (resolved, settings) = watch::channel(Vec::new());
    let (reports, reported) = watch::channel(Vec::new());
    if let Some(address) = flags.metrics {
        let listener =
            BoundedListener::bind(address, "--metrics", admin::REQUEST_TIMEOUT, None).await?;
        drop(admin::serve_announcer_metrics(listener, reported));
    }
    let resolver = RouterResolver {
        cluster: cluster.clone(),
        namespace: announcing.namespace.clone(),
        node: announcing.node.clone(),
        labels: None,
        passwords: Default::default(),
        logged: Vec::new(),
    };
    drop(tokio::spawn(resolver.run(routers_wanted, resolved)));
    let router_id =
        flags.router_id.or_else(kube::lowest_link_address).unwrap_or(Ipv4Addr::LOCALHOST);
    let speaker = BgpSpeaker::new(SpeakerIdentity { router_id });
    let node = announcing.node.clone();
    let events = cluster.record_process_events(GATEWAY_CONTROLLER, &node);
    let announcer = RouteAnnouncer::new(speaker, flags.withdraw_delay, reports, (events, node));
    Ok((routes, routers, tokio::spawn(announcer.run(routes_wanted, settings))))
}

/// Channels for routes and for routers, and the task that announces.
type RoutingHandles =
    (watch::Sender<Vec<AddressRoute>>, watch::Sender<Vec<BgpRouter>>, JoinHandle<()>);

/// Channels with the addresses that the Sheave on this node serves, as it said last.
struct ServedAddresses {
    counts: watch::Sender<EndpointCountsByAddress>,
    routes: watch::Sender<Vec<AddressRoute>>,
    routers: watch::Sender<Vec<BgpRouter>>,
}

impl ServedAddresses {
    /// Polls the admin API and sends what it says, forever. While it does not answer, nothing is served; the routers
    /// stay the same, so that sessions stay up.
    async fn poll(&self, admin: SocketAddr) {
        let mut is_failing = false;
        loop {
            let query = move || admin::query::<AddressesResponse>(admin, "/api/v1/addresses");
            let response = task::spawn_blocking(query).await;
            let (counts, routes) = match response.map_err(|error| error.to_string()).flatten() {
                Ok(AddressesResponse { addresses, routes, routers }) => {
                    if std::mem::take(&mut is_failing) {
                        tracing::info!(%admin, "the Sheave on this node is ready");
                    }
                    send(&self.routers, routers);
                    let counts = addresses.into_iter().map(|it| (it.address, it.endpoints));
                    (counts.collect(), routes)
                }
                Err(reason) => {
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::warn!(%admin, reason, "the Sheave on this node is not ready: no address is announced");
                    }
                    (EndpointCountsByAddress::new(), Vec::new())
                }
            };
            send(&self.counts, counts);
            send(&self.routes, routes);
            sleep(POLL_INTERVAL).await;
        }
    }
}

/// Sends a value if it is another one than before.
fn send<T: PartialEq>(sender: &watch::Sender<T>, value: T) {
    sender.send_if_modified(|before| std::mem::replace(before, value) != *before);
}
