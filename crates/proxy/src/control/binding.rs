//! Binding the addresses of a Snapshot, before it is in force.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use gateway::Snapshot;
use gateway::snapshot::{Listener, TransportProtocol};
use quic::{SocketGroup, SocketGroups};

use super::{ControlState, ListenError, Proxy};
use crate::accept::bind::{BindAddress, TcpOrUdpSocket, udp_socket};
use crate::active_config::{ActiveListener, BoundListener, listener_key};
use crate::worker::DrainStage;

/// Maximum number of ephemeral ports that are tried to find one that is free for UDP as well.
const PORT_ATTEMPTS: usize = 16;

/// The sockets of a Snapshot that is not in force yet.
#[derive(Default)]
pub(super) struct SnapshotBinding {
    /// For each listener index, the index in the Snapshot and the bound address.
    pub(super) listeners: Vec<Option<(usize, Arc<BoundListener>)>>,
    /// Free indices, for listeners without a socket.
    free: VecDeque<usize>,
    /// New sockets.
    pub(super) sockets: Vec<(Arc<BoundListener>, TcpOrUdpSocket)>,
    /// UDP sockets of HTTP/3, by listener index.
    pub(super) groups: BTreeMap<usize, Arc<SocketGroup>>,
    pub(super) errors: Vec<ListenError>,
    /// Sockets in force that the Snapshot does not have.
    pub(super) closing: Vec<ClosingSockets>,
}

/// The sockets of a listener that are about to close.
pub(super) struct ClosingSockets {
    address: SocketAddr,
    transports: Vec<TransportProtocol>,
}

impl SnapshotBinding {
    fn fail(
        &mut self,
        requested: &Listener,
        transport: TransportProtocol,
        address: SocketAddr,
        source: io::Error,
    ) {
        self.errors.push(ListenError::of(requested, transport, address, source));
    }
}

impl ClosingSockets {
    /// Returns the sockets of a listener in force that the Snapshot does not have.
    fn of(listener: &ActiveListener, binding: &SnapshotBinding) -> Self {
        let place = listener.bound.listener_index;
        let is_closing = binding.listeners[place].is_none() && !listener.bound.is_intercepted;
        let own = is_closing.then(|| listener.protocol.transport());
        let is_quic_closing = listener.http3.is_some() && !binding.groups.contains_key(&place);
        let quic = is_quic_closing.then_some(TransportProtocol::Udp);
        Self { address: listener.bound.address, transports: own.into_iter().chain(quic).collect() }
    }

    /// True if one of these sockets overlaps with the address that could not be bound: one of the two covers all
    /// addresses.
    pub(super) fn is_in_way_of(&self, error: &ListenError) -> bool {
        let (ours, wanted) = (self.address, error.address);
        error.source.kind() == io::ErrorKind::AddrInUse
            && ours.port() == wanted.port()
            && self.transports.contains(&error.transport)
            && (ours.ip() == wanted.ip()
                || ours.ip().is_unspecified()
                || wanted.ip().is_unspecified())
    }
}

impl Proxy {
    /// Binds the addresses of the Snapshot that are not bound yet. Nothing is accepted on them before the Snapshot is
    /// in force.
    pub(super) fn bind_all(
        &self,
        control: &mut ControlState,
        snapshot: &Snapshot,
    ) -> SnapshotBinding {
        let old = self.shared.config.load();
        let mut binding = SnapshotBinding {
            listeners: (0..old.listeners.len()).map(|_| None).collect(),
            free: (0..old.listeners.len()).filter(|&it| old.listeners[it].is_none()).collect(),
            ..SnapshotBinding::default()
        };
        let in_force = old.listeners.iter().flatten();
        let known: BTreeMap<_, _> = in_force.map(|it| (it.bound.key(), &it.bound)).collect();
        let is_ending = self.shared.stage() >= DrainStage::Draining;
        for (index, requested) in snapshot.listeners.iter().enumerate() {
            let bound = match known.get(&listener_key(requested)) {
                Some(&known) => Arc::clone(known),
                // During a drain no new listener is opened.
                None if is_ending => continue,
                None if requested.interception.is_some() => {
                    self.add_intercepted(&mut binding, requested)
                }
                None => match self.bind(control, &mut binding, requested) {
                    Ok(bound) => bound,
                    Err(source) => {
                        let transport = requested.protocol.transport();
                        let address = requested.address;
                        binding.fail(requested, transport, address, source);
                        continue;
                    }
                },
            };
            let place = bound.listener_index;
            if requested.http3.is_some() {
                self.bind_quic(control, &mut binding, requested, &bound);
            }
            binding.listeners[place] = Some((index, bound));
        }
        let closing = old.listeners.iter().flatten().map(|it| ClosingSockets::of(it, &binding));
        binding.closing = closing.collect();
        binding
    }

