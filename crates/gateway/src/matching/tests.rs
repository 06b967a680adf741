//! Compares table lookups with a linear scan that reads like the specification, and bounds their work.

use std::cmp::Reverse;

use proptest::prelude::*;

use super::trie::LOOKUPS;
use super::*;

/// A rule's listener, hosts and path, as added to a table.
type RouteCase = (HostPattern, HostPattern, PathPattern);

fn table(rules: &[RouteCase]) -> RouteTable {
    let mut table = RouteTable::default();
    for (index, (listener, hosts, path)) in rules.iter().enumerate() {
        let route_match = RouteMatch { path: path.clone(), conditions: MatchConditions::default() };
        table.add_rule(listener, hosts, &Arc::new(route_match), &rule(index));
    }
    table
}

fn rule(index: usize) -> Arc<Rule> {
    Arc::new(Rule {
        index,
        name: format!("{index}").into(),
        targets: Vec::new(),
        filters: None,
        request_timeout: None,
        attempt_timeout: None,
        retry: None,
        affinity: None,
    })
}

fn get(host: &str, path: &str) -> PlainRequest {
    let (host, path) = (host.to_owned(), path.to_owned());
    PlainRequest { method: "GET".to_owned(), host, path, ..Default::default() }
}

fn find(table: &RouteTable, host: &str, path: &str) -> Option<usize> {
    table.find(&get(host, path)).map(|rule| rule.index)
}

/// Returns a rule for any host and this path.
fn anywhere(path: PathPattern) -> RouteCase {
    (HostPattern::Any, HostPattern::Any, path)
}

fn on_host(hosts: &str, path: &str) -> RouteCase {
    (HostPattern::Any, HostPattern::parse(hosts).unwrap(), PathPattern::prefix(path).unwrap())
}

#[test]
fn a_prefix_is_matched_segment_by_segment() {
    let table = table(&[anywhere(PathPattern::prefix("/foo").unwrap())]);
    for path in ["/foo", "/foo/", "/foo/bar", "/foo//bar"] {
        assert_eq!(find(&table, "a", path), Some(0), "{path}");
    }
    for path in ["/foobar", "/fo", "/", "", "/Foo", "/bar/foo"] {
        assert_eq!(find(&table, "a", path), None, "{path}");
    }
}

#[test]
fn trailing_slash_of_a_prefix_is_ignored() {
    let table = table(&[anywhere(PathPattern::prefix("/foo/").unwrap())]);
    assert_eq!(find(&table, "a", "/foo"), Some(0));
    assert_eq!(find(&table, "a", "/foo/bar"), Some(0));
}

#[test]
fn trailing_slash_of_an_exact_path_is_significant() {
    let table = table(&[anywhere(PathPattern::exact("/foo/").unwrap())]);
    assert_eq!(find(&table, "a", "/foo/"), Some(0));
    assert_eq!(find(&table, "a", "/foo"), None);
}

#[test]
fn exact_path_precedes_prefix_and_longest_prefix_wins() {
    let rules = [
        PathPattern::prefix("/").unwrap(),
        PathPattern::prefix("/a").unwrap(),
        PathPattern::prefix("/a/b").unwrap(),
        PathPattern::exact("/a/b").unwrap(),
        PathPattern::exact("/").unwrap(),
    ];
    let table = table(&rules.map(anywhere));
    let cases =
        [("/a/b", 3), ("/a/b/", 2), ("/a/b/c", 2), ("/a/c", 1), ("/a", 1), ("/c", 0), ("/", 4)];
    for (path, rule) in cases {
        assert_eq!(find(&table, "a", path), Some(rule), "{path}");
    }
}

#[test]
fn a_host_without_a_matching_path_falls_back_to_less_specific_hosts() {
    let table = table(&[
        on_host("a.b.example.com", "/exact"),
        on_host("*.b.example.com", "/below-b"),
        on_host("*.example.com", "/below-example"),
        (HostPattern::Any, HostPattern::Any, PathPattern::prefix("/any").unwrap()),
        on_host("*.example.com", "/exact"),
    ]);
    let cases = [("/exact", 0), ("/below-b", 1), ("/below-example", 2), ("/any", 3)];
    for (path, rule) in cases {
        assert_eq!(find(&table, "A.b.Example.com", path), Some(rule), "{path}");
    }
    assert_eq!(find(&table, "b.example.com", "/exact"), Some(4));
    assert_eq!(find(&table, "a.b.example.com", "/none"), None);
}

