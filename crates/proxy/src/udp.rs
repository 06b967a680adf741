//! A UDP listener: the datagrams of one client are a flow, which has an endpoint of its own until it is idle.
//!
//! One worker reads the listener's socket; it demands nothing of datagrams and keeps none that an endpoint could have
//! got. Answers leave from the address that the client had sent to. What cannot be sent at once is dropped and counted:
//! whoever uses UDP repeats what matters.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::oneshot;

use crate::active_config::ListenerSocket;
use crate::sys;
use crate::worker::{DrainStage, Worker};

/// One client's datagrams, and where they go.
mod flow;

use flow::UdpFlow;

/// Datagrams that one system call reads; each has room for the largest there is.
const BATCH: usize = 4;
const LARGEST: usize = 64 * 1024;

/// A listener's socket with its flows.
struct UdpListener {
    worker: Rc<Worker>,
    bound: Arc<ListenerSocket>,
    socket: UdpSocket,
    state: UdpSocketState,
    flows: RefCell<HashMap<UdpFlowKey, Rc<UdpFlow>>>,
}

/// Where a flow comes from: one client's port, at one address of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct UdpFlowKey {
    client: SocketAddr,
    local_ip: Option<IpAddr>,
}

/// Takes in datagrams until the listener goes. A process on its way out goes on with the flows that it has.
pub(crate) async fn serve(
    worker: Rc<Worker>,
    bound: Arc<ListenerSocket>,
    socket: std::net::UdpSocket,
    mut closed: oneshot::Receiver<()>,
) {
    let address = bound.address;
    let front = match UdpListener::new(worker, bound, socket) {
        Ok(front) => Rc::new(front),
        Err(error) => {
            tracing::error!(listener.address = %address, %error, "cannot watch the listener");
            return;
        }
    };
    loop {
        tokio::select! {
            ready = front.socket.readable() => {
                if let Err(error) = ready.and_then(|()| front.receive()) {
                    tracing::warn!(listener.address = %address, %error, "cannot receive");
                }
            }
            _ = &mut closed => break,
        }
    }
    // Where the listener itself has gone, its flows see that and end.
    if front.worker.stage() < DrainStage::Draining {
        return;
    }
    // Only those who had a flow before still get through: see `flow_of`.
    while front.socket.readable().await.is_ok() {
        // What fails now is noticed by the flows.
        drop(front.receive());
    }
}

impl UdpListener {
    fn new(
        worker: Rc<Worker>,
        bound: Arc<ListenerSocket>,
        socket: std::net::UdpSocket,
    ) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        // What makes a socket one for QUIC is not for others.
        sys::allow_fragmentation(&socket)?;
        sys::disable_gro(&socket);
        let socket = UdpSocket::from_std(socket)?;
        Ok(Self { worker, bound, socket, state, flows: RefCell::default() })
    }

    /// Reads what has come, a batch of datagrams.
    fn receive(self: &Rc<Self>) -> io::Result<()> {
        let mut large = self.worker.scratch.copy_buffer();
        let mut meta = [RecvMeta::default(); BATCH];
        let count = {
            let mut rooms = large.chunks_exact_mut(LARGEST).map(IoSliceMut::new);
            let mut rooms: [_; BATCH] =
                std::array::from_fn(|_| rooms.next().expect("the buffer has room for a batch"));
            let receive = || self.state.recv((&self.socket).into(), &mut rooms, &mut meta);
            match self.socket.try_io(Interest::READABLE, receive) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                // The answer to something sent before; which flow it was is not said.
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

    /// The flow from there, a new one if there may be one more.
    fn flow_of(self: &Rc<Self>, whence: UdpFlowKey) -> Option<Rc<UdpFlow>> {
        if let Some(flow) = self.flows.borrow().get(&whence) {
            return Some(Rc::clone(flow));
        }
        let live = self.worker.config();
        let listener = live.listener(&self.bound)?;
        if self.worker.stage() >= DrainStage::Draining {
            return None;
        }
        let counters = &self.bound.counters[self.worker.index];
        if !self.bound.admit_connection(listener.client.max_connections) {
            counters.refused.add(1);
            return None;
        }
        counters.accepted.add(1);
        self.worker.handle().connections.fetch_add(1, Ordering::AcqRel);
        let flow = Rc::new(UdpFlow::new(whence, &self.worker.replay_budget));
        self.flows.borrow_mut().insert(whence, Rc::clone(&flow));
        tokio::task::spawn_local(flow::run(Rc::clone(self), Rc::clone(&flow)));
        Some(flow)
    }

    /// The flow is over.
    fn remove_flow(&self, flow: &UdpFlow) {
        self.flows.borrow_mut().remove(&flow.key);
        self.worker.handle().connections.fetch_sub(1, Ordering::AcqRel);
        self.bound.release_connection();
        self.bound.counters[self.worker.index].closed.add(1);
    }

    /// Sends a datagram to a client, if it can be sent at once.
    fn send(&self, whence: UdpFlowKey, datagram: &[u8]) -> bool {
        let transmit = Transmit {
            destination: whence.client,
            ecn: None,
            contents: datagram,
            segment_size: None,
            src_ip: whence.local_ip,
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
