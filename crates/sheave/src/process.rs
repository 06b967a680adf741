//! Memory, file descriptors and addresses of this process, as the kernel reports them.

use std::fs;
use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;
use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::system::uname;

/// Returns the limit of open file descriptors.
pub(crate) fn max_descriptors() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Raises the limit of open file descriptors to the hard limit: the usual soft limit of 1024 exists for programs that
/// call `select`, and each connection takes one descriptor.
pub(crate) fn raise_max_descriptors() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "cannot raise the limit of open file descriptors");
    }
}

/// Returns the host name; in a pod, this is the pod's name.
pub(crate) fn host_name() -> String {
    uname().nodename().to_string_lossy().into_owned()
}

/// Returns the addresses of all interfaces: of the pod, or of the node if the pod is on its network.
pub(crate) fn interface_addresses() -> Vec<IpAddr> {
    let interfaces = match getifaddrs() {
        Ok(interfaces) => interfaces,
        Err(error) => {
            tracing::warn!(%error, "cannot list the addresses of the interfaces");
            return Vec::new();
        }
    };
    let address = |storage: SockaddrStorage| {
        let v4 = storage.as_sockaddr_in().map(|it| IpAddr::V4(it.ip()));
        v4.or_else(|| storage.as_sockaddr_in6().map(|it| IpAddr::V6(it.ip())))
    };
    interfaces.filter_map(|interface| address(interface.address?)).collect()
}

pub(crate) fn open_descriptors() -> Option<u64> {
    Some(fs::read_dir("/proc/self/fd").ok()?.count() as u64)
}

/// Returns the resident memory, including shared pages.
pub(crate) fn resident_bytes() -> Option<u64> {
    resident(&fs::read_to_string("/proc/self/status").ok()?)
}

/// Parses the text of `/proc/PID/status`.
fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_in_bytes() {
        assert_eq!(
            resident("Name:\tsheave\nVmRSS:\t    1234 kB\nVmData:\t 1 kB\n"),
            Some(1_263_616)
        );
        assert_eq!(resident("Name:\tsheave\n"), None);
        assert!(resident_bytes().is_some_and(|bytes| bytes > 0));
    }

    #[test]
    fn loopback_is_an_address_of_an_interface() {
        assert!(interface_addresses().iter().any(IpAddr::is_loopback));
    }

    #[test]
    fn descriptors_are_counted_and_their_limit_is_raised() {
        assert!(open_descriptors().is_some_and(|open| open > 0));
        raise_max_descriptors();
        assert_eq!(max_descriptors(), getrlimit(Resource::Nofile).maximum);
    }
}