#[test]
fn wildcard_host_does_not_match_its_parent_domain() {
    let table = table(&[on_host("*.example.com", "/")]);
    assert_eq!(find(&table, "example.com", "/"), None);
    assert_eq!(find(&table, "badexample.com", "/"), None);
    assert_eq!(find(&table, "a.b.example.com.", "/"), Some(0));
}

#[test]
fn request_matches_only_the_most_specific_listener() {
    let listener = |hostname| HostPattern::parse(hostname).unwrap();
    let root = PathPattern::prefix("/").unwrap();
    let mut table = table(&[(HostPattern::Any, HostPattern::Any, root)]);
    table.add_listener(&listener("*.example.com"));
    assert_eq!(find(&table, "example.org", "/"), Some(0));
    assert_eq!(find(&table, "a.example.com", "/"), None, "its listener has no routes");
}

#[test]
fn host_longer_than_dns_allows_matches_only_rules_without_host() {
    let table =
        table(&[on_host("*.example.com", "/a"), anywhere(PathPattern::prefix("/").unwrap())]);
    let host = format!("{}.example.com", "a".repeat(300));
    assert_eq!(find(&table, &host, "/a"), Some(1));
}

#[test]
fn lookup_cost_is_independent_of_the_number_of_routes() {
    let wanted = [on_host("a.example.com", "/api/v1"), on_host("*.example.com", "/")];
    let mut many = wanted.to_vec();
    for n in 0..10_000 {
        many.push(on_host(&format!("host-{n}.example.com"), &format!("/api/v{n}/x")));
        many.push(on_host("a.example.com", &format!("/api/v1/{n}")));
    }
    let lookups = |rules: &[RouteCase]| {
        let table = table(rules);
        LOOKUPS.set(0);
        assert_eq!(find(&table, "a.example.com", "/api/v1/x/y"), Some(0));
        LOOKUPS.get()
    };
    assert_eq!(lookups(&wanted), lookups(&many));
}

#[test]
fn lookup_work_is_bounded_for_long_hosts_and_paths() {
    let table =
        table(&[on_host("a.b.c", "/x/y"), on_host("*.b.c", "/x/z"), on_host("*.c", "/x/w")]);
    let (host, path) = (format!("{}a.b.c", "a.".repeat(120)), "/x".repeat(1000));
    LOOKUPS.set(0);
    assert_eq!(find(&table, &host, &path), None);
    assert!(LOOKUPS.get() < 20, "{} lookups", LOOKUPS.get());
}

fn conditions(
    method: Option<&str>,
    headers: &[(&str, &str)],
    query: &[(&str, &str)],
) -> MatchConditions {
    let fields = |fields: &[(&str, &str)]| {
        let field = |&(name, value): &(&str, &str)| FieldCondition {
            name: name.into(),
            value: ValuePattern::Exact(value.into()),
        };
        fields.iter().map(field).collect()
    };
    MatchConditions {
        method: method.map(Into::into),
        headers: fields(headers),
        query: fields(query),
    }
}

/// Returns a table of rules for `/`, with these conditions.
fn conditional(rules: &[MatchConditions]) -> RouteTable {
    let mut table = RouteTable::default();
    for (index, conditions) in rules.iter().enumerate() {
        let path = PathPattern::prefix("/").unwrap();
        let route_match = RouteMatch { path, conditions: conditions.clone() };
        table.add_rule(&HostPattern::Any, &HostPattern::Any, &Arc::new(route_match), &rule(index));
    }
    table
}

