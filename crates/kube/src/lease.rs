//! Which of several replicas writes: the one that holds the Lease. All serve alike.

use std::time::Duration;

use kube_lease_manager::{LeaseManager, LeaseManagerBuilder};
use tokio::sync::watch::{Receiver, Sender, channel};
use tokio::time::sleep;

use crate::{Cluster, Identity, WRITER};

/// After the last renewal, another may take the Lease.
const HELD_SECONDS: u64 = 15;
/// It is renewed this long before that.
const RENEWED_SECONDS: u64 = 10;
/// Between attempts to reach the API server.
const PAUSE: Duration = Duration::from_secs(2);

/// Tells from now on whether we are the one. Nobody is while the API server cannot be reached, for nothing can be written
/// then either.
pub(crate) fn contend(cluster: &Cluster, identity: Identity) -> Receiver<bool> {
    let (leads, told) = channel(false);
    let client = cluster.client.clone();
    tokio::spawn(async move {
        let builder = LeaseManagerBuilder::new(client, WRITER)
            .with_namespace(&identity.namespace)
            .with_identity(&identity.name)
            .with_duration(HELD_SECONDS)
            .with_grace(RENEWED_SECONDS);
        follow(reach(builder, &identity, &leads).await, leads).await;
    });
    told
}

/// The Lease, once the API server lets us have a look at it.
async fn reach(
    builder: LeaseManagerBuilder,
    identity: &Identity,
    leads: &Sender<bool>,
) -> Option<LeaseManager> {
    let mut is_failing = false;
    loop {
        let built = tokio::select! {
            built = builder.clone().build() => built,
            () = leads.closed() => return None,
        };
        match built {
            Ok(manager) => return Some(manager),
            Err(error) => {
                if !std::mem::replace(&mut is_failing, true) {
                    let namespace = &identity.namespace;
                    tracing::warn!(%namespace, %error, "cannot look at the Lease; no statuses yet");
                }
                sleep(PAUSE).await;
            }
        }
    }
}

/// Hands on who leads, until nobody asks any more; then the Lease is given back.
async fn follow(manager: Option<LeaseManager>, leads: Sender<bool>) {
    let Some(manager) = manager else { return };
    let (mut held, task) = manager.watch().await;
    loop {
        tokio::select! {
            changed = held.changed() => if changed.is_err() { return },
            () = leads.closed() => break,
        }
        let is_ours = *held.borrow_and_update();
        let message = if is_ours { "leads: writes statuses" } else { "another leads" };
        tracing::info!("{message}");
        leads.send_replace(is_ours);
    }
    drop(held);
    // It gives the Lease back, or the Lease runs out.
    drop(task.await);
}
