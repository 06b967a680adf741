//! `sheave announce`: announces the addresses that the Sheave on this node serves.
//!
//! It asks only that Sheave which addresses to announce. So no traffic goes to a node where no Sheave accepts it, and
//! the announcer needs no permission in the cluster except for its own Leases.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use kube::{AnnouncerConfig, EndpointCountsByAddress};
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task;
use tokio::time::{sleep, timeout};

use crate::admin::{self, AddressesResponse};
use crate::cluster;
use crate::failure::Failure;
use crate::flags::AnnounceFlags;
use crate::log;
use crate::process;

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
    let namespace = flags.namespace.unwrap_or_else(|| cluster.namespace().to_owned());
    let node = flags.node.unwrap_or_else(process::host_name);
    let announcing = AnnouncerConfig { node, namespace, interface: flags.interface };
    let mut terminate = signal(SignalKind::terminate()).context("cannot handle signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot handle signals")?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), node = announcing.node, "sheave announces");
    let (sender, counts) = watch::channel(EndpointCountsByAddress::new());
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
        () = poll_served_addresses(flags.admin, &sender) => {}
        () = signalled => {}
    }
    tracing::info!("releasing all addresses");
    drop(sender);
    if timeout(RELEASE_TIMEOUT, carrying).await.is_err() {
        tracing::warn!(
            "the API server does not answer: other nodes take over when the Leases expire"
        );
    }
    Ok(())
}

/// Polls the admin API and sends the served addresses, forever.
async fn poll_served_addresses(admin: SocketAddr, sender: &watch::Sender<EndpointCountsByAddress>) {
    let mut is_failing = false;
    loop {
        let response = task::spawn_blocking(move || admin::query(admin, "/api/v1/addresses")).await;
        let counts = match response.map_err(|error| error.to_string()).flatten() {
            Ok(AddressesResponse { addresses }) => {
                if std::mem::take(&mut is_failing) {
                    tracing::info!(%admin, "the Sheave on this node is ready");
                }
                addresses.into_iter().map(|it| (it.address, it.endpoints)).collect()
            }
            Err(reason) => {
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::warn!(%admin, reason, "the Sheave on this node is not ready: no address is announced");
                }
                EndpointCountsByAddress::new()
            }
        };
        sender.send_if_modified(|before| std::mem::replace(before, counts) != *before);
        sleep(POLL_INTERVAL).await;
    }
}