#[test]
fn method_precedes_headers_then_query_then_rule_age() {
    let table = conditional(&[
        conditions(None, &[], &[]),
        conditions(None, &[], &[("a", "1"), ("b", "2")]),
        conditions(None, &[("x", "1")], &[]),
        conditions(None, &[("x", "1"), ("y", "2")], &[]),
        conditions(Some("GET"), &[], &[]),
        conditions(Some("GET"), &[], &[]),
        conditions(Some("get"), &[("x", "1")], &[]),
    ]);
    let with = |method: &str, headers: &[(&str, &str)], query: &str| {
        let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
        let headers = headers.iter().map(owned).collect();
        let (method, query) = (method.to_owned(), query.to_owned());
        let request = PlainRequest { method, query, headers, ..get("a", "/") };
        table.find(&request).map(|rule| rule.index)
    };
    assert_eq!(with("GET", &[("X", "1"), ("Y", "2")], "a=1&b=2"), Some(4));
    assert_eq!(with("PUT", &[("X", "1"), ("Y", "2")], "a=1&b=2"), Some(3));
    assert_eq!(with("PUT", &[("X", "1"), ("Y", "3")], "a=1&b=2"), Some(2));
    assert_eq!(with("PUT", &[("X", "2")], "b=2&a=1"), Some(1));
    assert_eq!(with("PUT", &[], "a=1&b=3"), Some(0));
}

#[test]
fn request_failing_conditions_falls_back_to_less_specific_paths() {
    let (listener, hosts) = (HostPattern::Any, HostPattern::Any);
    let mut table = table(&[anywhere(PathPattern::prefix("/").unwrap())]);
    let path = PathPattern::exact("/a").unwrap();
    let route_match = RouteMatch { path, conditions: conditions(Some("PUT"), &[], &[]) };
    table.add_rule(&listener, &hosts, &Arc::new(route_match), &rule(1));
    assert_eq!(find(&table, "a", "/a"), Some(0));
    let put = PlainRequest { method: "PUT".to_owned(), ..get("a", "/a") };
    assert_eq!(table.find(&put).map(|rule| rule.index), Some(1));
}

#[test]
fn regular_expressions_match_whole_paths_between_exact_and_prefix() {
    let rules = [
        PathPattern::prefix("/api/v1/users").unwrap(),
        PathPattern::regex("/api/.*").unwrap(),
        PathPattern::regex("/api/v[0-9]+/users").unwrap(),
        PathPattern::exact("/api/v1/exact").unwrap(),
        PathPattern::regex("/a/?b|/c").unwrap(),
        PathPattern::regex("(?i)/CASE").unwrap(),
    ];
    let table = table(&rules.map(anywhere));
    let cases = [
        ("/api/v1/users", Some(2)),
        ("/api/v1/users/7", Some(1)),
        ("/api/v1/exact", Some(3)),
        ("/api", None),
        ("/ab", Some(4)),
        ("/a/b", Some(4)),
        ("/c", Some(4)),
        ("/cc", None),
        ("/case", Some(5)),
    ];
    for (path, rule) in cases {
        assert_eq!(find(&table, "a", path), rule, "{path}");
    }
}

#[test]
fn query_parameters_are_decoded_before_comparison() {
    let value = |query: &[u8], name: &[u8]| query_value(query, name).map(|it| it.into_owned());
    assert_eq!(value(b"a=1&b=2", b"b"), Some(b"2".to_vec()));
    assert_eq!(value(b"a=1&a=2", b"a"), Some(b"1".to_vec()));
    assert_eq!(value(b"a%20b=c%3Dd+e", b"a b"), Some(b"c=d e".to_vec()));
    assert_eq!(value(b"a=%zz%4", b"a"), Some(b"%zz%4".to_vec()));
    assert_eq!(value(b"a", b"a"), Some(b"".to_vec()));
    assert_eq!(value(b"ab=1", b"a"), None);
    assert_eq!(value(b"", b"a"), None);
}

