//! From the desired state to the contents of the maps, and the changes between them in a safe order. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use balance::MaglevTable;

use crate::L4Error;
use crate::desired::{
    DesiredState, EndpointPlace, EndpointSpec, NodeSpec, NodeWay, ServiceSpec, VipAnnouncement,
};
use crate::layout::{
    DeliveryMode, ENDPOINT_DRAINING, ENDPOINT_HOST_NETWORK, ENDPOINT_NUMBERS, EndpointValue,
    MAX_ENDPOINTS, MAX_PEERS, MAX_SERVER_IDS, MAX_SERVICES, MAX_SOURCE_RANGES, MapAddress,
    NO_TABLE, NetworkPort, PeerKey, PeerValue, SERVICE_CLIENT_AFFINITY, SERVICE_QUIC,
    SERVICE_SOURCE_RANGES, ServerIdKey, ServiceKey, ServiceValue, SourceRange, TABLE_SIZE,
    VipValue,
};

/// Contents of the maps that user space writes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct MapContents {
    /// Virtual addresses.
    pub vips: BTreeMap<MapAddress, VipValue>,
    /// Services.
    pub services: BTreeMap<ServiceKey, ServiceValue>,
    /// Maglev tables by index.
    pub tables: BTreeMap<u32, Box<[u16]>>,
    /// Endpoints by number, those that were removed too: their number must not be used at once.
    pub endpoints: BTreeMap<u32, EndpointValue>,
    /// Endpoints by the server ID in their connection IDs.
    pub server_ids: BTreeMap<ServerIdKey, u32>,
    /// Clients of services that do not serve all.
    pub source_ranges: BTreeSet<SourceRange>,
    /// Nodes that forward packets to this one.
    pub peers: BTreeMap<PeerKey, PeerValue>,
}

/// One change of one map.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum MapChange {
    /// Adds or replaces an endpoint.
    PutEndpoint(u32, EndpointValue),
    /// Adds or replaces a server ID.
    PutServerId(ServerIdKey, u32),
    /// Adds clients of a service.
    AddSourceRange(SourceRange),
    /// Adds or replaces a peer.
    PutPeer(PeerKey, PeerValue),
    /// Replaces a Maglev table as a whole.
    SetTable(u32, Box<[u16]>),
    /// Adds or replaces a service.
    PutService(ServiceKey, ServiceValue),
    /// Adds or replaces a virtual address.
    PutVip(MapAddress, VipValue),
    /// Removes a virtual address.
    RemoveVip(MapAddress),
    /// Removes a service, which had this number.
    RemoveService(ServiceKey, u32),
    /// Frees a Maglev table.
    ClearTable(u32),
    /// Removes a peer.
    RemovePeer(PeerKey),
    /// Removes clients of a service.
    RemoveSourceRange(SourceRange),
    /// Removes a server ID.
    RemoveServerId(ServerIdKey),
    /// Ends an endpoint: its connections are chosen anew. The value keeps the generation.
    RemoveEndpoint(u32, EndpointValue),
}

/// The maps as they are, from which the next state is made.
#[derive(Debug, Default)]
pub struct L4Table {
    contents: MapContents,
    /// Members of each Maglev table, so that an unchanged one is not built again.
    members: BTreeMap<u32, Vec<(SocketAddr, u32)>>,
}

impl L4Table {
    /// Returns the table of maps that an earlier process has left.
    pub fn new(contents: MapContents) -> Self {
        Self { contents, members: BTreeMap::new() }
    }

    /// Returns the contents that the maps are to have.
    pub fn contents(&self) -> &MapContents {
        &self.contents
    }

    /// Moves to another state, and returns the changes in the order in which they are to be made: what an entry refers
    /// to is there before it, and goes after it.
    pub fn update(&mut self, desired: &DesiredState) -> Result<Vec<MapChange>, L4Error> {
        check(desired)?;
        let mut builder = ContentsBuilder::new(&self.contents, &self.members);
        builder.add_endpoints(desired)?;
        for service in &desired.services {
            builder.add_service(service);
        }
        builder.add_nodes(desired);
        let ContentsBuilder { next, members, .. } = builder;
        let changes = changes(&self.contents, &next);
        (self.contents, self.members) = (next, members);
        Ok(changes)
    }

    /// Returns the service of a key.
    pub fn service(
        &self,
        address: SocketAddr,
        protocol: crate::TransportProtocol,
    ) -> Option<&ServiceValue> {
        self.contents.services.get(&ServiceKey::new(address, protocol))
    }

    /// Returns the number of an endpoint.
    pub fn endpoint(&self, address: SocketAddr) -> Option<u32> {
        let is_it = |value: &EndpointValue| is_in_use(value) && socket_address(value) == address;
        self.contents.endpoints.iter().find(|(_, value)| is_it(value)).map(|(&id, _)| id)
    }
}

