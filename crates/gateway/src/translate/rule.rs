//! The rules of HTTPRoutes: where they lead, and which of them are left out.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::attach::Attachment;
use super::backend::{Referrer, resolve};
use super::draft::{FiltersDraft, RuleDraft, TargetDraft};
use super::filter::{self, Standing};
use super::index::Index;
use super::matches::matches;
use super::settings::sorted;
use super::{Fault, Report, condition};
use crate::matching::{Match, PathPattern};
use crate::objects::{
    self, HttpRouteRetry, HttpRouteRule, HttpRouteSpec, HttpRouteTimeouts, Resource,
};
use crate::snapshot::{PathRewrite, Redirect, RuleRetry, Scheme, Transport};
use crate::status::{Condition, ConditionType, Reason};

/// What the rules of a route come to.
#[derive(Default)]
pub(super) struct Rules {
    pub(super) drafts: Vec<RuleDraft>,
    /// Why rules were left out.
    dropped: Vec<Fault>,
    /// References that lead nowhere: their share is answered with 500, or not mirrored.
    unresolved: Vec<Fault>,
}

/// What the rules of a route come to where it has attached, with every reason against them.
pub(super) fn rules(
    index: &Index<'_>,
    route: &Resource<HttpRouteSpec>,
    attached: &[&Attachment],
    report: &mut Report,
) -> Rules {
    let mut rules = Rules::default();
    if route.spec.use_default_gateways.is_some() {
        report.problem("HTTPRoute", route, "spec.useDefaultGateways", "is not supported");
    }
    for (n, rule) in route.spec.rules.iter().enumerate() {
        let mut made = Made::new(index, route, n);
        let draft = made.rule(rule, attached);
        if made.faults.is_empty() {
            rules.drafts.push(draft);
            rules.unresolved.append(&mut made.unresolved);
        }
        rules.dropped.append(&mut made.faults);
    }
    for fault in rules.dropped.iter().chain(&rules.unresolved) {
        report.fault("HTTPRoute", route, fault);
    }
    rules
}

impl Rules {
    /// Why a route of which no rule is left attaches nowhere.
    pub(super) fn nothing_left(&self) -> Fault {
        let reason = self.dropped.first().map_or(Reason::UnsupportedValue, |fault| fault.reason);
        Fault::new(reason, "spec.rules", self.dropped_message())
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

/// A rule in the making.
struct Made<'a> {
    index: &'a Index<'a>,
    route: &'a Resource<HttpRouteSpec>,
    /// Which rule of the route.
    number: usize,
    /// Why it is left out.
    faults: Vec<Fault>,
    unresolved: Vec<Fault>,
}

impl<'a> Made<'a> {
    fn new(index: &'a Index<'_>, route: &'a Resource<HttpRouteSpec>, number: usize) -> Self {
        Self { index, route, number, faults: Vec::new(), unresolved: Vec::new() }
    }

    fn field(&self) -> String {
        format!("spec.rules[{}]", self.number)
    }

    fn refuse(&mut self, part: &str, message: impl Into<String>) {
        let field = format!("{}.{part}", self.field());
        self.faults.push(Fault::new(Reason::UnsupportedValue, field, message));
    }

    fn rule(&mut self, rule: &HttpRouteRule, attached: &[&Attachment]) -> RuleDraft {
        let (matches, mut faults) = matches(rule, &self.field());
        self.faults.append(&mut faults);
        let filters = self.filters(&rule.filters, "", Standing::Rule, &matches);
        if let Some(redirect) = &filters.made.redirect {
            self.check_redirect(rule, redirect, &matches, attached);
        }
        if rule.session_persistence.is_some() {
            let message = "is not supported: `affinity` of a BackendPolicy is";
            self.refuse("sessionPersistence", message);
        }
        let (request_timeout, attempt_timeout) = self.timeouts(rule.timeouts.as_ref());
        let targets = match filters.made.redirect {
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
            retry: rule.retry.as_ref().map(retry),
        }
    }

