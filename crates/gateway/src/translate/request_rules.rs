//! Request rules of TrafficPolicies.

use super::report::ValidationFault;
use crate::matching::SearchPattern;
use crate::objects::{
    ConditionalRedirect, DirectResponse, PathReplacement, RequestCondition, RequestRule,
    VariableAssignment,
};
use crate::snapshot::{
    ConditionOperator, DirectResponseSettings, RequestRules, RequestTemplate, RuleAction,
    RuleCondition, RuleSettings,
};
use crate::status::ConditionReason;

/// Largest number of variables that the rules of a policy set.
const MAX_VARIABLES: usize = 16;
/// Statuses of redirects.
const REDIRECTS: [u16; 5] = [301, 302, 303, 307, 308];

/// Returns the rules, or every fault; `None` if there are none. `respond` returns the settings of a response in a field.
pub(super) fn request_rules(
    rules: &[RequestRule],
    respond: impl Fn(&DirectResponse, &str) -> Result<DirectResponseSettings, ValidationFault>,
) -> Result<Option<RequestRules>, Vec<ValidationFault>> {
    if rules.is_empty() {
        return Ok(None);
    }
    let mut variables: Vec<&str> = Vec::new();
    for assignment in rules.iter().filter_map(|rule| rule.set.as_ref()) {
        if !variables.contains(&&*assignment.variable) {
            variables.push(&assignment.variable);
        }
    }
    let mut faults = Vec::new();
    if variables.len() > MAX_VARIABLES {
        let message = format!("set more than {MAX_VARIABLES} variables");
        faults.push(fault("spec.requestRules", message));
    }
    let mut settings = Vec::new();
    for (number, rule) in rules.iter().enumerate() {
        let field = format!("spec.requestRules[{number}]");
        let translator = RuleTranslator { respond: &respond, field: &field, variables: &variables };
        match translator.rule(rule) {
            Ok(rule) => settings.push(rule),
            Err(fault) => faults.push(fault),
        }
    }
    match faults.is_empty() {
        true => Ok(Some(RequestRules { rules: settings, variables: variables.len() })),
        false => Err(faults),
    }
}

/// Translates a rule.
struct RuleTranslator<'t, F> {
    /// Returns the settings of a response.
    respond: &'t F,
    /// The field of the rule.
    field: &'t str,
    /// The variables that rules set.
    variables: &'t [&'t str],
}

