//! The sockets of one address, one for each worker, and how the kernel distributes datagrams to them.
//!
//! The position of a worker in the group is its index, and stays: removing one socket would move the others. So a
//! group is opened and closed as a whole, and lives as long as some worker has connections on it.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Weak};

use socket2::{SockRef, Socket};

use crate::connection_id::{self, ServerId};
use crate::sys;

/// A documentation address that no host has (RFC 5737): to learn our source address for the default route. Nothing is
/// sent there.
const DOCUMENTATION_ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// The same for IPv6 (RFC 3849).
const DOCUMENTATION_ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const ANY_PORT: u16 = 9;

/// The sockets of one address, one for each worker.
pub struct SocketGroup {
    pub address: SocketAddr,
    pub(super) server_id: ServerId,
    sockets: Box<[UdpSocket]>,
}

impl SocketGroup {
    /// Binds all sockets of an address, which must not be in use. `new_socket` returns a non-blocking UDP socket with
    /// the options of the address.
    pub fn bind(
        address: SocketAddr,
        workers: usize,
        new_socket: impl Fn() -> io::Result<Socket>,
    ) -> io::Result<Arc<Self>> {
        // Sockets that share an address would share it with another process, too: this detects one that is using it.
        new_socket()?.bind(&address.into())?;
        let count = workers.min(connection_id::MOST_WORKERS);
        let sockets: io::Result<Box<[_]>> =
            (0..count).map(|_| bind_shared(address, new_socket()?)).collect();
        let sockets = sockets?;
        if let Some(first) = sockets.first()
            && let Err(error) = sys::steer_by_worker(
                first,
                connection_id::IN_LONG_HEADER,
                connection_id::WORKER_AT,
                count,
            )
        {
            tracing::warn!(
                %address, %error,
                "the kernel cannot steer QUIC by connection id: workers hand over misdirected datagrams"
            );
        }
        Ok(Arc::new(Self {
            address,
            server_id: connection_id::server_id(reachable_address(address)),
            sockets,
        }))
    }

    /// Binds the sockets without steering, as on a kernel that does not support it.
    #[cfg(test)]
    pub(super) fn bind_without_steering(
        address: SocketAddr,
        workers: usize,
        new_socket: impl Fn() -> io::Result<Socket>,
    ) -> io::Result<Arc<Self>> {
        let sockets: io::Result<Box<[_]>> =
            (0..workers).map(|_| bind_shared(address, new_socket()?)).collect();
        Ok(Arc::new(Self {
            address,
            server_id: connection_id::server_id(address),
            sockets: sockets?,
        }))
    }

    /// Returns the number of workers that share the address.
    pub fn workers(&self) -> usize {
        self.sockets.len()
    }

    /// Returns the socket of a worker.
    pub(super) fn socket(&self, worker: usize) -> io::Result<UdpSocket> {
        self.sockets[worker].try_clone()
    }
}

/// The groups that are open, as the configuration task that opens and closes them tracks them.
#[derive(Default)]
pub struct SocketGroups {
    /// The open groups, by the caller's index of the address.
    open: BTreeMap<usize, Arc<SocketGroup>>,
    /// Bound, and not yet open.
    bound: Vec<Arc<SocketGroup>>,
    /// All that have been bound. Some may still have older connections.
    known: Vec<Weak<SocketGroup>>,
}

/// The groups that have been opened, and the caller's indices of those that have been closed.
pub struct SocketGroupChange {
    pub opened: Vec<(usize, Arc<SocketGroup>)>,
    pub closed: Vec<usize>,
}

impl SocketGroups {
    /// Returns the group at that address, and binds it if necessary, as [`SocketGroup::bind`] does.
    pub fn bind(
        &mut self,
        address: SocketAddr,
        workers: usize,
        new_socket: impl Fn() -> io::Result<Socket>,
    ) -> io::Result<Arc<SocketGroup>> {
        self.known.retain(|group| group.strong_count() > 0);
        let mut known = self.known.iter().filter_map(Weak::upgrade);
        if let Some(group) = known.find(|group| group.address == address) {
            return Ok(group);
        }
        let group = SocketGroup::bind(address, workers, new_socket)?;
        self.known.push(Arc::downgrade(&group));
        self.bound.push(Arc::clone(&group));
        Ok(group)
    }

