//! Matches of HTTPRoute rules.

use std::sync::Arc;

use super::report::ValidationFault;
use crate::matching::{
    FieldCondition, MatchConditions, PathPattern, RegexPattern, RouteMatch, ValuePattern,
};
use crate::objects::{HttpMethod, HttpRouteMatch, HttpRouteRule, PathMatchType, ValueMatchType};
use crate::status::ConditionReason;

/// Returns the matches of a rule, any one of which suffices, and their errors. A rule without matches matches every
/// request.
pub(super) fn matches(
    rule: &HttpRouteRule,
    field: &str,
) -> (Vec<Arc<RouteMatch>>, Vec<ValidationFault>) {
    if rule.matches.is_empty() {
        let path = PathPattern::Prefix("/".into());
        let every = RouteMatch { path, conditions: MatchConditions::default() };
        return (vec![Arc::new(every)], Vec::new());
    }
    let mut faults = Vec::new();
    // Beside other methods, it does no harm.
    if rule.matches.iter().all(|wanted| wanted.method == Some(HttpMethod::Trace)) {
        let message = "only TRACE, which is not supported: such requests are answered with 405";
        let field = format!("{field}.matches[0].method");
        faults.push(ValidationFault::new(ConditionReason::UnsupportedValue, field, message));
    }
    let matches = (0..).zip(&rule.matches).filter_map(|(n, wanted): (usize, _)| {
        one_match(wanted, &format!("{field}.matches[{n}]"), &mut faults).map(Arc::new)
    });
    (matches.collect(), faults)
}

fn one_match(
    wanted: &HttpRouteMatch,
    field: &str,
    faults: &mut Vec<ValidationFault>,
) -> Option<RouteMatch> {
    let path = path(wanted, &format!("{field}.path.value"), faults);
    let headers = wanted
        .headers
        .iter()
        .map(|it| (it.name.to_ascii_lowercase().into_boxed_str(), it.kind, it.value.as_str()));
    let headers = conditions(headers, &format!("{field}.headers"), faults);
    let query =
        wanted.query_params.iter().map(|it| (it.name.as_str().into(), it.kind, it.value.as_str()));
    let query = conditions(query, &format!("{field}.queryParams"), faults);
    let method = wanted.method.map(|method| method.text().into());
    Some(RouteMatch {
        path: path?,
        conditions: MatchConditions { method, headers: headers?, query: query? },
    })
}

fn path(
    wanted: &HttpRouteMatch,
    field: &str,
    faults: &mut Vec<ValidationFault>,
) -> Option<PathPattern> {
    let value = &wanted.path.value;
    let path = match wanted.path.kind {
        PathMatchType::Exact => PathPattern::exact(value).map_err(|fault| fault.to_string()),
        PathMatchType::PathPrefix => PathPattern::prefix(value).map_err(|fault| fault.to_string()),
        PathMatchType::RegularExpression => {
            PathPattern::regex(value).map_err(|fault| fault.to_string())
        }
    };
    path.map_err(|message| {
        faults.push(ValidationFault::new(ConditionReason::UnsupportedValue, field, message))
    })
    .ok()
}

/// Returns conditions on named values, or `None` if any is in error. Of several conditions for one name the first
/// counts, as Gateway API demands.
pub(super) fn conditions<'a>(
    wanted: impl Iterator<Item = (Box<str>, ValueMatchType, &'a str)>,
    field: &str,
    faults: &mut Vec<ValidationFault>,
) -> Option<Vec<FieldCondition>> {
    let before = faults.len();
    let mut conditions: Vec<FieldCondition> = Vec::new();
    for (n, (name, kind, value)) in wanted.enumerate() {
        let value = match kind {
            ValueMatchType::Exact => ValuePattern::Exact(value.into()),
            ValueMatchType::RegularExpression => match RegexPattern::new(value) {
                Ok(pattern) => ValuePattern::Regex(pattern),
                Err(fault) => {
                    let field = format!("{field}[{n}].value");
                    faults.push(ValidationFault::new(
                        ConditionReason::UnsupportedValue,
                        field,
                        fault.to_string(),
                    ));
                    continue;
                }
            },
        };
        if conditions.iter().all(|known| known.name != name) {
            conditions.push(FieldCondition { name, value });
        }
    }
    (faults.len() == before).then_some(conditions)
}
