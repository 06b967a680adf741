//! The maps of the data path, with their types.

use std::fmt::Display;

use aya::Ebpf;
use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{
    Array, ArrayOfMaps, HashMap, Map, MapData, MapError, PerCpuArray, PerCpuHashMap, PerCpuValues,
};
use aya::util::nr_cpus;

use crate::L4Error;
use crate::counters::{DROP_REASONS, DropReason};
use crate::layout::{
    ConnectionValue, ENDPOINT_NUMBERS, EndpointValue, FlowKey, MaglevSlots, MapAddress, NO_TABLE,
    NodeSettings, PeerKey, PeerValue, RangeSource, ReplyValue, ServerIdKey, ServiceKey,
    ServiceValue, SourceRange, TrafficCount, VipValue,
};
use crate::table::{MapChange, MapContents};

/// The maps that user space writes, and the counters.
pub(crate) struct KernelMaps {
    settings: Array<MapData, NodeSettings>,
    vips: HashMap<MapData, MapAddress, VipValue>,
    services: HashMap<MapData, ServiceKey, ServiceValue>,
    tables: ArrayOfMaps<MapData, Array<MapData, MaglevSlots>>,
    /// The table without endpoints, once it is needed.
    empty_table: Option<Array<MapData, MaglevSlots>>,
    endpoints: Array<MapData, EndpointValue>,
    server_ids: HashMap<MapData, ServerIdKey, u32>,
    /// The values mean nothing.
    source_ranges: LpmTrie<MapData, RangeSource, u32>,
    peers: HashMap<MapData, PeerKey, PeerValue>,
    connections: HashMap<MapData, FlowKey, ConnectionValue>,
    replies: HashMap<MapData, FlowKey, ReplyValue>,
    service_traffic: PerCpuHashMap<MapData, u32, TrafficCount>,
    endpoint_traffic: PerCpuHashMap<MapData, u32, TrafficCount>,
    drops: PerCpuArray<MapData, u64>,
}

impl KernelMaps {
    pub(crate) fn take_from(object: &mut Ebpf) -> Result<Self, L4Error> {
        Ok(Self {
            settings: take(object, "settings")?,
            vips: take(object, "vips")?,
            services: take(object, "services")?,
            tables: take(object, "tables")?,
            empty_table: None,
            endpoints: take(object, "endpoints")?,
            server_ids: take(object, "server_ids")?,
            source_ranges: take(object, "source_ranges")?,
            peers: take(object, "peers")?,
            connections: take(object, "connections")?,
            replies: take(object, "replies")?,
            service_traffic: take(object, "svc_traffic")?,
            endpoint_traffic: take(object, "pod_traffic")?,
            drops: take(object, "drops")?,
        })
    }

    pub(crate) fn set_settings(&mut self, settings: &NodeSettings) -> Result<(), L4Error> {
        Ok(self.settings.set(0, settings, 0)?)
    }

    /// Makes one change. An entry that is to be removed may be absent.
    pub(crate) fn apply(&mut self, change: &MapChange) -> Result<(), L4Error> {
        match change {
            MapChange::PutEndpoint(id, value) => self.put_endpoint(*id, value)?,
            MapChange::PutServerId(key, id) => self.server_ids.insert(key, id, 0)?,
            MapChange::AddSourceRange(range) => self.source_ranges.insert(&key_of(range), 0, 0)?,
            MapChange::PutPeer(key, value) => self.peers.insert(key, value, 0)?,
            MapChange::SetTable(index, slots) => self.set_table(*index, slots)?,
            MapChange::PutService(key, value) => self.put_service(key, value)?,
            MapChange::PutVip(address, value) => self.vips.insert(address, value, 0)?,
            MapChange::RemoveVip(address) => absent_is_removed(self.vips.remove(address))?,
            MapChange::RemoveService(key, id) => {
                absent_is_removed(self.services.remove(key))?;
                absent_is_removed(self.service_traffic.remove(id))?;
            }
            MapChange::ClearTable(index) => self.clear_table(*index)?,
            MapChange::RemovePeer(key) => absent_is_removed(self.peers.remove(key))?,
            MapChange::RemoveSourceRange(range) => {
                absent_is_removed(self.source_ranges.remove(&key_of(range)))?;
            }
            MapChange::RemoveServerId(key) => absent_is_removed(self.server_ids.remove(key))?,
            MapChange::RemoveEndpoint(id, value) => {
                self.endpoints.set(*id, value, 0)?;
                absent_is_removed(self.endpoint_traffic.remove(id))?;
            }
        }
        Ok(())
    }

    fn put_endpoint(&mut self, id: u32, value: &EndpointValue) -> Result<(), MapError> {
        count_from_zero(&mut self.endpoint_traffic, id)?;
        self.endpoints.set(id, value, 0)
    }

    fn put_service(&mut self, key: &ServiceKey, value: &ServiceValue) -> Result<(), MapError> {
        count_from_zero(&mut self.service_traffic, value.id)?;
        self.services.insert(key, value, 0)
    }

