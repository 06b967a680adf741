//! A migration of Ingresses: the objects that are written mean the same as the Ingresses.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use gateway::ingress::served_ingresses;
use gateway::migrate::{MigrationOutcome, MigrationResult, MigrationSettings, migrate};
use gateway::snapshot::{ListenerProtocol, RouteFilters, Rule, RuleTarget};
use gateway::{ApiObject, ControllerNames, Snapshot, TranslationSettings, parse, translate};

/// Requests of golden files.
mod request_line;

const CLASS: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: sheave}
spec: {controllerName: sheave.dev/gateway}
";

/// Hosts whose Ingress asks for a value that an HTTPRoute cannot have; the report says so.
const IMPOSSIBLE: [(&str, &str); 3] = [
    ("ingress-endpoints.in.yaml", "j.example "),
    ("ingress-cors.in.yaml", "c.example "),
    // A grant for Ingresses is none for policies.
    ("ingress-auth.in.yaml", "permitted.example "),
];

fn settings() -> MigrationSettings {
    MigrationSettings {
        ingress_class: None,
        gateway_class: "sheave".to_owned(),
        gateway_namespace: "default".to_owned(),
    }
}

/// Returns the objects of a migration in the form in which a cluster gets them, after their own class.
fn text(migration: &MigrationResult) -> String {
    let documents = migration.objects.iter().map(|object| serde_saphyr::to_string(object).unwrap());
    [CLASS.to_owned()].into_iter().chain(documents).collect::<Vec<_>>().join("---\n")
}

/// Returns the objects that exist beside Ingresses, and those of the migration.
fn migrated(objects: &[ApiObject]) -> Vec<ApiObject> {
    let text = text(&migrate(objects, &settings()));
    let (written, problems) = parse(&text, "migrated.yaml");
    assert!(problems.is_empty(), "{problems:?}\n{text}");
    let is_kept =
        |object: &&ApiObject| !matches!(object, ApiObject::Ingress(_) | ApiObject::IngressClass(_));
    objects.iter().filter(is_kept).cloned().chain(written).collect()
}

/// Returns the objects without the Ingresses of other controllers, which a migration would take for ours.
fn of_our_classes(objects: &[ApiObject]) -> Vec<ApiObject> {
    let served = served_ingresses(objects, &ControllerNames::default());
    let is_kept = |object: &&ApiObject| {
        let ApiObject::Ingress(ingress) = object else { return true };
        let (namespace, name) = (&ingress.metadata.namespace, &ingress.metadata.name);
        served.iter().any(|it| (&it.namespace, &it.name) == (namespace, name))
    };
    objects.iter().filter(is_kept).cloned().collect()
}

/// Describes how a request is served, without names of routes and policies.
fn answer(line: &str, snapshot: &Snapshot) -> Vec<String> {
    let request = request_line::parse_request(line).unwrap();
    let mut answers: Vec<_> = snapshot
        .listeners
        .iter()
        .map(|listener| {
            let rule = match &listener.protocol {
                ListenerProtocol::Http(routes)
                | ListenerProtocol::Detected { requests: routes, .. } => routes.find(&request),
                ListenerProtocol::Tcp(rule) | ListenerProtocol::Udp(rule) => rule.as_ref(),
            };
            let rule = rule.map(|rule| describe(rule, snapshot));
            format!("{} {}", listener.address, rule.as_deref().unwrap_or("nothing"))
        })
        .collect();
    answers.sort();
    answers
}

fn describe(rule: &Rule, snapshot: &Snapshot) -> String {
    let target = |target: RuleTarget| match target {
        RuleTarget::Backend(index) => {
            let backend = &snapshot.backends[index];
            format!("{} {:?}", backend.key, backend.settings)
        }
        RuleTarget::Unresolved => "500".to_owned(),
    };
    let targets = rule.targets.iter().map(|it| format!("{} x {}", it.weight, target(it.target)));
    let targets: Vec<_> = targets.collect();
    let filters = rule.filters.as_deref().map(|it| filters(it, snapshot)).unwrap_or_default();
    format!("{} {filters} {:?} {:?}", targets.join(", "), rule.request_timeout, rule.retry)
}

