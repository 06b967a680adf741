//! One session: received bytes and the passage of time in; bytes to send, timers and the end of the session out.
//!
//! The state machine is `rustbgpd-fsm`. This module executes its actions, without a socket.

use std::net::Ipv4Addr;
use std::time::Duration;

use bytes::BytesMut;
use rustbgpd_fsm::{Action, Event, PeerConfig, Session, SessionState, TimerType};
use rustbgpd_wire::notification::{
    NotificationCode, description, encode_shutdown_communication, extract_shutdown_communication,
    open_subcode,
};
use rustbgpd_wire::{
    Afi, Capability, MAX_MESSAGE_LEN, Message, NotificationMessage, OpenMessage, Safi,
    decode_message, encode_message, peek_message_length,
};
use tokio::time::Instant;

use crate::next_hop::NextHops;
use crate::report::PeerCounts;
use crate::settings::{PeerSettings, RouteTable};
use crate::update::UpdateContext;

/// Time limit for the router's OPEN.
const OPEN_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum length of a router's text in a reason, in characters.
const MAX_TEXT_CHARACTERS: usize = 128;

/// The session of one connection.
pub(crate) struct PeerSession {
    settings: PeerSettings,
    machine: Session,
    next_hops: NextHops,
    /// Bytes to send.
    pub(crate) outbound: BytesMut,
    /// Time at which the router is considered dead.
    hold_ends: Option<Instant>,
    /// Time of the next KEEPALIVE.
    keepalive_due: Option<Instant>,
    /// Properties of the messages, once the session is up.
    context: Option<UpdateContext>,
    /// Routes that the router has been told.
    pub(crate) announced: RouteTable,
    /// Why the session ended. Bytes that are left are still sent.
    pub(crate) end: Option<String>,
    pub(crate) counts: PeerCounts,
}

impl PeerSession {
    pub(crate) fn new(settings: PeerSettings, router_id: Ipv4Addr, next_hops: NextHops) -> Self {
        let mut config = PeerConfig::new(settings.local_asn, settings.peer_asn, router_id);
        config.hold_time = settings.hold_time;
        config.disable_ipv4_unicast = next_hops.v4.is_none();
        if next_hops.v4.is_some() {
            config.families.push((Afi::Ipv4, Safi::Unicast));
        }
        if next_hops.v6.is_some() {
            config.families.push((Afi::Ipv6, Safi::Unicast));
        }
        Self {
            settings,
            machine: Session::new(config),
            next_hops,
            outbound: BytesMut::new(),
            hold_ends: None,
            keepalive_due: None,
            context: None,
            announced: RouteTable::new(),
            end: None,
            counts: PeerCounts::default(),
        }
    }

    pub(crate) fn state(&self) -> SessionState {
        self.machine.state()
    }

    /// True if a session is up.
    pub(crate) fn is_established(&self) -> bool {
        self.end.is_none() && self.state() == SessionState::Established
    }

    /// Begins the session on a connection that is open.
    pub(crate) fn start(&mut self, now: Instant) {
        self.handle(Event::ManualStart, now);
        self.handle(Event::TcpConnectionConfirmed, now);
    }

    /// Ends the session, and tells the router why (RFC 9003).
    pub(crate) fn stop(&mut self, reason: &str, now: Instant) {
        if self.end.is_none() {
            let reason = Some(encode_shutdown_communication(reason));
            self.handle(Event::ManualStop { reason }, now);
            self.end = Some("it was stopped".to_owned());
        }
    }

    /// Ends the session without a message, because the connection failed.
    pub(crate) fn disconnect(&mut self, reason: String, now: Instant) {
        if self.end.is_none() {
            self.handle(Event::TcpConnectionFails, now);
            self.end = Some(reason);
        }
        self.outbound.clear();
    }

    /// Reads the messages in a buffer, and leaves the part of one that is incomplete.
    pub(crate) fn receive(&mut self, inbound: &mut BytesMut, now: Instant) {
        while self.end.is_none() {
            let message = match peek_message_length(inbound, MAX_MESSAGE_LEN) {
                Ok(Some(length)) if inbound.len() >= usize::from(length) => {
                    let mut bytes = inbound.split_to(length.into()).freeze();
                    decode_message(&mut bytes, MAX_MESSAGE_LEN)
                }
                Ok(_) => return,
                Err(error) => Err(error),
            };
            match message {
                Ok(message) => self.read(message, now),
                Err(error) => {
                    let reason = format!("the router sent what is not BGP: {error}");
                    self.handle(Event::DecodeError(error), now);
                    self.end = Some(reason);
                }
            }
        }
    }

    fn read(&mut self, message: Message, now: Instant) {
        let (event, reason) = match message {
            Message::Open(open) => {
                let reason = self.open_fault(&open);
                (Event::OpenReceived(open), reason)
            }
            Message::Keepalive => (Event::KeepaliveReceived, None),
            Message::Update(_) => {
                self.counts.updates_discarded += 1;
                (Event::UpdateReceived, None)
            }
            Message::RouteRefresh(refresh) => {
                // All routes are sent again, those of the other family too.
                self.announced.clear();
                let Some((afi, safi)) = refresh.afi().zip(refresh.safi()) else { return };
                (Event::RouteRefreshReceived { afi, safi }, None)
            }
            Message::Notification(notification) => {
                let reason = Some(closed_by_router(&notification, &self.settings));
                (Event::NotificationReceived(notification), reason)
            }
            _ => return,
        };
        self.handle(event, now);
        if self.end.is_some() && reason.is_some() {
            self.end = reason;
        }
    }

