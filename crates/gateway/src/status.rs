//! Statuses of objects as Gateway API conditions, and the updates that write them to a cluster. Writing them is the
//! task of the configuration source.

/// The assignment of slots to replicas.
mod slot_assignment;
/// The supported features of Gateway API.
mod features;
/// Statuses in the JSON format of Kubernetes.
mod status_json;
/// Updates of the statuses in a cluster that are out of date.
mod update;
/// Routes at clients that use xDS.
mod xds;

use std::net::SocketAddr;
use std::sync::Arc;

use crate::managed_services::PublishedAddress;
use crate::objects::ParentRef;
use crate::snapshot::TransportProtocol;

pub use features::{FEATURES, report_version};
pub use slot_assignment::{SlotSharing, report_slot_assignment};
pub use status_json::status_json;
pub use update::{StatusUpdate, status_removal, status_update};
pub use xds::{RouteParent, XdsProblem, report_xds};

/// The status of one object.
#[derive(Clone, Debug, PartialEq)]
pub struct ResourceStatus {
    /// The object.
    pub object: ObjectIdentity,
    /// The generation of the object to which all conditions refer.
    pub observed_generation: i64,
    /// The status, by kind of object.
    pub detail: StatusDetail,
}

/// The identity of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectIdentity {
    /// The kind.
    pub kind: &'static str,
    /// The namespace. Not used for a GatewayClass.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

/// The status of an object, by kind.
#[derive(Clone, Debug, PartialEq)]
pub enum StatusDetail {
    /// The status of a GatewayClass.
    GatewayClass(GatewayClassStatus),
    /// The status of a Gateway.
    Gateway(GatewayStatus),
    /// Conditions of a ListenerSet, and the status of each of its listeners in order.
    ListenerSet(Vec<StatusCondition>, Vec<ListenerStatus>),
    /// The status of a route of any kind, one entry for each parent of Sheave.
    Route(Vec<ParentStatus>),
    /// The conditions of an AddressPool.
    AddressPool(Vec<StatusCondition>),
    /// The conditions of a BgpPeer.
    BgpPeer(Vec<StatusCondition>),
    /// The status of a policy, one entry for each target. A BackendTLSPolicy has one entry for each Gateway of Sheave
    /// that routes to one of its targets.
    Policy(Vec<TargetStatus>),
}

/// The status of a GatewayClass.
#[derive(Clone, Debug, PartialEq)]
pub struct GatewayClassStatus {
    /// The conditions.
    pub conditions: Vec<StatusCondition>,
    /// The supported features of Gateway API, sorted.
    pub features: Vec<&'static str>,
}

impl GatewayClassStatus {
    /// Returns a status with all features of the data plane.
    pub fn new(conditions: Vec<StatusCondition>) -> Self {
        Self { conditions, features: FEATURES.to_vec() }
    }
}

/// The status of a Gateway.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GatewayStatus {
    /// The addresses of the Gateway, if known. A Gateway on every address of the machine has none.
    pub addresses: Vec<PublishedAddress>,
    /// The conditions of the Gateway as a whole.
    pub conditions: Vec<StatusCondition>,
    /// The status of each of its own listeners, in order.
    pub listeners: Vec<ListenerStatus>,
    /// The number of ListenerSets that are attached.
    pub attached_listener_sets: usize,
}

/// The status of a listener.
#[derive(Clone, Debug, PartialEq)]
pub struct ListenerStatus {
    /// The name.
    pub name: String,
    /// The kinds of routes that may attach.
    pub supported_kinds: Vec<&'static str>,
    /// The number of attached routes.
    pub attached_routes: usize,
    /// The sockets of the listener, with which a bind error is matched to it.
    pub sockets: Vec<(SocketAddr, TransportProtocol)>,
    /// The conditions.
    pub conditions: Vec<StatusCondition>,
}

