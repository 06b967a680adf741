//! Rules of HTTPRoutes and GRPCRoutes: their targets and filters, and which rules are dropped.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::attach::RouteAttachment;
use super::backend::{ReferenceScope, ServiceReferrer, rejected_answer, resolve};
use super::draft::{FiltersDraft, RuleDraft, RuleOrigin, TargetDraft};
use super::filter::{self, FilterScope};
use super::index::ObjectIndex;
use super::report::{TranslationReport, ValidationFault, condition};
use super::settings::sorted;
use super::{grpc_match, matches, session_persistence};
use crate::matching::{PathPattern, RouteMatch};
use crate::objects::{
    self, BackendRef, GrpcRouteRule, GrpcRouteSpec, HttpFilter, HttpRouteRetry, HttpRouteRule,
    HttpRouteSpec, HttpRouteTimeouts, SessionPersistence, TypedObject,
};
use crate::snapshot::{
    AffinitySettings, PathRewrite, RedirectAction, RuleRetry, TransportProtocol,
};
use crate::status::{ConditionReason, ConditionType, StatusCondition};

/// The rules of a route, with their errors.
#[derive(Default)]
pub(super) struct RouteRules {
    pub(super) drafts: Vec<RuleDraft>,
    /// Errors of dropped rules.
    dropped: Vec<ValidationFault>,
    /// References that cannot be resolved: their share of requests is answered with 500, or not mirrored.
    unresolved: Vec<ValidationFault>,
}

/// The parents for which the rules of a route are translated.
#[derive(Clone, Copy)]
pub(super) struct RuleScope<'a> {
    /// Attachments to listeners of Gateways.
    pub(super) attached: &'a [&'a RouteAttachment],
    pub(super) references: ReferenceScope,
}

/// Translates the rules of an HTTPRoute. All errors are reported.
pub(super) fn http_rules(
    index: &ObjectIndex<'_>,
    route: &TypedObject<HttpRouteSpec>,
    scope: RuleScope<'_>,
    report: &mut TranslationReport,
) -> RouteRules {
    if route.spec.use_default_gateways.is_some() {
        report.problem("HTTPRoute", route, "spec.useDefaultGateways", "is not supported");
    }
    let sources =
        (0..).zip(&route.spec.rules).map(|(n, rule)| RuleSource::of_http(rule, n)).collect();
    rules(index, "HTTPRoute", route, sources, scope, report)
}

/// Translates the rules of a GRPCRoute.
pub(super) fn grpc_rules(
    index: &ObjectIndex<'_>,
    route: &TypedObject<GrpcRouteSpec>,
    scope: RuleScope<'_>,
    report: &mut TranslationReport,
) -> RouteRules {
    if route.spec.use_default_gateways.is_some() {
        report.problem("GRPCRoute", route, "spec.useDefaultGateways", "is not supported");
    }
    let sources =
        (0..).zip(&route.spec.rules).map(|(n, rule)| RuleSource::of_grpc(rule, n)).collect();
    rules(index, "GRPCRoute", route, sources, scope, report)
}

/// A rule of either kind of route.
#[derive(Default)]
struct RuleSource<'a> {
    name: Option<&'a str>,
    /// Its matches, and their errors.
    matches: (Vec<Arc<RouteMatch>>, Vec<ValidationFault>),
    filters: &'a [HttpFilter],
    backend_refs: &'a [BackendRef],
    session_persistence: Option<&'a SessionPersistence>,
    timeouts: Option<&'a HttpRouteTimeouts>,
    retry: Option<&'a HttpRouteRetry>,
}

impl<'a> RuleSource<'a> {
    fn of_http(rule: &'a HttpRouteRule, number: usize) -> Self {
        Self {
            name: rule.name.as_deref(),
            matches: matches::matches(rule, &field(number)),
            filters: &rule.filters,
            backend_refs: &rule.backend_refs,
            session_persistence: rule.session_persistence.as_ref(),
            timeouts: rule.timeouts.as_ref(),
            retry: rule.retry.as_ref(),
        }
    }

