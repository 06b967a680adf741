//! Connections of peers: authentication, receiving.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use balance::leases::{LeaseMessage, ReplicaIdentity};
use balance::limit::LimitMessage;
use balance::rate_limit::TokenMessage;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::accepted::{AcceptedConnections, AcceptedPlace};
use crate::connection::{PeerConnection, configure, is_certificate_error, secure_accepted};
use crate::context::ChannelContext;
use crate::counts::{RefusalReason, count};
use crate::frame::{FrameBuffer, FrameError, MAX_FRAME_BYTES};
use crate::hello::{HelloError, receive_hello, send_hello};
use crate::members::{ChannelSecurity, PeerList, canonical};
use crate::message::{ReceivedMessage, ReplicaMessage};
use crate::wire::{FrameBody, WireError, WireFrame};

/// Pause after the listening socket has failed, as for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Task that accepts connections of peers.
pub(crate) struct ConnectionAcceptor {
    pub(crate) listener: TcpListener,
    pub(crate) peers: watch::Receiver<PeerList>,
    pub(crate) receiver: MessageReceiver,
}

/// State for the connections of peers.
#[derive(Clone)]
pub(crate) struct MessageReceiver {
    pub(crate) context: Arc<ChannelContext>,
    pub(crate) peers: watch::Receiver<PeerList>,
    pub(crate) security: watch::Receiver<ChannelSecurity>,
    pub(crate) received: mpsc::Sender<ReceivedMessage>,
}

/// Reason for closing a connection, with the words for the log.
struct ConnectionRefusal {
    reason: RefusalReason,
    /// The member, or the address of the connection with port 0.
    peer: SocketAddr,
    detail: String,
}

impl ConnectionAcceptor {
    pub(crate) async fn run(mut self) {
        let connections = AcceptedConnections::default();
        let mut tasks = JoinSet::new();
        let mut is_failing = false;
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((socket, source)) => {
                        is_failing = false;
                        let ip = source.ip().to_canonical();
                        self.start(socket, ip, &connections, &mut tasks);
                    }
                    Err(error) => {
                        if !std::mem::replace(&mut is_failing, true) {
                            tracing::warn!(%error, "cannot accept connections of replicas");
                        }
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(_) = tasks.join_next() => {}
                Ok(()) = self.peers.changed() => {
                    connections.retain_peers(&self.peers.borrow_and_update());
                }
            }
        }
    }

    fn start(
        &self,
        socket: TcpStream,
        ip: IpAddr,
        connections: &AcceptedConnections,
        tasks: &mut JoinSet<()>,
    ) {
        let peer = SocketAddr::new(ip, 0);
        if !self.peers.borrow().contains_ip(ip) {
            let detail = "no peer has this address".to_owned();
            let reason = RefusalReason::Source;
            self.receiver.note_refusal(&ConnectionRefusal { reason, peer, detail });
            return;
        }
        let receiver = self.receiver.clone();
        let has_room = connections.start(ip, |place| {
            tasks.spawn(async move {
                if let Err(refusal) = receiver.serve(socket, ip, &place).await {
                    receiver.note_refusal(&refusal);
                }
            })
        });
        if !has_room {
            let detail = "too many connections in their handshake".to_owned();
            let reason = RefusalReason::Handshakes;
            self.receiver.note_refusal(&ConnectionRefusal { reason, peer, detail });
        }
    }
}

impl MessageReceiver {
    /// Serves one connection until it ends.
    async fn serve(
        &self,
        socket: TcpStream,
        ip: IpAddr,
        place: &AcceptedPlace,
    ) -> Result<(), ConnectionRefusal> {
        let times = self.context.times;
        let mut buffer = FrameBuffer::default();
        let handshake = timeout(times.handshake, self.authenticate(socket, ip, place, &mut buffer));
        let Ok(authenticated) = handshake.await else {
            let detail = "not authenticated in time".to_owned();
            let peer = SocketAddr::new(ip, 0);
            return Err(ConnectionRefusal { reason: RefusalReason::Timeout, peer, detail });
        };
        let (mut connection, from) = authenticated?;
        self.context.forget_problems(from.member);
        let receive = self.receive(&mut connection, from, buffer, place);
        // A peer renews its connections earlier, and has begun the next one.
        timeout(times.max_age * 2 + times.handshake, receive).await.unwrap_or(Ok(()))
    }

