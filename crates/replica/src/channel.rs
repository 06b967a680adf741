//! The channel as a whole: members and certificates in force, and a task for each peer.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use balance::leases::ReplicaIdentity;
use socket2::SockRef;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};

use crate::accept::{ConnectionAcceptor, MessageReceiver};
use crate::certificates::ReplicaCertificates;
use crate::connection::set_buffers;
use crate::context::ChannelContext;
use crate::counts::{ChannelCounts, count};
use crate::dial::PeerDialer;
use crate::members::{ChannelSecurity, MemberError, PeerList, canonical};
use crate::message::{ReceivedMessage, ReplicaMessage};
use crate::peer::{PeerChannel, PeerState};
use crate::settings::{ChannelError, ChannelSettings, RECEIVE_QUEUE};

/// Starts the channel on the runtime of the caller.
///
/// # Errors
///
/// Returns the reason if the listener cannot be used, or if there are no certificates and an
/// address is not on loopback. If members or certificates that come later cannot be used, those in
/// force stay, and the error is logged and counted.
pub fn start_channel(
    settings: ChannelSettings,
) -> Result<(ChannelSender, ChannelReceiver), ChannelError> {
    let ChannelSettings { me, listener, port, members, certificates, times } = settings;
    let me = ReplicaIdentity { member: canonical(me.member), ..me };
    let listen_address = listener.local_addr().map_err(ChannelError::Listener)?;
    let context = Arc::new(ChannelContext::new(me, port, times));
    let sender = ChannelSender { context: Arc::clone(&context), peers: Arc::default() };
    let mut supervisor = ChannelSupervisor {
        sender: sender.clone(),
        listen_address,
        members,
        certificates,
        peers: watch::Sender::new(PeerList::default()),
        security: watch::Sender::new(ChannelSecurity::Plaintext),
        dialers: BTreeMap::new(),
        tasks: JoinSet::new(),
    };
    let listener = prepare(listener).map_err(ChannelError::Listener)?;
    supervisor.update()?;
    let (received, messages) = mpsc::channel(RECEIVE_QUEUE);
    let peers = supervisor.peers.subscribe();
    let security = supervisor.security.subscribe();
    let receiver = MessageReceiver { context, peers: peers.clone(), security, received };
    supervisor.tasks.spawn(ConnectionAcceptor { listener, peers, receiver }.run());
    let task = tokio::spawn(supervisor.run()).abort_handle();
    Ok((sender, ChannelReceiver { messages, task }))
}

fn prepare(listener: std::net::TcpListener) -> std::io::Result<TcpListener> {
    set_buffers(&SockRef::from(&listener))?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// Sender of messages to peers.
#[derive(Clone, Debug)]
pub struct ChannelSender {
    context: Arc<ChannelContext>,
    peers: Arc<Mutex<BTreeMap<SocketAddr, Arc<PeerChannel>>>>,
}

impl ChannelSender {
    /// Sends a message to a peer, as soon as the peer takes it. A later message of its kind
    /// replaces it until then. Never waits.
    pub fn send(&self, peer: SocketAddr, message: ReplicaMessage) {
        let counts = &self.context.counts;
        let peer = self.peers().get(&canonical(peer)).cloned();
        match peer.map(|peer| peer.put(message)) {
            Some(false) => {}
            Some(true) => count(&counts.messages_replaced, 1),
            None => count(&counts.messages_dropped, 1),
        }
    }

    /// Sends a message to all peers, like [`send`](Self::send).
    pub fn send_to_all(&self, message: &ReplicaMessage) {
        let peers = self.peers();
        let replaced = peers.values().filter(|peer| peer.put(message.clone())).count();
        count(&self.context.counts.messages_replaced, replaced);
    }

    /// Returns the state of the connection to each peer, in the order of their addresses.
    pub fn peer_states(&self) -> Vec<PeerState> {
        self.peers().iter().map(|(&member, peer)| peer.state(member)).collect()
    }

    /// Returns the counts of events since the start.
    pub fn counts(&self) -> &Arc<ChannelCounts> {
        &self.context.counts
    }

    fn peers(&self) -> MutexGuard<'_, BTreeMap<SocketAddr, Arc<PeerChannel>>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Receiver of the messages of peers. The channel ends when it is dropped.
#[derive(Debug)]
pub struct ChannelReceiver {
    messages: mpsc::Receiver<ReceivedMessage>,
    task: AbortHandle,
}

impl ChannelReceiver {
    /// Waits for the next message. If the future is dropped, no message is lost. `None`: the
    /// runtime of the channel has ended.
    pub async fn receive(&mut self) -> Option<ReceivedMessage> {
        self.messages.recv().await
    }

    /// Returns the next message if it has arrived.
    pub fn try_receive(&mut self) -> Option<ReceivedMessage> {
        self.messages.try_recv().ok()
    }
}

impl Drop for ChannelReceiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Task that applies members and certificates.
struct ChannelSupervisor {
    sender: ChannelSender,
    listen_address: SocketAddr,
    members: watch::Receiver<Arc<[SocketAddr]>>,
    certificates: watch::Receiver<Option<Arc<ReplicaCertificates>>>,
    /// Peers in force.
    peers: watch::Sender<PeerList>,
    /// Protection in force.
    security: watch::Sender<ChannelSecurity>,
    dialers: BTreeMap<SocketAddr, AbortHandle>,
    /// Ends its tasks when it is dropped.
    tasks: JoinSet<()>,
}

impl ChannelSupervisor {
    async fn run(mut self) {
        loop {
            tokio::select! {
                Ok(()) = self.members.changed() => {}
                Ok(()) = self.certificates.changed() => {}
                Some(_) = self.tasks.join_next() => continue,
                else => return,
            }
            if let Err(error) = self.update() {
                count(&self.sender.context.counts.updates_refused, 1);
                tracing::error!(%error, "cannot use these members or certificates of replicas");
            }
        }
    }

    /// Puts the newest members and certificates in force.
    fn update(&mut self) -> Result<(), MemberError> {
        let me = self.sender.context.me.member;
        let members = Arc::clone(&self.members.borrow_and_update());
        let certificates = self.certificates.borrow_and_update().clone();
        let peers = PeerList::new(&members, me)?;
        let addresses = peers.iter().chain([me, self.listen_address]);
        let security = ChannelSecurity::new(certificates, addresses)?;
        self.security.send_if_modified(|in_force| {
            let is_new = !in_force.is_same(&security);
            *in_force = security;
            is_new
        });
        self.update_dialers(&peers);
        self.peers.send_if_modified(|in_force| {
            let is_new = *in_force != peers;
            *in_force = peers;
            is_new
        });
        Ok(())
    }

    /// Ends the tasks of peers that have left, and starts those of peers that have joined.
    fn update_dialers(&mut self, peers: &PeerList) {
        let mut channels = self.sender.peers();
        self.dialers.retain(|&member, task| {
            let stays = peers.contains(member);
            if !stays {
                task.abort();
                channels.remove(&member);
            }
            stays
        });
        for member in peers.iter() {
            self.dialers.entry(member).or_insert_with(|| {
                let peer = Arc::clone(channels.entry(member).or_default());
                let context = Arc::clone(&self.sender.context);
                let security = self.security.subscribe();
                let dialer = PeerDialer { member, peer, context, security };
                self.tasks.spawn(dialer.run())
            });
        }
    }
}
