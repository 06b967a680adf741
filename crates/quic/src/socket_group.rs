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
    /// Octet of the first worker in connection ids. It differs between a process and its successor.
    pub(super) first_octet: u8,
    sockets: Box<[UdpSocket]>,
}

/// The part of the connection ids that belongs to the sockets of one process at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupShape {
    pub address: SocketAddr,
    /// Octet of the first worker in connection ids.
    pub first_octet: u8,
    /// Number of workers, each with a socket.
    pub workers: usize,
}

impl GroupShape {
    /// Returns the octet of the first of `workers` workers of a successor: a multiple of their number, so that the
    /// octet modulo that number is the worker, and no octet is of both.
    fn successor_octet(self, workers: usize) -> Option<u8> {
        let (first, end) =
            (usize::from(self.first_octet), usize::from(self.first_octet) + self.workers);
        let octet = if first >= workers { 0 } else { end.next_multiple_of(workers) };
        (octet + workers <= connection_id::MOST_WORKERS).then(|| u8::try_from(octet).ok())?
    }
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
        let server_id = connection_id::server_id(reachable_address(address));
        let group = Self { address, server_id, first_octet: 0, sockets };
        group.steer();
        Ok(Arc::new(group))
    }

    /// Binds the sockets of an address beside those of another process, which stays for its connections. The kernel
    /// steers all other datagrams to the new sockets.
    pub fn bind_beside(
        predecessor: GroupShape,
        workers: usize,
        new_socket: impl Fn() -> io::Result<Socket>,
    ) -> io::Result<Arc<Self>> {
        let address = predecessor.address;
        let count = workers.min(connection_id::MOST_WORKERS);
        let first_octet = predecessor.successor_octet(count).ok_or_else(|| {
            io::Error::other("too many workers for the connection ids of two processes")
        })?;
        let sockets: io::Result<Box<[_]>> =
            (0..count).map(|_| bind_shared(address, new_socket()?)).collect();
        let sockets = sockets?;
        let server_id = connection_id::server_id(reachable_address(address));
        if let Some(first) = sockets.first() {
            let own_id = connection_id::own_prefix(server_id);
            let range = (predecessor.first_octet, predecessor.workers);
            sys::steer_beside(first, own_id, range, count)?;
        }
        Ok(Arc::new(Self { address, server_id, first_octet, sockets }))
    }

    /// Makes the kernel steer datagrams by the worker, once no other process has sockets at the address.
    fn steer(&self) {
        let Some(first) = self.sockets.first() else { return };
        let (long_id, worker_at) = (connection_id::IN_LONG_HEADER, connection_id::WORKER_AT);
        if let Err(error) = sys::steer_by_worker(first, long_id, worker_at, self.sockets.len()) {
            tracing::warn!(
                address = %self.address, %error,
                "the kernel cannot steer QUIC by connection id: workers hand over misdirected datagrams"
            );
        }
    }

    /// Returns the part of the connection ids that belongs to this group.
    fn shape(&self) -> GroupShape {
        let Self { address, first_octet, .. } = *self;
        GroupShape { address, first_octet, workers: self.sockets.len() }
    }

    /// Returns the worker whose id a datagram carries, if the id can only be one of this group.
    pub(super) fn worker_of(&self, datagram: &[u8]) -> Option<usize> {
        let octet = connection_id::worker_octet(datagram)?;
        let worker = usize::from(octet.checked_sub(self.first_octet)?);
        (worker < self.sockets.len()).then_some(worker)
    }

    /// Returns the octet of a worker in connection ids.
    pub(super) fn octet_of(&self, worker: usize) -> u8 {
        let octet = usize::from(self.first_octet) + worker;
        u8::try_from(octet).expect("a group has at most 256 octets")
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
            first_octet: 0,
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
    /// Groups of another process, beside which new ones are bound.
    predecessors: Vec<GroupShape>,
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
        let group = match self.predecessors.iter().find(|it| it.address == address) {
            Some(predecessor) => SocketGroup::bind_beside(*predecessor, workers, new_socket)?,
            None => SocketGroup::bind(address, workers, new_socket)?,
        };
        self.known.push(Arc::downgrade(&group));
        self.bound.push(Arc::clone(&group));
        Ok(group)
    }

    /// Binds groups beside those of another process from now on, where it has the address.
    pub fn set_predecessors(&mut self, predecessors: Vec<GroupShape>) {
        self.predecessors = predecessors;
    }

    /// Takes over all datagrams: the other process has ended.
    pub fn forget_predecessors(&mut self) {
        if !std::mem::take(&mut self.predecessors).is_empty() {
            self.known.iter().filter_map(Weak::upgrade).for_each(|group| group.steer());
        }
    }

    /// Returns the open groups, for a successor.
    pub fn shapes(&self) -> Vec<GroupShape> {
        self.open.values().map(|group| group.shape()).collect()
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

    #[test]
    fn kernel_steers_by_process_while_two_share_an_address() {
        let free = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let new = || new_socket(free);
        let old = SocketGroup::bind(free, 2, new).unwrap();
        let successor = SocketGroup::bind_beside(old.shape(), 3, new).unwrap();
        assert_eq!((old.first_octet, successor.first_octet), (0, 3));
        let receive = |group: &SocketGroup, worker: usize, datagram: &[u8]| {
            let client = UdpSocket::bind("127.0.0.1:0").unwrap();
            client.send_to(datagram, free).unwrap();
            let mut room = [0; 64];
            group.sockets[worker].set_nonblocking(false).unwrap();
            group.sockets[worker]
                .set_read_timeout(Some(std::time::Duration::from_secs(20)))
                .unwrap();
            assert_eq!(group.sockets[worker].recv(&mut room).unwrap(), datagram.len());
        };
        for group in [&old, &successor] {
            for worker in 0..group.workers() {
                let octet = group.octet_of(worker);
                let id = WorkerCidGenerator::new(group.server_id, octet).generate_cid();
                let short = [&[0x40][..], &id, &[0; 30]].concat();
                let long = [&[0xe0, 0, 0, 0, 1, 14][..], &id, &[0; 30]].concat();
                assert_eq!(group.worker_of(&short), Some(worker));
                receive(group, worker, &short);
                receive(group, worker, &long);
            }
        }
        // The id of a new connection is the client's choice.
        let initial = [&[0xc0, 0, 0, 0, 1, 8][..], &[7, 7, 7, 7, 7, 4, 7, 7], &[0; 30]].concat();
        receive(&successor, 1, &initial);
    }

    #[test]
    fn successors_alternate_between_octets() {
        let shape = |first_octet, workers| GroupShape { address: any_port(), first_octet, workers };
        assert_eq!(shape(0, 4).successor_octet(4), Some(4));
        assert_eq!(shape(4, 4).successor_octet(4), Some(0));
        assert_eq!(shape(4, 4).successor_octet(3), Some(0));
        assert_eq!(shape(0, 4).successor_octet(3), Some(6));
        assert_eq!(shape(2, 2).successor_octet(8), Some(8));
        assert_eq!(shape(0, 200).successor_octet(100), None);
        assert_eq!(shape(0, 128).successor_octet(128), Some(128));
    }
}
