//! Effect of filters on heads. Whatever the filters do, one request stays one request.

use std::sync::Arc;

use codec::h1::{HeadLimits, parse, write};
use codec::head::{BodyFraming, HttpVersion};
use gateway::snapshot::{
    AllowList, HeaderEdits, HeaderField, OriginPattern, PathRewrite, RedirectAction, RewriteAction,
    UrlScheme,
};
use proptest::prelude::*;

use super::*;

const LIMITS: HeadLimits = HeadLimits { head_bytes: 8192, fields: 64, target_bytes: 4096 };

fn request(head: &str) -> RequestHead {
    let mut request = RequestHead::new();
    let length = parse::request(head.as_bytes(), &LIMITS, &mut request).expect("a good request");
    assert_eq!(length, Some(head.len()), "{head}");
    request
}

fn rule(filters: RouteFilters) -> Arc<Rule> {
    let filters = Some(Box::new(filters));
    Arc::new(Rule {
        index: 0,
        name: "default/r/0".into(),
        targets: Vec::new(),
        filters,
        request_timeout: None,
        attempt_timeout: None,
        retry: None,
        affinity: None,
    })
}

/// Returns the request as the endpoint gets it.
fn changed(filters: RouteFilters, head: &str) -> String {
    let mut request = request(head);
    let rule = rule(filters);
    let mut filtering = RequestFilters::new(&rule, None, &request).expect("there are filters");
    filtering.change_request(&mut request);
    let mut out = Vec::new();
    write::request_head(&request, request.framing, request.upgrade, &mut out);
    String::from_utf8(out).unwrap()
}

/// Returns the response that we generate, if there is one.
fn answered(filters: RouteFilters, head: &str) -> Result<Option<String>, Failure> {
    let request = request(head);
    let filtering = RequestFilters::new(&rule(filters), None, &request).expect("there are filters");
    let mut response = ResponseHead::new();
    let is_answer = filtering.answer(&request, UrlScheme::Http, 8080, &mut response)?;
    Ok(is_answer.then(|| shown(&response)))
}

fn shown(response: &ResponseHead) -> String {
    let mut out = Vec::new();
    write::response_head(response, BodyFraming::None, HttpVersion::Http11, true, false, &mut out);
    String::from_utf8(out).unwrap()
}

fn edits(set: &[(&str, &str)], add: &[(&str, &str)], remove: &[&str]) -> HeaderEdits {
    let fields = |list: &[(&str, &str)]| {
        let field = |(name, value): &(&str, &str)| HeaderField {
            name: (*name).into(),
            value: (*value).into(),
        };
        list.iter().map(field).collect()
    };
    let remove = remove.iter().map(|name| (*name).into()).collect();
    HeaderEdits { remove, set: fields(set), add: fields(add) }
}

#[test]
fn fields_are_removed_then_set_then_added() {
    let request_headers = edits(&[("a", "set"), ("b", "new")], &[("c", "more")], &["d", "a"]);
    let filters = RouteFilters { request_headers, ..RouteFilters::default() };
    let head = "GET / HTTP/1.1\r\nHost: x\r\nA: 1\r\nC: 2\r\na: 3\r\nD: 4\r\n\r\n";
    assert_eq!(
        changed(filters, head),
        "GET / HTTP/1.1\r\nHost: x\r\nC: 2\r\na: set\r\nb: new\r\nc: more\r\n\r\n"
    );
}

#[test]
fn filters_cannot_change_framing_fields() {
    let framing = [
        ("content-length", "0"),
        ("transfer-encoding", "chunked"),
        ("connection", "close, x-kept"),
        ("upgrade", "h2c"),
        ("host", "evil"),
        ("expect", "100-continue"),
        ("te", "gzip"),
        ("keep-alive", "1"),
        ("trailer", "x"),
    ];
    let names = framing.map(|(name, _)| name);
    let head = "POST / HTTP/1.1\r\nHost: x\r\nX-Kept: 1\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
    for request_headers in [edits(&framing, &[], &[]), edits(&[], &framing, &names)] {
        let filters = RouteFilters { request_headers, ..RouteFilters::default() };
        assert_eq!(changed(filters, head), head);
    }
}

