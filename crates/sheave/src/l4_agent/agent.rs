//! The agent of one node: brings the data path to what the objects and the links of the node ask for.
//!
//! Each pass reads the node anew and changes what differs. What was found before stays in use until the node says
//! otherwise, so that a neighbour that the kernel forgets ends no connection.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use l4::{
    DataPath, DataPathConfig, DeliveryMode, DesiredState, EndpointPlace, EndpointValue, L4Error,
    L4Table, MacAddress, MapContents, NodeSettings, NodeWay, PodLink, ProgramHook, ServiceSpec,
    TransportProtocol, VipAnnouncement,
};
use nix::net::if_::if_nametoindex;
use thiserror::Error;
use tokio::time::Instant;

use super::desired_state::{KnownPlaces, desired_state};
use super::netlink::{RouteSocket, TunnelDevice};
use super::network_view::{NetworkView, NodeLinkKind, PlaceLookup, RouteToAddress};
use super::service_plan::{PlanFinding, PlannedPort, ServicePlan};
use crate::flags::DeliveryChoice;

/// Name of the VXLAN device.
pub(super) const TUNNEL_NAME: &str = "sheave-l4";
/// Bytes that VXLAN adds to a packet, by the IP version of the nodes: headers of Ethernet, IP, UDP and VXLAN.
const TUNNEL_OVERHEAD_IPV4: u32 = 50;
const TUNNEL_OVERHEAD_IPV6: u32 = 70;
/// Pause between two questions to the link for the same neighbour.
const PROBE_PAUSE: Duration = Duration::from_secs(1);

/// Time in which a neighbour usually answers; what it prevents is not logged before.
const ANSWER_TIME: Duration = Duration::from_secs(3);

/// Settings of the agent.
#[derive(Clone, Debug)]
pub(super) struct AgentConfig {
    pub(super) node: String,
    /// Names of the uplinks; empty: those of the default routes and of the node's addresses.
    pub(super) uplinks: Vec<String>,
    pub(super) mode: DeliveryChoice,
    /// True if this node answers ARP and neighbor discovery for all addresses.
    pub(super) announces: bool,
    pub(super) vxlan_port: u16,
}

