//! Lossy line for UDP: a relay between clients and a server that delays, drops, corrupts and marks datagrams, and
//! changes the client's address as a NAT does.
//!
//! It needs no privileges. Its choices are seeded; the order of datagrams, which they are made for, is not.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};

use anyhow::Result;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

/// Conditions of a line, as data.
mod conditions;
/// Counts of the datagrams that have passed.
mod record;
/// Packet types of QUIC, read from unprotected headers.
mod packets;
/// Sockets with ECN.
mod socket;
/// The datagrams of one client address.
mod flow;

pub use conditions::{LineConditions, LineOutage, LineRebinding};
pub use packets::{PacketKind, packet_kinds};
pub use record::{DirectionRecord, LineRecord};

use flow::RelayFlow;
use socket::RelaySocket;

/// Running relay; it stops when dropped.
pub struct UdpRelay {
    /// Address that clients connect to.
    pub address: SocketAddr,
    record: Arc<Mutex<LineRecord>>,
    relaying: AbortHandle,
}

impl UdpRelay {
    /// Starts a relay to this server, on a free port of the loopback address of its family.
    pub async fn start(server: SocketAddr, conditions: LineConditions) -> Result<Self> {
        let socket = RelaySocket::bind(loopback_of(server))?;
        let address = socket.local_address()?;
        let record = Arc::default();
        let line = RelayLine {
            server,
            conditions,
            client_socket: Arc::new(socket),
            record: Arc::clone(&record),
        };
        let relaying = tokio::spawn(line.run()).abort_handle();
        Ok(Self { address, record, relaying })
    }

    /// Returns the counts so far.
    pub fn record(&self) -> LineRecord {
        lock(&self.record).clone()
    }
}

impl Drop for UdpRelay {
    fn drop(&mut self) {
        self.relaying.abort();
    }
}

/// Parts that all flows of a relay share.
#[derive(Clone)]
struct RelayLine {
    server: SocketAddr,
    conditions: LineConditions,
    client_socket: Arc<RelaySocket>,
    record: Arc<Mutex<LineRecord>>,
}

impl RelayLine {
    /// Sorts the datagrams of clients by their address, until a socket fails.
    async fn run(self) -> Result<()> {
        let mut flows: HashMap<SocketAddr, mpsc::UnboundedSender<_>> = HashMap::new();
        let mut running = JoinSet::new();
        let mut buffer = socket::buffer();
        loop {
            for datagram in self.client_socket.receive(&mut buffer).await? {
                let client = datagram.peer;
                let flow = flows.entry(client).or_insert_with(|| {
                    let (sender, receiver) = mpsc::unbounded_channel();
                    let number = running.len() as u64;
                    running.spawn(RelayFlow::run(self.clone(), client, number, receiver));
                    lock(&self.record).flows += 1;
                    sender
                });
                // A flow has ended only if its socket has failed: then the datagram is lost.
                drop(flow.send(datagram));
            }
        }
    }
}

fn lock(record: &Mutex<LineRecord>) -> MutexGuard<'_, LineRecord> {
    record.lock().expect("no thread panics with it")
}

fn loopback_of(address: SocketAddr) -> IpAddr {
    if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() }
}
