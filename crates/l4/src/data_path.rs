//! The programs and maps in the kernel: loads them, attaches them to interfaces, and pins them so that packets are
//! delivered while no process is there.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::tc::{self, NlOptions, SchedClassifierLink, TcAttachOptions, TcHandle};
use aya::programs::{LinkOrder, ProgramError, SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfLoader};

use crate::L4Error;
use crate::bpf_file_system::{open_bpf_folder, remove_other_folders, remove_pins};
use crate::counters::DropReason;
use crate::interfaces::{interface_index, interface_indices, interface_names};
use crate::layout::{ConnectionValue, FlowKey, NodeSettings, ReplyValue, TrafficCount};
use crate::maps::KernelMaps;
use crate::object::{OBJECT, ProgramHook};
use crate::table::{MapChange, MapContents};

/// Version of the maps: another version has a folder of its own.
const LAYOUT_VERSION: &str = "v3";
/// Filters of clsact that are ours.
const PRIORITY: u16 = 0x5ea;
const HANDLE: TcHandle = TcHandle::new(0, 1);

/// Folder of the pins, sizes of tables, and way of attaching.
#[derive(Clone, Debug)]
pub struct DataPathConfig {
    /// Folder of our own BPF file system, which is mounted if it is none.
    pub folder: PathBuf,
    /// Most connections, and most translations of replies. Maps that exist keep their size.
    pub connections: u32,
    /// Way of attaching, if not the best that the kernel has.
    pub attach_method: Option<AttachMethod>,
}

impl DataPathConfig {
    /// Returns the settings for a folder. 262,144 connections take about 70 MB.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), connections: 262_144, attach_method: None }
    }
}

/// Way in which programs are attached.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AttachMethod {
    /// Links of tcx (Linux 6.6): others' programs stay, and a program is replaced in one step.
    Tcx,
    /// Filters of a clsact qdisc.
    Clsact,
}

/// The data path of this node.
pub struct DataPath {
    object: Ebpf,
    maps: KernelMaps,
    folder: PathBuf,
    attach_method: Option<AttachMethod>,
    attached: BTreeMap<(u32, ProgramHook), AttachMethod>,
}

impl DataPath {
    /// Loads the programs. Maps that an earlier process has pinned are used as they are.
    pub fn open(config: &DataPathConfig) -> Result<Self, L4Error> {
        let folder = open_bpf_folder(&config.folder, LAYOUT_VERSION)?;
        let mut object = EbpfLoader::new()
            .default_map_pin_directory(&folder)
            .map_max_entries("connections", config.connections)
            .map_max_entries("replies", config.connections)
            .load(OBJECT)?;
        for hook in ProgramHook::ALL {
            program(&mut object, hook).load()?;
        }
        let maps = KernelMaps::take_from(&mut object)?;
        let attach_method = config.attach_method;
        let mut data_path = Self { object, maps, folder, attach_method, attached: BTreeMap::new() };
        data_path.replace_programs()?;
        Ok(data_path)
    }

    /// Returns the programs as the packet tests run them.
    pub fn program(&mut self, hook: ProgramHook) -> &mut SchedClassifier {
        program(&mut self.object, hook)
    }

    /// Attaches a program to an interface, or replaces an older version of it there.
    pub fn attach(&mut self, interface: &str, hook: ProgramHook) -> Result<AttachMethod, L4Error> {
        let ifindex = interface_index(interface)?;
        if let Some(&method) = self.attached.get(&(ifindex, hook)) {
            return Ok(method);
        }
        let method = match self.attach_method {
            Some(AttachMethod::Clsact) => self.attach_by_clsact(interface, hook)?,
            Some(AttachMethod::Tcx) => self.attach_by_tcx(interface, ifindex, hook)?,
            None => match self.attach_by_tcx(interface, ifindex, hook) {
                Err(error) if is_unknown_to_kernel(&error) => {
                    self.attach_by_clsact(interface, hook)?
                }
                other => other?,
            },
        };
        self.attached.insert((ifindex, hook), method);
        Ok(method)
    }

    /// Returns the interfaces with a program that this process knows of: by tcx, those of earlier processes too.
    pub fn attachments(&self) -> impl Iterator<Item = (u32, ProgramHook)> {
        self.attached.keys().copied()
    }