#[test]
fn target_filters_apply_after_rule_filters() {
    let with = |value| RouteFilters {
        request_headers: edits(&[("a", value)], &[], &[]),
        rewrite: Some(RewriteAction { hostname: Some(value.into()), path: None }),
        ..RouteFilters::default()
    };
    let mut rule = Arc::unwrap_or_clone(rule(with("rule")));
    rule.targets.push(WeightedTarget {
        target: gateway::snapshot::RuleTarget::Unresolved,
        weight: 1,
        filters: Some(Box::new(with("target"))),
    });
    let mut request = request("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    let mut filtering = RequestFilters::new(&Arc::new(rule), Some(0), &request).unwrap();
    filtering.change_request(&mut request);
    assert_eq!(request.fields.get("a"), Some(b"target".as_slice()));
    assert_eq!(request.sent_authority(), b"target");
}

fn path_rewrite(path: PathRewrite) -> RouteFilters {
    let rewrite = Some(RewriteAction { hostname: None, path: Some(path) });
    RouteFilters { rewrite, ..RouteFilters::default() }
}

/// The table of Gateway API's ReplacePrefixMatch: prefix, replacement, path, result.
#[test]
fn path_prefixes_are_replaced_per_gateway_api() {
    for (prefix, replacement, path, result) in [
        ("/foo", "/xyz", "/foo/bar", "/xyz/bar"),
        ("/foo", "/xyz/", "/foo/bar", "/xyz/bar"),
        ("/foo/", "/xyz", "/foo/bar", "/xyz/bar"),
        ("/foo/", "/xyz/", "/foo/bar", "/xyz/bar"),
        ("/foo", "/xyz", "/foo", "/xyz"),
        ("/foo", "/xyz", "/foo/", "/xyz/"),
        ("/foo", "", "/foo/bar", "/bar"),
        ("/foo/", "", "/foo", "/"),
        ("/foo", "/", "/foo/", "/"),
        ("/foo", "/", "/foo", "/"),
        ("/foo", "/", "/foo/bar", "/bar"),
        ("/", "/xyz", "/", "/xyz/"),
        ("/", "/xyz", "/a//b", "/xyz/a//b"),
        ("/", "/", "/", "/"),
    ] {
        for query in ["", "?", "?a=/foo&b"] {
            let sent = changed(prefix_rewrite(prefix, replacement), &get(path, query));
            assert_eq!(sent, get(result, query), "{prefix} becomes {replacement:?}");
        }
    }
}

fn prefix_rewrite(prefix: &str, replacement: &str) -> RouteFilters {
    let length = prefix.trim_end_matches('/').len();
    let replacement = replacement.trim_end_matches('/').into();
    path_rewrite(PathRewrite::Prefix { length, replacement })
}

fn get(path: &str, query: &str) -> String {
    format!("GET {path}{query} HTTP/1.1\r\nHost: x\r\n\r\n")
}

#[test]
fn full_path_rewrite_keeps_the_query() {
    let filters = || path_rewrite(PathRewrite::Full("/new".into()));
    for (line, sent) in [
        ("GET /old/path?q=1", "GET /new?q=1"),
        ("GET http://x?q", "GET /new?q"),
        ("OPTIONS *", "OPTIONS *"),
    ] {
        let head = format!("{line} HTTP/1.1\r\nHost: x\r\n\r\n");
        let expected = format!("{sent} HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!(changed(filters(), &head), expected);
    }
}

#[test]
fn host_rewrite_replaces_the_port_too() {
    let rewrite = Some(RewriteAction { hostname: Some("inner.test".into()), path: None });
    let sent = changed(
        RouteFilters { rewrite, ..RouteFilters::default() },
        "GET /a HTTP/1.1\r\nHost: x:81\r\n\r\n",
    );
    assert_eq!(sent, "GET /a HTTP/1.1\r\nHost: inner.test\r\n\r\n");
}

fn redirect() -> RedirectAction {
    RedirectAction { status: 302, scheme: None, hostname: None, port: None, path: None }
}

fn location(redirect: RedirectAction, head: &str) -> String {
    let filters = RouteFilters { redirect: Some(redirect), ..RouteFilters::default() };
    let answer = answered(filters, head).expect("a host").expect("an answer");
    let (_, rest) = answer.split_once("Location: ").expect("a location");
    rest.split_once("\r\n").expect("the end of a line").0.to_owned()
}

#[test]
fn redirect_location_is_built_from_request_and_filter() {
    let (https, http) = (Some(UrlScheme::Https), Some(UrlScheme::Http));
    let prefix = Some(PathRewrite::Prefix { length: 2, replacement: "/b".into() });
    let full = Some(PathRewrite::Full("/full".into()));
    for (redirect, target, expected) in [
        (redirect(), "/a?q", "http://x:8080/a?q"),
        (RedirectAction { scheme: https, port: Some(443), ..redirect() }, "/a", "https://x/a"),
        (RedirectAction { scheme: http, port: Some(80), ..redirect() }, "/a", "http://x/a"),
        (RedirectAction { scheme: https, port: Some(80), ..redirect() }, "/", "https://x:80/"),
        (RedirectAction { hostname: Some("y".into()), ..redirect() }, "/", "http://y:8080/"),
        (RedirectAction { path: prefix.clone(), ..redirect() }, "/a?q", "http://x:8080/b?q"),
        (RedirectAction { path: prefix, ..redirect() }, "/a/c", "http://x:8080/b/c"),
        (
            RedirectAction { path: full, port: Some(80), ..redirect() },
            "/a?q=1",
            "http://x/full?q=1",
        ),
    ] {
        let head = format!("GET {target} HTTP/1.1\r\nHost: x:99\r\n\r\n");
        assert_eq!(location(redirect, &head), expected);
    }
    let server = "OPTIONS * HTTP/1.1\r\nHost: [::1]\r\n\r\n";
    assert_eq!(location(redirect(), server), "http://[::1]:8080/");
}

#[test]
fn redirect_without_a_host_is_a_bad_request() {
    let head = "GET /a HTTP/1.0\r\n\r\n";
    let filters = RouteFilters { redirect: Some(redirect()), ..RouteFilters::default() };
    assert!(matches!(answered(filters, head), Err(Failure::BadRequest(_))));
    let elsewhere = RedirectAction { hostname: Some("y".into()), ..redirect() };
    assert_eq!(location(elsewhere, head), "http://y:8080/a");
}

fn cors() -> CorsPolicy {
    let below = OriginPattern::Wildcard { start: "https://".into(), end: ".a.test".into() };
    CorsPolicy {
        origins: AllowList::Only(vec![OriginPattern::Exact("https://a.test".into()), below]),
        credentials: false,
        methods: AllowList::Only("GET, PUT".into()),
        headers: AllowList::Only("x-a".into()),
        expose_headers: "x-b".into(),
        max_age: "5".into(),
    }
}

fn any_origin() -> CorsPolicy {
    let (methods, headers) = (AllowList::Any, AllowList::Any);
    CorsPolicy { origins: AllowList::Any, methods, headers, ..cors() }
}

fn preflight(cors: CorsPolicy, origin: &str) -> String {
    let filters =
        RouteFilters { cors: Some(cors), redirect: Some(redirect()), ..RouteFilters::default() };
    let head = format!(
        "OPTIONS /a HTTP/1.1\r\nHost: x\r\nOrigin: {origin}\r\n\
         Access-Control-Request-Method: PATCH\r\nAccess-Control-Request-Headers: x-c\r\n\r\n"
    );
    answered(filters, &head).unwrap().expect("an answer")
}

#[test]
fn cors_preflights_are_answered() {
    let vary = "Vary: Origin, Access-Control-Request-Method, Access-Control-Request-Headers\r\n";
    for (cors, origin, expected) in [
        (
            cors(),
            "https://b.a.test",
            "Access-Control-Allow-Origin: https://b.a.test\r\n\
             Access-Control-Expose-Headers: x-b\r\n\
             Access-Control-Allow-Methods: GET, PUT\r\n\
             Access-Control-Allow-Headers: x-a\r\nAccess-Control-Max-Age: 5\r\n",
        ),
        (cors(), "http://a.test", ""),
        (cors(), "https://evil.test/.a.test", ""),
        (
            CorsPolicy { credentials: true, ..any_origin() },
            "null",
            "Access-Control-Allow-Origin: null\r\nAccess-Control-Allow-Credentials: true\r\n\
             Access-Control-Expose-Headers: x-b\r\n\
             Access-Control-Allow-Methods: PATCH\r\nAccess-Control-Allow-Headers: x-c\r\n\
             Access-Control-Max-Age: 5\r\n",
        ),
    ] {
        let expected = format!("HTTP/1.1 204 No Content\r\n{vary}{expected}\r\n");
        assert_eq!(preflight(cors, origin), expected);
    }
    assert_eq!(
        preflight(any_origin(), "https://c.test"),
        "HTTP/1.1 204 No Content\r\nAccess-Control-Allow-Origin: *\r\n\
         Access-Control-Expose-Headers: x-b\r\n\
         Access-Control-Allow-Methods: *\r\nAccess-Control-Allow-Headers: *\r\n\
         Access-Control-Max-Age: 5\r\n\r\n"
    );
}

#[test]
fn requests_that_are_no_preflight_are_not_answered() {
    let filters = || RouteFilters { cors: Some(cors()), ..RouteFilters::default() };
    for head in [
        "OPTIONS / HTTP/1.1\r\nHost: x\r\nOrigin: https://a.test\r\n\r\n",
        "OPTIONS / HTTP/1.1\r\nHost: x\r\nAccess-Control-Request-Method: PUT\r\n\r\n",
        "PUT / HTTP/1.1\r\nHost: x\r\nOrigin: https://a.test\r\nAccess-Control-Request-Method: PUT\r\n\r\n",
    ] {
        assert_eq!(answered(filters(), head), Ok(None), "{head}");
    }
}

#[test]
fn route_cors_policy_overrides_endpoint_cors_fields() {
    let shown = |cors: CorsPolicy, origin: &str| {
        let mut request =
            request(&format!("GET / HTTP/1.1\r\nHost: x\r\nOrigin: {origin}\r\n\r\n"));
        let request_headers = edits(&[], &[], &["origin"]);
        let filters = RouteFilters { cors: Some(cors), request_headers, ..RouteFilters::default() };
        let mut filtering = RequestFilters::new(&rule(filters), None, &request).unwrap();
        filtering.change_request(&mut request);
        let mut response = ResponseHead::new();
        response.status = 204;
        response.fields.append("access-control-allow-origin", "https://endpoint.test");
        response.fields.append("Access-Control-Expose-Headers", "x-secret");
        filtering.change_response(&request, &mut response);
        shown(&response)
    };
    let start = "HTTP/1.1 204 No Content\r\n";
    assert_eq!(
        shown(cors(), "https://a.test"),
        format!(
            "{start}Vary: Origin\r\nAccess-Control-Allow-Origin: https://a.test\r\n\
             Access-Control-Expose-Headers: x-b\r\n\r\n"
        )
    );
    assert_eq!(shown(cors(), "https://b.test"), format!("{start}Vary: Origin\r\n\r\n"));
    let silent = CorsPolicy { expose_headers: "".into(), ..any_origin() };
    assert_eq!(
        shown(silent, "https://b.test"),
        format!("{start}Access-Control-Allow-Origin: *\r\n\r\n")
    );
}

/// Returns a field name that is significant in a filter or a request, or one that is not.
fn a_name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "content-length",
        "transfer-encoding",
        "connection",
        "upgrade",
        "te",
        "host",
        "expect",
        "via",
        "date",
        "x-forwarded-for",
        "x-other",
    ])
}

