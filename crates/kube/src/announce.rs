//! Addresses of a pool on the interfaces of nodes: each is carried by one node at a time, which tells the others on the
//! link; when it dies, another one does.
//!
//! `claim` decides; here is done what it asks for.

/// Who is to carry an address, and until when.
mod ownership;
/// Which node is the better place.
mod ranking;
/// The Lease of an address.
mod address_lease;
/// The kernel's side of an address.
mod interface;
/// What is sent over the link.
mod frame;

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

use crate::ClusterClient;
use interface::EthernetInterface;
use ownership::{
    AddressOwnership, ElapsedTime, InterfaceAction, LeaseWrite, LeaseWriteOutcome, OwnershipAction,
};
use ranking::NodeRanking;

/// How long the API server may take to answer: it is asked each second.
const API_TIMEOUT: Duration = Duration::from_millis(800);
/// Longer than anything takes that is decided and then done, unless the process was stopped in between.
const MAX_DECISION_AGE: Duration = Duration::from_millis(100);
/// Before an interface that failed us is tried again.
const INTERFACE_RETRY_DELAY: Duration = Duration::from_secs(10);

/// How many endpoints behind each address are on which node; only addresses that are served here, and nodes that could
/// carry them.
pub type EndpointCountsByAddress = BTreeMap<IpAddr, BTreeMap<String, usize>>;

/// Where addresses are announced.
#[derive(Clone, Debug)]
pub struct AnnouncerConfig {
    /// The node's name.
    pub node: String,
    /// Where the Leases are.
    pub namespace: String,
    /// The interface that carries addresses; `None`: the one on whose network an address is.
    pub interface: Option<String>,
}

/// The Leases of addresses by name; `None`: they have not been told yet.
type AddressLeases = Option<BTreeMap<String, Lease>>;

/// Carries addresses as long as somebody tells which; then gives them up.
pub async fn announce(
    cluster: &ClusterClient,
    announcing: &AnnouncerConfig,
    mut places: Receiver<EndpointCountsByAddress>,
) {
    let api = Api::namespaced(cluster.client.clone(), &announcing.namespace);
    let (tell, leases) = channel(None);
    let watching = tokio::spawn(watch_leases(api.clone(), tell));
    let begun = Instant::now();
    let mut carriers = BTreeMap::new();
    loop {
        let addresses: Vec<_> = places.borrow_and_update().keys().copied().collect();
        for address in addresses {
            carriers.entry(address).or_insert_with(|| {
                let carrier = AddressAnnouncer {
                    address,
                    name: address_lease::lease_name(address),
                    config: announcing.clone(),
                    api: api.clone(),
                    endpoint_counts: places.clone(),
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
                tokio::spawn(carrier.run())
            });
        }
        if places.changed().await.is_err() {
            break;
        }
    }
    join_all(carriers.into_values()).await;
    watching.abort();
}

/// Follows the Leases of all addresses.
async fn watch_leases(api: Api<Lease>, tell: Sender<AddressLeases>) {
    let config = Config::default().labels(address_lease::SELECTOR);
    let mut events = pin!(watcher(api, config.streaming_lists()).default_backoff());
    let mut arriving = BTreeMap::new();
    let mut is_failing = false;
    while let Some(event) = events.next().await {
        let name = |lease: &Lease| lease.metadata.name.clone().unwrap_or_default();
        match event {
            Ok(Event::Init) => arriving.clear(),
            Ok(Event::InitApply(lease)) => drop(arriving.insert(name(&lease), lease)),
            Ok(Event::InitDone) => {
                is_failing = false;
                tell.send_replace(Some(std::mem::take(&mut arriving)));
            }
            Ok(Event::Apply(lease)) => tell.send_modify(|leases| {
                leases.get_or_insert_default().insert(name(&lease), lease);
            }),
            Ok(Event::Delete(lease)) => tell.send_modify(|leases| {
                leases.get_or_insert_default().remove(&name(&lease));
            }),
            Err(error) => {
                // Once for each outage.
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::warn!(%error, "cannot watch the Leases of addresses");
                }
            }
        }
    }
}

/// One address, as one node sees it.
struct AddressAnnouncer {
    address: IpAddr,
    /// Of its Lease.
    name: String,
    config: AnnouncerConfig,
    api: Api<Lease>,
    endpoint_counts: Receiver<EndpointCountsByAddress>,
    leases: Receiver<AddressLeases>,
    ownership: AddressOwnership,
    started_at: Instant,
    /// As it was seen last.
    lease: Option<Lease>,
    /// Whether the watch has told of it.
    was_listed: bool,
    interface: Option<EthernetInterface>,
    is_carried: bool,
    is_failing: bool,
    /// Somebody else on the link has answered for it.
    is_contested: bool,
    /// Nothing is tried before.
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