    /// Returns why an OPEN will be rejected, if that can be said better than by the name of the error.
    fn open_fault(&self, open: &OpenMessage) -> Option<String> {
        let PeerSettings { peer_asn, .. } = self.settings;
        let found = open.four_byte_as();
        (found != peer_asn)
            .then(|| format!("the router is in AS {found}, and peerASN is {peer_asn}"))
    }

    /// Handles timers that have expired.
    pub(crate) fn expire(&mut self, now: Instant) {
        if self.end.is_none() && self.hold_ends.is_some_and(|at| at <= now) {
            self.hold_ends = None;
            self.handle(Event::HoldTimerExpires, now);
            self.end = Some("the router was silent for the hold time".to_owned());
        }
        if self.end.is_none() && self.keepalive_due.is_some_and(|at| at <= now) {
            self.keepalive_due = None;
            self.handle(Event::KeepaliveTimerExpires, now);
        }
    }

    /// Returns the time of the next timer.
    pub(crate) fn next_timer(&self) -> Option<Instant> {
        self.hold_ends.into_iter().chain(self.keepalive_due).min()
    }

    /// Tells the router the difference between these routes and those that it knows.
    pub(crate) fn announce(&mut self, wanted: &RouteTable) {
        let Some(context) = self.context.as_ref().filter(|_| self.is_established()) else { return };
        let messages = match context.messages(&self.announced, wanted) {
            Ok(messages) => messages,
            Err(error) => {
                // Attributes are checked before they get here.
                tracing::error!(peer = self.settings.name, %error, "cannot encode routes");
                return;
            }
        };
        let carried = wanted.iter().filter(|(address, _)| context.carries(address));
        self.announced = carried.map(|(address, of)| (*address, of.clone())).collect();
        for message in messages {
            self.counts.updates_sent += 1;
            self.send(&Message::Update(message));
        }
    }

    fn handle(&mut self, event: Event, now: Instant) {
        for action in self.machine.handle_event(event) {
            self.execute(action, now);
        }
    }

    fn execute(&mut self, action: Action, now: Instant) {
        match action {
            Action::SendOpen(open) => self.send(&Message::Open(plain(open))),
            Action::SendKeepalive => self.send(&Message::Keepalive),
            Action::SendNotification(notification) => {
                let reason = description(notification.code, notification.subcode);
                self.end = Some(format!("this node closed it: {reason}"));
                self.send(&Message::Notification(notification));
            }
            Action::StartTimer(timer, seconds) => {
                let after = Duration::from_secs(seconds.into());
                match timer {
                    TimerType::Hold => {
                        let is_open = self.machine.negotiated().is_some();
                        let after = if is_open { after } else { after.min(OPEN_TIMEOUT) };
                        self.hold_ends = Some(now + after);
                    }
                    TimerType::Keepalive => self.keepalive_due = Some(now + after),
                    _ => {}
                }
            }
            Action::StopTimer(TimerType::Hold) => self.hold_ends = None,
            Action::StopTimer(TimerType::Keepalive) => self.keepalive_due = None,
            Action::SessionEstablished(negotiated) => {
                self.counts.established += 1;
                let mut next_hops = self.next_hops;
                let has = |afi| negotiated.negotiated_families.contains(&(afi, Safi::Unicast));
                next_hops.v4 = next_hops.v4.filter(|_| has(Afi::Ipv4));
                next_hops.v6 = next_hops.v6.filter(|_| has(Afi::Ipv6));
                let context =
                    UpdateContext::new(&self.settings, negotiated.four_octet_as, next_hops);
                self.context = Some(context);
            }
            Action::CloseTcpConnection => {
                self.end.get_or_insert_with(|| "it was closed".to_owned());
            }
            _ => {}
        }
    }

    fn send(&mut self, message: &Message) {
        match encode_message(message) {
            Ok(bytes) => self.outbound.extend_from_slice(&bytes),
            Err(error) => {
                tracing::error!(peer = self.settings.name, %error, "cannot encode a message");
            }
        }
    }
}

/// Returns an OPEN with the capabilities that are used here. Without that of RFC 8654, messages have at most 4096 bytes.
fn plain(mut open: OpenMessage) -> OpenMessage {
    open.capabilities.retain(|it| {
        matches!(
            it,
            Capability::MultiProtocol { .. }
                | Capability::RouteRefresh
                | Capability::FourOctetAs { .. }
        )
    });
    open
}

/// Returns why a router closed the session, with its own words (RFC 9003).
fn closed_by_router(notification: &NotificationMessage, settings: &PeerSettings) -> String {
    let NotificationMessage { code, subcode, .. } = notification;
    let mut reason = format!("the router closed it: {}", description(*code, *subcode));
    if (*code, *subcode) == (NotificationCode::OpenMessage, open_subcode::BAD_PEER_AS) {
        reason.push_str(&format!(" (localASN is {})", settings.local_asn));
    }
    if let Ok(Some(text)) = extract_shutdown_communication(notification) {
        let text: String =
            text.chars().filter(|it| !it.is_control()).take(MAX_TEXT_CHARACTERS).collect();
        reason.push_str(&format!(": {text:?}"));
    }
    reason
}

#[cfg(test)]
pub(crate) mod tests;
