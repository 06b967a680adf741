//! Errors: one variant for each thing that a caller does differently.

use std::io;
use std::path::{Path, PathBuf};

use aya::EbpfError;
use aya::maps::MapError;
use aya::programs::ProgramError;
use aya::programs::links::LinkError;
use thiserror::Error;

/// Error of the data path.
#[derive(Debug, Error)]
pub enum L4Error {
    /// The process may not load eBPF programs: the next best mode is rules of nftables.
    #[error(
        "eBPF is denied: the process needs the capabilities BPF, NET_ADMIN and PERFMON (or SYS_ADMIN), and no \
         security profile that forbids bpf()"
    )]
    BpfDenied,
    /// The kernel has no eBPF, or lacks a part that the programs need: the next best mode is rules of nftables.
    #[error("this kernel cannot run the eBPF programs: {reason}")]
    Unsupported {
        /// The part that is missing, or the last lines of the verifier.
        reason: String,
    },
    /// The folder of pins is not in a BPF file system, and none can be mounted.
    #[error("no BPF file system at {path}")]
    NoBpfFileSystem {
        /// The folder.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The interface does not exist, or has gone.
    #[error("no interface {name}")]
    NoInterface {
        /// Name of the interface.
        name: String,
    },
    /// More entries than a map may have; nothing was changed.
    #[error("{count} {what} are more than the {limit} that the kernel's map may have")]
    TooMany {
        /// Kind of the entries.
        what: &'static str,
        /// Their number.
        count: usize,
        /// The largest number.
        limit: usize,
    },
    /// A service has an address of another IP version as endpoint; nothing was changed.
    #[error("endpoint {endpoint} and virtual address {vip} are of different IP versions")]
    MixedVersions {
        /// The endpoint's address.
        endpoint: std::net::SocketAddr,
        /// The virtual address.
        vip: std::net::SocketAddr,
    },
    /// Two services have the same virtual address, port and protocol; nothing was changed.
    #[error("two services have {vip} {protocol:?}")]
    DuplicateService {
        /// Virtual address.
        vip: std::net::SocketAddr,
        /// Protocol.
        protocol: crate::TransportProtocol,
    },
    /// A map refused a change.
    #[error("a map of the kernel refuses a change")]
    Map(#[source] Box<MapError>),
    /// A program could not be loaded or attached.
    #[error("an eBPF program cannot be attached")]
    Program(#[source] Box<ProgramError>),
    /// A link between a program and an interface cannot be used.
    #[error("the link of an eBPF program cannot be used")]
    Link(#[source] Box<LinkError>),
    /// A file of the BPF file system could not be read or written.
    #[error("cannot use {path}")]
    Pin {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}

impl L4Error {
    /// Returns true if the node cannot have the data path at all: then nftables is the next best mode.
    pub fn is_permanent(&self) -> bool {
        matches!(self, Self::BpfDenied | Self::Unsupported { .. } | Self::NoBpfFileSystem { .. })
    }

    pub(crate) fn pin(path: &Path, source: io::Error) -> Self {
        Self::Pin { path: path.to_owned(), source }
    }
}

/// Returns the error of the system call that is the cause, if there is one.
fn system_error(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(code) = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return Some(code);
        }
        cause = error.source();
    }
    None
}

impl From<EbpfError> for L4Error {
    fn from(error: EbpfError) -> Self {
        match system_error(&error) {
            Some(libc::EPERM | libc::EACCES) => Self::BpfDenied,
            _ => Self::Unsupported { reason: with_causes(&error) },
        }
    }
}

impl From<MapError> for L4Error {
    fn from(error: MapError) -> Self {
        Self::Map(Box::new(error))
    }
}

impl From<LinkError> for L4Error {
    fn from(error: LinkError) -> Self {
        Self::Link(Box::new(error))
    }
}

impl From<ProgramError> for L4Error {
    fn from(error: ProgramError) -> Self {
        if let ProgramError::LoadError { io_error, verifier_log } = &error {
            if io_error.raw_os_error() == Some(libc::EPERM) {
                return Self::BpfDenied;
            }
            let log = verifier_log.to_string();
            let lines: Vec<_> = log.lines().rev().take(12).collect();
            let last = lines.into_iter().rev().collect::<Vec<_>>().join("; ");
            return Self::Unsupported { reason: format!("{io_error}: {last}") };
        }
        match system_error(&error) {
            Some(libc::EPERM) => Self::BpfDenied,
            _ => Self::Program(Box::new(error)),
        }
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