fn filters(filters: &RouteFilters, snapshot: &Snapshot) -> String {
    let mirrors = filters.mirrors.iter();
    let mirrors: Vec<_> =
        mirrors.map(|it| format!("{} {:?}", snapshot.backends[it.backend].key, it.share)).collect();
    let limits = filters.rate_limit.map(|it| &snapshot.rate_limits[it]);
    let of_policies = format!(
        "{:?} {:?} {:?}",
        filters.security.as_ref().map(|it| {
            let has_keys = it.api_keys.is_some() || it.jwt.is_some();
            (&it.client_addresses, &it.basic_auth, &it.external_auth, has_keys)
        }),
        filters.traffic.as_ref().map(|it| (
            it.max_body_bytes,
            &it.request_rules,
            &it.direct_response,
            &it.error_pages
        )),
        limits.map(|it| (it.status, &it.limits)),
    );
    let plain = RouteFilters {
        security: None,
        traffic: None,
        rate_limit: None,
        mirrors: Vec::new(),
        ..filters.clone()
    };
    format!("{plain:?} {mirrors:?} {of_policies}")
}

#[test]
fn requests_of_every_golden_case_are_served_as_before() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let mut requests = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_str().unwrap();
        if !file.starts_with("ingress") || !file.ends_with(".in.yaml") {
            continue;
        }
        let input = fs::read_to_string(&path).unwrap();
        let (objects, _) = parse(&input, file);
        let before = translate(&objects, &TranslationSettings::default());
        let after =
            translate(&migrated(&of_our_classes(&objects)), &TranslationSettings::default());
        for line in input.lines().filter_map(|line| line.strip_prefix("# request: ")) {
            if IMPOSSIBLE.iter().any(|(in_file, host)| *in_file == file && line.starts_with(host)) {
                let ingresses = migrate(&objects, &settings()).ingresses;
                assert!(ingresses.iter().any(|it| it.outcome == MigrationOutcome::Different));
                continue;
            }
            let (before, after) = (answer(line, &before.snapshot), answer(line, &after.snapshot));
            assert_eq!(after, before, "{file}: {line}");
            requests += 1;
        }
    }
    assert!(requests > 50, "{requests} requests");
}

const SHOP: &str = "
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: shop
  namespace: web
  annotations: {nginx.ingress.kubernetes.io/proxy-body-size: 8m}
spec:
  ingressClassName: nginx
  tls: [{hosts: [shop.example], secretName: shop}]
  rules:
  - host: shop.example
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: shop, port: {number: 80}}}}]}
";

#[test]
fn an_ingress_alone_is_enough() {
    let (objects, _) = parse(SHOP, "shop.yaml");
    let migration = migrate(&objects, &settings());
    let [ingress] = &migration.ingresses[..] else { panic!("{:?}", migration.ingresses) };
    assert_eq!((ingress.outcome, &ingress.notes[..]), (MigrationOutcome::Same, &[][..]));
    let name = |object: &serde_json::Value| {
        let metadata = &object["metadata"];
        let part = |name: &str| metadata[name].as_str().unwrap().to_owned();
        format!("{} {}/{}", object["kind"].as_str().unwrap(), part("namespace"), part("name"))
    };
    let names: Vec<_> = migration.objects.iter().map(name).collect();
    let expected = [
        "Gateway default/nginx",
        "ReferenceGrant web/nginx",
        "HTTPRoute web/shop-shop.example-tls",
        "HTTPRoute web/shop-shop.example",
        "TrafficPolicy web/shop",
    ];
    assert_eq!(names, expected);
}