/// Error of one pass.
#[derive(Debug, Error)]
pub(super) enum AgentError {
    #[error("cannot read the links of this node")]
    Network(#[from] io::Error),
    #[error("cannot change the data path")]
    DataPath(#[from] L4Error),
}

/// The agent of this node.
pub(crate) struct L4Agent {
    pub(super) config: AgentConfig,
    pub(super) data_path: DataPath,
    pub(super) table: L4Table,
    netlink: RouteSocket,
    pub(super) plan: ServicePlan,
    /// The state that is in force; `None` until the first pass, and after a failed change.
    pub(super) desired: Option<DesiredState>,
    known: KnownLinks,
    settings: Option<NodeSettings>,
    attached: BTreeSet<(u32, ProgramHook)>,
    /// True if the maps of other versions are gone.
    has_forgotten_layouts: bool,
    pub(super) findings: BTreeSet<PlanFinding>,
    /// When each finding was first there, and if it was logged.
    seen: BTreeMap<PlanFinding, (Instant, bool)>,
    /// True if a neighbour has not answered yet.
    is_unresolved: bool,
    probed: BTreeMap<(u32, IpAddr), Instant>,
    /// Passes that changed the maps.
    pub(super) changes: u64,
    /// Passes that failed.
    pub(super) failures: u64,
}

/// Links of pods and peers as they were found before.
#[derive(Default)]
struct KnownLinks {
    pods: BTreeMap<IpAddr, PodLink>,
    peers: BTreeMap<IpAddr, MacAddress>,
}

impl KnownLinks {
    /// Returns what the maps of an earlier process say.
    fn of_maps(contents: &MapContents) -> Self {
        let link = |it: &EndpointValue| PodLink {
            ifindex: it.ifindex,
            pod_mac: it.mac,
            node_mac: it.source_mac,
        };
        let pods = contents.endpoints.values().filter(|it| is_local(it));
        let peers = contents.peers.iter().flat_map(|(key, peer)| {
            [peer.ipv4, peer.ipv6].map(|address| (IpAddr::from(address), key.mac))
        });
        Self {
            pods: pods.map(|it| (it.address.into(), link(it))).collect(),
            peers: peers.filter(|(address, _)| !address.is_unspecified()).collect(),
        }
    }
}

fn is_local(endpoint: &EndpointValue) -> bool {
    endpoint.mode == DeliveryMode::Local as u8 && endpoint.ifindex != 0
}

impl L4Agent {
    /// Opens the data path, and continues from what an earlier process has left.
    pub(super) fn open(
        config: AgentConfig,
        data_path: &DataPathConfig,
    ) -> Result<Self, AgentError> {
        let data_path = DataPath::open(data_path)?;
        let contents = data_path.contents()?;
        let attached = data_path.attachments().collect();
        Ok(Self {
            config,
            known: KnownLinks::of_maps(&contents),
            table: L4Table::new(contents),
            data_path,
            netlink: RouteSocket::open()?,
            plan: ServicePlan::default(),
            desired: None,
            settings: None,
            attached,
            has_forgotten_layouts: false,
            findings: BTreeSet::new(),
            seen: BTreeMap::new(),
            is_unresolved: false,
            probed: BTreeMap::new(),
            changes: 0,
            failures: 0,
        })
    }

    /// True if a neighbour has not answered yet, so that a pass is due soon.
    pub(super) const fn is_unresolved(&self) -> bool {
        self.is_unresolved
    }

    /// Brings the data path to the present plan and links.
    pub(super) fn reconcile(&mut self) -> Result<(), AgentError> {
        let result = self.pass();
        if result.is_err() {
            self.failures += 1;
        }
        result
    }

    /// Returns the name of a service as `namespace/service`.
    pub(super) fn service_name(&self, address: SocketAddr, protocol: TransportProtocol) -> &str {
        let key = |it: &PlannedPort| (it.address, it.protocol as u8);
        let place = self.plan.ports.binary_search_by_key(&(address, protocol as u8), key);
        place.map_or("", |at| &self.plan.ports[at].service)
    }

    /// True if all connections of a client's address go to the same endpoint of a service.
    pub(super) fn has_client_affinity(
        &self,
        address: SocketAddr,
        protocol: TransportProtocol,
    ) -> bool {
        let is_it = |it: &&ServiceSpec| it.address == address && it.protocol == protocol;
        let mut services = self.desired.iter().flat_map(|it| &it.services);
        services.find(is_it).is_some_and(|it| it.has_client_affinity)
    }

    /// Returns the place of an endpoint.
    pub(super) fn place_of(&self, endpoint: SocketAddr) -> Option<&EndpointPlace> {
        let services = self.desired.iter().flat_map(|it| &it.services);
        let mut endpoints = services.flat_map(|it| &it.endpoints);
        endpoints.find(|it| it.address == endpoint).map(|it| &it.place)
    }

    /// Returns the endpoints in the maps, by number.
    pub(super) fn endpoints_in_use(&self) -> impl Iterator<Item = (u32, SocketAddr)> {
        let endpoints = self.table.contents().endpoints.iter();
        let in_use = endpoints.filter(|(_, it)| it.mode != DeliveryMode::None as u8);
        in_use.map(|(id, it)| (*id, SocketAddr::new(it.address.into(), it.port.into())))
    }

    fn pass(&mut self) -> Result<(), AgentError> {
        let view = self.netlink.view()?;
        self.is_unresolved = false;
        self.probed.retain(|_, at| at.elapsed() < PROBE_PAUSE);
        let own = self.plan.nodes.get(&self.config.node).cloned().unwrap_or_default();
        let uplinks: Vec<_> = view
            .uplinks(&self.config.uplinks, &own)
            .into_iter()
            .map(|(index, link)| (index, link.name.clone()))
            .collect();
        let mut places = KnownPlaces {
            own: view.own_addresses().collect(),
            announced: self.announcements(&view, &uplinks),
            ..KnownPlaces::default()
        };
        let tunnel = self.ways(&view, &mut places);
        self.local_places(&view, &mut places);
        self.set_settings(&view, &own, tunnel, &places)?;
        self.attach_before(&view, tunnel, &mut places)?;
        let (desired, mut findings) = desired_state(&self.plan, &self.config.node, &places);
        if uplinks.is_empty() {
            let message = "it has no uplink: name one with --uplink";
            findings.insert(PlanFinding::new(&self.config.node, message));
        }
        self.apply(desired)?;
        self.attach_uplinks(&view, &uplinks)?;
        self.report(findings);
        Ok(())
    }

    /// Makes the maps equal to the desired state.
    fn apply(&mut self, desired: DesiredState) -> Result<(), AgentError> {
        if self.desired.as_ref() == Some(&desired) {
            return Ok(());
        }
        let changes = self.table.update(&desired)?;
        if let Err(error) = self.data_path.apply(&changes) {
            self.desired = None;
            self.table = L4Table::new(self.data_path.contents()?);
            return Err(error.into());
        }
        let endpoints: usize = desired.services.iter().map(|it| it.endpoints.len()).sum();
        tracing::info!(
            addresses = desired.vips.len(),
            services = desired.services.len(),
            endpoints,
            changes = changes.len(),
            "the data path is up to date"
        );
        self.changes += 1;
        self.desired = Some(desired);
        Ok(())
    }

    /// Logs once what is not served. While neighbours are asked, it may be served in a moment.
    fn report(&mut self, findings: BTreeSet<PlanFinding>) {
        self.seen.retain(|finding, _| findings.contains(finding));
        for finding in &findings {
            let seen = self.seen.entry(finding.clone()).or_insert_with(|| (Instant::now(), false));
            let is_due = !self.is_unresolved || seen.0.elapsed() >= ANSWER_TIME;
            if is_due && !mem::replace(&mut seen.1, true) {
                let PlanFinding { object, message } = finding;
                tracing::warn!(object, reason = message, "not served by the data path");
            }
        }
        self.findings = findings;
    }

    /// Returns how each address is announced.
    fn announcements(
        &self,
        view: &NetworkView,
        uplinks: &[(u32, String)],
    ) -> BTreeMap<IpAddr, VipAnnouncement> {
        if !self.config.announces {
            return BTreeMap::new();
        }
        let announcement = |vip: IpAddr| {
            let on_network = uplinks.iter().find(|(index, _)| view.is_on_network(*index, vip));
            let (index, _) = on_network.or_else(|| uplinks.first())?;
            Some((vip, VipAnnouncement::Announced(view.links.get(index)?.mac?)))
        };
        self.plan.ports.iter().filter_map(|it| announcement(it.address.ip())).collect()
    }

    /// Finds the links of the endpoints on this node.
    fn local_places(&mut self, view: &NetworkView, places: &mut KnownPlaces) {
        let mut seen = BTreeMap::new();
        for address in local_endpoints(&self.plan, &self.config.node) {
            let route = self.netlink.route(address);
            let known = self.known.pods.get(&address).copied();
            let place = match view.pod_place(address, route, known) {
                PlaceLookup::Found(place) => Ok(place),
                PlaceLookup::Unresolved { ifindex, known } => {
                    self.probe(ifindex, address);
                    known.ok_or_else(|| "it has not answered on its link yet".to_owned())
                }
                PlaceLookup::Absent(reason) => Err(reason),
            };
            if let Ok(EndpointPlace::Local(link)) = &place {
                seen.insert(address, *link);
            }
            places.local.insert(address, place);
        }
        self.known.pods = seen;
    }

    /// Finds the ways to the other nodes. Returns the index of the tunnel, if one of them needs it.
    fn ways(&mut self, view: &NetworkView, places: &mut KnownPlaces) -> Option<u32> {
        let others = self.plan.nodes.iter().filter(|(name, _)| **name != self.config.node);
        let others: Vec<_> = others.map(|(name, it)| (name.clone(), it.clone())).collect();
        let mut peers = BTreeMap::new();
        let mut tunnel = None;
        for (name, addresses) in others {
            let routed = addresses.iter().find_map(|it| Some((*it, self.netlink.route(*it)?)));
            let way = match routed {
                None => Err(format!("this node has no route to the node {name}")),
                Some((address, route)) => self.way(view, &name, address, route, &mut tunnel),
            };
            if let (Some((address, _)), Ok(NodeWay::Layer2 { mac, .. })) = (routed, &way) {
                peers.insert(address, *mac);
            }
            places.ways.insert(name, way);
        }
        self.known.peers = peers;
        tunnel
    }

    fn way(
        &mut self,
        view: &NetworkView,
        name: &str,
        address: IpAddr,
        route: RouteToAddress,
        tunnel: &mut Option<u32>,
    ) -> Result<NodeWay, String> {
        let link = view.links.get(&route.ifindex);
        let is_on_segment = !route.has_gateway
            && link.is_some_and(|it| it.is_ethernet && it.kind != NodeLinkKind::Vxlan);
        match self.config.mode {
            DeliveryChoice::FullNat => {
                let pod = first_endpoint(&self.plan, name).and_then(|it| self.netlink.route(it));
                Ok(NodeWay::FullNat { ifindex: pod.unwrap_or(route).ifindex })
            }
            DeliveryChoice::Layer2 if !is_on_segment => {
                Err(format!("the node {name} is not on the same segment"))
            }
            DeliveryChoice::Auto | DeliveryChoice::Layer2 if is_on_segment => {
                self.layer2_way(view, name, address, route.ifindex)
            }
            DeliveryChoice::Auto | DeliveryChoice::Layer2 | DeliveryChoice::Vxlan => {
                let underlay = link.map_or(1500, |it| it.mtu);
                self.vxlan_way(view, name, address, underlay, tunnel)
            }
        }
    }

    fn layer2_way(
        &mut self,
        view: &NetworkView,
        name: &str,
        address: IpAddr,
        ifindex: u32,
    ) -> Result<NodeWay, String> {
        let known = self.known.peers.get(&address).copied();
        let mac = match view.peer_mac(ifindex, address, known) {
            PlaceLookup::Found(mac) => Some(mac),
            PlaceLookup::Unresolved { ifindex, known } => {
                self.probe(ifindex, address);
                known
            }
            PlaceLookup::Absent(_) => None,
        };
        let source_mac = view.links.get(&ifindex).and_then(|it| it.mac);
        match (source_mac, mac) {
            (Some(source_mac), Some(mac)) => Ok(NodeWay::Layer2 { ifindex, source_mac, mac }),
            _ => Err(format!("the node {name} has not answered on the link yet")),
        }
    }

    fn vxlan_way(
        &mut self,
        view: &NetworkView,
        name: &str,
        remote: IpAddr,
        underlay: u32,
        tunnel: &mut Option<u32>,
    ) -> Result<NodeWay, String> {
        let overhead = if remote.is_ipv4() { TUNNEL_OVERHEAD_IPV4 } else { TUNNEL_OVERHEAD_IPV6 };
        let mtu = underlay.saturating_sub(overhead).clamp(576, u32::from(u16::MAX));
        let ifindex = match *tunnel {
            Some(ifindex) => ifindex,
            None => self.open_tunnel(view, mtu)?,
        };
        *tunnel = Some(ifindex);
        Ok(NodeWay::Vxlan {
            ifindex,
            source_mac: tunnel_mac(&self.config.node),
            mac: tunnel_mac(name),
            remote,
            mtu: mtu as u16,
        })
    }

    /// Creates the VXLAN device, or adjusts it. Returns its index.
    fn open_tunnel(&mut self, view: &NetworkView, mtu: u32) -> Result<u32, String> {
        let (mac, port) = (tunnel_mac(&self.config.node), self.config.vxlan_port);
        let device = TunnelDevice { name: TUNNEL_NAME, mac, mtu, port };
        let failed = |error: io::Error| format!("cannot make the device {TUNNEL_NAME}: {error}");
        let Some(ifindex) = view.index_of(TUNNEL_NAME) else {
            self.netlink.add_tunnel(&device).map_err(failed)?;
            return if_nametoindex(TUNNEL_NAME).map_err(|error| failed(error.into()));
        };
        let link = &view.links[&ifindex];
        if link.kind != NodeLinkKind::Vxlan {
            return Err(format!("the device {TUNNEL_NAME} exists and is no VXLAN"));
        }
        if !link.is_up || link.mac != Some(mac) || link.mtu != mtu {
            self.netlink.adjust_tunnel(ifindex, &device).map_err(failed)?;
        }
        Ok(ifindex)
    }

    fn probe(&mut self, ifindex: u32, address: IpAddr) {
        self.is_unresolved = true;
        if self.probed.contains_key(&(ifindex, address)) {
            return;
        }
        self.probed.insert((ifindex, address), Instant::now());
        if let Err(error) = self.netlink.probe(ifindex, address) {
            tracing::debug!(%address, %error, "cannot ask the link for a neighbour");
        }
    }

    fn set_settings(
        &mut self,
        view: &NetworkView,
        own: &[IpAddr],
        tunnel: Option<u32>,
        places: &KnownPlaces,
    ) -> Result<(), AgentError> {
        let of_version = |is_ipv4: bool| {
            let all = own.iter().copied().chain(view.own_addresses());
            all.into_iter().find(|it| it.is_ipv4() == is_ipv4 && is_usable_source(*it))
        };
        let ipv4 = of_version(true).unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let ipv6 = of_version(false).unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
        let mtus = places.ways.values().filter_map(|way| match way {
            Ok(NodeWay::Vxlan { mtu, .. }) => Some(*mtu),
            _ => None,
        });
        let mut settings = NodeSettings::default();
        settings.nat_source = [ipv4.into(), ipv6.into()];
        settings.tunnel_mtu = mtus.min().unwrap_or(settings.tunnel_mtu);
        // A peer may still send through a tunnel that this node needs no longer.
        settings.tunnel_ifindex = tunnel.or_else(|| view.index_of(TUNNEL_NAME)).unwrap_or_default();
        if self.settings != Some(settings) {
            self.data_path.set_settings(&settings)?;
            self.settings = Some(settings);
        }
        Ok(())
    }

    /// Attaches what must be there before packets are delivered: the programs for replies, and that of the tunnel. An
    /// endpoint whose replies cannot be translated has no place.
    fn attach_before(
        &mut self,
        view: &NetworkView,
        tunnel: Option<u32>,
        places: &mut KnownPlaces,
    ) -> Result<(), AgentError> {
        if self.attached.iter().any(|(index, _)| !view.links.contains_key(index)) {
            self.data_path.forget_gone_interfaces()?;
            self.attached = self.data_path.attachments().collect();
        }
        if let Some(tunnel) = tunnel {
            self.attach(TUNNEL_NAME, tunnel, ProgramHook::LbIn)?;
        }
        for place in places.local.values_mut() {
            let Ok(EndpointPlace::Local(pod)) = place else { continue };
            let Some(link) = view.links.get(&pod.ifindex) else { continue };
            if let Err(error) = self.attach(&link.name, pod.ifindex, ProgramHook::PodOut) {
                let interface = &link.name;
                *place = Err(format!("no program can be attached to {interface}: {error}"));
            }
        }
        let replies = places.ways.values().filter_map(|way| match way {
            Ok(NodeWay::FullNat { ifindex }) => Some(*ifindex),
            _ => None,
        });
        for ifindex in replies.collect::<BTreeSet<_>>() {
            if let Some(link) = view.links.get(&ifindex) {
                self.attach(&link.name, ifindex, ProgramHook::LbIn)?;
            }
        }
        Ok(())
    }

    fn attach_uplinks(
        &mut self,
        view: &NetworkView,
        uplinks: &[(u32, String)],
    ) -> Result<(), AgentError> {
        for (index, name) in uplinks {
            self.attach(name, *index, ProgramHook::NodeOut)?;
            self.attach(name, *index, ProgramHook::LbIn)?;
        }
        if !mem::replace(&mut self.has_forgotten_layouts, true) {
            self.data_path.forget_other_layouts()?;
        }
        // Only uplinks have the program for replies of the node.
        let is_wanted = |index: u32| uplinks.iter().any(|(it, _)| *it == index);
        let others = self.attached.iter().filter(|(_, hook)| *hook == ProgramHook::NodeOut);
        let others: Vec<_> =
            others.map(|(index, _)| *index).filter(|index| !is_wanted(*index)).collect();
        for index in others {
            let Some(link) = view.links.get(&index) else { continue };
            for hook in [ProgramHook::LbIn, ProgramHook::NodeOut] {
                self.data_path.detach(&link.name, hook)?;
                self.attached.remove(&(index, hook));
            }
            tracing::info!(interface = link.name, "no longer an uplink");
        }
        Ok(())
    }

    fn attach(&mut self, name: &str, index: u32, hook: ProgramHook) -> Result<(), L4Error> {
        if self.attached.contains(&(index, hook)) {
            return Ok(());
        }
        let method = self.data_path.attach(name, hook)?;
        self.attached.insert((index, hook));
        tracing::info!(interface = name, program = hook.program(), ?method, "attached");
        Ok(())
    }

    /// Removes the programs, the maps and the tunnel.
    pub(super) fn remove(mut self) -> Result<(), AgentError> {
        self.data_path.remove()?;
        if let Some(tunnel) = self.netlink.view()?.index_of(TUNNEL_NAME) {
            self.netlink.remove_link(tunnel)?;
        }
        Ok(())
    }
}

/// Returns the addresses of the endpoints on a node.
fn local_endpoints(plan: &ServicePlan, node: &str) -> BTreeSet<IpAddr> {
    let endpoints = plan.ports.iter().flat_map(|it| &it.endpoints);
    let local = endpoints.filter(|it| it.node.as_deref() == Some(node));
    local.map(|it| it.address.ip()).collect()
}

fn first_endpoint(plan: &ServicePlan, node: &str) -> Option<IpAddr> {
    local_endpoints(plan, node).into_iter().next()
}

fn is_usable_source(address: IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !address.is_loopback() && !is_link_local
}

/// Returns the MAC address of a node's VXLAN device: one that every node can compute from the name.
pub(super) fn tunnel_mac(node: &str) -> MacAddress {
    // FNV-1a, 64 bits.
    let hash = node.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let [a, b, c, d, e, ..] = hash.to_be_bytes();
    // Administered locally.
    [0x02, a, b, c, d, e]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunnels_of_nodes_have_addresses_of_their_own() {
        let macs: BTreeSet<_> = (0..1000).map(|it| tunnel_mac(&format!("node-{it}"))).collect();
        assert_eq!(macs.len(), 1000);
        assert!(macs.iter().all(|mac| mac[0] == 2));
    }
}