    /// Does the handshakes; returns the connection and the peer.
    async fn authenticate(
        &self,
        socket: TcpStream,
        ip: IpAddr,
        place: &AcceptedPlace,
        buffer: &mut FrameBuffer,
    ) -> Result<(PeerConnection, ReplicaIdentity), ConnectionRefusal> {
        let peer = SocketAddr::new(ip, 0);
        let refusal = |reason, detail: String| ConnectionRefusal { reason, peer, detail };
        let security = self.security.borrow().clone();
        let secured = match configure(&socket, self.context.times.write) {
            Ok(()) => secure_accepted(socket, &security).await,
            Err(error) => Err(error),
        };
        let mut connection =
            secured.map_err(|error| refusal(tls_reason(&error), error.to_string()))?;
        let hello = receive_hello(&mut connection, buffer).await;
        if let Err(HelloError::Version(_)) = hello {
            // So that the peer can tell why it is refused.
            send_hello(&mut connection, self.context.me).await.unwrap_or_default();
        }
        let hello = hello.map_err(|error| refusal(hello_reason(&error), error.to_string()))?;
        let from = ReplicaIdentity { member: canonical(hello.member), ..hello };
        if !place.authenticate(from) {
            let detail = format!("incarnation {} has ended", from.incarnation);
            return Err(refusal(RefusalReason::StaleIncarnation, detail));
        }
        // From here on, its connections are closed when it leaves.
        self.check_member(from.member, ip)?;
        let replied = send_hello(&mut connection, self.context.me).await;
        replied.map_err(|error| refusal(RefusalReason::Tls, error.to_string()))?;
        Ok((connection, from))
    }

    /// Returns an error unless the replica is a member, and this is its address.
    fn check_member(&self, member: SocketAddr, ip: IpAddr) -> Result<(), ConnectionRefusal> {
        if member.ip() == ip && self.peers.borrow().contains(member) {
            return Ok(());
        }
        let detail = format!("{member} at {ip} is not a member");
        let (reason, peer) = (RefusalReason::UnknownMember, SocketAddr::new(ip, 0));
        Err(ConnectionRefusal { reason, peer, detail })
    }

    /// Receives messages until the connection ends.
    async fn receive(
        &self,
        connection: &mut PeerConnection,
        from: ReplicaIdentity,
        mut buffer: FrameBuffer,
        place: &AcceptedPlace,
    ) -> Result<(), ConnectionRefusal> {
        let refusal = |reason, detail| ConnectionRefusal { reason, peer: from.member, detail };
        loop {
            let frame = buffer.next_frame(MAX_FRAME_BYTES);
            let frame = frame.map_err(|error| refusal(frame_reason(error), error.to_string()))?;
            if let Some(frame) = frame {
                let message = self.message(frame, from, connection.is_encrypted());
                let message =
                    message.map_err(|reason| refusal(reason, reason.name().to_owned()))?;
                let Some(message) = message else { continue };
                if !place.may_deliver(from.member)
                    || self.received.send(ReceivedMessage { from, message }).await.is_err()
                {
                    return Ok(());
                }
                count(&self.context.counts.messages_received, 1);
                continue;
            }
            match timeout(self.context.times.idle, buffer.read(connection)).await {
                Ok(Ok(bytes)) if bytes > 0 => count(&self.context.counts.bytes_received, bytes),
                // The peer connects again.
                Ok(_) | Err(_) => return Ok(()),
            }
        }
    }

