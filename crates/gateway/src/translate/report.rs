//! The result of a translation, and the report that collects it while objects are read.

use std::collections::BTreeSet;

use super::certificate::CertificateValidity;
use super::owner::OwnerObject;
use crate::load_balancer::LoadBalancerService;
use crate::managed_services::DesiredService;
use crate::objects::{GatewayName, TypedObject};
use crate::problem::ObjectProblem;
use crate::snapshot::Snapshot;
use crate::status::{
    ConditionReason, ConditionType, ObjectIdentity, ResourceStatus, StatusCondition, StatusDetail,
};
use crate::transparent::TransparentService;

/// The result of a translation.
#[derive(Clone, Debug, Default)]
pub struct TranslationResult {
    /// The configuration of the data plane; valid even if there are problems.
    pub snapshot: Snapshot,
    /// The status of each object of our classes.
    pub statuses: Vec<ResourceStatus>,
    /// Every problem, in the order of files and documents.
    pub problems: Vec<ObjectProblem>,
    /// The certificates in use, each once, with their validity periods. The caller compares them with the clock.
    pub certificate_validities: BTreeSet<CertificateValidity>,
    /// The Services that Gateways need in front of them if clients connect through managed Services.
    pub managed_services: Vec<DesiredService>,
    /// The Gateways of our classes that are not served now. They get no Service here, and keep one that they have.
    pub retained_gateways: BTreeSet<GatewayName>,
    /// The Services with the annotation of transparent mode, sorted by namespace and name.
    pub transparent_services: Vec<TransparentService>,
    /// The Services of type LoadBalancer that Sheave serves, sorted by namespace and name.
    pub load_balancer_services: Vec<LoadBalancerService>,
}

/// The statuses, problems and certificates that a translation collects.
#[derive(Default)]
pub(super) struct TranslationReport {
    pub(super) statuses: Vec<ResourceStatus>,
    pub(super) problems: Vec<ObjectProblem>,
    pub(super) certificate_validities: BTreeSet<CertificateValidity>,
    /// Problems already reported, so that each is reported once.
    pub(super) reported_once: BTreeSet<ObjectProblem>,
}

/// An error in an object: the field, a reason for programs and a message for people.
#[derive(Clone, Debug)]
pub(super) struct ValidationFault {
    pub(super) reason: ConditionReason,
    pub(super) field: String,
    pub(super) message: String,
}

impl ValidationFault {
    pub(super) fn new(
        reason: ConditionReason,
        field: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self { reason, field: field.into(), message: message.into() }
    }
}

impl TranslationReport {
    pub(super) fn problem<S>(
        &mut self,
        kind: &str,
        object: &TypedObject<S>,
        field: &str,
        message: impl Into<String>,
    ) {
        self.problems.push(object.problem(kind, field, message));
    }

    /// Reports a problem if the object is from a file, and so meant for us. An object in a cluster may belong to
    /// another controller.
    pub(super) fn problem_if_ours<S>(
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

    /// Reports a problem that several callers may find; repeated reports are dropped.
    pub(super) fn problem_once(&mut self, problem: ObjectProblem) {
        if self.reported_once.insert(problem.clone()) {
            self.problems.push(problem);
        }
    }

    pub(super) fn fault<S>(
        &mut self,
        kind: &str,
        object: &TypedObject<S>,
        fault: &ValidationFault,
    ) {
        self.problem(kind, object, &fault.field, fault.message.as_str());
    }

    pub(super) fn owner_fault(&mut self, owner: OwnerObject<'_>, fault: &ValidationFault) {
        self.problems.push(owner.problem(&fault.field, &fault.message));
    }

    pub(super) fn status<S>(
        &mut self,
        kind: &'static str,
        object: &TypedObject<S>,
        detail: StatusDetail,
    ) {
        self.owner_status(OwnerObject::of(kind, object), detail);
    }

    pub(super) fn owner_status(&mut self, owner: OwnerObject<'_>, detail: StatusDetail) {
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

/// Returns a condition that holds unless there is a fault.
pub(super) fn condition(
    kind: ConditionType,
    fine: ConditionReason,
    fault: Option<&ValidationFault>,
) -> StatusCondition {
    match fault {
        Some(fault) => StatusCondition::no(kind, fault.reason, fault.message.clone()),
        None => StatusCondition::yes(kind, fine),
    }
}
