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
use path_text::{UrlPart, decoded_path, escape};
use template::{CapturedGroups, RuleText, TemplateValues, UrlUse};
pub use template::{RequestTemplate, RuleTextLimit, TemplateError};

/// Largest number of bytes that patterns search for one request. It bounds the time of the rules.
const MAX_SEARCHED_BYTES: usize = 256 * 1024;

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
    /// If a text becomes too long, or patterns search too much.
    pub fn decide<R: RequestAttributes>(
        &self,
        request: &RuleRequest<'_, R>,
    ) -> Result<RuleDecision, RuleTextLimit> {
        let path = decoded_path(request.attributes.path());
        let mut state = RuleState {
            path: path.text,
            query: Cow::Borrowed(request.attributes.query()),
            variables: vec![RuleText::default(); self.variables],
            target: None,
            searched_bytes: 0,
        };
        for (index, rule) in self.rules.iter().enumerate() {
            match rule.decide(index, request, &mut state)? {
                None => {}
                // The rule matched another path than the route: `/admin%2Fx` is `/admin/x` for patterns alone. The route
                // is chosen anew by the decoded path, as nginx does, so that the policies of `/admin` apply. This ends,
                // since that path has one form.
                Some(RuleDecision::Forward { target: Some(_) }) if path.is_other_route => {
                    return Ok(RuleDecision::Route { target: decoded_target(request.attributes) });
                }
                Some(decision) => return Ok(decision),
            }
        }
        Ok(match state.target {
            Some(target) => RuleDecision::Route { target },
            None => RuleDecision::Proceed,
        })
    }
}

/// Returns path and query of a request; the path has escapes only of characters that need them.
fn decoded_target(attributes: &impl RequestAttributes) -> Vec<u8> {
    let mut target = Vec::new();
    escape(&decoded_path(attributes.path()).text, UrlPart::Path, &mut target);
    if !attributes.query().is_empty() {
        target.push(b'?');
        target.extend_from_slice(attributes.query());
    }
    target
}

/// The parts of a request that rules have changed.
struct RuleState<'r> {
    /// The path, decoded.
    path: Cow<'r, [u8]>,
    /// The query, without its `?`.
    query: Cow<'r, [u8]>,
    /// The variables that rules set.
    variables: Vec<RuleText>,
    /// The new path and query, as they are sent.
    target: Option<Vec<u8>>,
    /// The number of bytes that patterns have searched.
    searched_bytes: usize,
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
            Some(pattern) => {
                let length = state.path.len();
                state.count_search(length)?;
                match CapturedGroups::of_path(pattern, &state.path) {
                    None => return Ok(None),
                    Some(groups) => groups,
                }
            }
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
                let target = values.url(replacement, *appends_query, UrlUse::Rewrite)?;
                Ok(state.rewrite(target, *then))
            }
            RuleAction::Redirect { url, appends_query, status, .. } => {
                let mut location = values.url(url, *appends_query, UrlUse::Redirect)?;
                let lacks_host = url.has_host() && request.attributes.host().is_empty();
                if lacks_host {
                    // No URL can be built without the host. A path fails for the same reason.
                    location = b"/".to_vec();
                } else if !url.is_absolute() && !location.starts_with(b"/") {
                    // A group does not make a URL of another host.
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
        state: &mut RuleState<'_>,
    ) -> Result<Option<CapturedGroups>, RuleTextLimit> {
        let mut groups = CapturedGroups::default();
        for RuleCondition { value, operator, negate } in &self.conditions {
            let text = state.values(request, &groups).text(value)?;
            let is_met = match operator {
                ConditionOperator::Equals(expected) => *text.bytes == *expected.as_bytes(),
                ConditionOperator::Matches(pattern) => {
                    state.count_search(text.bytes.len())?;
                    if *negate {
                        pattern.is_in(&text.bytes)
                    } else {
                        let found = CapturedGroups::of(pattern, &text);
                        let is_in = found.is_some();
                        groups = found.unwrap_or_default();
                        is_in
                    }
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

    /// Counts the bytes of a text that a pattern is about to search.
    fn count_search(&mut self, bytes: usize) -> Result<(), RuleTextLimit> {
        self.searched_bytes += bytes;
        if self.searched_bytes > MAX_SEARCHED_BYTES { Err(RuleTextLimit) } else { Ok(()) }
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
                self.path = Cow::Owned(decoded_path(path).text.into_owned());
                self.query = Cow::Owned(query.get(1..).unwrap_or_default().to_vec());
                self.target = Some(target);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests;
