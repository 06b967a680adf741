//! From objects to a Snapshot and statuses, as Gateway API v1.7 says: a pure function.
//!
//! What is in error is left out or answers 500, and takes nothing else down. Every reason is reported, as a problem for
//! who wrote the object and as a condition of its status.

/// Objects by name and age.
mod index;
/// Ingresses, as objects of Gateway API that mean the same.
pub mod ingress;
/// Objects of any kind.
mod owner;
/// From PEM to certificates.
mod certificate;
/// References to certificates.
mod reference;
/// Which namespaces others may attach from.
mod namespace_scope;
/// Gateways: where to accept, and which listener is whose.
mod listener;
/// Which listeners are added to a Gateway from beside it.
mod listener_set;
/// The TLS of listeners.
mod listener_tls;
/// What becomes of Gateways.
mod gateway_status;
/// Listeners that claim the same.
mod conflict;
/// Listeners that serve HTTP/3 too.
mod http3;
/// The addresses that we accept on.
mod address;
/// The Services in front of Gateways.
mod managed_service;
/// Where routes attach.
mod attach;
/// Routes that wait for places in a Snapshot.
mod draft;
/// HTTPRoutes and GRPCRoutes.
mod route;
/// Their rules: where they lead.
mod rule;
/// What the rules of HTTPRoutes ask for.
mod matches;
/// What the rules of GRPCRoutes ask for.
mod grpc_match;
/// The filters of both.
mod filter;
/// TLSRoutes, TCPRoutes and UDPRoutes.
mod stream_route;
/// Objects that cannot be read.
mod invalid_object;
/// Services and EndpointSlices: what references lead to.
mod backend;
/// What may be referred to from other namespaces.
mod grant;
/// BackendTLSPolicies: how connections to endpoints are encrypted.
mod backend_tls;
/// What is spoken to endpoints.
mod backend_transport;
/// Policies: what applies to whom.
mod policy;
/// What policies say, with every default filled in.
mod settings;

use std::collections::BTreeSet;
use std::sync::Arc;

pub use backend::{EndpointIndex, SERVICE_NAME_LABEL};
pub use certificate::CertificateValidity;
pub use listener::CONTROLLER;

use crate::addresses::{AddressAssignment, GatewayName};
use crate::managed_services::DesiredService;
use crate::objects::{ApiObject, TypedObject};
use crate::problem::ObjectProblem;
use crate::snapshot::{Backend, BackendKey, Snapshot};
use crate::status::{
    ConditionReason, ConditionType, ObjectIdentity, ResourceStatus, StatusCondition, StatusDetail,
};
use attach::ParentIndex;
use draft::{RouteDraft, RuleDraft};
use index::ObjectIndex;
use owner::OwnerObject;

/// What objects come to.
#[derive(Clone, Debug, Default)]
pub struct TranslationResult {
    /// What the data plane is asked to do; valid, whatever the problems are.
    pub snapshot: Snapshot,
    /// What became of each object of ours.
    pub statuses: Vec<ResourceStatus>,
    /// Everything that is wrong, in the order of files and documents.
    pub problems: Vec<ObjectProblem>,
    /// The certificates that are in use, each once: when they hold is for who knows what time it is.
    pub certificate_validities: BTreeSet<CertificateValidity>,
    /// The Services that should be in front of Gateways, where clients come by such.
    pub managed_services: Vec<DesiredService>,
    /// The Gateways that have none of these and keep what Service they have: they are ours, and are not served now.
    pub retained_gateways: BTreeSet<GatewayName>,
}

