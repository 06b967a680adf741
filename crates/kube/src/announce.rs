//! Addresses of a pool on the interfaces of nodes: one node at a time holds each address and announces it on the link;
//! if that node fails, another node takes the address over.
//!
//! `ownership` decides; this module executes its decisions.

/// Decisions of one node about the ownership of an address.
mod ownership;
/// Ranking of the nodes for an address.
mod ranking;
/// The Lease of an address.
mod address_lease;
/// The address on an interface of the kernel.
mod interface;
/// Frames sent on the link.
mod frame;
/// Addresses that are announced by routes, on the loopback interface.
mod loopback;
/// Objects that the announcer reads.
mod own_objects;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use k8s_openapi::api::coordination::v1::Lease;
use kube_client::Api;
use kube_runtime::WatchStreamExt;
use kube_runtime::watcher::{Config, Event, watcher};
use tokio::sync::watch::{Receiver, Sender, channel};
use tokio::time::{Instant, sleep_until, timeout};

pub use loopback::{install_loopback_address, lowest_link_address, remove_loopback_address};

use crate::ClusterClient;
use crate::backoff::watch_backoff;
use interface::EthernetInterface;
use ownership::{
    AddressOwnership, ElapsedTime, InterfaceAction, LeaseWrite, LeaseWriteOutcome, OwnershipAction,
};
use ranking::NodeRanking;

/// Time limit of a request to the API server, well below the renewal interval of one second.
const API_TIMEOUT: Duration = Duration::from_millis(800);
/// Longest time between a decision and its execution, unless the process was stopped in between.
const MAX_DECISION_AGE: Duration = Duration::from_millis(100);
/// Delay before an interface that failed is tried again.
const INTERFACE_RETRY_DELAY: Duration = Duration::from_secs(10);

/// Number of endpoints per node, for each address; only addresses served on this node, and nodes that can hold them.
pub type EndpointCountsByAddress = BTreeMap<IpAddr, BTreeMap<String, usize>>;

/// Settings of the announcer.
#[derive(Clone, Debug)]
pub struct AnnouncerConfig {
    /// The node's name.
    pub node: String,
    /// Namespace of the Leases.
    pub namespace: String,
    /// Interface for the addresses; `None`: for each address, the interface on its network.
    pub interface: Option<String>,
}

/// Leases of addresses, by name; `None`: the initial list has not arrived yet.
type AddressLeases = Option<BTreeMap<String, Lease>>;

/// Announces the addresses in the channel until it closes; then releases all of them.
pub async fn announce(
    cluster: &ClusterClient,
    announcing: &AnnouncerConfig,
    mut endpoint_counts: Receiver<EndpointCountsByAddress>,
) {
    let api = Api::namespaced(cluster.client.clone(), &announcing.namespace);
    let (sender, leases) = channel(None);
    let watching = tokio::spawn(watch_leases(api.clone(), sender));
    let begun = Instant::now();
    let mut announcers = BTreeMap::new();
    loop {
        let addresses: Vec<_> = endpoint_counts.borrow_and_update().keys().copied().collect();
        for address in addresses {
            announcers.entry(address).or_insert_with(|| {
                let announcer = AddressAnnouncer {
                    address,
                    name: address_lease::lease_name(address),
                    config: announcing.clone(),
                    api: api.clone(),
                    endpoint_counts: endpoint_counts.clone(),
                    leases: leases.clone(),
                    ownership: AddressOwnership::new(announcing.node.clone()),
                    started_at: begun,
                    lease: None,
                    was_listed: false,
                    interface: None,
                    is_carried: false,
                    is_failing: false,
                    is_contested: false,
                    retry_at: ElapsedTime::ZERO,
                };
                tokio::spawn(announcer.run())
            });
        }
        if endpoint_counts.changed().await.is_err() {
            break;
        }
    }
    join_all(announcers.into_values()).await;
    watching.abort();
}