#[test]
fn explanation_names_the_first_mismatch_of_each_rule() {
    let mut table = conditional(&[
        conditions(None, &[], &[]),
        conditions(Some("PUT"), &[], &[]),
        conditions(None, &[("x", "1")], &[]),
    ]);
    let path = PathPattern::prefix("/elsewhere").unwrap();
    let route_match = Arc::new(RouteMatch { path, conditions: MatchConditions::default() });
    let host = HostPattern::parse("b.example.com").unwrap();
    table.add_rule(&HostPattern::Any, &HostPattern::Any, &route_match, &rule(3));
    table.add_rule(&HostPattern::Any, &host, &route_match, &rule(4));
    table.add_rule(&host, &host, &route_match, &rule(5));
    let request = get("a.example.com", "/");
    let explanation = table.explain(&request);
    assert_eq!(explanation.listener, Some(&HostPattern::Any));
    let results: Vec<_> =
        explanation.verdicts.iter().map(|it| (it.rule.index, it.result)).collect();
    let expected = [
        (0, MatchResult::Chosen),
        (1, MatchResult::Unmet(UnmetCondition::Method("PUT"))),
        (2, MatchResult::Unmet(UnmetCondition::Header("x"))),
        (3, MatchResult::OtherPath),
        (4, MatchResult::OtherHost),
        (5, MatchResult::OtherListener),
    ];
    assert_eq!(results, expected);
}

/// Returns the rule that the specification demands, by a check of every rule.
fn scan(rules: &[RouteCase], host: &str, path: &str) -> Option<usize> {
    let host = host.to_ascii_lowercase();
    let of_host = |pattern: &HostPattern| match pattern {
        HostPattern::Any => true,
        HostPattern::Wildcard(name) => host.ends_with(&format!(".{name}")),
        HostPattern::Exact(name) => host == **name,
    };
    let specific = |pattern: &HostPattern| match pattern {
        HostPattern::Any => (0, 0),
        HostPattern::Wildcard(name) => (1, name.len()),
        HostPattern::Exact(_) => (2, 0),
    };
    let of_path = |pattern: &PathPattern| pattern.matches(path.as_bytes());
    let length = |path: &PathPattern| match path {
        PathPattern::Exact(_) => (2, 0, 0),
        // The pattern with the longest prefix of whole segments has precedence, then the longest pattern.
        PathPattern::Regex(pattern) => (1, path.literal_prefix().len(), pattern.text().len()),
        PathPattern::Prefix(prefix) => (0, prefix.trim_end_matches('/').len(), 0),
    };
    let listeners = rules.iter().map(|(listener, ..)| listener).filter(|it| of_host(it));
    let listener = listeners.max_by_key(|it| specific(it))?;
    let matching = rules.iter().enumerate().filter(|(_, (other_listener, hosts, path))| {
        other_listener == listener && of_host(hosts) && of_path(path)
    });
    matching
        .max_by_key(|(n, (_, hosts, path))| (specific(hosts), length(path), Reverse(*n)))
        .map(|(n, _)| n)
}

fn host() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "A"]), 1..5)
        .prop_map(|labels| labels.join("."))
}

fn host_pattern() -> impl Strategy<Value = HostPattern> {
    let name = || host().prop_map(|host| host.to_ascii_lowercase().into_boxed_str());
    prop_oneof![
        Just(HostPattern::Any),
        name().prop_map(HostPattern::Wildcard),
        name().prop_map(HostPattern::Exact),
    ]
}

fn path() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!["x", "y", "xy", ""]), 1..5)
        .prop_map(|segments| format!("/{}", segments.join("/")))
}

fn path_pattern() -> impl Strategy<Value = PathPattern> {
    let kinds: [fn(&str) -> Option<PathPattern>; 3] = [
        |path| PathPattern::exact(path).ok(),
        |path| PathPattern::prefix(path).ok(),
        |path| PathPattern::regex(&format!("{path}(/x)*")).ok(),
    ];
    (path(), prop::sample::select(kinds.to_vec()))
        .prop_filter_map("must be a path", |(path, kind)| kind(&path))
}