fn check(desired: &DesiredState) -> Result<(), L4Error> {
    bound("services", desired.services.len(), MAX_SERVICES)?;
    bound("virtual addresses", desired.vips.len(), MAX_SERVICES)?;
    bound("nodes", desired.nodes.len(), MAX_PEERS)?;
    let ranges = desired.services.iter().filter_map(|it| it.source_ranges.as_ref());
    bound("ranges of clients", ranges.map(Vec::len).sum(), MAX_SOURCE_RANGES)?;
    let mut seen = BTreeSet::new();
    for service in &desired.services {
        let vip = service.address;
        if !seen.insert((vip, service.protocol)) {
            return Err(L4Error::DuplicateService { vip, protocol: service.protocol });
        }
        let other = service.endpoints.iter().find(|it| it.address.is_ipv4() != vip.is_ipv4());
        if let Some(EndpointSpec { address: endpoint, .. }) = other {
            return Err(L4Error::MixedVersions { endpoint: *endpoint, vip });
        }
    }
    Ok(())
}

fn bound(what: &'static str, count: usize, limit: u32) -> Result<(), L4Error> {
    let limit = limit as usize;
    if count > limit { Err(L4Error::TooMany { what, count, limit }) } else { Ok(()) }
}

/// The next contents while they are made. Numbers stay; new ones are those that the old contents do not use.
struct ContentsBuilder<'a> {
    old: &'a MapContents,
    old_members: &'a BTreeMap<u32, Vec<(SocketAddr, u32)>>,
    next: MapContents,
    members: BTreeMap<u32, Vec<(SocketAddr, u32)>>,
    endpoint_ids: BTreeMap<SocketAddr, u32>,
    free_services: Box<dyn Iterator<Item = u32>>,
}

impl<'a> ContentsBuilder<'a> {
    fn new(old: &'a MapContents, old_members: &'a BTreeMap<u32, Vec<(SocketAddr, u32)>>) -> Self {
        let used: BTreeSet<u32> = old.services.values().map(|it| it.id).collect();
        Self {
            old,
            old_members,
            next: MapContents::default(),
            members: BTreeMap::new(),
            endpoint_ids: BTreeMap::new(),
            // As many again as there may be: all may change at once.
            free_services: Box::new((0..).filter(move |id| !used.contains(id))),
        }
    }

    /// Gives each endpoint its number, and removes those that are not desired.
    fn add_endpoints(&mut self, desired: &DesiredState) -> Result<(), L4Error> {
        let mut values = BTreeMap::new();
        for endpoint in desired.services.iter().flat_map(|it| &it.endpoints) {
            if let Some(value) = endpoint_value(endpoint, &desired.nodes) {
                values.insert(endpoint.address, value);
            }
        }
        bound("endpoints", values.len(), MAX_ENDPOINTS)?;
        for (&id, old) in &self.old.endpoints {
            if is_in_use(old)
                && let Some(value) = values.remove(&socket_address(old))
            {
                self.endpoint_ids.insert(socket_address(old), id);
                self.next
                    .endpoints
                    .insert(id, EndpointValue { generation: old.generation, ..value });
            } else {
                let removed =
                    EndpointValue { generation: old.generation, ..EndpointValue::default() };
                self.next.endpoints.insert(id, removed);
            }
        }
        self.number_new_endpoints(values)
    }

    /// Gives numbers to new endpoints. One that is in use is free only after the next change, when no table has it.
    fn number_new_endpoints(
        &mut self,
        values: BTreeMap<SocketAddr, EndpointValue>,
    ) -> Result<(), L4Error> {
        let old = self.old;
        let is_free = |id: &u32| old.endpoints.get(id).is_none_or(|value| !is_in_use(value));
        let mut free = (1..ENDPOINT_NUMBERS).filter(is_free);
        let count = values.len();
        for (address, value) in values {
            let Some(id) = free.next() else {
                return Err(L4Error::TooMany {
                    what: "new endpoints",
                    count,
                    limit: ENDPOINT_NUMBERS as usize,
                });
            };
            let generation =
                old.endpoints.get(&id).map_or(0, |it| it.generation).wrapping_add(1).max(1);
            self.endpoint_ids.insert(address, id);
            self.next.endpoints.insert(id, EndpointValue { generation, ..value });
        }
        Ok(())
    }

