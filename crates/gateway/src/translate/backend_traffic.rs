//! XBackendTrafficPolicies: the retry budget and the session persistence of Services.
//!
//! The route has precedence over the BackendPolicy, which has precedence over the XBackendTrafficPolicy: each field of a
//! policy of Sheave says more than the standard object can.

use balance::retry::RetryWindow;

use super::index::{BACKEND_TRAFFIC_POLICY as KIND, ObjectIndex, sorted_by_age};
use super::owner::OwnerObject;
use super::policy::{BackendPolicies, PolicyAttachments, PolicyTargetRef, find_service};
use super::report::{TranslationReport, ValidationFault, condition};
use super::session_persistence;
use crate::objects::{
    BackendPolicySpec, BackendRetry, BackendTrafficPolicySpec, BackendTrafficTarget, Duration,
    RetryConstraint, TypedObject,
};
use crate::snapshot::{AffinitySettings, BackendKey, BackendSettings};
use crate::status::{ConditionReason, ConditionType, StatusDetail, TargetStatus};

/// Longest interval of a budget and of a minimum rate.
const MAX_INTERVAL: Duration = Duration::from_secs(3600);
/// Shortest interval of a budget.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// Largest minimum rate.
const MAX_COUNT: i64 = 1_000_000;

/// The XBackendTrafficPolicies of Services.
pub(super) struct BackendTrafficPolicies<'a> {
    attachments: PolicyAttachments<'a>,
    /// The settings of the policies, the oldest first.
    policies: Vec<BackendTrafficSettings>,
}

/// The valid settings of a policy.
#[derive(Default)]
struct BackendTrafficSettings {
    affinity: Option<AffinitySettings>,
    budget: Option<RetryBudgetSettings>,
}

/// A retry budget.
#[derive(Clone, Copy)]
struct RetryBudgetSettings {
    percent: u32,
    window: RetryWindow,
    /// Retries of a window that are allowed in any case.
    floor: u32,
}

/// Attaches every XBackendTrafficPolicy to its targets.
pub(super) fn backend_traffic_policies<'a>(
    index: &ObjectIndex<'a>,
    backend_policies: &BackendPolicies<'_>,
    report: &mut TranslationReport,
) -> BackendTrafficPolicies<'a> {
    let mut all =
        BackendTrafficPolicies { attachments: PolicyAttachments::default(), policies: Vec::new() };
    let policies = index.backend_traffic_policies.values().copied();
    for policy in sorted_by_age(policies, |it| &it.metadata) {
        let (settings, faults) = settings(policy);
        faults.iter().for_each(|fault| report.fault(KIND, policy, fault));
        let targets = policy.spec.target_refs.iter().enumerate();
        let statuses = targets.filter_map(|(number, target)| {
            let faults = &mut faults.clone();
            match all.attach(index, policy, number, target) {
                Ok(()) => {
                    let name = (&*policy.metadata.namespace, &*target.name);
                    let overrides = overrides(&settings, backend_policies, name);
                    overrides.iter().for_each(|fault| report.fault(KIND, policy, fault));
                    faults.extend(overrides);
                    // A status has no field path, so the message names the field.
                    faults.iter_mut().for_each(|fault| {
                        fault.message =
                            format!("{}: {}; all else applies", fault.field, fault.message);
                    });
                }
                Err(fault) => {
                    report.fault(KIND, policy, &fault);
                    faults.insert(0, fault);
                }
            }
            // Another implementation may serve targets of other kinds.
            is_service(target).then(|| status(policy, target, faults.first()))
        });
        let statuses = statuses.collect();
        report.owner_status(OwnerObject::of(KIND, policy), StatusDetail::Policy(statuses));
        all.policies.push(settings);
    }
    all
}

impl<'a> BackendTrafficPolicies<'a> {
    fn attach(
        &mut self,
        index: &ObjectIndex<'_>,
        policy: &'a TypedObject<BackendTrafficPolicySpec>,
        number: usize,
        target: &'a BackendTrafficTarget,
    ) -> Result<(), ValidationFault> {
        let field = format!("spec.targetRefs[{number}]");
        let not_found = |part: &str, message| {
            let reason = ConditionReason::TargetNotFound;
            ValidationFault::new(reason, format!("{field}.{part}"), message)
        };
        if !is_service(target) {
            let message = format!(
                "{} of group \"{}\" is not supported, only Service",
                target.kind, target.group
            );
            return Err(not_found("kind", message));
        }
        let reference = PolicyTargetRef { name: &target.name, section: None };
        let metadata = &policy.metadata;
        find_service(index, &metadata.namespace, &reference)
            .map_err(|(part, message)| not_found(part, message))?;
        let (key, position) = ((&*metadata.namespace, &*target.name, None), self.policies.len());
        self.attachments.attach(key, position, &metadata.name).map_err(|older| {
            let message = format!("{KIND} {older} has this target and is older");
            ValidationFault::new(ConditionReason::Conflicted, field.clone(), message)
        })
    }

