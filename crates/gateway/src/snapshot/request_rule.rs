//! Request rules: rewrites, redirects and responses on conditions, in the order of a policy.
//!
//! Patterns and texts were parsed when the policy was translated. Deciding is pure: it reads the attributes of a request,
//! and returns what is to be done with it. This module does not know how a head is stored.

/// Texts with variables.
mod template;
/// Paths, decoded for patterns and escaped for URLs.
mod path_text;

use std::borrow::Cow;
use std::net::IpAddr;

use super::filter::UrlScheme;
use super::traffic::DirectResponseSettings;
use crate::matching::{RequestAttributes, SearchPattern};
pub use crate::objects::RewriteContinuation;
use path_text::decoded_path;
use template::{CapturedGroups, TemplateValues};
pub use template::{RequestTemplate, RuleTextLimit, TemplateError};

/// The rules of a policy, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRules {
    /// The rules; at least one.
    pub rules: Vec<RuleSettings>,
    /// The number of variables that the rules set.
    pub variables: usize,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSettings {
    /// The conditions, all of which a request must meet.
    pub conditions: Vec<RuleCondition>,
    /// The action.
    pub action: RuleAction,
}

/// A condition on a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleCondition {
    /// The text that is compared.
    pub value: RequestTemplate,
    /// The comparison.
    pub operator: ConditionOperator,
    /// True if the comparison must fail.
    pub negate: bool,
}

/// A comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConditionOperator {
    /// The value equals this text, byte for byte.
    Equals(Box<str>),
    /// A part of the value matches.
    Matches(SearchPattern),
}

/// The action of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleAction {
    /// Sets a variable.
    Set {
        /// The number of the variable.
        variable: usize,
        /// The value.
        value: RequestTemplate,
    },
    /// Changes the path, if the pattern matches it.
    Rewrite {
        /// The pattern.
        pattern: SearchPattern,
        /// The new path, and perhaps a query.
        replacement: RequestTemplate,
        /// True if the query of the request is appended.
        appends_query: bool,
        /// The next step.
        then: RewriteContinuation,
    },
    /// Redirects the client, if the pattern matches the path.
    Redirect {
        /// The pattern; `None`: every path.
        pattern: Option<SearchPattern>,
        /// The URL, or a path of the requested host.
        url: RequestTemplate,
        /// True if the query of the request is appended.
        appends_query: bool,
        /// The status.
        status: u16,
    },
    /// Responds in place of an endpoint.
    Respond(DirectResponseSettings),
    /// The route forwards the request.
    Forward,
}

/// A request, as rules see it.
pub struct RuleRequest<'r, R> {
    /// Method, host, path, query and header fields.
    pub attributes: &'r R,
    /// The scheme by which it arrived.
    pub scheme: UrlScheme,
    /// The port of the listener.
    pub port: u16,
    /// The host, and perhaps a port, as the client wrote them.
    pub authority: &'r [u8],
    /// Path and query as the client sent them.
    pub received_target: &'r [u8],
    /// The client's address.
    pub client: IpAddr,
}

/// The result of the rules for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleDecision {
    /// The route forwards the request, or answers it.
    Proceed,
    /// The route forwards the request, with this path and query if there is one; `URLRewrite` of the path does not apply.
    Forward {
        /// Path and query in place of those of the request.
        target: Option<Vec<u8>>,
    },
    /// The route is chosen anew, by this path and query.
    Route {
        /// Path and query.
        target: Vec<u8>,
    },
    /// The client is redirected.
    Redirect {
        /// The status.
        status: u16,
        /// The value of `Location`.
        location: Vec<u8>,
    },
    /// The response is that of the rule with this index.
    Respond {
        /// The index of the rule.
        rule: usize,
    },
}

impl RequestRules {
    /// Returns the response of a rule with this index.
    pub fn response(&self, rule: usize) -> Option<&DirectResponseSettings> {
        match &self.rules.get(rule)?.action {
            RuleAction::Respond(response) => Some(response),
            RuleAction::Set { .. }
            | RuleAction::Rewrite { .. }
            | RuleAction::Redirect { .. }
            | RuleAction::Forward => None,
        }
    }

    /// Applies the rules to a request.
    ///
    /// # Errors
    /// If a text becomes too long.
    pub fn decide<R: RequestAttributes>(
        &self,
        request: &RuleRequest<'_, R>,
    ) -> Result<RuleDecision, RuleTextLimit> {
        let mut state = RuleState {
            path: decoded_path(request.attributes.path()),
            query: Cow::Borrowed(request.attributes.query()),
            variables: vec![Vec::new(); self.variables],
            target: None,
        };
        for (index, rule) in self.rules.iter().enumerate() {
            if let Some(decision) = rule.decide(index, request, &mut state)? {
                return Ok(decision);
            }
        }
        Ok(match state.target {
            Some(target) => RuleDecision::Route { target },
            None => RuleDecision::Proceed,
        })
    }
}

