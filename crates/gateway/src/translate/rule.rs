//! The rules of HTTPRoutes: which paths they ask for, where they lead, and which of them are left out.

use std::sync::Arc;

use super::index::Index;
use super::{Fault, Report, backend, condition};
use crate::matching::{Conditions, Match, PathPattern};
use crate::objects::{HttpRouteMatch, HttpRouteRule, HttpRouteSpec, PathMatchType, Resource};
use crate::snapshot::BackendKey;
use crate::status::{Condition, ConditionType, Reason};

/// A rule before its backends have places in a Snapshot.
pub(super) struct RuleDraft {
    /// `namespace/route/rule`.
    pub(super) name: Arc<str>,
    pub(super) matches: Vec<Arc<Match>>,
    /// With their weights, which are positive; `None` cannot be resolved. There is at least one.
    pub(super) targets: Vec<(Option<BackendKey>, u32)>,
}

/// What the rules of a route come to.
#[derive(Default)]
pub(super) struct Rules {
    pub(super) drafts: Vec<RuleDraft>,
    /// Why rules were left out.
    dropped: Vec<Fault>,
    /// References that lead nowhere: their share is answered with 500.
    unresolved: Vec<Fault>,
}

/// What the rules of a route come to, with every reason against them.
pub(super) fn rules(
    index: &Index<'_>,
    route: &Resource<HttpRouteSpec>,
    report: &mut Report,
) -> Rules {
    let mut rules = Rules::default();
    if route.spec.use_default_gateways.is_some() {
        report.problem("HTTPRoute", route, "spec.useDefaultGateways", "is not supported");
    }
    for (n, rule) in route.spec.rules.iter().enumerate() {
        let field = format!("spec.rules[{n}]");
        let (matches, mut faults) = matches(rule, &field);
        faults.extend(unserved(rule, &field));
        if faults.is_empty() {
            let name = rule_name(route, n, rule);
            let targets = targets(index, route, rule, &field, &mut rules.unresolved);
            rules.drafts.push(RuleDraft { name, matches, targets });
        }
        rules.dropped.extend(faults);
    }
    for fault in rules.dropped.iter().chain(&rules.unresolved) {
        report.fault("HTTPRoute", route, fault);
    }
    rules
}

impl Rules {
    /// Why a route of which no rule is left attaches nowhere.
    pub(super) fn nothing_left(&self) -> Fault {
        Fault::new(Reason::UnsupportedValue, "spec.rules", self.dropped_message())
    }

    /// Gateway API prescribes how the message begins.
    fn dropped_message(&self) -> String {
        let fields: Vec<_> = self.dropped.iter().map(|fault| fault.field.as_str()).collect();
        format!("Dropped Rule because of {}", fields.join(", "))
    }

    /// What holds at a parent that the route has not attached to because of `fault`, or that it has.
    pub(super) fn conditions(&self, fault: Option<&Fault>) -> Vec<Condition> {
        use ConditionType::{Accepted, PartiallyInvalid, ResolvedRefs};
        let mut conditions = vec![
            condition(Accepted, Reason::Accepted, fault),
            condition(ResolvedRefs, Reason::ResolvedRefs, self.unresolved.first()),
        ];
        if !self.dropped.is_empty() && !self.drafts.is_empty() {
            conditions.push(Condition {
                kind: PartiallyInvalid,
                holds: true,
                reason: Reason::UnsupportedValue,
                message: self.dropped_message(),
            });
        }
        conditions
    }
}

fn rule_name(route: &Resource<HttpRouteSpec>, place: usize, rule: &HttpRouteRule) -> Arc<str> {
    let number = place.to_string();
    let name = rule.name.as_ref().unwrap_or(&number);
    format!("{}/{}/{name}", route.metadata.namespace, route.metadata.name).into()
}

/// The paths that a rule asks for, and what is wrong with its matches. No match is every path.
fn matches(rule: &HttpRouteRule, field: &str) -> (Vec<Arc<Match>>, Vec<Fault>) {
    if rule.matches.is_empty() {
        let path = PathPattern::Prefix("/".into());
        let every = Match { path, conditions: Conditions::default() };
        return (vec![Arc::new(every)], Vec::new());
    }
    let mut matches = Vec::new();
    let mut faults = Vec::new();
    for (n, wanted) in rule.matches.iter().enumerate() {
        let field = format!("{field}.matches[{n}]");
        match path(wanted) {
            Ok(path) => {
                matches.push(Arc::new(Match { path, conditions: Conditions::default() }));
            }
            Err((part, message)) => {
                faults.push(Fault::new(
                    Reason::UnsupportedValue,
                    format!("{field}.path.{part}"),
                    message,
                ));
            }
        }
        let unserved = [
            (!wanted.headers.is_empty(), "headers"),
            (!wanted.query_params.is_empty(), "queryParams"),
            (wanted.method.is_some(), "method"),
        ];
        faults.extend(not_supported(&field, &unserved));
    }
    (matches, faults)
}

fn path(wanted: &HttpRouteMatch) -> Result<PathPattern, (&'static str, String)> {
    let value = &wanted.path.value;
    let make = match wanted.path.kind {
        PathMatchType::Exact => PathPattern::exact,
        PathMatchType::PathPrefix => PathPattern::prefix,
        PathMatchType::RegularExpression => {
            return Err((
                "type",
                "RegularExpression is not supported, only Exact and PathPrefix".to_owned(),
            ));
        }
    };
    make(value).map_err(|fault| ("value", fault.to_string()))
}

/// What a rule asks for that we do not serve yet: the rule would mean something else without it.
fn unserved(rule: &HttpRouteRule, field: &str) -> Vec<Fault> {
    let unserved = [
        (!rule.filters.is_empty(), "filters"),
        (rule.timeouts.is_some(), "timeouts"),
        (rule.retry.is_some(), "retry"),
        (rule.session_persistence.is_some(), "sessionPersistence"),
    ];
    let mut faults: Vec<_> = not_supported(field, &unserved).collect();
    for (n, reference) in rule.backend_refs.iter().enumerate() {
        let field = format!("{field}.backendRefs[{n}]");
        faults.extend(not_supported(&field, &[(!reference.filters.is_empty(), "filters")]));
    }
    faults
}

fn not_supported(field: &str, parts: &[(bool, &str)]) -> impl Iterator<Item = Fault> {
    let present = parts.iter().filter(|(is_present, _)| *is_present);
    present.map(move |(_, part)| {
        Fault::new(Reason::UnsupportedValue, format!("{field}.{part}"), "is not supported")
    })
}

/// Where the requests of a rule go. One that can go nowhere is answered with 500, as Gateway API asks.
fn targets(
    index: &Index<'_>,
    route: &Resource<HttpRouteSpec>,
    rule: &HttpRouteRule,
    field: &str,
    unresolved: &mut Vec<Fault>,
) -> Vec<(Option<BackendKey>, u32)> {
    let mut targets = Vec::new();
    for (n, reference) in rule.backend_refs.iter().enumerate() {
        let field = format!("{field}.backendRefs[{n}]");
        let key = backend::resolve(index, &route.metadata.namespace, reference, &field)
            .map_err(|fault| unresolved.push(fault))
            .ok();
        if reference.weight > 0 {
            targets.push((key, reference.weight));
        }
    }
    if targets.is_empty() {
        targets.push((None, 1));
    }
    targets
}