/// Watches the Leases of all addresses.
async fn watch_leases(api: Api<Lease>, sender: Sender<AddressLeases>) {
    let config = Config::default().labels(address_lease::SELECTOR);
    let mut events = pin!(watcher(api, config.streaming_lists()).backoff(watch_backoff()));
    let mut arriving = BTreeMap::new();
    let mut is_failing = false;
    while let Some(event) = events.next().await {
        let name = |lease: &Lease| lease.metadata.name.clone().unwrap_or_default();
        match event {
            Ok(Event::Init) => arriving.clear(),
            Ok(Event::InitApply(lease)) => drop(arriving.insert(name(&lease), lease)),
            Ok(Event::InitDone) => {
                is_failing = false;
                sender.send_replace(Some(std::mem::take(&mut arriving)));
            }
            Ok(Event::Apply(lease)) => sender.send_modify(|leases| {
                leases.get_or_insert_default().insert(name(&lease), lease);
            }),
            Ok(Event::Delete(lease)) => sender.send_modify(|leases| {
                leases.get_or_insert_default().remove(&name(&lease));
            }),
            Err(error) => {
                // Log once per outage.
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::warn!(%error, "cannot watch the Leases of addresses");
                }
            }
        }
    }
}

/// One address, from the view of this node.
struct AddressAnnouncer {
    address: IpAddr,
    /// Name of its Lease.
    name: String,
    config: AnnouncerConfig,
    api: Api<Lease>,
    endpoint_counts: Receiver<EndpointCountsByAddress>,
    leases: Receiver<AddressLeases>,
    ownership: AddressOwnership,
    started_at: Instant,
    /// Last observed Lease.
    lease: Option<Lease>,
    /// True if the watch has reported the Lease.
    was_listed: bool,
    interface: Option<EthernetInterface>,
    is_carried: bool,
    is_failing: bool,
    /// True if another machine on the link has answered for the address.
    is_contested: bool,
    /// Time before which nothing is attempted.
    retry_at: ElapsedTime,
}

impl AddressAnnouncer {
    async fn run(mut self) {
        let mut is_over = false;
        loop {
            self.follow_lease();
            if is_over {
                self.ownership.set_ranking(None, self.now());
            } else {
                self.follow_endpoint_counts();
            }
            self.apply_interface_action();
            match self.ownership.next_action(self.now()) {
                OwnershipAction::Wait(_) if is_over => return,
                OwnershipAction::Wait(until) => is_over = self.wait(until).await,
                OwnershipAction::Probe => self.probe().await,
                OwnershipAction::Announce => self.announce(),
                OwnershipAction::WriteLease(write) => self.write_lease(&write).await,
            }
        }
    }

    /// Waits until the given time or until new information arrives; returns true at shutdown.
    async fn wait(&mut self, until: ElapsedTime) -> bool {
        // A backoff ends too, although `ownership` does not know of it.
        let retry_at = Some(self.retry_at).filter(|at| *at > self.now());
        let until = self.started_at.checked_add(retry_at.map_or(until, |at| at.min(until)));
        let time = async {
            match until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = time => false,
            changed = self.leases.changed() => {
                // The watching task outlives this one.
                changed.is_err()
            }
            changed = self.endpoint_counts.changed() => changed.is_err(),
        }
    }

    fn now(&self) -> ElapsedTime {
        self.started_at.elapsed()
    }

    /// Observes the Lease that the watch reports, unless a newer one is known: the watch may lag
    /// behind.
    fn follow_lease(&mut self) {
        let update = {
            let leases = self.leases.borrow_and_update();
            let Some(leases) = &*leases else { return };
            let reported = leases.get(&self.name);
            let was_listed = std::mem::replace(&mut self.was_listed, reported.is_some());
            let is_news = match reported {
                Some(lease) => address_lease::is_newer(lease, self.lease.as_ref()),
                // A Lease that we have created may not have been reported yet.
                None => was_listed || self.lease.is_none(),
            };
            is_news.then(|| reported.cloned())
        };
        if let Some(lease) = update {
            self.observe_lease(lease);
        }
    }

    fn observe_lease(&mut self, lease: Option<Lease>) {
        self.ownership.observe_lease(lease.as_ref().map(address_lease::lease_state), self.now());
        self.lease = lease;
    }