/// The status of a route at one parent.
#[derive(Clone, Debug, PartialEq)]
pub struct ParentStatus {
    /// The parent reference of the route.
    pub parent: ParentRef,
    /// The conditions.
    pub conditions: Vec<StatusCondition>,
}

/// The status of a policy for one target, or for one Gateway.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetStatus {
    /// The kind of the target, or `Gateway`.
    pub kind: &'static str,
    /// The namespace. That of the policy if the entry is about a target.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The section of the target: a port or a listener.
    pub section_name: Option<String>,
    /// Maximum number of requests in flight at each endpoint, if the policy applies and sets a number. The number of
    /// replicas that share it is known elsewhere.
    pub slots: Option<u32>,
    /// The conditions.
    pub conditions: Vec<StatusCondition>,
}

/// A condition of Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusCondition {
    /// The type.
    pub kind: ConditionType,
    /// True if the condition holds.
    pub holds: bool,
    /// The reason, for programs.
    pub reason: ConditionReason,
    /// The reason, for users. Empty if `reason` is sufficient.
    pub message: String,
}

/// The type of a condition, by the name in Gateway API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionType {
    /// The object is valid, and Sheave serves it.
    Accepted,
    /// The data plane has the configuration.
    Programmed,
    /// All references are resolved and permitted.
    ResolvedRefs,
    /// The listener conflicts with another one.
    Conflicted,
    /// Some hosts of the listener also belong to another listener, so that clients may reuse connections of one for the
    /// other.
    OverlappingTLSConfig,
    /// Some rules of the route were dropped.
    PartiallyInvalid,
    /// Clients without a valid certificate are accepted.
    InsecureFrontendValidationMode,
    /// The listener also serves HTTP/3. This type is Sheave's own, because Gateway API has no such condition.
    Http3,
    /// Certificates of endpoints are not verified. This type is Sheave's own, because Gateway API has no such
    /// condition.
    InsecureEndpoints,
    /// Replicas share the limit of a policy for each endpoint. This type is Sheave's own as well.
    CapAssigned,
    /// The version of the Gateway API CRDs is supported.
    SupportedVersion,
    /// Clients that use xDS have the route as it is. This type is Sheave's own.
    XdsAccepted,
}

impl ConditionType {
    /// All types.
    pub const ALL: [Self; 12] = [
        Self::Accepted,
        Self::Programmed,
        Self::ResolvedRefs,
        Self::Conflicted,
        Self::OverlappingTLSConfig,
        Self::PartiallyInvalid,
        Self::InsecureFrontendValidationMode,
        Self::Http3,
        Self::InsecureEndpoints,
        Self::CapAssigned,
        Self::SupportedVersion,
        Self::XdsAccepted,
    ];

    /// Returns the name in a status.
    pub fn name(self) -> String {
        let prefix = if self == Self::XdsAccepted { "sheave.dev/" } else { "" };
        format!("{prefix}{self:?}")
    }
}

/// The reason of a condition, by the name in Gateway API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "Gateway API documents its reasons")]
pub enum ConditionReason {
    Accepted,
    AddressNotAllowed,
    AddressNotAssigned,
    AddressNotUsable,
    Assigned,
    BackendNotFound,
    ClientRejected,
    ConfigurationChanged,
    Conflicted,
    ExternalNameNotAllowed,
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
    KeysUnavailable,
    ListenersNotValid,
    NoConflicts,
    NoMatchingListenerHostname,
    NoMatchingParent,
    NoValidCACertificate,
    NotAllowed,
    NotAllowedByListeners,
    OverlappingAddresses,
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

/// Reports for every listener on a socket that the socket cannot be bound, and why.
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
    /// Returns a condition that holds.
    pub const fn yes(kind: ConditionType, reason: ConditionReason) -> Self {
        Self { kind, holds: true, reason, message: String::new() }
    }

    /// Returns a condition that does not hold.
    pub const fn no(kind: ConditionType, reason: ConditionReason, message: String) -> Self {
        Self { kind, holds: false, reason, message }
    }
}