#[test]
fn classes_are_selected_and_outcomes_have_reasons() {
    let refused = SHOP
        .replace("name: shop\n  namespace", "name: guarded\n  namespace")
        .replace("proxy-body-size: 8m", "auth-snippet: deny all;");
    let different = SHOP
        .replace("name: shop\n  namespace", "name: odd\n  namespace")
        .replace("proxy-body-size: 8m", "proxy-cookie-path: /a /b");
    let other = SHOP
        .replace("name: shop\n  namespace", "name: other\n  namespace")
        .replace("ClassName: nginx", "ClassName: internal");
    let (objects, problems) = parse(&[SHOP, &refused, &different, &other].join("---\n"), "a.yaml");
    assert!(problems.is_empty(), "{problems:?}");
    let settings = MigrationSettings { ingress_class: Some("nginx".to_owned()), ..settings() };
    let ingresses = migrate(&objects, &settings).ingresses;
    let outcomes: Vec<_> = ingresses.iter().map(|it| (&*it.name, it.outcome)).collect();
    use MigrationOutcome::{Different, Refused, Same};
    assert_eq!(outcomes, [("guarded", Refused), ("odd", Different), ("shop", Same)]);
    assert!(ingresses[0].notes[0].contains("auth-snippet"), "{:?}", ingresses[0]);
    assert!(ingresses[1].notes[0].contains("proxy-cookie-path"), "{:?}", ingresses[1]);
}

#[test]
fn many_paths_become_several_routes_in_order() {
    let path = |n: usize| {
        format!(
            "{{path: /p{n}, pathType: Prefix, backend: {{service: {{name: shop, port: {{number: 80}}}}}}}}"
        )
    };
    let paths: Vec<_> = (0..40).map(path).collect();
    let many = SHOP.replace(
        "[{path: /, pathType: Prefix, backend: {service: {name: shop, port: {number: 80}}}}]",
        &format!("[{}]", paths.join(", ")),
    );
    let (objects, problems) = parse(&many, "many.yaml");
    assert!(problems.is_empty(), "{problems:?}");
    let migration = migrate(&objects, &settings());
    let rules = |object: &serde_json::Value| object["spec"]["rules"].as_array().map(Vec::len);
    let counts: Vec<_> = migration.objects.iter().filter_map(rules).collect();
    assert_eq!(counts, [16, 16, 8, 16, 16, 8]);
    let policy = migration.objects.iter().find(|it| it["kind"] == "TrafficPolicy").unwrap();
    assert_eq!(policy["spec"]["targetRefs"].as_array().map(Vec::len), Some(3));
    let before = translate(&objects, &TranslationSettings::default());
    assert!(before.snapshot.rules.is_empty(), "the class is not Sheave's");
    let mut all = migrated(&objects);
    let service = "{apiVersion: v1, kind: Service, metadata: {name: shop, namespace: web}, spec: {ports: [{port: 80}]}}";
    all.extend(parse(service, "service.yaml").0);
    let snapshot = translate(&all, &TranslationSettings::default()).snapshot;
    for n in [0, 17, 39] {
        let answers = answer(&format!("shop.example /p{n}"), &snapshot);
        assert!(answers.iter().any(|it| it.contains("redirect: Some")), "{answers:?}");
    }
}

#[test]
fn too_many_hosts_for_a_gateway_are_reported_and_routes_have_few_parents() {
    let ingress = |n: usize| {
        SHOP.replace("name: shop\n  namespace", &format!("name: shop-{n}\n  namespace"))
            .replace("shop.example", &format!("shop-{n}.example"))
    };
    let hosts = |count: usize| (0..count).map(ingress).collect::<Vec<_>>().join("---\n");
    let any = SHOP
        .replace("name: shop\n  namespace", "name: any\n  namespace")
        .replace("  tls: [{hosts: [shop.example], secretName: shop}]\n", "")
        .replace("- host: shop.example\n    http", "- http");
    for (count, is_accepted) in [(31, true), (32, false)] {
        let (objects, problems) = parse(&[hosts(count), any.clone()].join("---\n"), "a.yaml");
        assert!(problems.is_empty(), "{problems:?}");
        let migration = migrate(&objects, &settings());
        assert_eq!(migration.unacceptable.is_empty(), is_accepted, "{:?}", migration.unacceptable);
        let parents = |it: &serde_json::Value| it["spec"]["parentRefs"].as_array().map(Vec::len);
        let parents: Vec<_> = migration.objects.iter().filter_map(parents).collect();
        assert!(parents.iter().all(|it| *it <= 32), "{parents:?}");
        assert!(parents.iter().sum::<usize>() > count * 3, "{parents:?}");
    }
}