    /// Returns the message of a frame; none if it has none that we understand.
    fn message(
        &self,
        frame: WireFrame,
        from: ReplicaIdentity,
        is_encrypted: bool,
    ) -> Result<Option<ReplicaMessage>, RefusalReason> {
        match frame.body {
            Some(FrameBody::Lease(lease)) => {
                let lease = LeaseMessage::try_from(lease);
                self.check(lease.map(|it| (it.from, ReplicaMessage::Lease(it))), from)
            }
            Some(FrameBody::Limits(limits)) => {
                let limits = LimitMessage::try_from(limits);
                self.check(limits.map(|it| (it.from, ReplicaMessage::Limits(it))), from)
            }
            Some(FrameBody::Tokens(tokens)) => {
                let tokens = TokenMessage::try_from(tokens);
                self.check(tokens.map(|it| (it.from, ReplicaMessage::Tokens(it))), from)
            }
            Some(FrameBody::Demand(demand)) => {
                Ok(self.report(demand.try_into().map(ReplicaMessage::Demand), from))
            }
            Some(FrameBody::Refusals(refusals)) => {
                Ok(self.report(refusals.try_into().map(ReplicaMessage::Refusals), from))
            }
            Some(FrameBody::Outages(outages)) => {
                Ok(self.report(outages.try_into().map(ReplicaMessage::Outages), from))
            }
            // Whatever has sent it, others may have read it.
            Some(FrameBody::TicketKeys(_)) if !is_encrypted => {
                let detail = "keys over a connection without TLS".to_owned();
                let (reason, peer) = (RefusalReason::Unencrypted, from.member);
                self.note_refusal(&ConnectionRefusal { reason, peer, detail });
                Ok(None)
            }
            Some(FrameBody::TicketKeys(keys)) => {
                Ok(self.report(keys.try_into().map(ReplicaMessage::TicketKeys), from))
            }
            Some(FrameBody::Hello(_)) | None => Ok(None),
        }
    }

    /// Returns a message that names the authenticated replica as its sender.
    fn check(
        &self,
        decoded: Result<(ReplicaIdentity, ReplicaMessage), WireError>,
        from: ReplicaIdentity,
    ) -> Result<Option<ReplicaMessage>, RefusalReason> {
        match decoded {
            Ok((sender, message)) if sender == from => Ok(Some(message)),
            Ok(_) => Err(RefusalReason::Sender),
            // Other messages of this peer may be understood.
            Err(WireError::Version) => {
                let detail = WireError::Version.to_string();
                let (reason, peer) = (RefusalReason::Version, from.member);
                self.note_refusal(&ConnectionRefusal { reason, peer, detail });
                Ok(None)
            }
            Err(WireError::Absurd) => Err(RefusalReason::Absurd),
        }
    }

    /// Returns the message of a report. If it is impossible, only it is refused: leases of this
    /// peer must not suffer.
    fn report(
        &self,
        message: Result<ReplicaMessage, WireError>,
        from: ReplicaIdentity,
    ) -> Option<ReplicaMessage> {
        let refused = |error: WireError| {
            let (reason, peer) = (RefusalReason::Absurd, from.member);
            self.note_refusal(&ConnectionRefusal { reason, peer, detail: error.to_string() });
        };
        message.map_err(refused).ok()
    }

    fn note_refusal(&self, refusal: &ConnectionRefusal) {
        let ConnectionRefusal { reason, peer, detail } = refusal;
        self.context.counts.count_refused(*reason);
        if !self.context.is_new_problem(*peer, reason.name()) {
            return;
        }
        let reason_name = reason.name();
        match reason {
            // A replica that has just started may know us earlier than we know it.
            RefusalReason::Source | RefusalReason::UnknownMember => {
                tracing::info!(%peer, reason = reason_name, detail, "refused a replica");
            }
            _ => tracing::warn!(%peer, reason = reason_name, detail, "refused a replica"),
        }
    }
}

fn tls_reason(error: &io::Error) -> RefusalReason {
    match is_certificate_error(error) {
        true => RefusalReason::Certificate,
        false => RefusalReason::Tls,
    }
}

fn frame_reason(error: FrameError) -> RefusalReason {
    match error {
        FrameError::TooLarge(_) => RefusalReason::FrameSize,
        FrameError::Malformed => RefusalReason::Malformed,
    }
}

fn hello_reason(error: &HelloError) -> RefusalReason {
    match error {
        HelloError::Connection(_) => RefusalReason::Tls,
        HelloError::Frame(error) => frame_reason(*error),
        HelloError::Invalid => RefusalReason::Malformed,
        HelloError::Version(_) => RefusalReason::Version,
    }
}
