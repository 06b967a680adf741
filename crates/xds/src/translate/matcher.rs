//! Matches of requests, as gRPC clients see their calls: the method is POST, the path is `/service/method`, and there is
//! no query.

use gateway::matching::{FieldCondition, MatchConditions, PathPattern, RouteMatch, ValuePattern};

use crate::message::{HeaderMatcher, RegexMatcher, RouteMatcher, StringMatcher};

/// The most repetitions that clients accept in a regular expression.
const MAX_REPETITIONS: u32 = 1_000;

/// Returns the matchers that together have the meaning of a match; none if no gRPC call meets it.
///
/// # Errors
/// A sentence, if clients cannot match in this way.
pub(super) fn matchers(route_match: &RouteMatch) -> Result<Vec<RouteMatcher>, String> {
    let MatchConditions { method, headers, query } = &route_match.conditions;
    if method.as_deref().is_some_and(|method| method != "POST") || !query.is_empty() {
        return Ok(Vec::new());
    }
    let headers: Vec<_> = headers.iter().map(header_matcher).collect::<Result<_, _>>()?;
    of_path(&route_match.path, RouteMatcher { headers, ..RouteMatcher::default() })
}

/// Returns the matchers of a path that have the other conditions of `matcher`.
///
/// # Errors
/// A sentence, if clients cannot match in this way.
pub(super) fn of_path(
    path: &PathPattern,
    matcher: RouteMatcher,
) -> Result<Vec<RouteMatcher>, String> {
    let exact = |path: &str| RouteMatcher { path: Some(path.to_owned()), ..matcher.clone() };
    Ok(match path {
        PathPattern::Exact(path) => vec![exact(path)],
        PathPattern::Prefix(path) => {
            let path = path.trim_end_matches('/');
            let below = RouteMatcher { prefix: Some(format!("{path}/")), ..matcher.clone() };
            if path.is_empty() { vec![below] } else { vec![exact(path), below] }
        }
        PathPattern::Regex(pattern) => {
            let safe_regex = Some(regex_matcher(pattern.text())?);
            vec![RouteMatcher { safe_regex, ..matcher }]
        }
    })
}

pub(super) fn header_matcher(condition: &FieldCondition) -> Result<HeaderMatcher, String> {
    let string_match = Some(string_matcher(&condition.value)?);
    Ok(HeaderMatcher { name: condition.name.to_string(), string_match })
}

pub(super) fn string_matcher(value: &ValuePattern) -> Result<StringMatcher, String> {
    Ok(match value {
        ValuePattern::Exact(value) => StringMatcher::equal_to(value),
        ValuePattern::Regex(pattern) => {
            StringMatcher { exact: None, safe_regex: Some(regex_matcher(pattern.text())?) }
        }
    })
}

fn regex_matcher(pattern: &str) -> Result<RegexMatcher, String> {
    if !is_portable(pattern) {
        return Err(format!(
            "the regular expression {pattern:?} may have another meaning for clients, or none: use the \
             syntax of RE2"
        ));
    }
    Ok(RegexMatcher { regex: pattern.to_owned() })
}

/// True if a regular expression that is valid here has the same meaning in RE2's syntax, which clients use. Rare
/// constructs that differ are rejected as a whole: a client that cannot compile an expression rejects all routes with it.
fn is_portable(pattern: &str) -> bool {
    let mut rest = pattern;
    let mut is_in_class = false;
    while let Some(char) = rest.chars().next() {
        let after = &rest[char.len_utf8()..];
        let taken = match char {
            '\\' => match after.chars().next() {
                Some(escaped) if escaped.is_ascii_punctuation() => 1,
                Some('d' | 'D' | 'w' | 'W' | 's' | 'S' | 'n' | 'r' | 't') => 1,
                Some('b' | 'B') if !is_in_class && !after[1..].starts_with('{') => 1,
                Some(_) | None => return false,
            },
            '[' if is_in_class => return false,
            '[' => {
                is_in_class = true;
                // A `]` that comes first stands for itself.
                let start = after.strip_prefix('^').unwrap_or(after);
                after.len() - start.len() + usize::from(start.starts_with(']'))
            }
            ']' => {
                is_in_class = false;
                0
            }
            '&' | '-' | '~' if is_in_class && after.starts_with(char) => return false,
            '(' if !is_in_class && after.starts_with('?') && !after.starts_with("?:") => {
                return false;
            }
            '{' if !is_in_class && has_many_repetitions(after) => return false,
            _ => 0,
        };
        rest = &after[taken..];
    }
    pattern.is_ascii()
}

/// True if the numbers before the next `}` are too large.
fn has_many_repetitions(after: &str) -> bool {
    let counts = after.split('}').next().unwrap_or_default().split(',');
    let is_small = |count: &str| {
        count.is_empty() || count.parse::<u32>().is_ok_and(|count| count <= MAX_REPETITIONS)
    };
    !counts.map(str::trim).all(is_small)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_expressions_that_clients_may_read_otherwise_are_rejected() {
        for pattern in [
            "/[^/]+/Add",
            "/(?:shop\\.Cart|till)/(?:A.*)",
            "v[0-9]{1,3}",
            "[]a-z-]*",
            "\\bgold\\b",
            "a|b\\d+\\-",
        ] {
            assert!(is_portable(pattern), "{pattern}");
        }
        for pattern in [
            "(?i)gold",
            "(?P<a>x)",
            "[a-z&&[^aeiou]]",
            "[a--b]",
            "\\p{Greek}",
            "a{1001}",
            "a{1,2000}",
            "\\b{start}x",
            "\\x41",
            "ä",
        ] {
            assert!(!is_portable(pattern), "{pattern}");
        }
    }
}
