//! `sheave announce`: carries the addresses that the Sheave beside it serves.
//!
//! It asks that Sheave and nobody else what to carry, so that no request comes where nobody takes it, and so that it needs
//! to see nothing of the cluster but its own Leases.

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

/// Between two questions.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// What giving up addresses may take.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);

/// Runs until a signal ends it.
pub(crate) fn run(flags: AnnounceFlags) -> Result<(), Failure> {
    log::start(flags.log_format);
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start its thread")?;
    let result = runtime.block_on(announce(flags));
    // A question that nobody answers is not waited for.
    runtime.shutdown_background();
    result
}

async fn announce(flags: AnnounceFlags) -> Result<(), Failure> {
    let cluster = cluster::connect().await?;
    let namespace = flags.namespace.unwrap_or_else(|| cluster.namespace().to_owned());
    let node = flags.node.unwrap_or_else(process::host_name);
    let announcing = AnnouncerConfig { node, namespace, interface: flags.interface };
    let mut terminate = signal(SignalKind::terminate()).context("cannot take signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot take signals")?;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), node = announcing.node, "sheave announces");
    let (tell, places) = watch::channel(EndpointCountsByAddress::new());
    let mut carrying = std::pin::pin!(kube::announce(&cluster, &announcing, places));
    let signalled = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        sleep(flags.drain_delay).await;
    };
    tokio::select! {
        () = &mut carrying => {}
        () = poll_served_addresses(flags.admin, &tell) => {}
        () = signalled => {}
    }
    tracing::info!("gives all addresses up");
    drop(tell);
    if timeout(RELEASE_TIMEOUT, carrying).await.is_err() {
        tracing::warn!("the API server does not answer: others take over when the Leases run out");
    }
    Ok(())
}

/// Tells what is served here, for ever.
async fn poll_served_addresses(admin: SocketAddr, tell: &watch::Sender<EndpointCountsByAddress>) {
    let mut is_failing = false;
    loop {
        let asked = task::spawn_blocking(move || admin::query(admin, "/api/v1/addresses")).await;
        let places = match asked.map_err(|error| error.to_string()).flatten() {
            Ok(AddressesResponse { addresses }) => {
                if std::mem::take(&mut is_failing) {
                    tracing::info!(%admin, "the Sheave here is ready");
                }
                addresses.into_iter().map(|it| (it.address, it.endpoints)).collect()
            }
            Err(why) => {
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::warn!(%admin, why, "the Sheave here is not ready: nothing is carried");
                }
                EndpointCountsByAddress::new()
            }
        };
        tell.send_if_modified(|before| std::mem::replace(before, places) != *before);
        sleep(POLL_INTERVAL).await;
    }
}