impl<F> RuleTranslator<'_, F>
where
    F: Fn(&DirectResponse, &str) -> Result<DirectResponseSettings, ValidationFault>,
{
    fn rule(&self, rule: &RequestRule) -> Result<RuleSettings, ValidationFault> {
        let mut conditions = Vec::new();
        let mut groups = 0;
        for (number, condition) in rule.when.iter().enumerate() {
            let condition = self.condition(number, condition, groups)?;
            if let (ConditionOperator::Matches(pattern), false) =
                (&condition.operator, condition.negate)
            {
                groups = pattern.groups();
            }
            conditions.push(condition);
        }
        Ok(RuleSettings { conditions, action: self.action(rule, groups)? })
    }

    fn condition(
        &self,
        number: usize,
        condition: &RequestCondition,
        groups: usize,
    ) -> Result<RuleCondition, ValidationFault> {
        let RequestCondition { value, equals, matches, ignore_case, negate } = condition;
        let part = format!("when[{number}]");
        let operator = match (equals, matches) {
            (Some(equals), None) => {
                if *ignore_case {
                    return Err(self.fault(&format!("{part}.ignoreCase"), "is for `matches`"));
                }
                ConditionOperator::Equals(equals.as_str().into())
            }
            (None, Some(matches)) => {
                let field = format!("{part}.matches");
                ConditionOperator::Matches(self.pattern(&field, matches, *ignore_case)?)
            }
            (Some(_), Some(_)) | (None, None) => {
                return Err(self.fault(&part, "must have exactly one of `equals` and `matches`"));
            }
        };
        let value = self.template(&format!("{part}.value"), value, groups)?;
        Ok(RuleCondition { value, operator, negate: *negate })
    }

    fn action(&self, rule: &RequestRule, groups: usize) -> Result<RuleAction, ValidationFault> {
        let RequestRule { when: _, set, rewrite, redirect, respond, forward } = rule;
        match (set, rewrite, redirect, respond, forward) {
            (Some(set), None, None, None, false) => self.set(set, groups),
            (None, Some(rewrite), None, None, false) => self.rewrite(rewrite),
            (None, None, Some(redirect), None, false) => self.redirect(redirect, groups),
            (None, None, None, Some(respond), false) => {
                let field = format!("{}.respond", self.field);
                (self.respond)(respond, &field).map(RuleAction::Respond)
            }
            (None, None, None, None, true) => Ok(RuleAction::Forward),
            _ => Err(fault(
                self.field,
                "must have exactly one of `set`, `rewrite`, `redirect`, `respond` and `forward`",
            )),
        }
    }

    fn set(
        &self,
        assignment: &VariableAssignment,
        groups: usize,
    ) -> Result<RuleAction, ValidationFault> {
        let VariableAssignment { variable, value } = assignment;
        let is_name = |char: char| char.is_ascii_alphanumeric() || char == '_';
        let starts_with_digit = variable.starts_with(|char: char| char.is_ascii_digit());
        if !variable.chars().all(is_name) || starts_with_digit {
            let message = "must have letters, digits and `_`, and not begin with a digit";
            return Err(self.fault("set.variable", message));
        }
        if RequestTemplate::is_known_variable(variable) {
            return Err(self.fault("set.variable", "is a variable that every request has"));
        }
        let number = self.variables.iter().position(|it| it == variable).unwrap_or_default();
        let value = self.template("set.value", value, groups)?;
        Ok(RuleAction::Set { variable: number, value })
    }

    fn rewrite(&self, rewrite: &PathReplacement) -> Result<RuleAction, ValidationFault> {
        let PathReplacement { pattern, replacement, then } = rewrite;
        const REPLACEMENT: &str = "rewrite.replacement";
        let pattern = self.pattern("rewrite.pattern", pattern, false)?;
        if !replacement.starts_with(['/', '$']) {
            return Err(self.fault(REPLACEMENT, "must begin with `/` or a variable"));
        }
        if replacement.contains('#') {
            return Err(self.fault(REPLACEMENT, "has a `#`, which no path has"));
        }
        let (text, appends_query) = match replacement.strip_suffix('?') {
            Some(text) => (text, false),
            None => (&**replacement, true),
        };
        let replacement = self.template(REPLACEMENT, text, pattern.groups())?;
        Ok(RuleAction::Rewrite { pattern, replacement, appends_query, then: *then })
    }

    fn redirect(
        &self,
        redirect: &ConditionalRedirect,
        groups: usize,
    ) -> Result<RuleAction, ValidationFault> {
        let ConditionalRedirect { pattern, url, status, append_query } = redirect;
        if !REDIRECTS.contains(status) {
            let message = format!("must be 301, 302, 303, 307 or 308, is {status}");
            return Err(self.fault("redirect.status", message));
        }
        let pattern = pattern.as_ref().map(|it| self.pattern("redirect.pattern", it, false));
        let pattern = pattern.transpose()?;
        let groups = pattern.as_ref().map_or(groups, SearchPattern::groups);
        let url = self.template("redirect.url", url, groups)?;
        if !url.is_absolute() && !url.begins_with_path() {
            let message = "must begin with `http://`, `https://`, `$scheme://`, `/`, `$uri` or `$request_uri`";
            return Err(self.fault("redirect.url", message));
        }
        Ok(RuleAction::Redirect { pattern, url, appends_query: *append_query, status: *status })
    }

    fn pattern(
        &self,
        part: &str,
        text: &str,
        ignores_case: bool,
    ) -> Result<SearchPattern, ValidationFault> {
        let pattern = SearchPattern::new(text, ignores_case);
        pattern.map_err(|error| self.fault(part, error.to_string()))
    }

    fn template(
        &self,
        part: &str,
        text: &str,
        groups: usize,
    ) -> Result<RequestTemplate, ValidationFault> {
        let template = RequestTemplate::new(text, self.variables, groups);
        template.map_err(|error| self.fault(part, error.to_string()))
    }

    fn fault(&self, part: &str, message: impl Into<String>) -> ValidationFault {
        fault(&format!("{}.{part}", self.field), message)
    }
}

fn fault(field: &str, message: impl Into<String>) -> ValidationFault {
    ValidationFault::new(ConditionReason::Invalid, field, message)
}
