//! UDP listener: the datagrams of one client form a flow, which has an endpoint of its own until it
//! is idle.
//!
//! One worker reads the listener's socket. It does not interpret the datagrams, and it buffers none
//! that an endpoint could have received. Answers are sent from the local address that the client
//! used. A datagram that cannot be sent at once is dropped and counted, since UDP applications
//! retransmit what matters.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::oneshot;

use crate::active_config::BoundListener;
use crate::scratch::ReplayBudget;
use crate::sys;
use crate::worker::{DrainStage, Worker};

/// Flow of one client's datagrams to its endpoint.
mod flow;

use flow::UdpFlow;

/// Datagrams that one system call reads; each buffer has room for the largest possible one.
const BATCH: usize = 4;
const LARGEST: usize = 64 * 1024;
/// Pause after an error of the socket.
const PAUSE: Duration = Duration::from_millis(20);

/// UDP listener socket with its flows.
struct UdpListener {
    worker: Rc<Worker>,
    bound: Arc<BoundListener>,
    socket: UdpSocket,
    state: UdpSocketState,
    flows: RefCell<HashMap<UdpFlowKey, Rc<UdpFlow>>>,
    replay_budget: Rc<ReplayBudget>,
}

/// Key of a flow: the client's address and port, and our local address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct UdpFlowKey {
    client: SocketAddr,
    local_ip: Option<IpAddr>,
}

/// Receives datagrams until the listener is removed. A draining process continues the flows that it
/// has.
pub(crate) async fn serve(
    worker: Rc<Worker>,
    bound: Arc<BoundListener>,
    socket: std::net::UdpSocket,
    mut closed: oneshot::Receiver<()>,
) {
    let address = bound.address;
    let udp_listener = match UdpListener::new(worker, bound, socket) {
        Ok(udp_listener) => Rc::new(udp_listener),
        Err(error) => {
            tracing::error!(listener.address = %address, %error, "cannot register the listener socket");
            return;
        }
    };
    let mut is_failing = false;
    loop {
        tokio::select! {
            ready = udp_listener.socket.readable() => {
                match ready.and_then(|()| udp_listener.receive()) {
                    Ok(()) => is_failing = false,
                    Err(error) => {
                        if !std::mem::replace(&mut is_failing, true) {
                            tracing::warn!(listener.address = %address, %error, "cannot receive datagrams");
                        }
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
            _ = &mut closed => break,
        }
    }
    // If the listener itself has been removed, its flows notice that and end.
    if udp_listener.worker.stage() < DrainStage::Draining {
        return;
    }
    // A successor reads the same socket. The flows still relay what their endpoints answer.
    if udp_listener.worker.shared.has_successor.load(Ordering::Acquire) {
        return;
    }
    // Only datagrams of existing flows are passed on now: see `flow_of`.
    while udp_listener.socket.readable().await.is_ok() {
        // The flows notice an error themselves.
        drop(udp_listener.receive());
    }
}

impl UdpListener {
    fn new(
        worker: Rc<Worker>,
        bound: Arc<BoundListener>,
        socket: std::net::UdpSocket,
    ) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        // Undoes the socket options that `quinn-udp` sets for QUIC.
        sys::allow_fragmentation(&socket)?;
        sys::disable_gro(&socket);
        let socket = UdpSocket::from_std(socket)?;
        let (flows, replay_budget) = (RefCell::default(), ReplayBudget::of_udp_flows());
        Ok(Self { worker, bound, socket, state, flows, replay_budget })
    }

    /// Reads one batch of datagrams.
    fn receive(self: &Rc<Self>) -> io::Result<()> {
        let mut large = self.worker.scratch.copy_buffer();
        let mut meta = [RecvMeta::default(); BATCH];
        let count = {
            let mut buffers = large.chunks_exact_mut(LARGEST).map(IoSliceMut::new);
            let mut buffers: [_; BATCH] =
                std::array::from_fn(|_| buffers.next().expect("the buffer has room for a batch"));
            let receive = || self.state.recv((&self.socket).into(), &mut buffers, &mut meta);
            match self.socket.try_io(Interest::READABLE, receive) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                // The ICMP error for a datagram sent earlier; the kernel does not tell which flow
                // it belongs to.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => 0,
                Err(error) => return Err(error),
            }
        };
        for (meta, datagram) in meta[..count].iter().zip(large.chunks_exact(LARGEST)) {
            let flow = self.flow_of(UdpFlowKey { client: meta.addr, local_ip: meta.dst_ip });
            if !flow.is_some_and(|flow| flow.forward(&datagram[..meta.len])) {
                self.count_dropped();
            }
        }
        Ok(())
    }

    /// Returns the flow with this key, or begins a new one if the limits allow it.
    fn flow_of(self: &Rc<Self>, key: UdpFlowKey) -> Option<Rc<UdpFlow>> {
        if let Some(flow) = self.flows.borrow().get(&key) {
            return Some(Rc::clone(flow));
        }
        let active_config = self.worker.config();
        let listener = active_config.listener(&self.bound)?;
        if self.worker.stage() >= DrainStage::Draining {
            return None;
        }
        let counters = &self.bound.counters[self.worker.index];
        if !listener.admits_source(key.client.ip()) {
            counters.refused_sources.add(1);
            return None;
        }
        let descriptors = &self.worker.shared.budgets.descriptors;
        let has_descriptor = descriptors.add_flow();
        if !has_descriptor || !self.bound.admit_connection(listener.client.max_connections) {
            if has_descriptor {
                descriptors.remove_flow();
            }
            counters.refused.add(1);
            return None;
        }
        counters.accepted.add(1);
        self.worker.handle().connections.fetch_add(1, Ordering::AcqRel);
        let flow = Rc::new(UdpFlow::new(key, &self.replay_budget));
        self.flows.borrow_mut().insert(key, Rc::clone(&flow));
        tokio::task::spawn_local(flow::run(Rc::clone(self), Rc::clone(&flow)));
        Some(flow)
    }

    /// Removes a flow that has ended.
    fn remove_flow(&self, flow: &UdpFlow) {
        self.flows.borrow_mut().remove(&flow.key);
        self.worker.handle().connections.fetch_sub(1, Ordering::AcqRel);
        self.bound.release_connection();
        self.worker.shared.budgets.descriptors.remove_flow();
        self.bound.counters[self.worker.index].closed.add(1);
    }

    /// Sends a datagram to a client, if the socket accepts it at once.
    fn send(&self, key: UdpFlowKey, datagram: &[u8]) -> bool {
        let transmit = Transmit {
            destination: key.client,
            ecn: None,
            contents: datagram,
            segment_size: None,
            src_ip: key.local_ip,
        };
        let send = || self.state.try_send((&self.socket).into(), &transmit);
        let sent = self.socket.try_io(Interest::WRITABLE, send).is_ok();
        if !sent {
            self.count_dropped();
        }
        sent
    }

    fn count_dropped(&self) {
        self.bound.counters[self.worker.index].datagrams_dropped.add(1);
    }
}