/// What these objects ask for, where Gateways have these addresses.
pub fn translate(objects: &[ApiObject], addresses: &AddressAssignment) -> TranslationResult {
    let mut report = TranslationReport::default();
    let mut index = ObjectIndex::new(objects, &mut report);
    let made = ingress::expand(&index, &mut report);
    index.add(&made.objects, &mut report);
    let client_policies = policy::client_policies(&index, &mut report);
    let tls_policies = backend_tls::backend_tls_policies(&index, &mut report);
    let backend_policies = policy::backend_policies(&index, &tls_policies, &mut report);

    let mut gateways = listener::gateways(&index, addresses, &mut report);
    http3::find(&mut gateways, &client_policies, &mut report);
    let known = ParentIndex::new(&gateways);
    let mut routes = route::drafts(&index, &known, &mut gateways, &mut report);
    routes.extend(stream_route::drafts(&index, &known, &mut gateways, &mut report));
    let mut listeners = address::listeners(&gateways, addresses, &client_policies, &mut report);
    gateway_status::statuses(&gateways, addresses, &mut report);
    invalid_object::statuses(&index, &known, &gateways, addresses, &mut report);
    let users = backend_transport::backend_usage(&routes);
    users.report_ignored_client_certificates(&tls_policies, &gateways, &mut report);
    tls_policies.statuses(&users.ancestors, &gateways, &mut report);

    let keys = backend_keys(&routes);
    let endpoints = EndpointIndex::of_index(&index);
    backend::check_slices(&endpoints, &keys, &mut report);
    let backend = |key: &BackendKey| Backend {
        key: key.clone(),
        source: backend::source(&index, key),
        endpoints: endpoints.of(key),
        settings: {
            let speech = users.transport(key, &index, &tls_policies, &gateways);
            backend_policies.settings(&index, key, speech)
        },
    };
    let mut snapshot =
        Snapshot { backends: keys.iter().map(backend).collect(), ..Default::default() };
    for route in &routes {
        for draft in &route.rules {
            let rule = Arc::new(draft.rule(snapshot.rules.len(), &keys));
            listeners.add_rule(&gateways, &route.attachments, &draft.matches, &rule);
            snapshot.rules.push(rule);
        }
    }
    snapshot.listeners = listeners.into_listeners();
    let (fronts, kept) = managed_service::desired_services(&index, &gateways);
    let TranslationReport { statuses, problems, certificate_validities: dated, .. } = report;
    let mut translation = TranslationResult {
        snapshot,
        statuses,
        problems,
        certificate_validities: dated,
        managed_services: fronts,
        retained_gateways: kept,
    };
    made.attribute(&mut translation);
    translation.problems.sort_by(|a, b| a.origin.cmp(&b.origin));
    translation
}

/// Every backend that a rule names, sorted, each once.
fn backend_keys(routes: &[RouteDraft]) -> Vec<BackendKey> {
    let keys = routes.iter().flat_map(|route| &route.rules).flat_map(RuleDraft::keys);
    keys.cloned().collect::<BTreeSet<_>>().into_iter().collect()
}

/// What is said about the objects.
#[derive(Default)]
struct TranslationReport {
    statuses: Vec<ResourceStatus>,
    problems: Vec<ObjectProblem>,
    certificate_validities: BTreeSet<CertificateValidity>,
    /// What several have come upon, and has been said.
    reported_once: BTreeSet<ObjectProblem>,
}

/// A reason against something: where, and in words for programs and for people.
#[derive(Clone, Debug)]
struct ValidationFault {
    reason: ConditionReason,
    field: String,
    message: String,
}

impl ValidationFault {
    fn new(reason: ConditionReason, field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { reason, field: field.into(), message: message.into() }
    }
}

impl TranslationReport {
    fn problem<S>(
        &mut self,
        kind: &str,
        object: &TypedObject<S>,
        field: &str,
        message: impl Into<String>,
    ) {
        self.problems.push(object.problem(kind, field, message));
    }

    /// What is a problem if the object is meant for us. In a cluster it may be somebody else's, of whom we say nothing.
    fn problem_if_ours<S>(
        &mut self,
        kind: &str,
        object: &TypedObject<S>,
        field: &str,
        message: impl Into<String>,
    ) {
        if !object.metadata.in_cluster {
            self.problem(kind, object, field, message);
        }
    }

    /// A problem that several may come upon.
    fn problem_once(&mut self, problem: ObjectProblem) {
        if self.reported_once.insert(problem.clone()) {
            self.problems.push(problem);
        }
    }

    fn fault<S>(&mut self, kind: &str, object: &TypedObject<S>, fault: &ValidationFault) {
        self.problem(kind, object, &fault.field, fault.message.as_str());
    }

    fn owner_fault(&mut self, owner: OwnerObject<'_>, fault: &ValidationFault) {
        self.problems.push(owner.problem(&fault.field, &fault.message));
    }

    fn status<S>(&mut self, kind: &'static str, object: &TypedObject<S>, detail: StatusDetail) {
        self.owner_status(OwnerObject::of(kind, object), detail);
    }

    fn owner_status(&mut self, owner: OwnerObject<'_>, detail: StatusDetail) {
        let (namespace, name) = owner.name();
        self.statuses.push(ResourceStatus {
            object: ObjectIdentity {
                kind: owner.kind,
                namespace: namespace.into(),
                name: name.into(),
            },
            observed_generation: owner.metadata.generation,
            detail,
        });
    }
}

/// It holds unless there is something against it.
fn condition(
    kind: ConditionType,
    fine: ConditionReason,
    fault: Option<&ValidationFault>,
) -> StatusCondition {
    match fault {
        Some(fault) => StatusCondition::no(kind, fault.reason, fault.message.clone()),
        None => StatusCondition::yes(kind, fine),
    }
}
