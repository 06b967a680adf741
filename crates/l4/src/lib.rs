//! Layer-4 data path of one node: eBPF programs deliver packets of virtual addresses to pods, wherever the pods are.
//!
//! [`L4Table`] is pure: from the [`DesiredState`] to the contents of the maps and the [`MapChange`]s between them.
//! [`DataPath`] loads the programs, attaches them, makes the changes, and reads the counters. The crate knows no API
//! server and no Snapshot. Design, maps and bounds: `docs/internals/l4.md`.
#![warn(missing_docs)]

/// Services, endpoints and nodes as they are to be served.
mod desired;
/// From the desired state to changes of maps.
mod table;
/// Types of the maps.
mod layout;
/// The kernel's choice, in user space.
mod flow_hash;
/// Reasons of dropped packets.
mod counters;
/// Programs and maps in the kernel.
mod data_path;
/// The maps with their types.
mod maps;
/// The compiled programs.
mod object;
/// The file system of the pins.
mod bpf_file_system;
/// Interfaces by name and number.
mod interfaces;
/// Errors.
mod error;

pub use counters::DropReason;
pub use data_path::{AttachMethod, DataPath, DataPathConfig};
pub use desired::{
    DesiredState, EndpointPlace, EndpointSpec, NodeSpec, NodeWay, PodLink, ServiceSpec,
    VipAnnouncement,
};
pub use error::L4Error;
pub use flow_hash::flow_slot;
pub use layout::{
    ConnectionValue, DeliveryMode, EndpointValue, FlowKey, MAX_ENDPOINTS, MAX_PEERS,
    MAX_SERVER_IDS, MAX_SERVICES, MAX_SOURCE_RANGES, MacAddress, MapAddress, NO_TABLE, NetworkPort,
    NodeSettings, PeerKey, PeerValue, RangeSource, ReplyValue, ServerIdKey, ServiceKey,
    ServiceValue, SourceRange, TABLE_SIZE, TrafficCount, TransportProtocol, VipValue,
};
pub use object::ProgramHook;
pub use table::{L4Table, MapChange, MapContents, server_id};
