//! Status of routes at clients that use xDS: gRPC clients that choose endpoints themselves, and others.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{
    ConditionReason, ConditionType, ParentStatus, ResourceStatus, StatusCondition, StatusDetail,
};

/// Maximum number of problems in the message of a condition.
const MAX_PROBLEMS: usize = 4;

/// A part of a route that clients that use xDS do not follow, or that they have rejected.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct XdsProblem {
    /// The route: `namespace/name`.
    pub route: Arc<str>,
    /// The parent at which the problem exists; `None`: at all Services.
    pub parent: Option<RouteParent>,
    /// True if a client has rejected it.
    pub is_rejected: bool,
    /// A sentence for people.
    pub message: String,
}

/// A port of a Service as the parent of a route.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouteParent {
    /// The namespace of the Service.
    pub namespace: Arc<str>,
    /// The name of the Service.
    pub service: Arc<str>,
    /// The port.
    pub port: u16,
}

/// Adds to the status of each route, for each Service that is a parent, how clients that use xDS follow it.
pub fn report_xds(statuses: &mut [ResourceStatus], problems: &[XdsProblem]) {
    let mut by_route = BTreeMap::<&str, Vec<&XdsProblem>>::new();
    for problem in problems {
        by_route.entry(&problem.route).or_default().push(problem);
    }
    for status in statuses {
        let StatusDetail::Route(parents) = &mut status.detail else { continue };
        if !["HTTPRoute", "GRPCRoute"].contains(&status.object.kind) {
            continue;
        }
        let namespace = &status.object.namespace;
        let problems = by_route.get(&*format!("{namespace}/{}", status.object.name));
        for parent in parents.iter_mut().filter(|it| is_served_service(it)) {
            let of_route = problems.into_iter().flatten().copied();
            let own = of_route.filter(|it| is_at(it, parent, namespace)).collect();
            parent.conditions.retain(|it| it.kind != ConditionType::XdsAccepted);
            parent.conditions.push(condition(own));
        }
    }
}

fn is_served_service(status: &ParentStatus) -> bool {
    let is_service = status.parent.kind.as_deref() == Some("Service");
    is_service && status.conditions.iter().any(|it| it.kind == ConditionType::Accepted && it.holds)
}

/// True if the problem exists at this parent.
fn is_at(problem: &XdsProblem, status: &ParentStatus, route_namespace: &str) -> bool {
    let Some(RouteParent { namespace, service, port }) = &problem.parent else { return true };
    let parent = &status.parent;
    *parent.name == **service
        && *parent.namespace.as_deref().unwrap_or(route_namespace) == **namespace
        && parent.port.is_none_or(|it| it == *port)
}

/// Returns the condition of a parent. Rejections come first.
fn condition(mut problems: Vec<&XdsProblem>) -> StatusCondition {
    let kind = ConditionType::XdsAccepted;
    problems.sort_by_key(|it| (!it.is_rejected, &it.message));
    problems.dedup_by(|it, other| it.message == other.message);
    let Some(first) = problems.first() else {
        return StatusCondition::yes(kind, ConditionReason::Accepted);
    };
    let reason = match first.is_rejected {
        true => ConditionReason::ClientRejected,
        false => ConditionReason::UnsupportedValue,
    };
    let messages = problems.iter().take(MAX_PROBLEMS).map(|it| it.message.as_str());
    let mut message = messages.collect::<Vec<_>>().join("; ");
    if let Some(further) = problems.len().checked_sub(MAX_PROBLEMS).filter(|it| *it > 0) {
        message.push_str(&format!("; and {further} more"));
    }
    StatusCondition::no(kind, reason, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::ParentRef;
    use crate::status::ObjectIdentity;

    fn parent(kind: Option<&str>, name: &str, port: Option<u16>, accepted: bool) -> ParentStatus {
        let parent = ParentRef {
            kind: kind.map(Into::into),
            name: name.into(),
            port,
            ..ParentRef::default()
        };
        let accepted = match accepted {
            true => StatusCondition::yes(ConditionType::Accepted, ConditionReason::Accepted),
            false => StatusCondition::no(
                ConditionType::Accepted,
                ConditionReason::NoMatchingParent,
                String::new(),
            ),
        };
        ParentStatus { parent, conditions: vec![accepted] }
    }

    fn route(parents: Vec<ParentStatus>) -> ResourceStatus {
        let object =
            ObjectIdentity { kind: "GRPCRoute", namespace: "shop".into(), name: "web".into() };
        ResourceStatus { object, observed_generation: 1, detail: StatusDetail::Route(parents) }
    }

    /// Returns the conditions that each parent has besides `Accepted`.
    fn reported(
        parents: Vec<ParentStatus>,
        problems: &[XdsProblem],
    ) -> Vec<Option<StatusCondition>> {
        let mut statuses = [route(parents)];
        // The second report replaces the first.
        report_xds(&mut statuses, &[]);
        report_xds(&mut statuses, problems);
        let [status] = statuses;
        let StatusDetail::Route(parents) = status.detail else { panic!("a route") };
        parents
            .into_iter()
            .map(|it| {
                assert!(it.conditions.len() <= 2);
                it.conditions.get(1).cloned()
            })
            .collect()
    }

    fn problem(message: &str, parent: Option<(&str, u16)>, is_rejected: bool) -> XdsProblem {
        let parent = parent.map(|(service, port)| RouteParent {
            namespace: "shop".into(),
            service: service.into(),
            port,
        });
        XdsProblem { route: "shop/web".into(), parent, is_rejected, message: message.to_owned() }
    }

    #[test]
    fn services_alone_have_the_condition() {
        let parents = vec![
            parent(Some("Service"), "web", None, true),
            parent(Some("Service"), "gone", None, false),
            parent(None, "gateway", None, true),
        ];
        let yes = StatusCondition::yes(ConditionType::XdsAccepted, ConditionReason::Accepted);
        let mut other = problem("not this one", None, true);
        other.route = "shop/api".into();
        assert_eq!(reported(parents, &[other]), [Some(yes), None, None]);
    }

    #[test]
    fn rejection_is_reported_at_its_parent_before_all_else() {
        let parents = vec![
            parent(Some("Service"), "web", Some(80), true),
            parent(Some("Service"), "web", Some(9000), true),
        ];
        let mut problems = vec![problem("z: no", Some(("web", 80)), true)];
        problems.extend(["a", "b", "c", "d", "a"].map(|it| problem(it, None, false)));
        let no = |reason, message: &str| {
            Some(StatusCondition::no(ConditionType::XdsAccepted, reason, message.to_owned()))
        };
        let expected = [
            no(ConditionReason::ClientRejected, "z: no; a; b; c; and 1 more"),
            no(ConditionReason::UnsupportedValue, "a; b; c; d"),
        ];
        assert_eq!(reported(parents, &problems), expected);
    }
}
