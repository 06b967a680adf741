//! Handover of listening sockets to another process, for an upgrade without a lost connection.
//!
//! The sockets themselves are handed over, not addresses: connections in the accept queue of a socket that is closed
//! would be reset. Both processes have the socket until the old one stops accepting.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use gateway::snapshot::{Listener, TransportProtocol};
use quic::GroupShape;

use super::Proxy;
use crate::accept::bind::TcpOrUdpSocket;
use crate::active_config::{ActiveConfig, BoundListener};
use crate::mutex::lock;

/// A socket of a listener.
#[derive(Debug)]
pub struct ListeningSocket {
    pub transport: TransportProtocol,
    /// The configured address; the port may be 0.
    pub requested_address: SocketAddr,
    pub socket: OwnedFd,
}

/// Sockets of a predecessor, and those for a successor.
#[derive(Default)]
pub(super) struct SocketHandover {
    /// Sockets of the predecessor that no listener has yet.
    inherited: Vec<ListeningSocket>,
    /// Duplicates of the sockets in force, by listener index; `None`: there will be no successor.
    kept: Option<BTreeMap<usize, ListeningSocket>>,
}

impl SocketHandover {
    /// Returns the inherited socket for this listener.
    pub(super) fn take_inherited(&mut self, requested: &Listener) -> Option<TcpOrUdpSocket> {
        let wanted = (requested.protocol.transport(), requested.address);
        let is_it = |it: &ListeningSocket| (it.transport, it.requested_address) == wanted;
        let index = self.inherited.iter().position(is_it)?;
        Some(self.inherited.swap_remove(index).into())
    }

    /// Keeps sockets for later that were bound for a Snapshot which is not put in force.
    pub(super) fn restore(&mut self, sockets: Vec<(Arc<BoundListener>, TcpOrUdpSocket)>) {
        if !self.inherited.is_empty() {
            let kept = sockets.into_iter().map(|(bound, socket)| of_listener(&bound, socket));
            self.inherited.extend(kept);
        }
    }

    /// Follows a change of the configuration: duplicates the new sockets, and closes those of removed listeners.
    pub(super) fn update(
        &mut self,
        live: &ActiveConfig,
        sockets: &[(Arc<BoundListener>, TcpOrUdpSocket)],
    ) {
        let Some(kept) = &mut self.kept else { return };
        kept.retain(|place, _| live.listeners.get(*place).is_some_and(Option::is_some));
        for (bound, socket) in sockets {
            match socket.try_clone() {
                Ok(socket) => _ = kept.insert(bound.listener_index, of_listener(bound, socket)),
                Err(error) => {
                    tracing::warn!(
                        listener.address = %bound.address, %error,
                        "the socket cannot be handed over to a successor"
                    );
                }
            }
        }
    }

    /// Closes all sockets that are not in use.
    pub(super) fn close(&mut self) {
        self.inherited.clear();
        self.kept = None;
    }
}

fn of_listener(bound: &BoundListener, socket: TcpOrUdpSocket) -> ListeningSocket {
    let socket = match socket {
        TcpOrUdpSocket::Tcp(socket) => socket.into(),
        TcpOrUdpSocket::Udp(socket) => socket.into(),
    };
    let (transport, requested_address) = (bound.transport, bound.requested_address);
    ListeningSocket { transport, requested_address, socket }
}

impl From<ListeningSocket> for TcpOrUdpSocket {
    fn from(it: ListeningSocket) -> Self {
        match it.transport {
            TransportProtocol::Tcp => Self::Tcp(TcpListener::from(it.socket)),
            TransportProtocol::Udp => Self::Udp(UdpSocket::from(it.socket)),
        }
    }
}

impl Proxy {
    /// Uses the sockets of another process for listeners with the same address, and binds those of HTTP/3 beside its
    /// groups. Call it before the first Snapshot.
    pub fn inherit_sockets(&self, sockets: Vec<ListeningSocket>, quic_groups: Vec<GroupShape>) {
        let mut control = lock(&self.control);
        control.handover.inherited = sockets;
        control.groups.set_predecessors(quic_groups);
    }

    /// Closes the inherited sockets that no listener uses.
    pub fn close_inherited_sockets(&self) {
        lock(&self.control).handover.inherited.clear();
    }

    /// Takes over the datagrams of the other process, which has ended.
    pub fn forget_predecessor(&self) {
        lock(&self.control).groups.forget_predecessors();
    }

    /// Returns the open groups of HTTP/3 sockets, for a successor.
    pub fn quic_groups(&self) -> Vec<GroupShape> {
        lock(&self.control).groups.shapes()
    }

    /// Makes [`Self::listening_sockets`] available. Call it before the first Snapshot.
    pub fn keep_sockets(&self) {
        lock(&self.control).handover.kept.get_or_insert_default();
    }

    /// Returns duplicates of the sockets of all listeners, if they are kept.
    ///
    /// # Errors
    /// If a descriptor cannot be duplicated.
    pub fn listening_sockets(&self) -> io::Result<Vec<ListeningSocket>> {
        let control = lock(&self.control);
        let duplicate = |it: &ListeningSocket| {
            let (transport, requested_address) = (it.transport, it.requested_address);
            Ok(ListeningSocket { transport, requested_address, socket: it.socket.try_clone()? })
        };
        control.handover.kept.iter().flat_map(BTreeMap::values).map(duplicate).collect()
    }

    /// Leaves the datagrams of UDP listeners to a successor that has the same sockets. Call it before
    /// [`Self::drain`].
    pub fn leave_datagrams(&self) {
        self.shared.has_successor.store(true, Ordering::Release);
    }
}
