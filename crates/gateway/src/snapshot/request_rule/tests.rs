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
        (redirect("^/(.*)$", "$1"), "/http://b.example/", "302 /http:/b.example/"),
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

/// A rule that sets the variable `v`.
fn set(value: &str) -> RuleSettings {
    let value = RequestTemplate::new(value, &["v"], 0).unwrap();
    RuleSettings { conditions: Vec::new(), action: RuleAction::Set { variable: 0, value } }
}

/// A rule that rewrites every path to a text with the variable `v`, and forwards.
fn rewrite_to(replacement: &str) -> RuleSettings {
    let pattern = SearchPattern::new("^", false).unwrap();
    let replacement = RequestTemplate::new(replacement, &["v"], 0).unwrap();
    let then = RewriteContinuation::Forward;
    let action = RuleAction::Rewrite { pattern, replacement, appends_query: false, then };
    RuleSettings { conditions: Vec::new(), action }
}

fn matches(value: &str, pattern: &str) -> RuleCondition {
    RuleCondition {
        value: RequestTemplate::new(value, &["v"], 0).unwrap(),
        operator: ConditionOperator::Matches(SearchPattern::new(pattern, false).unwrap()),
        negate: false,
    }
}

/// A rule that redirects to the first group of a pattern in a text.
fn redirect_to_group(value: &str, pattern: &str) -> RuleSettings {
    let url = RequestTemplate::new("/$1", &[], 1).unwrap();
    let action = RuleAction::Redirect { pattern: None, url, appends_query: false, status: 302 };
    RuleSettings { conditions: vec![matches(value, pattern)], action }
}

/// Returns the decision on a request for `/` with a host and header fields.
fn decide_fields(rules: Vec<RuleSettings>, host: &str, fields: &[(&str, &str)]) -> RuleDecision {
    let headers = fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let attributes = PlainRequest {
        method: "GET".to_owned(),
        host: host.to_owned(),
        path: "/".to_owned(),
        query: "a=x%3Fy?z".to_owned(),
        headers: headers.collect(),
    };
    let request = RuleRequest {
        attributes: &attributes,
        scheme: UrlScheme::Https,
        port: 443,
        authority: host.as_bytes(),
        received_target: b"/?a=x%3Fy?z",
        client: [192, 0, 2, 1].into(),
    };
    RequestRules { rules, variables: 1 }.decide(&request).unwrap()
}

fn forward(target: &str) -> RuleDecision {
    RuleDecision::Forward { target: Some(target.as_bytes().to_vec()) }
}

fn found(location: &str) -> RuleDecision {
    RuleDecision::Redirect { status: 302, location: location.as_bytes().to_vec() }
}

#[test]
fn the_route_is_chosen_by_the_decoded_path_before_a_rewritten_request_is_forwarded() {
    use RewriteContinuation::{Forward, NextRule};
    let rule = || rewrite("^/(.*)$", "/app/$1", Forward);
    for (target, expected) in [
        ("/admin/secret?q", "forward /app/admin/secret?q"),
        ("/admin%2Fsecret?q=%2F", "route /admin/secret?q=%2F"),
        ("/admin%2fa%20b", "route /admin/a%20b"),
        ("/x/..%2Fadmin", "route /admin"),
        ("/x/../admin", "route /admin"),
        ("//admin", "route /admin"),
        ("/%40admin", "route /@admin"),
        ("/a%20%3F%25", "forward /app/a%20%3F%25"),
    ] {
        assert_eq!(decide(vec![rule()], target), expected, "{target}");
    }
    let forward = || RuleSettings { conditions: Vec::new(), action: RuleAction::Forward };
    let rules = || vec![rewrite("^/(.*)$", "/app/$1", NextRule), forward()];
    assert_eq!(decide(rules(), "/admin%2Fx"), "route /admin/x");
    assert_eq!(decide(rules(), "/admin/x"), "forward /app/admin/x");
}

#[test]
fn decoded_paths_are_escaped_again_after_variables_and_groups() {
    for (target, expected) in [
        ("/%252e%252e/admin", "forward /new/%252e%252e/admin"),
        ("/x%3Fadmin=1", "forward /new/x%3Fadmin=1"),
    ] {
        let rules = vec![set("$uri"), rewrite_to("/new$v")];
        assert_eq!(decide(rules, target), expected, "{target}");
        let rules = vec![set("/new$uri"), rewrite_to("$v")];
        assert_eq!(decide(rules, target), expected, "{target}");
    }
    let rules = vec![redirect_to_group("$scheme$uri", "^https/(.*)$")];
    assert_eq!(decide(rules, "/%252e%3Fx"), "302 /%252e%3Fx");
    let rules = vec![redirect_to_group("$args$uri", "^(.*)$")];
    assert_eq!(decide(rules, "/%25?%2e"), "302 /%2e/%25");
}

#[test]
fn values_of_clients_do_not_cut_off_a_path() {
    let fields = [("X-A", "b?c#d"), ("Cookie", "k=1?2")];
    for (replacement, expected) in [
        ("/p/$http_x_a/end", "/p/b%3Fc%23d/end"),
        ("/p/$cookie_k/$arg_a", "/p/1%3F2/x%3Fy%3Fz"),
        ("/p?x=$http_x_a", "/p?x=b?c%23d"),
        ("/p$is_args$args", "/p?a=x%3Fy?z"),
    ] {
        let decision = decide_fields(vec![rewrite_to(replacement)], "a.test", &fields);
        assert_eq!(decision, forward(expected), "{replacement}");
    }
    let decision = decide_fields(vec![set("#$http_x_a"), rewrite_to("/$v")], "a.test", &fields);
    assert_eq!(decision, forward("/%23b%3Fc%23d"));
}

#[test]
fn hosts_have_no_trailing_dot_and_cookies_are_joined_with_semicolons() {
    let fields = [("Cookie", "a=1"), ("cookie", "b=2")];
    let redirect = || redirect_to_group("$host $http_cookie", "^(.*)$");
    let decision = decide_fields(vec![redirect()], "A.test.", &fields);
    assert_eq!(decision, found("/a.test%20a=1;%20b=2"));
}

/// A path is a URL of the requested host, so that the proxy rejects the request.
#[test]
fn a_url_with_an_absent_host_is_a_path() {
    let redirect = |url: &str| redirect("^", url);
    for url in ["https://$host/x", "https://www.$http_host/x"] {
        assert_eq!(decide_fields(vec![redirect(url)], "", &[]), found("/"), "{url}");
    }
    let decision = decide_fields(vec![redirect("https://b.test/x")], "", &[]);
    assert_eq!(decision, found("https://b.test/x?a=x%3Fy?z"));
}

#[test]
fn the_bytes_that_patterns_search_are_limited() {
    let rules = |count: usize| {
        let rule = || rewrite("^/never$", "/x", RewriteContinuation::Forward);
        std::iter::repeat_with(rule).take(count).collect::<Vec<_>>()
    };
    let target = format!("/{}", "a".repeat(16 * 1024 - 1));
    assert_eq!(decide(rules(16), &target), "proceed");
    assert_eq!(decide(rules(17), &target), "too long");
    assert_eq!(decide(vec![set("$uri$uri")], &target), "too long");
    let condition = RuleSettings { conditions: vec![matches("$uri", "b")], ..set("") };
    let rules = std::iter::repeat_n(condition, 17).collect();
    assert_eq!(decide(rules, &target), "too long");
}