    /// Replaces a table as a whole: packets meet the old one or the new one.
    fn set_table(&mut self, index: u32, slots: &[u16]) -> Result<(), MapError> {
        let mut value = Box::new(MaglevSlots([0; _]));
        value.0.copy_from_slice(slots);
        let mut table = Array::<MapData, MaglevSlots>::create(1, 0)?;
        table.set(0, value.as_ref(), 0)?;
        self.tables.set(index, &table, 0)
    }

    /// Frees a table that no service uses: the element gets the empty table, which all such elements share.
    fn clear_table(&mut self, index: u32) -> Result<(), MapError> {
        let empty = match self.empty_table.take() {
            Some(empty) => empty,
            None => Array::create(1, 0)?,
        };
        let result = self.tables.set(index, &empty, 0);
        self.empty_table = Some(empty);
        result
    }

    /// Reads what an earlier process has left.
    pub(crate) fn contents(&self) -> Result<MapContents, L4Error> {
        let mut contents = MapContents::default();
        for entry in self.vips.iter() {
            let (address, value) = entry?;
            contents.vips.insert(address, value);
        }
        for entry in self.services.iter() {
            let (key, value) = entry?;
            if value.table != NO_TABLE {
                let slots = self.tables.get(&value.table, 0)?.get(&0, 0)?;
                contents.tables.insert(value.table, slots.0.as_slice().into());
            }
            contents.services.insert(key, value);
        }
        for id in 1..ENDPOINT_NUMBERS {
            let value = self.endpoints.get(&id, 0)?;
            if value.generation != 0 {
                contents.endpoints.insert(id, value);
            }
        }
        for entry in self.server_ids.iter() {
            let (key, id) = entry?;
            contents.server_ids.insert(key, id);
        }
        for key in self.source_ranges.keys() {
            contents.source_ranges.insert(range_of(key?));
        }
        for entry in self.peers.iter() {
            let (key, value) = entry?;
            contents.peers.insert(key, value);
        }
        Ok(contents)
    }

    pub(crate) fn connection(&self, key: &FlowKey) -> Result<Option<ConnectionValue>, L4Error> {
        absent_is_none(self.connections.get(key, 0))
    }

    pub(crate) fn reply(&self, key: &FlowKey) -> Result<Option<ReplyValue>, L4Error> {
        absent_is_none(self.replies.get(key, 0))
    }

    pub(crate) fn service_traffic(&self, id: u32) -> Result<TrafficCount, L4Error> {
        Ok(absent_is_none(self.service_traffic.get(&id, 0))?
            .map_or_else(TrafficCount::default, |all| sum(&all)))
    }

    pub(crate) fn endpoint_traffic(&self, id: u32) -> Result<TrafficCount, L4Error> {
        Ok(absent_is_none(self.endpoint_traffic.get(&id, 0))?
            .map_or_else(TrafficCount::default, |all| sum(&all)))
    }

    pub(crate) fn drops(&self) -> Result<Vec<(DropReason, u64)>, L4Error> {
        (0..)
            .zip(DROP_REASONS)
            .map(|(index, reason)| Ok((reason, self.drops.get(&index, 0)?.iter().sum())))
            .collect()
    }
}

/// Bits of the service's number, which come before those of the address.
const SERVICE_BITS: u32 = u32::BITS;

fn key_of(range: &SourceRange) -> Key<RangeSource> {
    Key::new(SERVICE_BITS + u32::from(range.prefix_length), range.source)
}

fn range_of(key: Key<RangeSource>) -> SourceRange {
    let prefix_length = key.prefix_len().saturating_sub(SERVICE_BITS) as u8;
    SourceRange { source: key.data(), prefix_length }
}

fn take<M: TryFrom<Map, Error: Display>>(object: &mut Ebpf, name: &str) -> Result<M, L4Error> {
    let map = object.take_map(name).expect("the object has this map");
    M::try_from(map)
        .map_err(|error| L4Error::Unsupported { reason: format!("map {name}: {error}") })
}

/// Begins the counters of an entry, if it has none.
fn count_from_zero(
    counters: &mut PerCpuHashMap<MapData, u32, TrafficCount>,
    id: u32,
) -> Result<(), MapError> {
    match counters.get(&id, 0) {
        Err(MapError::KeyNotFound) => {
            let cpus = nr_cpus().map_err(|(_, io_error)| MapError::IoError(io_error))?;
            counters.insert(id, PerCpuValues::try_from(vec![TrafficCount::default(); cpus])?, 0)
        }
        other => other.map(|_| ()),
    }
}

fn sum(values: &PerCpuValues<TrafficCount>) -> TrafficCount {
    values.iter().fold(TrafficCount::default(), |sum, value| TrafficCount {
        packets: sum.packets + value.packets,
        bytes: sum.bytes + value.bytes,
        connections: sum.connections + value.connections,
    })
}

fn absent_is_removed(result: Result<(), MapError>) -> Result<(), MapError> {
    match result {
        Err(MapError::SyscallError(error))
            if error.io_error.raw_os_error() == Some(libc::ENOENT) =>
        {
            Ok(())
        }
        other => other,
    }
}

fn absent_is_none<T>(result: Result<T, MapError>) -> Result<Option<T>, L4Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(MapError::KeyNotFound) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