    fn of_grpc(rule: &'a GrpcRouteRule, number: usize) -> Self {
        Self {
            name: rule.name.as_deref(),
            matches: grpc_match::matches(rule, &field(number)),
            filters: &rule.filters,
            backend_refs: &rule.backend_refs,
            session_persistence: rule.session_persistence.as_ref(),
            ..Self::default()
        }
    }
}

fn field(number: usize) -> String {
    format!("spec.rules[{number}]")
}

fn rules<S>(
    index: &ObjectIndex<'_>,
    kind: &'static str,
    route: &TypedObject<S>,
    sources: Vec<RuleSource<'_>>,
    scope: RuleScope<'_>,
    report: &mut TranslationReport,
) -> RouteRules {
    let (mut rules, mut warnings) = (RouteRules::default(), Vec::new());
    let mut names: Vec<&str> = Vec::new();
    for (number, mut rule) in sources.into_iter().enumerate() {
        let (matches, faults) = std::mem::take(&mut rule.matches);
        let mut builder = RuleBuilder {
            index,
            kind,
            route,
            scope,
            number,
            faults,
            unresolved: Vec::new(),
            warnings: Vec::new(),
        };
        if rule.name.is_some_and(|name| names.contains(&name)) {
            builder.refuse("name", "another rule of the route has this name");
        }
        names.extend(rule.name);
        let draft = builder.rule(&rule, matches);
        if builder.faults.is_empty() {
            rules.drafts.push(draft);
            rules.unresolved.append(&mut builder.unresolved);
        }
        rules.dropped.append(&mut builder.faults);
        warnings.append(&mut builder.warnings);
    }
    for fault in rules.dropped.iter().chain(&rules.unresolved).chain(&warnings) {
        report.fault(kind, route, fault);
    }
    rules
}

impl RouteRules {
    /// Returns the attachments at a parent, or why there are none: a route without any valid rule does not attach.
    pub(super) fn require_rules<T>(
        &self,
        attached: Result<T, ValidationFault>,
    ) -> Result<T, ValidationFault> {
        attached
            .and_then(|it| if self.drafts.is_empty() { Err(self.no_rules_fault()) } else { Ok(it) })
    }

    fn no_rules_fault(&self) -> ValidationFault {
        let reason =
            self.dropped.first().map_or(ConditionReason::UnsupportedValue, |fault| fault.reason);
        ValidationFault::new(reason, "spec.rules", self.dropped_message())
    }

    /// Returns the message of dropped rules. Gateway API prescribes its beginning.
    fn dropped_message(&self) -> String {
        let fields: Vec<_> = self.dropped.iter().map(|fault| fault.field.as_str()).collect();
        format!("Dropped Rule because of {}", fields.join(", "))
    }

    /// Returns the conditions at a parent; `fault` is the reason if the route has not attached there.
    pub(super) fn conditions(&self, fault: Option<&ValidationFault>) -> Vec<StatusCondition> {
        use ConditionType::{Accepted, PartiallyInvalid, ResolvedRefs};
        let mut conditions = vec![
            condition(Accepted, ConditionReason::Accepted, fault),
            condition(ResolvedRefs, ConditionReason::ResolvedRefs, self.unresolved.first()),
        ];
        if !self.dropped.is_empty() && !self.drafts.is_empty() {
            conditions.push(StatusCondition {
                kind: PartiallyInvalid,
                holds: true,
                reason: ConditionReason::UnsupportedValue,
                message: self.dropped_message(),
            });
        }
        conditions
    }
}

/// Translates one rule.
struct RuleBuilder<'a, S> {
    index: &'a ObjectIndex<'a>,
    kind: &'static str,
    route: &'a TypedObject<S>,
    scope: RuleScope<'a>,
    /// Index of the rule in its route.
    number: usize,
    /// Errors that drop the rule.
    faults: Vec<ValidationFault>,
    unresolved: Vec<ValidationFault>,
    /// Settings that are probably a mistake.
    warnings: Vec<ValidationFault>,
}