    fn add_service(&mut self, service: &ServiceSpec) {
        let key = ServiceKey::new(service.address, service.protocol);
        let kept = self.old.services.get(&key).map(|it| it.id);
        let Some(id) = kept.or_else(|| self.free_services.next()) else { return };
        let members = self.members_of(service);
        let (table, endpoint) = match members.as_slice() {
            [] => (NO_TABLE, 0),
            [(address, _)] => (NO_TABLE, self.endpoint_ids[address]),
            _ => {
                self.add_table(id, members);
                (id, 0)
            }
        };
        let mut flags = 0;
        if service.has_client_affinity {
            flags |= SERVICE_CLIENT_AFFINITY;
        }
        if let Some(length) = service.quic_server_id_length {
            flags |= SERVICE_QUIC;
            self.add_server_ids(id, length, service);
        }
        if let Some(ranges) = &service.source_ranges {
            flags |= SERVICE_SOURCE_RANGES;
            // Networks of the other IP version have no clients here, and ::/0 would have those of IPv4 too.
            let is_ipv4 = service.address.is_ipv4();
            let networks = ranges.iter().filter(|it| it.addr().is_ipv4() == is_ipv4);
            let ranges = networks.map(|&network| SourceRange::new(id, network));
            self.next.source_ranges.extend(ranges);
        }
        let server_id_length = service.quic_server_id_length.unwrap_or_default();
        let value = ServiceValue {
            id,
            table,
            endpoint,
            flags,
            server_id_length,
            ..ServiceValue::default()
        };
        self.next.services.insert(key, value);
    }

    /// Returns the endpoints that get new connections, sorted: those that drain only if there are no others.
    fn members_of(&self, service: &ServiceSpec) -> Vec<(SocketAddr, u32)> {
        let serving = |is_draining: bool| {
            let members = service.endpoints.iter().filter(move |it| it.is_draining == is_draining);
            let members =
                members.filter(|it| it.weight > 0 && self.endpoint_ids.contains_key(&it.address));
            let members: BTreeMap<_, _> = members.map(|it| (it.address, it.weight)).collect();
            members.into_iter().collect::<Vec<_>>()
        };
        let members = serving(false);
        if members.is_empty() { serving(true) } else { members }
    }

    fn add_table(&mut self, index: u32, members: Vec<(SocketAddr, u32)>) {
        let ids: Vec<u16> =
            members.iter().map(|(address, _)| self.endpoint_ids[address] as u16).collect();
        let unchanged = self.old_members.get(&index) == Some(&members);
        let slots = match self.old.tables.get(&index) {
            Some(slots) if unchanged => slots.clone(),
            _ => {
                let table = MaglevTable::with_size(&members, TABLE_SIZE);
                table.slots().iter().map(|&member| ids[member as usize]).collect()
            }
        };
        self.next.tables.insert(index, slots);
        self.members.insert(index, members);
    }

    /// Adds the server ID of each pod: the last bytes of its address. Of pods that share them none has one.
    fn add_server_ids(&mut self, service_id: u32, length: u8, service: &ServiceSpec) {
        let mut pods: BTreeMap<u32, Option<u32>> = BTreeMap::new();
        for endpoint in &service.endpoints {
            let Some(&id) = self.endpoint_ids.get(&endpoint.address) else { continue };
            let server_id = server_id(endpoint.address.ip(), length);
            pods.entry(server_id).and_modify(|it| *it = None).or_insert(Some(id));
        }
        for (server_id, endpoint) in pods {
            let Some(endpoint) = endpoint else { continue };
            if self.next.server_ids.len() < MAX_SERVER_IDS as usize {
                self.next
                    .server_ids
                    .insert(ServerIdKey { service: service_id, server_id }, endpoint);
            }
        }
    }

    fn add_nodes(&mut self, desired: &DesiredState) {
        for (&vip, announcement) in &desired.vips {
            let mac = match announcement {
                VipAnnouncement::Silent => None,
                VipAnnouncement::Announced(mac) => Some(*mac),
            };
            self.next.vips.insert(vip.into(), VipValue::new(mac));
        }
        for node in desired.nodes.values() {
            let NodeWay::Layer2 { mac, .. } = node.way else { continue };
            let of = |is_ipv4: bool| node.addresses.iter().find(|it| it.is_ipv4() == is_ipv4);
            let address =
                |ip: Option<&IpAddr>| ip.map_or_else(MapAddress::default, |&ip| ip.into());
            let peer = PeerValue { ipv4: address(of(true)), ipv6: address(of(false)) };
            self.next.peers.insert(PeerKey { mac, unused: [0; 2] }, peer);
        }
    }
}

/// Returns the server ID of a pod: the last bytes of its address. Its QUIC server writes them into connection IDs.
pub fn server_id(ip: IpAddr, length: u8) -> u32 {
    let octets = MapAddress::from(ip).0;
    let last = &octets[octets.len() - usize::from(length.clamp(1, 4))..];
    last.iter().fold(0, |id, &byte| id << 8 | u32::from(byte))
}

fn is_in_use(value: &EndpointValue) -> bool {
    value.mode != DeliveryMode::None as u8
}

fn socket_address(value: &EndpointValue) -> SocketAddr {
    SocketAddr::new(value.address.into(), value.port.into())
}