    /// Removes a program from an interface; there is no error if the interface has gone.
    pub fn detach(&mut self, interface: &str, hook: ProgramHook) -> Result<(), L4Error> {
        let Ok(ifindex) = interface_index(interface) else { return Ok(()) };
        self.attached.remove(&(ifindex, hook));
        remove_pins(&self.folder, |pin| *pin == LinkPin { ifindex, hook })?;
        detach_from_clsact(interface, hook);
        Ok(())
    }

    /// Removes pins of interfaces that have gone. Their links are dead already.
    pub fn forget_gone_interfaces(&mut self) -> Result<(), L4Error> {
        let is_gone = |ifindex: u32| !interface_indices().contains(&ifindex);
        self.attached.retain(|&(ifindex, _), _| !is_gone(ifindex));
        remove_pins(&self.folder, |pin| is_gone(pin.ifindex))
    }

    /// Removes the programs and maps of other layouts, once this one has what it needs. Until then the programs of an
    /// older process serve; connections are chosen anew afterwards.
    pub fn forget_other_layouts(&self) -> Result<(), L4Error> {
        remove_other_folders(&self.folder)
    }

    /// Removes all programs and maps: packets of virtual addresses are no longer delivered.
    pub fn remove(self) -> Result<(), L4Error> {
        for interface in interface_names() {
            for hook in ProgramHook::ALL {
                detach_from_clsact(&interface, hook);
            }
        }
        fs::remove_dir_all(&self.folder).map_err(|error| L4Error::pin(&self.folder, error))
    }

    /// Sets what is the same for all packets.
    pub fn set_settings(&mut self, settings: &NodeSettings) -> Result<(), L4Error> {
        self.maps.set_settings(settings)
    }

    /// Makes changes in their order. After an error the maps have the first ones; [`DataPath::contents`] tells.
    pub fn apply(&mut self, changes: &[MapChange]) -> Result<(), L4Error> {
        changes.iter().try_for_each(|change| self.maps.apply(change))
    }

    /// Reads the maps as they are.
    pub fn contents(&self) -> Result<MapContents, L4Error> {
        self.maps.contents()
    }

    /// Returns the entry of a connection.
    pub fn connection(&self, flow: &FlowKey) -> Result<Option<ConnectionValue>, L4Error> {
        self.maps.connection(flow)
    }

    /// Returns the translation of packets from a pod to a client.
    pub fn reply(&self, flow: &FlowKey) -> Result<Option<ReplyValue>, L4Error> {
        self.maps.reply(flow)
    }

    /// Returns the traffic of a service.
    pub fn service_traffic(&self, service: u32) -> Result<TrafficCount, L4Error> {
        self.maps.service_traffic(service)
    }

    /// Returns the traffic of an endpoint.
    pub fn endpoint_traffic(&self, endpoint: u32) -> Result<TrafficCount, L4Error> {
        self.maps.endpoint_traffic(endpoint)
    }

    /// Returns the numbers of packets that were dropped, by reason.
    pub fn drops(&self) -> Result<Vec<(DropReason, u64)>, L4Error> {
        self.maps.drops()
    }

    fn attach_by_tcx(
        &mut self,
        interface: &str,
        ifindex: u32,
        hook: ProgramHook,
    ) -> Result<AttachMethod, L4Error> {
        let program = program(&mut self.object, hook);
        let options = TcAttachOptions::TcxOrder(LinkOrder::default());
        let id = program.attach_with_options(interface, attach_type(hook), options)?;
        let link = FdLink::try_from(program.take_link(id)?)?;
        let path = self.folder.join(LinkPin { ifindex, hook }.file_name());
        link.pin(&path).map_err(|error| L4Error::pin(&path, io::Error::other(error)))?;
        Ok(AttachMethod::Tcx)
    }