    /// Returns a new listener without a socket. It takes a free index, so that the list does not grow with each Service
    /// that has ever existed. No worker has a socket with that index.
    fn add_intercepted(
        &self,
        binding: &mut SnapshotBinding,
        requested: &Listener,
    ) -> Arc<BoundListener> {
        let place = binding.free.pop_front().unwrap_or_else(|| {
            binding.listeners.push(None);
            binding.listeners.len() - 1
        });
        let workers = self.shared.workers.len();
        Arc::new(BoundListener::intercepted(place, requested.address, workers))
    }

    /// Binds a new address and appends an entry for its listener.
    fn bind(
        &self,
        control: &mut ControlState,
        binding: &mut SnapshotBinding,
        requested: &Listener,
    ) -> io::Result<Arc<BoundListener>> {
        let workers = self.shared.workers.len();
        let (socket, bound_to) = match control.handover.take_inherited(requested) {
            Some(socket) => {
                let bound_to = socket.address()?;
                (socket, bound_to)
            }
            None => listen(&mut control.groups, workers, requested)?,
        };
        let place = binding.listeners.len();
        let transport = requested.protocol.transport();
        let bound = BoundListener::new(place, transport, requested.address, bound_to, workers);
        let bound = Arc::new(bound);
        binding.listeners.push(None);
        binding.sockets.push((Arc::clone(&bound), socket));
        Ok(bound)
    }

    /// Binds the UDP port of a listener that serves HTTP/3.
    fn bind_quic(
        &self,
        control: &mut ControlState,
        binding: &mut SnapshotBinding,
        requested: &Listener,
        bound: &BoundListener,
    ) {
        let address = bound.address;
        let bind_address = BindAddress { address, free_bind: requested.free_bind };
        let new_socket = || udp_socket(bind_address);
        match control.groups.bind(address, self.shared.workers.len(), new_socket) {
            Ok(group) => _ = binding.groups.insert(bound.listener_index, group),
            Err(source) => binding.fail(requested, TransportProtocol::Udp, address, source),
        }
    }
}

/// Opens a socket for a new listener and returns it with its address. If any port will do and the listener serves
/// HTTP/3, the port is one that is free for UDP too.
fn listen(
    groups: &mut SocketGroups,
    workers: usize,
    requested: &Listener,
) -> io::Result<(TcpOrUdpSocket, SocketAddr)> {
    // Ports that did not fit stay bound during the search, so that the kernel does not assign them again.
    let mut held = Vec::new();
    loop {
        let bind_address =
            BindAddress { address: requested.address, free_bind: requested.free_bind };
        let socket = TcpOrUdpSocket::bind(requested.protocol.transport(), bind_address)?;
        let address = socket.address()?;
        let needs_udp_port = requested.http3.is_some()
            && requested.address.port() == 0
            && held.len() < PORT_ATTEMPTS;
        let new_socket = || udp_socket(address.into());
        if !needs_udp_port || groups.bind(address, workers, new_socket).is_ok() {
            return Ok((socket, address));
        }
        held.push(socket);
    }
}