    /// Changes the settings of a backend to those of its Service's policy, as far as the BackendPolicy of the backend
    /// does not set them.
    pub(super) fn adjust(
        &self,
        key: &BackendKey,
        own: Option<&BackendPolicySpec>,
        settings: &mut BackendSettings,
    ) {
        let position = self.attachments.find((&key.namespace, &key.service, None));
        let Some(policy) = position.map(|position| &self.policies[position]) else { return };
        if let Some(affinity) = &policy.affinity
            && own.is_none_or(|own| own.affinity.is_none())
        {
            settings.affinity = Some(affinity.clone());
        }
        if let Some(budget) = policy.budget
            && own.is_none_or(|own| !sets_budget(own))
        {
            settings.retry.budget_percent = budget.percent;
            settings.retry.budget_window = budget.window;
            settings.retry.budget_floor = budget.floor;
        }
    }
}

fn is_service(target: &BackendTrafficTarget) -> bool {
    target.group.is_empty() && target.kind == "Service"
}

/// True if a BackendPolicy has another retry budget than the default.
fn sets_budget(policy: &BackendPolicySpec) -> bool {
    let budget = |of: &BackendRetry| (of.budget_percent, of.budget_floor_per_second);
    budget(&policy.retry) != budget(&BackendRetry::default())
}

/// Returns the settings of a policy that the BackendPolicies of a Service, or of one of its ports, replace.
fn overrides(
    settings: &BackendTrafficSettings,
    backend_policies: &BackendPolicies<'_>,
    (namespace, service): (&str, &str),
) -> Vec<ValidationFault> {
    let mut faults = Vec::new();
    for (name, spec) in backend_policies.of_service(namespace, service) {
        let replaced = [
            (
                settings.affinity.is_some() && spec.affinity.is_some(),
                "sessionPersistence",
                "affinity",
            ),
            (settings.budget.is_some() && sets_budget(spec), "retryConstraint", "a retry budget"),
        ];
        for (_, field, what) in replaced.into_iter().filter(|(is_replaced, ..)| *is_replaced) {
            let message = format!("BackendPolicy {name} sets {what}, which has precedence");
            let (reason, field) = (ConditionReason::Conflicted, format!("spec.{field}"));
            faults.push(ValidationFault::new(reason, field, message));
        }
    }
    faults
}

fn status(
    policy: &TypedObject<BackendTrafficPolicySpec>,
    target: &BackendTrafficTarget,
    fault: Option<&ValidationFault>,
) -> TargetStatus {
    TargetStatus {
        kind: "Service",
        namespace: policy.metadata.namespace.clone(),
        name: target.name.clone(),
        section_name: None,
        slots: None,
        conditions: vec![condition(ConditionType::Accepted, ConditionReason::Accepted, fault)],
    }
}

/// Returns the settings of a policy without the fields in error, and the errors.
fn settings(
    policy: &TypedObject<BackendTrafficPolicySpec>,
) -> (BackendTrafficSettings, Vec<ValidationFault>) {
    let (mut settings, mut faults) = (BackendTrafficSettings::default(), Vec::new());
    let mut fault = |field: String, message: String| {
        faults.push(ValidationFault::new(ConditionReason::Invalid, field, message));
    };
    if let Some(persistence) = &policy.spec.session_persistence {
        let (namespace, name) = (&policy.metadata.namespace, &policy.metadata.name);
        match session_persistence::affinity(persistence, &format!("{KIND} {namespace}/{name}")) {
            Ok(affinity) => settings.affinity = Some(affinity),
            Err(all) => all.into_iter().for_each(|(field, message)| {
                fault(format!("spec.sessionPersistence.{field}"), message);
            }),
        }
    }
    if let Some(constraint) = &policy.spec.retry_constraint {
        match budget(constraint) {
            Ok(budget) => settings.budget = Some(budget),
            Err(all) => all.into_iter().for_each(|(field, message)| {
                fault(format!("spec.retryConstraint.{field}"), message.to_owned());
            }),
        }
    }
    (settings, faults)
}

/// Returns the retry budget, or all faults.
fn budget(
    constraint: &RetryConstraint,
) -> Result<RetryBudgetSettings, Vec<(&'static str, &'static str)>> {
    let RetryConstraint { budget, min_retry_rate } = constraint;
    let is_interval = (MIN_INTERVAL..=MAX_INTERVAL).contains(&budget.interval);
    let is_rate_interval =
        min_retry_rate.interval > Duration::ZERO && min_retry_rate.interval <= MAX_INTERVAL;
    let checks = [
        ((0..=100).contains(&budget.percent), "budget.percent", "must be from 0 to 100"),
        (is_interval, "budget.interval", "must be from 1s to 1h"),
        (
            (1..=MAX_COUNT).contains(&min_retry_rate.count),
            "minRetryRate.count",
            "must be from 1 to 1000000",
        ),
        (is_rate_interval, "minRetryRate.interval", "must be from 1ms to 1h"),
    ];
    let faults = checks.into_iter().filter(|(is_fine, ..)| !is_fine);
    let faults: Vec<_> = faults.map(|(_, field, message)| (field, message)).collect();
    if !faults.is_empty() {
        return Err(faults);
    }
    // It is a minimum, so it is rounded up to whole retries of a window.
    let floor = (min_retry_rate.count as u128 * budget.interval.0.as_millis())
        .div_ceil(min_retry_rate.interval.0.as_millis());
    Ok(RetryBudgetSettings {
        percent: budget.percent as u32,
        window: RetryWindow::new(budget.interval.0),
        floor: u32::try_from(floor).unwrap_or(u32::MAX),
    })
}
