//! Decisions of request rules.

use super::*;
use crate::matching::PlainRequest;

/// A rule that rewrites, in short.
fn rewrite(pattern: &str, replacement: &str, then: RewriteContinuation) -> RuleSettings {
    let pattern = SearchPattern::new(pattern, false).unwrap();
    let text = replacement.trim_end_matches('?');
    let template = RequestTemplate::new(text, &[], pattern.groups()).unwrap();
    let appends_query = text.len() == replacement.len();
    let action = RuleAction::Rewrite { pattern, replacement: template, appends_query, then };
    RuleSettings { conditions: Vec::new(), action }
}

fn redirect(pattern: &str, url: &str) -> RuleSettings {
    let pattern = SearchPattern::new(pattern, false).unwrap();
    let url = RequestTemplate::new(url, &[], pattern.groups()).unwrap();
    let action =
        RuleAction::Redirect { pattern: Some(pattern), url, appends_query: true, status: 302 };
    RuleSettings { conditions: Vec::new(), action }
}

/// Returns the decision on a request for a path, in short.
fn decide(rules: Vec<RuleSettings>, target: &str) -> String {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let attributes = PlainRequest {
        method: "GET".to_owned(),
        host: "A.example".to_owned(),
        path: path.to_owned(),
        query: query.to_owned(),
        headers: vec![
            ("X-Twice".to_owned(), "1".to_owned()),
            ("x-twice".to_owned(), "2".to_owned()),
            ("Cookie".to_owned(), "a=b; c=d e".to_owned()),
        ],
    };
    let request = RuleRequest {
        attributes: &attributes,
        scheme: UrlScheme::Https,
        port: 443,
        authority: b"A.example:443",
        received_target: target.as_bytes(),
        client: [192, 0, 2, 1].into(),
    };
    let text = |bytes: Vec<u8>| bytes.escape_ascii().to_string();
    match (RequestRules { rules, variables: 1 }).decide(&request) {
        Ok(RuleDecision::Proceed) => "proceed".to_owned(),
        Ok(RuleDecision::Forward { target }) => format!("forward {}", text(target.unwrap())),
        Ok(RuleDecision::Route { target }) => format!("route {}", text(target)),
        Ok(RuleDecision::Redirect { status, location }) => format!("{status} {}", text(location)),
        Ok(RuleDecision::Respond { rule }) => format!("rule {rule}"),
        Err(RuleTextLimit) => "too long".to_owned(),
    }
}

#[test]
fn paths_are_matched_decoded_and_written_escaped() {
    use RewriteContinuation::{Forward, NextRule, Route};
    for (rule, target, expected) in [
        (rewrite("^/a/(.*)$", "/b/$1", Forward), "/a/x?q=1", "forward /b/x?q=1"),
        (rewrite("^/a/(.*)$", "/b/$1", Forward), "/c", "proceed"),
        (rewrite("^/a/(.*)$", "/b?p=$1", Route), "/a/x%26%20y?q=1", "route /b?p=x%26%20y&q=1"),
        (rewrite("^/a", "/b?", Route), "/a?q=1", "route /b"),
        (rewrite("^/a b/(.*)$", "/c/$1", NextRule), "/a%20b/%3F%C3%A9", "route /c/%3F%C3%A9"),
        (rewrite("^/a/(.*)$", "$1", Forward), "/a/x", "forward /x"),
        (redirect("^/a/(.*)$", "/$1/"), "/a/x%0Dy?q", "302 /x%0Dy/?q"),
        (redirect("^/(.*)$", "$1"), "/http://b.example/", "302 /http://b.example/"),
        (redirect("^", "https://$host$uri$is_args$args"), "/a%20b", "302 https://a.example/a%20b"),
        (
            redirect("^", "/$http_x_twice/$cookie_C/$arg_Q"),
            "/?q=%20",
            "302 /1,%202/d%20e/%20?q=%20",
        ),
    ] {
        assert_eq!(decide(vec![rule], target), expected, "{target}");
    }
}

#[test]
fn rules_see_what_earlier_ones_changed() {
    use RewriteContinuation::{Forward, NextRule};
    let rules = vec![
        rewrite("^/a(.*)$", "/b$1?x", NextRule),
        rewrite("^/b(.*)$", "/c$1", Forward),
        rewrite("^", "/never", Forward),
    ];
    assert_eq!(decide(rules, "/a1?y"), "forward /c1?x&y");
    let double = || {
        let value = RequestTemplate::new("$v$v$uri", &["v"], 0).unwrap();
        RuleSettings { conditions: Vec::new(), action: RuleAction::Set { variable: 0, value } }
    };
    let rules = std::iter::repeat_with(double).take(32).collect();
    assert_eq!(decide(rules, "/a"), "too long");
}

#[test]
fn variables_have_names_and_groups_a_pattern() {
    let template = |text: &str| RequestTemplate::new(text, &["own"], 1).map(|_| ());
    for text in ["", "plain", "$host", "${host}x", "$own", "$1", "${1}0", "$http_user_agent"] {
        assert_eq!(template(text), Ok(()), "{text}");
    }
    for (text, error) in [
        ("$", TemplateError::NoName),
        ("a$ b", TemplateError::NoName),
        ("${host", TemplateError::NoName),
        ("$other", TemplateError::Unknown("other".to_owned())),
        ("$2", TemplateError::Group(2)),
        ("$0", TemplateError::Group(0)),
    ] {
        assert_eq!(template(text), Err(error), "{text}");
    }
}
