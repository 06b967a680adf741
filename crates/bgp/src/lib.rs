//! Announcement of addresses by BGP (RFC 4271): sessions with routers, to which a node announces that it serves an
//! address. No route is accepted from a router.
//!
//! Messages are those of `rustbgpd-wire`, the state machine is `rustbgpd-fsm`; both know no socket. This crate has the
//! sockets, the timers, and the choice of what is sent. It knows no Kubernetes and no address pool.
#![warn(missing_docs)]

/// Routers, and the routes for them.
mod settings;
/// Routes as UPDATE messages.
mod update;
/// One session, without its socket.
mod session;
/// Addresses of this node beside the one of a session.
mod next_hop;
/// Connections to routers.
mod connect;
/// Socket options.
mod sys;
/// The messages of one connection.
mod connection;
/// State of each session, for metrics.
mod report;
/// The sessions with all routers.
mod speaker;

pub use report::{PeerCounts, PeerReport};
pub use rustbgpd_fsm::SessionState;
pub use settings::{
    BgpCommunity, InvalidPassword, PeerSettings, RouteAttributes, RouteTable, SessionPassword,
    SpeakerIdentity,
};
pub use speaker::BgpSpeaker;
