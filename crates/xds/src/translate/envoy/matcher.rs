//! Matches of HTTP requests.

use gateway::matching::{FieldCondition, MatchConditions, RouteMatch};

use crate::message::{HeaderMatcher, QueryParameterMatcher, RouteMatcher, StringMatcher};
use crate::translate::matcher::{header_matcher, of_path, string_matcher};

/// Returns the matchers that together have the meaning of a match.
///
/// # Errors
/// A sentence, if an Envoy cannot match in this way.
pub(super) fn matchers(route_match: &RouteMatch) -> Result<Vec<RouteMatcher>, String> {
    let MatchConditions { method, headers, query } = &route_match.conditions;
    let method = method.as_deref().map(|method| HeaderMatcher {
        name: ":method".to_owned(),
        string_match: Some(StringMatcher::equal_to(method)),
    });
    let headers = method.map(Ok).into_iter().chain(headers.iter().map(header_matcher));
    let matcher = RouteMatcher {
        headers: headers.collect::<Result<_, _>>()?,
        query_parameters: query.iter().map(query_matcher).collect::<Result<_, _>>()?,
        ..RouteMatcher::default()
    };
    of_path(&route_match.path, matcher)
}

fn query_matcher(condition: &FieldCondition) -> Result<QueryParameterMatcher, String> {
    let string_match = Some(string_matcher(&condition.value)?);
    Ok(QueryParameterMatcher { name: condition.name.to_string(), string_match })
}
