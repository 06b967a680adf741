//! Addresses of a pool on the interfaces of nodes: each is carried by one node at a time, which tells the others on the
//! link; when it dies, another one does.
//!
//! `claim` decides; here is done what it asks for.

/// Who is to carry an address, and until when.
mod claim;
/// Which node is the better place.
mod standing;
/// The Lease of an address.
mod record;
/// The kernel's side of an address.
mod link;
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

use crate::Cluster;
use claim::{Carry, Claim, Moment, Outcome, Step, Write};
use link::Link;
use standing::Standing;

/// How long the API server may take to answer: it is asked each second.
const PATIENCE: Duration = Duration::from_millis(800);
/// Longer than anything takes that is decided and then done, unless the process was stopped in between.
const STOPPED: Duration = Duration::from_millis(100);
/// Before an interface that failed us is tried again.
const REST: Duration = Duration::from_secs(10);

/// How many endpoints behind each address are on which node; only addresses that are served here, and nodes that could
/// carry them.
pub type Near = BTreeMap<IpAddr, BTreeMap<String, usize>>;

/// Where addresses are announced.
#[derive(Clone, Debug)]
pub struct Announcing {
    /// The node's name.
    pub node: String,
    /// Where the Leases are.
    pub namespace: String,
    /// The interface that carries addresses; `None`: the one on whose network an address is.
    pub interface: Option<String>,
}

/// The Leases of addresses by name; `None`: they have not been told yet.
type Leases = Option<BTreeMap<String, Lease>>;