impl<'a, S> RuleBuilder<'a, S> {
    fn field(&self) -> String {
        field(self.number)
    }

    fn refuse(&mut self, part: &str, message: impl Into<String>) {
        let field = format!("{}.{part}", self.field());
        self.faults.push(ValidationFault::new(ConditionReason::UnsupportedValue, field, message));
    }

    fn rule(&mut self, rule: &RuleSource<'_>, matches: Vec<Arc<RouteMatch>>) -> RuleDraft {
        let filters = self.filters(rule.filters, "", FilterScope::Rule, &matches);
        if let Some(redirect) = &filters.filters.redirect {
            self.check_redirect(rule, redirect, &matches);
        }
        let affinity = rule.session_persistence.and_then(|it| self.affinity(rule, it));
        let (request_timeout, attempt_timeout) = self.timeouts(rule.timeouts);
        let targets = match filters.filters.redirect {
            Some(_) => Vec::new(),
            None => self.targets(rule, &matches),
        };
        RuleDraft {
            name: self.name(rule),
            targets,
            matches,
            filters,
            request_timeout,
            attempt_timeout,
            retry: rule.retry.map(retry),
            affinity,
            origin: Some(self.origin(rule)),
        }
    }

    fn affinity(
        &mut self,
        rule: &RuleSource<'_>,
        persistence: &SessionPersistence,
    ) -> Option<AffinitySettings> {
        let owner = format!("{} {}", self.kind, self.name(rule));
        let faults = match session_persistence::affinity(persistence, &owner) {
            Ok(affinity) => return Some(affinity),
            Err(faults) => faults,
        };
        for (field, message) in faults {
            self.refuse(&format!("sessionPersistence.{field}"), message);
        }
        None
    }

    fn origin(&self, rule: &RuleSource<'_>) -> RuleOrigin {
        let metadata = &self.route.metadata;
        RuleOrigin {
            kind: self.kind,
            namespace: metadata.namespace.as_str().into(),
            route: metadata.name.as_str().into(),
            section: rule.name.map(Arc::from),
        }
    }

    /// Returns the name `namespace/route/rule`.
    fn name(&self, rule: &RuleSource<'_>) -> Arc<str> {
        let number = self.number.to_string();
        let (metadata, name) = (&self.route.metadata, rule.name.unwrap_or(&number));
        format!("{}/{}/{name}", metadata.namespace, metadata.name).into()
    }

    fn filters(
        &mut self,
        filters: &[HttpFilter],
        part: &str,
        scope: FilterScope,
        matches: &[Arc<RouteMatch>],
    ) -> FiltersDraft {
        let field = format!("{}{part}.filters", self.field());
        let referrer = self.referrer();
        let mut builder = filter::FilterBuilder {
            index: self.index,
            referrer,
            scope,
            matches,
            faults: &mut self.faults,
            unresolved: &mut self.unresolved,
        };
        builder.filters(filters, &field)
    }

