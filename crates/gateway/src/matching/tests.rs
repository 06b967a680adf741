//! What the table finds, against a plain scan that reads like the specification; and how much work that is.

use std::cmp::Reverse;

use proptest::prelude::*;

use super::tree::LOOKUPS;
use super::*;

/// A rule as it was added.
type Added = (HostPattern, HostPattern, PathPattern);

fn table(rules: &[Added]) -> RouteTable {
    let mut table = RouteTable::default();
    for (index, (listener, hosts, path)) in rules.iter().enumerate() {
        let asked = Match { path: path.clone(), conditions: Conditions::default() };
        table.add_rule(listener, hosts, &Arc::new(asked), &rule(index));
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
    })
}

fn get(host: &str, path: &str) -> PlainRequest {
    let (host, path) = (host.to_owned(), path.to_owned());
    PlainRequest { method: "GET".to_owned(), host, path, ..Default::default() }
}

fn find(table: &RouteTable, host: &str, path: &str) -> Option<usize> {
    table.find(&get(host, path)).map(|rule| rule.index)
}

/// Any host, and this path.
fn anywhere(path: PathPattern) -> Added {
    (HostPattern::Any, HostPattern::Any, path)
}

fn on_host(hosts: &str, path: &str) -> Added {
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
fn a_slash_at_the_end_of_a_prefix_means_nothing() {
    let table = table(&[anywhere(PathPattern::prefix("/foo/").unwrap())]);
    assert_eq!(find(&table, "a", "/foo"), Some(0));
    assert_eq!(find(&table, "a", "/foo/bar"), Some(0));
}

#[test]
fn a_slash_at_the_end_of_an_exact_path_counts() {
    let table = table(&[anywhere(PathPattern::exact("/foo/").unwrap())]);
    assert_eq!(find(&table, "a", "/foo/"), Some(0));
    assert_eq!(find(&table, "a", "/foo"), None);
}

#[test]
fn exact_goes_before_prefix_and_the_longest_prefix_before_the_others() {
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
fn a_wildcard_is_not_the_name_it_is_below() {
    let table = table(&[on_host("*.example.com", "/")]);
    assert_eq!(find(&table, "example.com", "/"), None);
    assert_eq!(find(&table, "badexample.com", "/"), None);
    assert_eq!(find(&table, "a.b.example.com.", "/"), Some(0));
}

#[test]
fn a_request_belongs_to_the_most_specific_listener_alone() {
    let listener = |hostname| HostPattern::parse(hostname).unwrap();
    let root = PathPattern::prefix("/").unwrap();
    let mut table = table(&[(HostPattern::Any, HostPattern::Any, root)]);
    table.add_listener(&listener("*.example.com"));
    assert_eq!(find(&table, "example.org", "/"), Some(0));
    assert_eq!(find(&table, "a.example.com", "/"), None, "its listener has no routes");
}

#[test]
fn a_host_longer_than_dns_allows_matches_only_what_asks_for_no_host() {
    let table =
        table(&[on_host("*.example.com", "/a"), anywhere(PathPattern::prefix("/").unwrap())]);
    let host = format!("{}.example.com", "a".repeat(300));
    assert_eq!(find(&table, &host, "/a"), Some(1));
}

#[test]
fn ten_thousand_routes_cost_what_one_costs() {
    let wanted = [on_host("a.example.com", "/api/v1"), on_host("*.example.com", "/")];
    let mut many = wanted.to_vec();
    for n in 0..10_000 {
        many.push(on_host(&format!("host-{n}.example.com"), &format!("/api/v{n}/x")));
        many.push(on_host("a.example.com", &format!("/api/v1/{n}")));
    }
    let lookups = |rules: &[Added]| {
        let table = table(rules);
        LOOKUPS.set(0);
        assert_eq!(find(&table, "a.example.com", "/api/v1/x/y"), Some(0));
        LOOKUPS.get()
    };
    assert_eq!(lookups(&wanted), lookups(&many));
}

#[test]
fn work_is_bounded_by_the_labels_and_segments_of_the_request() {
    let table =
        table(&[on_host("a.b.c", "/x/y"), on_host("*.b.c", "/x/z"), on_host("*.c", "/x/w")]);
    let (host, path) = (format!("{}a.b.c", "a.".repeat(120)), "/x".repeat(1000));
    LOOKUPS.set(0);
    assert_eq!(find(&table, &host, &path), None);
    assert!(LOOKUPS.get() < 20, "{} lookups", LOOKUPS.get());
}

/// What the specification says, by looking at every rule.
fn scan(rules: &[Added], host: &str, path: &str) -> Option<usize> {
    let host = host.to_ascii_lowercase();
    let of_host = |pattern: &HostPattern| match pattern {
        HostPattern::Any => true,
        HostPattern::Below(name) => host.ends_with(&format!(".{name}")),
        HostPattern::Exact(name) => host == **name,
    };
    let specific = |pattern: &HostPattern| match pattern {
        HostPattern::Any => (0, 0),
        HostPattern::Below(name) => (1, name.len()),
        HostPattern::Exact(_) => (2, 0),
    };
    let of_path = |pattern: &PathPattern| pattern.matches(path.as_bytes());
    let length = |pattern: &PathPattern| match pattern {
        PathPattern::Exact(_) => (2, 0),
        PathPattern::Regex(pattern) => (1, pattern.text().len()),
        PathPattern::Prefix(prefix) => (0, prefix.trim_end_matches('/').len()),
    };
    let listeners = rules.iter().map(|(listener, ..)| listener).filter(|it| of_host(it));
    let listener = listeners.max_by_key(|it| specific(it))?;
    let matching = rules
        .iter()
        .enumerate()
        .filter(|(_, (theirs, hosts, path))| theirs == listener && of_host(hosts) && of_path(path));
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
        name().prop_map(HostPattern::Below),
        name().prop_map(HostPattern::Exact),
    ]
}

fn path() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!["x", "y", "xy", ""]), 1..5)
        .prop_map(|segments| format!("/{}", segments.join("/")))
}

fn path_pattern() -> impl Strategy<Value = PathPattern> {
    let written = path().prop_filter_map("must be a path", |path| {
        PathPattern::exact(&path).ok().zip(PathPattern::prefix(&path).ok())
    });
    (written, any::<bool>())
        .prop_map(|((exact, prefix), is_exact)| if is_exact { exact } else { prefix })
}

/// As a translation adds it: what a route asks for, cut to what its listener asks for.
fn added() -> impl Strategy<Value = Added> {
    (host_pattern(), host_pattern(), path_pattern()).prop_map(|(listener, hosts, path)| {
        let hosts = listener.intersect(&hosts).unwrap_or_else(|| listener.clone());
        (listener, hosts, path)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_table_finds_what_a_scan_finds(
        rules in prop::collection::vec(added(), 0..12), host in host(), path in path(),
    ) {
        prop_assert_eq!(find(&table(&rules), &host, &path), scan(&rules, &host, &path));
    }

    #[test]
    fn common_hosts_are_those_that_both_match(a in host_pattern(), b in host_pattern(), host in host()) {
        let path = || PathPattern::prefix("/").unwrap();
        let matches = |hosts: &HostPattern| {
            find(&table(&[(HostPattern::Any, hosts.clone(), path())]), &host, "/").is_some()
        };
        let common = a.intersect(&b).is_some_and(|both| matches(&both));
        prop_assert_eq!(common, matches(&a) && matches(&b));
    }
}