/// The parts of a request that rules have changed.
struct RuleState<'r> {
    /// The path, decoded.
    path: Cow<'r, [u8]>,
    /// The query, without its `?`.
    query: Cow<'r, [u8]>,
    /// The variables that rules set.
    variables: Vec<Vec<u8>>,
    /// The new path and query, as they are sent.
    target: Option<Vec<u8>>,
}

impl RuleSettings {
    /// Applies the rule; returns the decision, if it makes one.
    fn decide<R: RequestAttributes>(
        &self,
        index: usize,
        request: &RuleRequest<'_, R>,
        state: &mut RuleState<'_>,
    ) -> Result<Option<RuleDecision>, RuleTextLimit> {
        let Some(groups) = self.matched(request, state)? else { return Ok(None) };
        let groups = match self.action.pattern() {
            None => groups,
            Some(pattern) => match CapturedGroups::of(pattern, &state.path, true) {
                None => return Ok(None),
                Some(groups) => groups,
            },
        };
        let values = state.values(request, &groups);
        match &self.action {
            RuleAction::Set { variable, value } => {
                let text = values.text(value)?;
                if let Some(slot) = state.variables.get_mut(*variable) {
                    *slot = text;
                }
                Ok(None)
            }
            RuleAction::Rewrite { replacement, appends_query, then, .. } => {
                let target = values.url(replacement, *appends_query)?;
                Ok(state.rewrite(target, *then))
            }
            RuleAction::Redirect { url, appends_query, status, .. } => {
                let mut location = values.url(url, *appends_query)?;
                // A group does not make a URL of another host.
                if !url.is_absolute() && !location.starts_with(b"/") {
                    location.insert(0, b'/');
                }
                Ok(Some(RuleDecision::Redirect { status: *status, location }))
            }
            RuleAction::Respond(_) => Ok(Some(RuleDecision::Respond { rule: index })),
            RuleAction::Forward => Ok(Some(RuleDecision::Forward { target: state.target.take() })),
        }
    }

    /// Returns the groups of the last pattern, if the request meets all conditions.
    fn matched<R: RequestAttributes>(
        &self,
        request: &RuleRequest<'_, R>,
        state: &RuleState<'_>,
    ) -> Result<Option<CapturedGroups>, RuleTextLimit> {
        let mut groups = CapturedGroups::default();
        for RuleCondition { value, operator, negate } in &self.conditions {
            let text = state.values(request, &groups).text(value)?;
            let is_met = match operator {
                ConditionOperator::Equals(expected) => *text == *expected.as_bytes(),
                ConditionOperator::Matches(pattern) if *negate => pattern.is_in(&text),
                ConditionOperator::Matches(pattern) => {
                    let found = CapturedGroups::of(pattern, &text, value.is_path());
                    let is_in = found.is_some();
                    groups = found.unwrap_or_default();
                    is_in
                }
            };
            if is_met == *negate {
                return Ok(None);
            }
        }
        Ok(Some(groups))
    }
}

impl RuleAction {
    /// Returns the pattern that the path must match.
    fn pattern(&self) -> Option<&SearchPattern> {
        match self {
            Self::Rewrite { pattern, .. } => Some(pattern),
            Self::Redirect { pattern, .. } => pattern.as_ref(),
            Self::Set { .. } | Self::Respond(_) | Self::Forward => None,
        }
    }
}

impl RuleState<'_> {
    fn values<'s, 'r, R>(
        &'s self,
        request: &'s RuleRequest<'r, R>,
        groups: &'s CapturedGroups,
    ) -> TemplateValues<'s, 'r, R> {
        let Self { path, query, variables, .. } = self;
        TemplateValues { request, path, query, variables, groups }
    }

    /// Changes path and query.
    fn rewrite(&mut self, mut target: Vec<u8>, then: RewriteContinuation) -> Option<RuleDecision> {
        if !target.starts_with(b"/") {
            target.insert(0, b'/');
        }
        match then {
            RewriteContinuation::Forward => Some(RuleDecision::Forward { target: Some(target) }),
            RewriteContinuation::Route => Some(RuleDecision::Route { target }),
            RewriteContinuation::NextRule => {
                let end = target.iter().position(|byte| *byte == b'?').unwrap_or(target.len());
                let (path, query) = target.split_at(end);
                self.path = Cow::Owned(decoded_path(path).into_owned());
                self.query = Cow::Owned(query.get(1..).unwrap_or_default().to_vec());
                self.target = Some(target);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests;
