//! Matches of GRPCRoute rules. The path of a gRPC call is its service and its method.

use std::sync::Arc;

use super::matches::conditions;
use super::report::ValidationFault;
use crate::matching::{MatchConditions, PathPattern, RouteMatch};
use crate::objects::{GrpcMethodMatch, GrpcRouteMatch, GrpcRouteRule, ValueMatchType};
use crate::status::ConditionReason;

/// Any service or method, if one is not given.
const ANY: &str = "[^/]+";

/// Returns the matches of a rule, any one of which suffices, and their errors. A rule without matches matches every
/// call.
pub(super) fn matches(
    rule: &GrpcRouteRule,
    field: &str,
) -> (Vec<Arc<RouteMatch>>, Vec<ValidationFault>) {
    let every = [GrpcRouteMatch::default()];
    let wanted = if rule.matches.is_empty() { &every[..] } else { &rule.matches };
    let mut faults = Vec::new();
    let matches = (0..).zip(wanted).filter_map(|(n, wanted): (usize, _)| {
        one_match(wanted, &format!("{field}.matches[{n}]"), &mut faults).map(Arc::new)
    });
    (matches.collect(), faults)
}

fn one_match(
    wanted: &GrpcRouteMatch,
    field: &str,
    faults: &mut Vec<ValidationFault>,
) -> Option<RouteMatch> {
    let path = match &wanted.method {
        None => Some(PathPattern::Prefix("/".into())),
        Some(method) => path(method)
            .map_err(|(part, message)| {
                let field = format!("{field}.method{part}");
                faults.push(ValidationFault::new(
                    ConditionReason::UnsupportedValue,
                    field,
                    message,
                ));
            })
            .ok(),
    };
    let headers = wanted
        .headers
        .iter()
        .map(|it| (it.name.to_ascii_lowercase().into_boxed_str(), it.kind, it.value.as_str()));
    let headers = conditions(headers, &format!("{field}.headers"), faults);
    let conditions = MatchConditions { headers: headers?, ..MatchConditions::default() };
    Some(RouteMatch { path: path?, conditions })
}

/// Returns the path pattern of a method match, or the field and the message of an error.
fn path(wanted: &GrpcMethodMatch) -> Result<PathPattern, (&'static str, String)> {
    let given = |text: &'_ Option<String>| text.clone().filter(|text| !text.is_empty());
    let (service, method) = (given(&wanted.service), given(&wanted.method));
    if service.is_none() && method.is_none() {
        return Err(("", "needs a service or a method".to_owned()));
    }
    let is_regex = match wanted.kind {
        ValueMatchType::Exact => false,
        ValueMatchType::RegularExpression => true,
    };
    for (text, part) in [(&service, ".service"), (&method, ".method")] {
        if let Some(text) = text {
            check(text, is_regex).map_err(|message| (part, message))?;
        }
    }
    let path = match (service, method) {
        (Some(service), Some(method)) if !is_regex => {
            PathPattern::Exact(format!("/{service}/{method}").into())
        }
        (Some(service), None) if !is_regex => PathPattern::Prefix(format!("/{service}").into()),
        (service, method) => {
            let part = |text: Option<String>| text.unwrap_or_else(|| ANY.to_owned());
            let text = if is_regex {
                format!("/(?:{})/(?:{})", part(service), part(method))
            } else {
                format!("/{ANY}/{}", part(method).replace('.', "\\."))
            };
            PathPattern::regex(&text).map_err(|fault| ("", fault.to_string()))?
        }
    };
    Ok(path)
}

/// Checks a service or method. An exact name has the characters that Gateway API allows. A regular expression is
/// compiled on its own, so that it cannot end the group that it is put in.
fn check(text: &str, is_regex: bool) -> Result<(), String> {
    if is_regex {
        return PathPattern::regex(text).map(drop).map_err(|fault| fault.to_string());
    }
    let is_name = |part: &str| {
        part.starts_with(|char: char| char.is_ascii_alphabetic() || char == '_')
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    if text.split('.').all(is_name) {
        return Ok(());
    }
    Err("must be a name of letters, digits and `_`, or several joined by dots".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the paths that a match takes.
    fn taken<'p>(
        kind: ValueMatchType,
        service: &str,
        method: &str,
        paths: &[&'p str],
    ) -> Vec<&'p str> {
        let given = |text: &str| Some(text.to_owned());
        let wanted = GrpcMethodMatch { kind, service: given(service), method: given(method) };
        let pattern = path(&wanted).unwrap();
        paths.iter().copied().filter(|path| pattern.matches(path.as_bytes())).collect()
    }

    #[test]
    fn grpc_method_matches_become_path_patterns() {
        use ValueMatchType::{Exact, RegularExpression};
        let paths = ["/shop.Cart/Add", "/shop.Cart/Clear", "/shop.Till/Add", "/shop.CartX/Add"];
        for (kind, service, method, expected) in [
            (Exact, "shop.Cart", "Add", &paths[..1]),
            (Exact, "shop.Cart", "", &paths[..2]),
            (Exact, "", "Clear", &paths[1..2]),
            (RegularExpression, "shop\\.(Cart|Till)", "", &paths[..3]),
            (RegularExpression, "", "C.*", &paths[1..2]),
            (RegularExpression, "shop.C.*", "A|Add", &["/shop.Cart/Add", "/shop.CartX/Add"]),
        ] {
            assert_eq!(taken(kind, service, method, &paths), expected, "{service} {method}");
        }
    }
}