    /// Until that moment, or until something new is known; true: it is over.
    async fn wait(&mut self, until: ElapsedTime) -> bool {
        // A rest ends too, though `claim` knows nothing of it.
        let rest = Some(self.retry_at).filter(|rest| *rest > self.now());
        let until = self.started_at.checked_add(rest.map_or(until, |rest| rest.min(until)));
        let time = async {
            match until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = time => false,
            told = self.leases.changed() => {
                // Whoever watches ends after us.
                told.is_err()
            }
            told = self.endpoint_counts.changed() => told.is_err(),
        }
    }

    fn now(&self) -> ElapsedTime {
        self.started_at.elapsed()
    }

    /// What the watch has told, unless we know better: it may be late.
    fn follow_lease(&mut self) {
        let news = {
            let leases = self.leases.borrow_and_update();
            let Some(leases) = &*leases else { return };
            let told = leases.get(&self.name);
            let was_told = std::mem::replace(&mut self.was_listed, told.is_some());
            let is_news = match told {
                Some(lease) => address_lease::is_newer(lease, self.lease.as_ref()),
                // One that we have made may not have been told of yet.
                None => was_told || self.lease.is_none(),
            };
            is_news.then(|| told.cloned())
        };
        if let Some(lease) = news {
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

    /// Whether there is an interface to carry it.
    fn find_interface(&mut self) -> bool {
        if self.interface.is_none() || self.is_failing {
            match EthernetInterface::find(self.address, self.config.interface.as_deref()) {
                Ok(link) => self.interface = Some(link),
                Err(sentence) => self.back_off(&sentence),
            }
        }
        self.interface.is_some()
    }

    /// Lets others carry it for a while.
    fn back_off(&mut self, sentence: &str) {
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::error!(address = %self.address, "cannot carry the address: {sentence}");
        }
        self.retry_at = self.now() + INTERFACE_RETRY_DELAY;
        self.ownership.set_ranking(None, self.now());
    }

    /// Makes of the interface what is decided.
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
                let sentence = format!("{} does not take it: {error}", link.name);
                self.back_off(&sentence);
                return self.remove_address();
            }
        }
        (self.is_failing, self.is_contested) = (false, false);
        if !std::mem::replace(&mut self.is_carried, true) {
            tracing::info!(address = %self.address, interface = link.name, "carries the address");
        }
        if self.now() > now + MAX_DECISION_AGE {
            // The kernel was told too late: what was decided may no longer hold.
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
            Ok(()) => tracing::info!(address = %self.address, "no longer carries the address"),
            // The kernel does so by itself.
            Err(error) => {
                tracing::warn!(address = %self.address, %error, "cannot drop the address")
            }
        }
        // The interface may be another one next time.
        self.interface = None;
    }

    async fn probe(&mut self) {
        let Some(link) = &self.interface else {
            return self.ownership.set_ranking(None, self.now());
        };
        match link.probe(self.address).await {
            Ok(is_answered) => {
                // Once, not each second.
                if is_answered && !std::mem::replace(&mut self.is_contested, is_answered) {
                    tracing::warn!(address = %self.address, "another machine answers for the address");
                }
                self.ownership.record_probe(is_answered, self.now());
            }
            Err(error) => {
                let sentence = format!("{} cannot be asked who has it: {error}", link.name);
                self.back_off(&sentence);
            }
        }
    }

    fn announce(&mut self) {
        let told = self.interface.as_ref().map(|link| link.announce(self.address));
        if let Some(Err(error)) = told {
            tracing::warn!(address = %self.address, %error, "cannot announce the address");
        }
        self.ownership.record_announcement();
    }

    async fn write_lease(&mut self, write: &LeaseWrite) {
        if matches!(write, LeaseWrite::HandOver(_) | LeaseWrite::Release) {
            self.remove_address();
        }
        let asked = self.now();
        let names = (&*self.name, &*self.config.node);
        let written = address_lease::write_lease(&self.api, names, self.lease.as_ref(), write);
        let (outcome, lease) =
            timeout(API_TIMEOUT, written).await.unwrap_or((LeaseWriteOutcome::Unavailable, None));
        if let Some(lease) = lease {
            self.observe_lease(lease);
        }
        self.ownership.record_write(write, outcome, asked, self.now());
    }
}