/// Returns the entry of an endpoint; `None` if its node is unknown.
fn endpoint_value(
    spec: &EndpointSpec,
    nodes: &BTreeMap<String, NodeSpec>,
) -> Option<EndpointValue> {
    let mut value = EndpointValue {
        address: spec.address.ip().into(),
        port: NetworkPort::from(spec.address.port()),
        flags: if spec.is_draining { ENDPOINT_DRAINING } else { 0 },
        ..EndpointValue::default()
    };
    let mode = match &spec.place {
        EndpointPlace::HostNetwork => {
            value.flags |= ENDPOINT_HOST_NETWORK;
            DeliveryMode::Local
        }
        EndpointPlace::Local(link) => {
            (value.ifindex, value.mac, value.source_mac) =
                (link.ifindex, link.pod_mac, link.node_mac);
            DeliveryMode::Local
        }
        EndpointPlace::Node(name) => match nodes.get(name)?.way {
            NodeWay::Layer2 { ifindex, source_mac, mac } => {
                (value.ifindex, value.mac, value.source_mac) = (ifindex, mac, source_mac);
                DeliveryMode::Layer2
            }
            NodeWay::Vxlan { ifindex, source_mac, mac, remote, mtu } => {
                (value.ifindex, value.mac, value.source_mac) = (ifindex, mac, source_mac);
                (value.node, value.mtu) = (remote.into(), mtu);
                DeliveryMode::Vxlan
            }
            NodeWay::FullNat { ifindex } => {
                value.ifindex = ifindex;
                DeliveryMode::FullNat
            }
        },
    };
    value.mode = mode as u8;
    Some(value)
}

/// Returns the changes that lead from one state of the maps to another.
fn changes(old: &MapContents, next: &MapContents) -> Vec<MapChange> {
    let mut changes = Vec::new();
    let put_endpoint = |id: &u32, value: &EndpointValue| MapChange::PutEndpoint(*id, *value);
    let in_use = next.endpoints.iter().filter(|(_, value)| is_in_use(value));
    changes.extend(
        in_use
            .filter(|(id, it)| old.endpoints.get(id) != Some(it))
            .map(|(id, it)| put_endpoint(id, it)),
    );
    changes.extend(
        new(&old.server_ids, &next.server_ids).map(|(key, &id)| MapChange::PutServerId(*key, id)),
    );
    let new_ranges = next.source_ranges.difference(&old.source_ranges);
    changes.extend(new_ranges.map(|range| MapChange::AddSourceRange(*range)));
    changes.extend(new(&old.peers, &next.peers).map(|(key, peer)| MapChange::PutPeer(*key, *peer)));
    changes.extend(
        new(&old.tables, &next.tables).map(|(&at, slots)| MapChange::SetTable(at, slots.clone())),
    );
    changes.extend(
        new(&old.services, &next.services).map(|(key, it)| MapChange::PutService(*key, *it)),
    );
    changes.extend(new(&old.vips, &next.vips).map(|(vip, it)| MapChange::PutVip(*vip, *it)));

    changes.extend(gone(&old.vips, &next.vips).map(|(vip, _)| MapChange::RemoveVip(*vip)));
    changes.extend(
        gone(&old.services, &next.services).map(|(key, it)| MapChange::RemoveService(*key, it.id)),
    );
    changes.extend(gone(&old.tables, &next.tables).map(|(&at, _)| MapChange::ClearTable(at)));
    changes.extend(gone(&old.peers, &next.peers).map(|(key, _)| MapChange::RemovePeer(*key)));
    let gone_ranges = old.source_ranges.difference(&next.source_ranges);
    changes.extend(gone_ranges.map(|range| MapChange::RemoveSourceRange(*range)));
    changes.extend(
        gone(&old.server_ids, &next.server_ids).map(|(key, _)| MapChange::RemoveServerId(*key)),
    );
    let removed = next.endpoints.iter().filter(|(_, value)| !is_in_use(value));
    let removed = removed.filter(|(id, it)| old.endpoints.get(id) != Some(it));
    changes.extend(removed.map(|(&id, value)| MapChange::RemoveEndpoint(id, *value)));
    changes
}

/// Returns the entries that are new or different.
fn new<'a, K: Ord, V: PartialEq>(
    old: &'a BTreeMap<K, V>,
    next: &'a BTreeMap<K, V>,
) -> impl Iterator<Item = (&'a K, &'a V)> {
    next.iter().filter(|(key, value)| old.get(key) != Some(value))
}

/// Returns the entries whose keys are gone.
fn gone<'a, K: Ord, V>(
    old: &'a BTreeMap<K, V>,
    next: &'a BTreeMap<K, V>,
) -> impl Iterator<Item = (&'a K, &'a V)> {
    old.iter().filter(|(key, _)| !next.contains_key(key))
}
