//! What became of each object, as Gateway API's conditions say it, and how a cluster is told. Who writes it there, and
//! when, is for the source to know.

/// How replicas share what a policy allows.
mod slot_assignment;
/// What the data plane has, by Gateway API's names.
mod features;
/// Statuses in the shape that Kubernetes gives them.
mod status_json;
/// What has to be written where a cluster does not say it yet.
mod update;

use std::net::SocketAddr;
use std::sync::Arc;

use crate::managed_services::PublishedAddress;
use crate::objects::ParentRef;
use crate::snapshot::TransportProtocol;

pub use features::{FEATURES, report_version};
pub use slot_assignment::report_slot_assignment;
pub use status_json::status_json;
pub use update::{StatusUpdate, status_removal, status_update};

/// What became of one object.
#[derive(Clone, Debug, PartialEq)]
pub struct ResourceStatus {
    /// Which one.
    pub object: ObjectIdentity,
    /// The generation of the object that all conditions speak of.
    pub observed_generation: i64,
    /// What became of it, or of its relation to others.
    pub detail: StatusDetail,
}

/// An object by its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectIdentity {
    /// Its kind.
    pub kind: &'static str,
    /// Its namespace; of no meaning for a GatewayClass.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

/// What became of an object of some kind.
#[derive(Clone, Debug, PartialEq)]
pub enum StatusDetail {
    /// Of a GatewayClass.
    GatewayClass(GatewayClassStatus),
    /// Of a Gateway.
    Gateway(GatewayStatus),
    /// Of a ListenerSet as a whole, and of each listener in its order.
    ListenerSet(Vec<StatusCondition>, Vec<ListenerStatus>),
    /// Of a route of any kind, for each parent of ours.
    Route(Vec<ParentStatus>),
    /// Of a policy, for each target; of a BackendTLSPolicy, for each Gateway of ours that leads to one of its targets.
    Policy(Vec<TargetStatus>),
}

/// What became of a GatewayClass.
#[derive(Clone, Debug, PartialEq)]
pub struct GatewayClassStatus {
    /// What holds for it.
    pub conditions: Vec<StatusCondition>,
    /// What of Gateway API is served, sorted.
    pub features: Vec<&'static str>,
}

impl GatewayClassStatus {
    /// With everything that the data plane has.
    pub fn new(conditions: Vec<StatusCondition>) -> Self {
        Self { conditions, features: FEATURES.to_vec() }
    }
}

/// What became of a Gateway.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GatewayStatus {
    /// Where it is served, as far as that is known: every address of the machine is none.
    pub addresses: Vec<PublishedAddress>,
    /// What holds for it as a whole.
    pub conditions: Vec<StatusCondition>,
    /// What became of each of its own listeners, in their order.
    pub listeners: Vec<ListenerStatus>,
    /// How many ListenerSets have been attached to it.
    pub attached_listener_sets: usize,
}

/// What became of a listener.
#[derive(Clone, Debug, PartialEq)]
pub struct ListenerStatus {
    /// Its name.
    pub name: String,
    /// The kinds of routes that may attach.
    pub supported_kinds: Vec<&'static str>,
    /// How many have.
    pub attached_routes: usize,
    /// Where it is served; for who is told that an address cannot be listened on.
    pub sockets: Vec<(SocketAddr, TransportProtocol)>,
    /// What holds for it.
    pub conditions: Vec<StatusCondition>,
}

/// What became of a route at one parent.
#[derive(Clone, Debug, PartialEq)]
pub struct ParentStatus {
    /// The parent as the route names it.
    pub parent: ParentRef,
    /// What holds there.
    pub conditions: Vec<StatusCondition>,
}

/// What became of a policy at one target, or on the way from one Gateway.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetStatus {
    /// The target's kind, or that of Gateways.
    pub kind: &'static str,
    /// Its namespace; that of the policy if it is a target.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Which part of it.
    pub section_name: Option<String>,
    /// Requests that the policy allows there at each endpoint, if it applies and says a number; for who knows over how
    /// many replicas they are dealt.
    pub slots: Option<u32>,
    /// What holds there.
    pub conditions: Vec<StatusCondition>,
}