/// Carries addresses as long as somebody tells which; then gives them up.
pub async fn announce(cluster: &Cluster, announcing: &Announcing, mut places: Receiver<Near>) {
    let api = Api::namespaced(cluster.client.clone(), &announcing.namespace);
    let (tell, leases) = channel(None);
    let watching = tokio::spawn(watch(api.clone(), tell));
    let begun = Instant::now();
    let mut carriers = BTreeMap::new();
    loop {
        let addresses: Vec<_> = places.borrow_and_update().keys().copied().collect();
        for address in addresses {
            carriers.entry(address).or_insert_with(|| {
                let carrier = Carrier {
                    address,
                    name: record::name(address),
                    announcing: announcing.clone(),
                    api: api.clone(),
                    places: places.clone(),
                    leases: leases.clone(),
                    claim: Claim::new(announcing.node.clone()),
                    begun,
                    lease: None,
                    was_told: false,
                    link: None,
                    is_carried: false,
                    is_failing: false,
                    is_contested: false,
                    rests_until: Moment::ZERO,
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
async fn watch(api: Api<Lease>, tell: Sender<Leases>) {
    let config = Config::default().labels(record::SELECTOR);
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
struct Carrier {
    address: IpAddr,
    /// Of its Lease.
    name: String,
    announcing: Announcing,
    api: Api<Lease>,
    places: Receiver<Near>,
    leases: Receiver<Leases>,
    claim: Claim,
    begun: Instant,
    /// As it was seen last.
    lease: Option<Lease>,
    /// Whether the watch has told of it.
    was_told: bool,
    link: Option<Link>,
    is_carried: bool,
    is_failing: bool,
    /// Somebody else on the link has answered for it.
    is_contested: bool,
    /// Nothing is tried before.
    rests_until: Moment,
}

impl Carrier {
    async fn run(mut self) {
        let mut is_over = false;
        loop {
            self.follow_lease();
            if is_over {
                self.claim.stand(None, self.now());
            } else {
                self.follow_places();
            }
            self.settle();
            match self.claim.next(self.now()) {
                Step::Wait(_) if is_over => return,
                Step::Wait(until) => is_over = self.wait(until).await,
                Step::Ask => self.ask().await,
                Step::Tell => self.tell(),
                Step::Write(write) => self.write(&write).await,
            }
        }
    }

    /// Until that moment, or until something new is known; true: it is over.
    async fn wait(&mut self, until: Moment) -> bool {
        // A rest ends too, though `claim` knows nothing of it.
        let rest = Some(self.rests_until).filter(|rest| *rest > self.now());
        let until = self.begun.checked_add(rest.map_or(until, |rest| rest.min(until)));
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
            told = self.places.changed() => told.is_err(),
        }
    }

    fn now(&self) -> Moment {
        self.begun.elapsed()
    }

    /// What the watch has told, unless we know better: it may be late.
    fn follow_lease(&mut self) {
        let news = {
            let leases = self.leases.borrow_and_update();
            let Some(leases) = &*leases else { return };
            let told = leases.get(&self.name);
            let was_told = std::mem::replace(&mut self.was_told, told.is_some());
            let is_news = match told {
                Some(lease) => record::is_newer(lease, self.lease.as_ref()),
                // One that we have made may not have been told of yet.
                None => was_told || self.lease.is_none(),
            };
            is_news.then(|| told.cloned())
        };
        if let Some(lease) = news {
            self.see(lease);
        }
    }

    fn see(&mut self, lease: Option<Lease>) {
        self.claim.see(lease.as_ref().map(record::said), self.now());
        self.lease = lease;
    }

    fn follow_places(&mut self) {
        let endpoints = self.places.borrow_and_update().get(&self.address).cloned();
        let now = self.now();
        let endpoints = endpoints.filter(|_| now >= self.rests_until && self.find_link());
        let address = self.address;
        self.claim.stand(endpoints.map(|endpoints| Standing { address, endpoints }), now);
    }

    /// Whether there is an interface to carry it.
    fn find_link(&mut self) -> bool {
        if self.link.is_none() || self.is_failing {
            match Link::find(self.address, self.announcing.interface.as_deref()) {
                Ok(link) => self.link = Some(link),
                Err(sentence) => self.fail(&sentence),
            }
        }
        self.link.is_some()
    }

    /// Lets others carry it for a while.
    fn fail(&mut self, sentence: &str) {
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::error!(address = %self.address, "cannot carry the address: {sentence}");
        }
        self.rests_until = self.now() + REST;
        self.claim.stand(None, self.now());
    }

    /// Makes of the interface what is decided.
    fn settle(&mut self) {
        let now = self.now();
        match self.claim.carry(now) {
            Carry::AsItIs => {}
            Carry::Not => self.drop_address(),
            Carry::For(seconds) => self.carry(seconds, now),
        }
    }

    fn carry(&mut self, seconds: u32, now: Moment) {
        let Some(link) = &self.link else { return };
        match link.carry(self.address, seconds) {
            Ok(()) => self.claim.carried(seconds, now),
            Err(error) => {
                let sentence = format!("{} does not take it: {error}", link.name);
                self.fail(&sentence);
                return self.drop_address();
            }
        }
        (self.is_failing, self.is_contested) = (false, false);
        if !std::mem::replace(&mut self.is_carried, true) {
            tracing::info!(address = %self.address, interface = link.name, "carries the address");
        }
        if self.now() > now + STOPPED {
            // The kernel was told too late: what was decided may no longer hold.
            self.drop_address();
        }
    }

    fn drop_address(&mut self) {
        if !std::mem::take(&mut self.is_carried) {
            return;
        }
        self.claim.carried(0, self.now());
        let Some(link) = &self.link else { return };
        match link.drop(self.address) {
            Ok(()) => tracing::info!(address = %self.address, "no longer carries the address"),
            // The kernel does so by itself.
            Err(error) => {
                tracing::warn!(address = %self.address, %error, "cannot drop the address")
            }
        }
        // The interface may be another one next time.
        self.link = None;
    }

    async fn ask(&mut self) {
        let Some(link) = &self.link else { return self.claim.stand(None, self.now()) };
        match link.ask(self.address).await {
            Ok(is_answered) => {
                // Once, not each second.
                if is_answered && !std::mem::replace(&mut self.is_contested, is_answered) {
                    tracing::warn!(address = %self.address, "another machine answers for the address");
                }
                self.claim.hear(is_answered, self.now());
            }
            Err(error) => {
                let sentence = format!("{} cannot be asked who has it: {error}", link.name);
                self.fail(&sentence);
            }
        }
    }

    fn tell(&mut self) {
        let told = self.link.as_ref().map(|link| link.tell(self.address));
        if let Some(Err(error)) = told {
            tracing::warn!(address = %self.address, %error, "cannot announce the address");
        }
        self.claim.told();
    }

    async fn write(&mut self, write: &Write) {
        if matches!(write, Write::Hand(_) | Write::Leave) {
            self.drop_address();
        }
        let asked = self.now();
        let names = (&*self.name, &*self.announcing.node);
        let written = record::write(&self.api, names, self.lease.as_ref(), write);
        let (outcome, lease) = timeout(PATIENCE, written).await.unwrap_or((Outcome::Silent, None));
        if let Some(lease) = lease {
            self.see(lease);
        }
        self.claim.wrote(write, outcome, asked, self.now());
    }
}