    fn referrer(&self) -> ServiceReferrer<'a> {
        let (namespace, scope) = (&*self.route.metadata.namespace, self.scope.references);
        ServiceReferrer { kind: self.kind, namespace, scope }
    }

    /// Returns the targets of a rule. Without any target, requests are answered with 500, as Gateway API demands.
    fn targets(&mut self, rule: &RuleSource<'_>, matches: &[Arc<RouteMatch>]) -> Vec<TargetDraft> {
        let mut targets = Vec::new();
        for (n, reference) in rule.backend_refs.iter().enumerate() {
            let part = format!(".backendRefs[{n}]");
            let field = format!("{}{part}", self.field());
            let service = reference.service();
            let key = resolve(self.index, self.referrer(), service, TransportProtocol::Tcp, &field)
                .map_err(|fault| self.unresolved.push(fault))
                .ok();
            let rejected = key.as_ref().and_then(|key| rejected_answer(self.index, key, &field));
            self.unresolved.extend(rejected);
            let filters = self.filters(&reference.filters, &part, FilterScope::Backend, matches);
            if reference.weight > 0 {
                targets.push(TargetDraft { key, weight: reference.weight, filters });
            }
        }
        if targets.is_empty() {
            targets.push(TargetDraft::unresolved());
        }
        targets
    }

    fn timeouts(
        &mut self,
        timeouts: Option<&HttpRouteTimeouts>,
    ) -> (Option<Duration>, Option<Duration>) {
        let limit = |timeout: Option<objects::Duration>| {
            timeout.map(|it| if it == objects::Duration::ZERO { Duration::MAX } else { it.0 })
        };
        let request = timeouts.and_then(|timeouts| limit(timeouts.request));
        let attempt = timeouts.and_then(|timeouts| limit(timeouts.backend_request));
        let is_longer = |(attempt, request)| attempt > request && attempt != Duration::MAX;
        if attempt.zip(request).is_some_and(is_longer) {
            self.refuse("timeouts.backendRequest", "must not be longer than `request`");
        }
        (request, attempt)
    }

    /// Checks a redirect: the rule must have no backends, and the redirect should not lead to the requested URL. Such a
    /// loop is only a warning, as Gateway API allows it: the next request of the client may match another rule.
    fn check_redirect(
        &mut self,
        rule: &RuleSource<'_>,
        redirect: &RedirectAction,
        matches: &[Arc<RouteMatch>],
    ) {
        if !rule.backend_refs.is_empty() {
            self.refuse("backendRefs", "must be empty: the rule redirects requests");
        }
        if self.scope.attached.iter().any(|attachment| is_loop(redirect, matches, attachment)) {
            let message = "redirects to the requested URL: \
                           set another scheme, hostname, port or path";
            let field = format!("{}.filters", self.field());
            self.warnings.push(ValidationFault::new(
                ConditionReason::UnsupportedValue,
                field,
                message,
            ));
        }
    }
}

/// True if a redirect returns the requested URL for some requests.
fn is_loop(
    redirect: &RedirectAction,
    matches: &[Arc<RouteMatch>],
    attachment: &RouteAttachment,
) -> bool {
    let same_scheme = redirect.scheme.unwrap_or(attachment.scheme) == attachment.scheme;
    let same_port = redirect.port.unwrap_or(attachment.port) == attachment.port;
    let same_host = redirect.hostname.as_ref().is_none_or(|host| {
        let host = crate::matching::HostPattern::Exact(host.clone());
        attachment.hosts.iter().any(|common| common.hosts == host)
    });
    let same_path =
        matches.iter().any(|route_match| keeps_path(redirect.path.as_ref(), &route_match.path));
    same_scheme && same_port && same_host && same_path
}

/// True if a rewrite leaves a matched path unchanged.
fn keeps_path(rewrite: Option<&PathRewrite>, path: &PathPattern) -> bool {
    match (rewrite, path) {
        (None, _) => true,
        (Some(PathRewrite::Full(full)), PathPattern::Exact(exact)) => full == exact,
        (Some(PathRewrite::Prefix { replacement, .. }), PathPattern::Prefix(prefix)) => {
            **replacement == *prefix.trim_end_matches('/')
        }
        // The new path may match another rule; a redirect from `/` to `/login` is a common case.
        (Some(PathRewrite::Full(_) | PathRewrite::Prefix { .. }), _) => false,
    }
}

fn retry(asked: &HttpRouteRetry) -> RuleRetry {
    RuleRetry {
        attempts: NonZeroU32::MIN.saturating_add(asked.attempts),
        backoff: asked.backoff.map(|backoff| backoff.0),
        statuses: sorted(&asked.codes),
    }
}