fn some_fields() -> impl Strategy<Value = Vec<(&'static str, String)>> {
    prop::collection::vec((a_name(), "[0-9a-z]{1,8}|chunked|close"), 0..4)
}

fn a_path() -> impl Strategy<Value = String> {
    "(/[a-z%.~]{0,3}){1,4}".prop_filter("escapes are whole", |path| !path.contains('%'))
}

proptest! {
    /// Whatever the filters do, one request stays one request, with the same framing and the target
    /// that the filters define.
    #[test]
    fn filtered_request_stays_exactly_one_request(
        set in some_fields(),
        add in some_fields(),
        remove in prop::collection::vec(a_name(), 0..4),
        sent in prop::collection::vec(Just("x-other: 1\r\nVia: 1.0 a\r\n"), 0..3),
        length in prop::option::of(0_u64..9),
        prefix in a_path(),
        rest in prop_oneof![Just(String::new()), a_path()],
        replacement in prop_oneof![Just(String::new()), a_path()],
        query in prop_oneof![Just(String::new()), "\\?[a-z=&/?]{0,9}"],
    ) {
        let framing = length.map(|length| format!("Content-Length: {length}\r\n"));
        let head = format!(
            "PUT {prefix}{rest}{query} HTTP/1.1\r\nHost: x\r\n{}{}\r\n",
            sent.concat(),
            framing.unwrap_or_default(),
        );
        let list = |fields: &[(&'static str, String)]| -> Vec<HeaderField> {
            let field = |(name, value): &(&str, String)| HeaderField {
                name: (*name).into(),
                value: value.as_str().into(),
            };
            fields.iter().map(field).collect()
        };
        let remove = remove.into_iter().map(Into::into).collect();
        let filters = RouteFilters {
            request_headers: HeaderEdits { remove, set: list(&set), add: list(&add) },
            ..prefix_rewrite(&prefix, &replacement)
        };
        let out = changed(filters, &head);

        let again = request(&out);
        prop_assert_eq!(again.framing, request(&head).framing);
        prop_assert_eq!(again.authority(), b"x");
        prop_assert!(!again.upgrade && !again.expect_continue && again.keep_alive);
        let kept = prefix.trim_end_matches('/').len();
        let path = format!("{}{}", replacement.trim_end_matches('/'), &format!("{prefix}{rest}")[kept..]);
        let path = if path.is_empty() { "/" } else { &path };
        let target = format!("{path}{query}");
        prop_assert_eq!(again.target(), target.as_bytes());
    }
}