    /// Closes the groups that have been bound and not opened.
    pub fn discard_unopened(&mut self) {
        self.bound.clear();
    }

    /// Opens these groups, and closes all others.
    pub fn open(&mut self, wanted: BTreeMap<usize, Arc<SocketGroup>>) -> SocketGroupChange {
        self.bound.clear();
        let before = std::mem::replace(&mut self.open, wanted);
        let opened = self.open.iter().filter(|(place, _)| !before.contains_key(place));
        let opened = opened.map(|(place, group)| (*place, Arc::clone(group))).collect();
        let closed = before.into_keys().filter(|place| !self.open.contains_key(place)).collect();
        SocketGroupChange { opened, closed }
    }
}

fn bind_shared(address: SocketAddr, socket: Socket) -> io::Result<UdpSocket> {
    SockRef::from(&socket).set_reuse_port(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// Returns the address at which others reach us: the listen address, or else the source address that we would send
/// from.
fn reachable_address(address: SocketAddr) -> SocketAddr {
    if !address.ip().is_unspecified() {
        return address;
    }
    let from = |ours: IpAddr, elsewhere: IpAddr| {
        let socket = UdpSocket::bind((ours, 0))?;
        socket.connect((elsewhere, ANY_PORT))?;
        socket.local_addr()
    };
    from(Ipv4Addr::UNSPECIFIED.into(), DOCUMENTATION_ADDRESS.into())
        .or_else(|_: io::Error| from(Ipv6Addr::UNSPECIFIED.into(), DOCUMENTATION_ADDRESS_V6.into()))
        .unwrap_or(address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection_id::WorkerCidGenerator;
    use crate::tests::new_socket;
    use quinn_proto::ConnectionIdGenerator;

    fn any_port() -> SocketAddr {
        (Ipv4Addr::LOCALHOST, 0).into()
    }

    #[test]
    fn address_in_use_is_not_shared() {
        let in_use = bind_shared(any_port(), new_socket(any_port()).unwrap()).unwrap();
        let address = in_use.local_addr().unwrap();
        let error = SocketGroup::bind(address, 2, || new_socket(address)).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn address_with_old_connections_is_reopened() {
        let free = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut groups = SocketGroups::default();
        let group = groups.bind(free, 2, || new_socket(free)).unwrap();
        let change = groups.open([(3, Arc::clone(&group))].into());
        assert_eq!((change.opened.len(), change.closed.len()), (1, 0));
        assert_eq!(groups.open(BTreeMap::new()).closed, [3]);
        // A worker still has it.
        let again = groups.bind(free, 2, || new_socket(free)).unwrap();
        assert!(Arc::ptr_eq(&again, &group));
        drop((again, group));
        groups.bind(free, 2, || new_socket(free)).unwrap();
    }

    #[test]
    fn kernel_steers_datagrams_to_the_worker_of_the_connection_id() {
        let free = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let group = SocketGroup::bind(free, 4, || new_socket(free)).unwrap();
        for worker in 0..4u8 {
            let id = WorkerCidGenerator::new(group.server_id, worker).generate_cid();
            let short = [&[0x40][..], &id, &[0; 30]].concat();
            let long = [&[0xe0, 0, 0, 0, 1, 14][..], &id, &[0; 30]].concat();
            for datagram in [short, long] {
                // Each datagram comes from another port: only the connection id can select the socket.
                let client = UdpSocket::bind("127.0.0.1:0").unwrap();
                client.send_to(&datagram, free).unwrap();
                let mut room = [0; 64];
                let received = group.sockets[usize::from(worker)].recv(&mut room).unwrap();
                assert_eq!(room[..received], datagram);
            }
        }
    }
}