    fn follow_endpoint_counts(&mut self) {
        let endpoints = self.endpoint_counts.borrow_and_update().get(&self.address).cloned();
        let now = self.now();
        let endpoints = endpoints.filter(|_| now >= self.retry_at && self.find_interface());
        let address = self.address;
        self.ownership
            .set_ranking(endpoints.map(|endpoints| NodeRanking { address, endpoints }), now);
    }

    /// True if an interface can hold the address.
    fn find_interface(&mut self) -> bool {
        if self.interface.is_none() || self.is_failing {
            match EthernetInterface::find(self.address, self.config.interface.as_deref()) {
                Ok(link) => self.interface = Some(link),
                Err(sentence) => self.back_off(&sentence),
            }
        }
        self.interface.is_some()
    }

    /// Logs the error and leaves the address to other nodes for a while.
    fn back_off(&mut self, sentence: &str) {
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::error!(address = %self.address, "cannot hold the address: {sentence}");
        }
        self.retry_at = self.now() + INTERFACE_RETRY_DELAY;
        self.ownership.set_ranking(None, self.now());
    }

    /// Applies the decision to the interface.
    fn apply_interface_action(&mut self) {
        let now = self.now();
        match self.ownership.interface_action(now) {
            InterfaceAction::Keep => {}
            InterfaceAction::Remove => self.remove_address(),
            InterfaceAction::InstallFor(seconds) => self.install_address(seconds, now),
        }
    }

    fn install_address(&mut self, seconds: u32, now: ElapsedTime) {
        let Some(link) = &self.interface else { return };
        match link.install_address(self.address, seconds) {
            Ok(()) => self.ownership.record_installed(seconds, now),
            Err(error) => {
                let sentence = format!("{} rejects it: {error}", link.name);
                self.back_off(&sentence);
                return self.remove_address();
            }
        }
        (self.is_failing, self.is_contested) = (false, false);
        if !std::mem::replace(&mut self.is_carried, true) {
            tracing::info!(address = %self.address, interface = link.name, "holds the address");
        }
        if self.now() > now + MAX_DECISION_AGE {
            // The kernel was told too late: the decision may no longer be valid.
            self.remove_address();
        }
    }

    fn remove_address(&mut self) {
        if !std::mem::take(&mut self.is_carried) {
            return;
        }
        self.ownership.record_installed(0, self.now());
        let Some(link) = &self.interface else { return };
        match link.remove_address(self.address) {
            Ok(()) => tracing::info!(address = %self.address, "no longer holds the address"),
            // The kernel removes it when its lifetime expires.
            Err(error) => {
                tracing::warn!(address = %self.address, %error, "cannot remove the address")
            }
        }
        // Select the interface anew next time.
        self.interface = None;
    }

    async fn probe(&mut self) {
        let Some(link) = &self.interface else {
            return self.ownership.set_ranking(None, self.now());
        };
        match link.probe(self.address).await {
            Ok(is_answered) => {
                // Log once, not each second.
                if is_answered && !std::mem::replace(&mut self.is_contested, is_answered) {
                    tracing::warn!(address = %self.address, "another machine answers for the address");
                }
                self.ownership.record_probe(is_answered, self.now());
            }
            Err(error) => {
                let sentence = format!("cannot probe the address on {}: {error}", link.name);
                self.back_off(&sentence);
            }
        }
    }

    fn announce(&mut self) {
        let result = self.interface.as_ref().map(|link| link.announce(self.address));
        if let Some(Err(error)) = result {
            tracing::warn!(address = %self.address, %error, "cannot announce the address");
        }
        self.ownership.record_announcement();
    }

    async fn write_lease(&mut self, write: &LeaseWrite) {
        if matches!(write, LeaseWrite::HandOver(_) | LeaseWrite::Release) {
            self.remove_address();
        }
        let started = self.now();
        let names = (&*self.name, &*self.config.node);
        let written = address_lease::write_lease(&self.api, names, self.lease.as_ref(), write);
        let (outcome, lease) =
            timeout(API_TIMEOUT, written).await.unwrap_or((LeaseWriteOutcome::Unavailable, None));
        if let Some(lease) = lease {
            self.observe_lease(lease);
        }
        self.ownership.record_write(write, outcome, started, self.now());
    }
}