/// Generates rules as a translation adds them: the hosts of a route are cut to those of its listener.
fn added() -> impl Strategy<Value = RouteCase> {
    (host_pattern(), host_pattern(), path_pattern()).prop_map(|(listener, hosts, path)| {
        let hosts = listener.intersect(&hosts).unwrap_or_else(|| listener.clone());
        (listener, hosts, path)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn table_lookup_agrees_with_a_linear_scan(
        rules in prop::collection::vec(added(), 0..12), host in host(), path in path(),
    ) {
        let table = table(&rules);
        let found = find(&table, &host, &path);
        prop_assert_eq!(found, scan(&rules, &host, &path));
        let request = get(&host, &path);
        let verdicts = table.explain(&request).verdicts;
        let is_chosen = |verdict: &&RuleVerdict<'_>| verdict.result == MatchResult::Chosen;
        let chosen = verdicts.iter().find(is_chosen).map(|verdict| verdict.rule.index);
        prop_assert_eq!(chosen, found);
        prop_assert!(chosen.is_some() || verdicts.iter().all(|it| it.result != MatchResult::LowerPrecedence));
    }

    #[test]
    fn host_pattern_intersection_matches_exactly_the_common_hosts(a in host_pattern(), b in host_pattern(), host in host()) {
        let path = || PathPattern::prefix("/").unwrap();
        let matches = |hosts: &HostPattern| {
            find(&table(&[(HostPattern::Any, hosts.clone(), path())]), &host, "/").is_some()
        };
        let common = a.intersect(&b).is_some_and(|both| matches(&both));
        prop_assert_eq!(common, matches(&a) && matches(&b));
    }
}

#[test]
fn host_patterns_are_found_by_overlap() {
    let all =
        ["", "*.com", "*.example.com", "example.com", "a.example.com", "*.a.example.com", "b.org"];
    let pattern = |text: &&str| match *text {
        "" => HostPattern::Any,
        text => HostPattern::parse(text).unwrap(),
    };
    let mut hosts = HostTrie::<usize>::default();
    all.iter().enumerate().for_each(|(n, text)| *hosts.entry(&pattern(text)) = n);
    for host_pattern in
        all.iter().chain(&["x.a.example.com", "*.b.example.com", "*.org", "other.net"])
    {
        let host_pattern = pattern(host_pattern);
        let expected = |is_meant: &dyn Fn(&HostPattern) -> bool| {
            let places = all.iter().map(pattern).enumerate();
            places.filter(|(_, it)| is_meant(it)).map(|(n, _)| n).collect::<Vec<_>>()
        };
        let sorted = |mut found: Vec<&usize>| {
            found.sort_unstable();
            found.into_iter().copied().collect::<Vec<_>>()
        };
        let covering = expected(&|it| it.intersect(&host_pattern).as_ref() == Some(&host_pattern));
        assert_eq!(sorted(hosts.covering(&host_pattern)), covering, "{host_pattern:?}");
        let common = expected(&|it| it.intersect(&host_pattern).is_some());
        assert_eq!(sorted(hosts.common(&host_pattern)), common, "{host_pattern:?}");
    }
}

proptest! {
    /// The first match in the order of precedence is the one that the table finds.
    #[test]
    fn list_by_precedence_agrees_with_the_table(
        paths in prop::collection::vec((0..3_u8, "(/[ab]){0,3}/?", 0..2_u8, any::<bool>()), 1..12),
        path in "(/[abc]){1,4}/?",
        has_header in any::<bool>(),
    ) {
        let mut table = RouteTable::default();
        for (index, (kind, text, headers, has_method)) in paths.iter().enumerate() {
            let text = if text.is_empty() { "/" } else { text };
            let path = match kind {
                0 => PathPattern::exact(text).unwrap(),
                1 => PathPattern::prefix(text).unwrap(),
                _ => PathPattern::regex(&format!("{text}.*")).unwrap(),
            };
            let header = || FieldCondition {
                name: "x".into(),
                value: ValuePattern::Exact("1".into()),
            };
            let conditions = MatchConditions {
                method: has_method.then(|| "GET".into()),
                headers: (0..*headers).map(|_| header()).collect(),
                query: Vec::new(),
            };
            let route_match = Arc::new(RouteMatch { path, conditions });
            let any = HostPattern::Any;
            table.add_rule(&any, &any, &route_match, &rule(index));
        }
        let headers = has_header.then(|| ("x".to_owned(), "1".to_owned()));
        let request = PlainRequest { headers: headers.into_iter().collect(), ..get("a", &path) };
        let meets = |route_match: &RouteMatch| {
            route_match.path.matches(path.as_bytes()) && route_match.conditions.are_met_by(&request)
        };
        let first = table.by_precedence().into_iter().find(|(route_match, _)| meets(route_match));
        prop_assert_eq!(
            first.map(|(_, rule)| rule.index),
            table.find(&request).map(|rule| rule.index)
        );
    }
}