    /// `namespace/route/rule`.
    fn name(&mut self, rule: &HttpRouteRule) -> Arc<str> {
        let earlier = &self.route.spec.rules[..self.number];
        if rule.name.is_some() && earlier.iter().any(|other| other.name == rule.name) {
            self.refuse("name", "another rule of the route has this name");
        }
        let number = self.number.to_string();
        let name = rule.name.as_ref().unwrap_or(&number);
        let metadata = &self.route.metadata;
        format!("{}/{}/{name}", metadata.namespace, metadata.name).into()
    }

    fn filters(
        &mut self,
        filters: &[objects::HttpFilter],
        part: &str,
        standing: Standing,
        matches: &[Arc<Match>],
    ) -> FiltersDraft {
        let field = format!("{}{part}.filters", self.field());
        let referrer = self.referrer();
        let mut making = filter::Making {
            index: self.index,
            referrer,
            standing,
            matches,
            faults: &mut self.faults,
            unresolved: &mut self.unresolved,
        };
        making.filters(filters, &field)
    }

    fn referrer(&self) -> Referrer<'a> {
        Referrer { kind: "HTTPRoute", namespace: &self.route.metadata.namespace }
    }

    /// Where the requests of a rule go. One that can go nowhere is answered with 500, as Gateway API asks.
    fn targets(&mut self, rule: &HttpRouteRule, matches: &[Arc<Match>]) -> Vec<TargetDraft> {
        let mut targets = Vec::new();
        for (n, reference) in rule.backend_refs.iter().enumerate() {
            let part = format!(".backendRefs[{n}]");
            let field = format!("{}{part}", self.field());
            let service = reference.service();
            let key = resolve(self.index, self.referrer(), service, Transport::Tcp, &field)
                .map_err(|fault| self.unresolved.push(fault))
                .ok();
            let filters = self.filters(&reference.filters, &part, Standing::Backend, matches);
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

    /// A redirect has no backends, and must not lead to where it comes from.
    fn check_redirect(
        &mut self,
        rule: &HttpRouteRule,
        redirect: &Redirect,
        matches: &[Arc<Match>],
        attached: &[&Attachment],
    ) {
        if !rule.backend_refs.is_empty() {
            self.refuse("backendRefs", "must be empty: the rule sends clients elsewhere");
        }
        if attached.iter().any(|attachment| is_loop(redirect, matches, attachment)) {
            let message = "sends clients to the URL they asked for: \
                           give another scheme, hostname, port or path";
            self.refuse("filters", message);
        }
    }
}

/// Whether a redirect of a listener without TLS gives some client the very URL that it asked for.
fn is_loop(redirect: &Redirect, matches: &[Arc<Match>], attachment: &Attachment) -> bool {
    let same_scheme = redirect.scheme.unwrap_or(Scheme::Http) == Scheme::Http;
    let same_port = redirect.port.unwrap_or(attachment.port) == attachment.port;
    let same_host = redirect.hostname.as_ref().is_none_or(|host| {
        let host = crate::matching::HostPattern::Exact(host.clone());
        attachment.hosts.contains(&host)
    });
    let same_path = matches.iter().any(|asked| keeps_path(redirect.path.as_ref(), &asked.path));
    same_scheme && same_port && same_host && same_path
}

/// Whether a path that is asked for comes out of a rewrite as it went in.
fn keeps_path(rewrite: Option<&PathRewrite>, asked: &PathPattern) -> bool {
    match (rewrite, asked) {
        (None, _) => true,
        (Some(PathRewrite::Full(full)), PathPattern::Exact(exact)) => full == exact,
        (Some(PathRewrite::Prefix { replacement, .. }), PathPattern::Prefix(prefix)) => {
            **replacement == *prefix.trim_end_matches('/')
        }
        // A path that some other rule may take: `/` that leads to `/login` is the usual case.
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
