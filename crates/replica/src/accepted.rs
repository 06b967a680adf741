//! Accepted connections by peer, and their limits.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use balance::leases::ReplicaIdentity;
use tokio::task::AbortHandle;

use crate::members::PeerList;
use crate::settings::MAX_HANDSHAKES;

/// Maximum number of connections of one member: a renewal overlaps with the connection it replaces.
const MAX_OF_MEMBER: usize = 2;

/// Accepted connections. Each has a number, in the order of acceptance.
#[derive(Clone, Debug, Default)]
pub(crate) struct AcceptedConnections(Arc<Mutex<ConnectionTable>>);

#[derive(Debug, Default)]
struct ConnectionTable {
    last_number: u64,
    /// Connections that have not authenticated, oldest first.
    handshakes: VecDeque<(ConnectionTask, IpAddr)>,
    members: BTreeMap<SocketAddr, MemberConnections>,
}

/// Connections of one member.
#[derive(Debug, Default)]
struct MemberConnections {
    /// The highest incarnation that has connected: that of all open connections.
    incarnation: u64,
    /// Open connections, oldest first.
    open: VecDeque<ConnectionTask>,
    /// The newest connection that has delivered a message. Earlier ones may not do so any more.
    delivering: u64,
}

#[derive(Debug)]
struct ConnectionTask {
    number: u64,
    task: AbortHandle,
}

/// Place of a connection in the table, to its end.
#[derive(Debug)]
pub(crate) struct AcceptedPlace {
    number: u64,
    table: AcceptedConnections,
}

impl AcceptedConnections {
    /// Starts the task of a new connection. If its address has too many in their handshake, closes
    /// the oldest of them and returns false.
    pub(crate) fn start(
        &self,
        ip: IpAddr,
        spawn: impl FnOnce(AcceptedPlace) -> AbortHandle,
    ) -> bool {
        let mut table = self.lock();
        let of_ip = |(_, from): &(ConnectionTask, IpAddr)| *from == ip;
        let is_full = table.handshakes.iter().filter(|it| of_ip(it)).count() >= MAX_HANDSHAKES;
        if is_full && let Some(oldest) = table.handshakes.iter().position(of_ip) {
            table.handshakes.remove(oldest).inspect(|(oldest, _)| oldest.task.abort());
        }
        table.last_number += 1;
        let number = table.last_number;
        let task = spawn(AcceptedPlace { number, table: self.clone() });
        table.handshakes.push_back((ConnectionTask { number, task }, ip));
        !is_full
    }

    /// Closes the connections of replicas that are no longer peers.
    pub(crate) fn retain_peers(&self, peers: &PeerList) {
        self.lock().members.retain(|&member, connections| {
            let stays = peers.contains(member);
            if !stays {
                connections.open.iter().for_each(|connection| connection.task.abort());
            }
            stays
        });
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AcceptedPlace {
    /// Makes the connection one of a member, and closes those of its former incarnations. If there
    /// are too many, closes the oldest. Returns false if a later incarnation is connected.
    pub(crate) fn authenticate(&self, from: ReplicaIdentity) -> bool {
        let mut table = self.table.lock();
        let at = table.handshakes.iter().position(|(it, _)| it.number == self.number);
        // Else the connection is about to be aborted.
        let Some((connection, _)) = at.and_then(|at| table.handshakes.remove(at)) else {
            return true;
        };
        let connections = table.members.entry(from.member).or_default();
        if from.incarnation < connections.incarnation {
            return false;
        }
        let has_restarted = from.incarnation > connections.incarnation;
        connections.incarnation = from.incarnation;
        let kept = if has_restarted { 0 } else { MAX_OF_MEMBER - 1 };
        while connections.open.len() > kept {
            connections.open.pop_front().inspect(|oldest| oldest.task.abort());
        }
        connections.open.push_back(connection);
        true
    }

    /// True if the connection may deliver a message of the member: no later one has done so.
    pub(crate) fn may_deliver(&self, member: SocketAddr) -> bool {
        let mut table = self.table.lock();
        let Some(connections) = table.members.get_mut(&member) else { return false };
        let is_newest = self.number >= connections.delivering;
        connections.delivering = connections.delivering.max(self.number);
        is_newest
    }
}

impl Drop for AcceptedPlace {
    fn drop(&mut self) {
        let mut table = self.table.lock();
        table.handshakes.retain(|(it, _)| it.number != self.number);
        table.members.retain(|_, connections| {
            connections.open.retain(|it| it.number != self.number);
            !connections.open.is_empty()
        });
    }
}