    /// Attaches as a filter, which stays until it is removed; one of an earlier process is replaced.
    fn attach_by_clsact(
        &mut self,
        interface: &str,
        hook: ProgramHook,
    ) -> Result<AttachMethod, L4Error> {
        match tc::qdisc_add_clsact(interface) {
            // The interface has the qdisc already.
            Err(error) if exists(&error) => {}
            other => other.map_err(ProgramError::from)?,
        }
        let program = program(&mut self.object, hook);
        let options = NlOptions { priority: PRIORITY, handle: HANDLE, classid: None };
        let id = match program.attach_with_options(
            interface,
            attach_type(hook),
            TcAttachOptions::Netlink(options),
        ) {
            Ok(id) => id,
            // The filter of an earlier process.
            Err(ProgramError::TcError(error)) if exists(&error) => {
                let old = SchedClassifierLink::attached(
                    interface,
                    attach_type(hook),
                    PRIORITY,
                    HANDLE,
                    None,
                );
                let old = old.map_err(|error| ProgramError::from(tc::TcError::from(error)))?;
                program.attach_to_link(old)?
            }
            Err(error) => return Err(error.into()),
        };
        // The link would remove the filter when it is dropped.
        std::mem::forget(program.take_link(id)?);
        Ok(AttachMethod::Clsact)
    }

    /// Puts this version of the programs in the place of those that an earlier process has attached.
    fn replace_programs(&mut self) -> Result<(), L4Error> {
        self.forget_gone_interfaces()?;
        for pin in LinkPin::read_all(&self.folder)? {
            let path = self.folder.join(pin.file_name());
            if self.replace_program(&path, pin).is_ok() {
                self.attached.insert((pin.ifindex, pin.hook), AttachMethod::Tcx);
            } else {
                // The link is dead: its interface has gone, and another has its number.
                fs::remove_file(&path).map_err(|error| L4Error::pin(&path, error))?;
            }
        }
        Ok(())
    }

    fn replace_program(&mut self, path: &Path, pin: LinkPin) -> Result<(), L4Error> {
        let link = FdLink::from(PinnedLink::from_pin(path)?);
        let program = program(&mut self.object, pin.hook);
        let id = program.attach_to_link(SchedClassifierLink::try_from(link)?)?;
        // Only our handle of the link ends here: the pin holds it.
        drop(FdLink::try_from(program.take_link(id)?)?);
        Ok(())
    }
}

fn program(object: &mut Ebpf, hook: ProgramHook) -> &mut SchedClassifier {
    let program = object.program_mut(hook.program()).expect("the object has this program");
    program.try_into().expect("its section is `classifier`")
}

fn attach_type(hook: ProgramHook) -> TcAttachType {
    match hook {
        ProgramHook::LbIn | ProgramHook::PodOut => TcAttachType::Ingress,
        ProgramHook::NodeOut => TcAttachType::Egress,
    }
}

fn detach_from_clsact(interface: &str, hook: ProgramHook) {
    // Without a filter, or a qdisc, there is nothing to remove.
    drop(tc::qdisc_detach_program(interface, attach_type(hook), hook.program()));
}

fn exists(error: &tc::TcError) -> bool {
    matches!(error, tc::TcError::NetlinkError(error) if error.raw_os_error() == Some(libc::EEXIST))
}

/// True if the kernel does not have links of tcx.
fn is_unknown_to_kernel(error: &L4Error) -> bool {
    let L4Error::Program(error) = error else { return false };
    let ProgramError::SyscallError(error) = &**error else { return false };
    matches!(error.io_error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
}

/// Pin of the link between a program and an interface.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct LinkPin {
    pub(crate) ifindex: u32,
    pub(crate) hook: ProgramHook,
}

impl LinkPin {
    fn file_name(self) -> String {
        format!("link_{}_{}", self.hook.program(), self.ifindex)
    }

    pub(crate) fn parse(file_name: &str) -> Option<Self> {
        let (program, ifindex) = file_name.strip_prefix("link_")?.rsplit_once('_')?;
        let hook = ProgramHook::ALL.into_iter().find(|hook| hook.program() == program)?;
        Some(Self { ifindex: ifindex.parse().ok()?, hook })
    }

    fn read_all(folder: &Path) -> Result<Vec<Self>, L4Error> {
        let entries = fs::read_dir(folder).map_err(|error| L4Error::pin(folder, error))?;
        Ok(entries.flatten().filter_map(|entry| Self::parse(entry.file_name().to_str()?)).collect())
    }
}
