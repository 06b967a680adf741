//! Addresses that are announced by BGP: each is on the loopback interface before a route to it is announced, and stays
//! there for a while after the route has been withdrawn.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use bgp::{BgpCommunity, BgpSpeaker, PeerReport, PeerSettings, RouteAttributes, RouteTable};
use gateway::load_balancer::BgpAttributes;
use gateway::objects::RouteCommunity;
use kube::{EventObject, EventRecorder, EventReporter, ObjectEvent};
use tokio::sync::watch::{Receiver, Sender};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::admin::AddressRoute;

/// Time for which the kernel keeps an address without this process, and the interval of its renewal.
const ADDRESS_LIFETIME_SECONDS: u32 = 30;
const RENEWAL_INTERVAL: Duration = Duration::from_secs(10);
/// Interval of looks at the time and at the sessions.
const TICK: Duration = Duration::from_secs(1);

/// The addresses of this node that are announced by BGP.
pub(super) struct RouteAnnouncer {
    pub(super) speaker: BgpSpeaker,
    /// Time from a withdrawal until the address is removed, and until sessions end.
    pub(super) withdraw_delay: Duration,
    pub(super) reports: Sender<Vec<PeerReport>>,
    /// Events of BgpPeers, and the node that is named in them.
    pub(super) events: EventRecorder,
    pub(super) node: String,
    addresses: BTreeMap<IpAddr, InstalledAddress>,
    /// Addresses whose failure has been logged.
    failing: BTreeSet<IpAddr>,
}

/// An address on the loopback interface.
struct InstalledAddress {
    renewed_at: Instant,
    /// Time of its removal, if its route has been withdrawn.
    remove_at: Option<Instant>,
}

impl RouteAnnouncer {
    pub(super) fn new(
        speaker: BgpSpeaker,
        withdraw_delay: Duration,
        reports: Sender<Vec<PeerReport>>,
        (events, node): (EventRecorder, String),
    ) -> Self {
        let (addresses, failing) = Default::default();
        Self { speaker, withdraw_delay, reports, events, node, addresses, failing }
    }

    /// Announces the routes in the channel to the routers in the other, until the former closes. Then it withdraws all
    /// routes, waits, and closes the sessions.
    pub(super) async fn run(
        mut self,
        mut routes: Receiver<Vec<AddressRoute>>,
        mut routers: Receiver<Vec<PeerSettings>>,
    ) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut has_routers = true;
        loop {
            tokio::select! {
                changed = routes.changed() => {
                    if changed.is_err() {
                        break;
                    }
                }
                changed = routers.changed(), if has_routers => match changed {
                    Ok(()) => self.speaker.set_peers(routers.borrow_and_update().clone()),
                    Err(_) => has_routers = false,
                },
                _ = ticks.tick() => {}
            }
            let wanted = routes.borrow_and_update().clone();
            self.update(&wanted, Instant::now());
        }
        if self.addresses.is_empty() && self.reports.borrow().is_empty() {
            return;
        }
        self.speaker.set_routes(RouteTable::new());
        sleep(self.withdraw_delay).await;
        self.speaker.shut_down("sheave announce ends").await;
        for address in self.addresses.into_keys() {
            remove(address);
        }
    }

    /// Makes what is announced and installed equal to what is wanted.
    fn update(&mut self, wanted: &[AddressRoute], now: Instant) {
        let mut routes = RouteTable::new();
        for route in wanted {
            match self.install(route.address, now) {
                Ok(()) => {
                    self.failing.remove(&route.address);
                    routes.insert(route.address, attributes(&route.attributes));
                }
                Err(error) => {
                    if self.failing.insert(route.address) {
                        let address = route.address;
                        tracing::error!(%address, %error, "cannot install the address: no route to it is announced");
                    }
                }
            }
        }
        let withdraw_delay = self.withdraw_delay;
        self.addresses.retain(|address, installed| {
            if routes.contains_key(address) {
                return true;
            }
            let remove_at = *installed.remove_at.get_or_insert(now + withdraw_delay);
            if remove_at > now {
                return true;
            }
            remove(*address);
            false
        });
        self.failing.retain(|address| wanted.iter().any(|it| it.address == *address));
        self.speaker.set_routes(routes);
        let reports = self.speaker.reports();
        self.events.set_standing("bgp", session_events(&reports, &self.node));
        self.reports.send_if_modified(|before| std::mem::replace(before, reports) != *before);
    }

    /// Installs an address, or makes the kernel keep it for longer.
    fn install(&mut self, address: IpAddr, now: Instant) -> io::Result<()> {
        if let Some(installed) = self.addresses.get_mut(&address) {
            installed.remove_at = None;
            if now < installed.renewed_at + RENEWAL_INTERVAL {
                return Ok(());
            }
        }
        kube::install_loopback_address(address, ADDRESS_LIFETIME_SECONDS)?;
        let before =
            self.addresses.insert(address, InstalledAddress { renewed_at: now, remove_at: None });
        if before.is_none() {
            tracing::info!(%address, "announces a route to the address");
        }
        Ok(())
    }
}

/// Returns an Event for each router without a session.
fn session_events(reports: &[PeerReport], node: &str) -> Vec<ObjectEvent> {
    let failing = reports.iter().filter(|report| !report.error.is_empty());
    failing
        .map(|report| ObjectEvent {
            object: EventObject {
                api_version: "sheave.dev/v1alpha1",
                kind: "BgpPeer",
                namespace: String::new(),
                name: report.name.clone(),
                uid: None,
            },
            is_warning: true,
            reason: "SessionFailed",
            action: "Announce",
            message: format!("node {node} has no BGP session: {}", report.error),
            reporter: EventReporter::Process,
        })
        .collect()
}

fn remove(address: IpAddr) {
    tracing::info!(%address, "has withdrawn the route to the address");
    if let Err(error) = kube::remove_loopback_address(address) {
        tracing::warn!(%address, %error, "cannot remove the address: the kernel removes it later");
    }
}

fn attributes(of: &BgpAttributes) -> RouteAttributes {
    let community = |community: &RouteCommunity| match *community {
        RouteCommunity::Standard(asn, number) => BgpCommunity::Standard(asn, number),
        RouteCommunity::Large(asn, first, second) => BgpCommunity::Large(asn, first, second),
    };
    RouteAttributes {
        communities: of.communities.iter().map(community).collect(),
        local_preference: of.local_preference,
    }
}