/// Something that holds or does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusCondition {
    /// What.
    pub kind: ConditionType,
    /// Whether it holds.
    pub holds: bool,
    /// Why, for programs.
    pub reason: ConditionReason,
    /// Why, for people; empty when the reason says it all.
    pub message: String,
}

/// What may hold; the names are Gateway API's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionType {
    /// It is valid, and we serve it.
    Accepted,
    /// The data plane has been told.
    Programmed,
    /// All that it refers to is there and may be used.
    ResolvedRefs,
    /// Others claim the same.
    Conflicted,
    /// Some of its hosts are those of another listener too, so that clients may use connections of one for the other.
    OverlappingTLSConfig,
    /// Some of its rules were left out.
    PartiallyInvalid,
    /// Clients are let in without a certificate that is believed.
    InsecureFrontendValidationMode,
    /// HTTP/3 is served there too. Gateway API has no name for that.
    Http3,
    /// Endpoints are believed whatever certificate they show; ours, for Gateway API knows no such thing.
    InsecureEndpoints,
    /// Replicas share what a policy allows at each endpoint; ours too.
    CapDealt,
    /// The definitions of Gateway API's kinds are of a version that we know.
    SupportedVersion,
}

impl ConditionType {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Accepted,
        Self::Programmed,
        Self::ResolvedRefs,
        Self::Conflicted,
        Self::OverlappingTLSConfig,
        Self::PartiallyInvalid,
        Self::InsecureFrontendValidationMode,
        Self::Http3,
        Self::InsecureEndpoints,
        Self::CapDealt,
        Self::SupportedVersion,
    ];
}

/// Why something holds or does not; the names are Gateway API's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "Gateway API documents its reasons")]
pub enum ConditionReason {
    Accepted,
    AddressNotAssigned,
    AddressNotUsable,
    BackendNotFound,
    ConfigurationChanged,
    Conflicted,
    Dealt,
    HostnameConflict,
    IncompatibleFilters,
    Invalid,
    InvalidCACertificateKind,
    InvalidCACertificateRef,
    InvalidCertificateRef,
    InvalidClientCertificateRef,
    InvalidKind,
    InvalidParameters,
    InvalidRouteKinds,
    ListenersNotValid,
    NoConflicts,
    NoMatchingListenerHostname,
    NoMatchingParent,
    NoValidCACertificate,
    NotAllowed,
    NotAllowedByListeners,
    OverlappingHostnames,
    ParentNotAccepted,
    Pending,
    PortUnavailable,
    Programmed,
    ProtocolConflict,
    RefNotPermitted,
    ResolvedRefs,
    SupportedVersion,
    TargetNotFound,
    UnsupportedAddress,
    UnsupportedProtocol,
    UnsupportedValue,
    UnsupportedVersion,
}

/// Says of every listener on a socket that it cannot be listened on, and why.
pub fn report_port_unavailable(
    statuses: &mut [ResourceStatus],
    socket: (SocketAddr, TransportProtocol),
    message: &str,
) {
    for status in statuses {
        let (StatusDetail::Gateway(GatewayStatus { listeners, .. })
        | StatusDetail::ListenerSet(_, listeners)) = &mut status.detail
        else {
            continue;
        };
        let conditions = listeners
            .iter_mut()
            .filter(|listener| listener.sockets.contains(&socket))
            .flat_map(|listener| &mut listener.conditions);
        for condition in conditions.filter(|it| it.kind == ConditionType::Programmed) {
            let (kind, reason) = (condition.kind, ConditionReason::PortUnavailable);
            *condition = StatusCondition::no(kind, reason, message.to_owned());
        }
    }
}

impl StatusCondition {
    /// It holds.
    pub const fn yes(kind: ConditionType, reason: ConditionReason) -> Self {
        Self { kind, holds: true, reason, message: String::new() }
    }

    /// It does not hold.
    pub const fn no(kind: ConditionType, reason: ConditionReason, message: String) -> Self {
        Self { kind, holds: false, reason, message }
    }
}
