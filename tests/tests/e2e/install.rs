//! Consistency of the installation files with Sheave: metrics, flags, version and RBAC rules.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tests::configuration::TempDirectory;

const EXAMPLES: [&str; 2] =
    ["deploy/examples/grafana-dashboard.json", "deploy/examples/prometheus.yaml"];
const MANIFESTS: [&str; 2] = ["deploy/manifests/install.yaml", "deploy/manifests/transparent.yaml"];

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the names of metrics in a text, as the reference writes them.
fn metrics(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let metrics = words.filter(|word| word.starts_with("sheave_") || word.starts_with("process_"));
    metrics.map(|name| name.strip_suffix("_bucket").unwrap_or(name)).collect()
}

#[test]
fn every_metric_in_the_examples_is_documented() {
    let reference = read("docs/reference/metrics.md");
    for path in EXAMPLES {
        let text = read(path);
        let named = metrics(&text);
        assert!(named.len() > 5, "{path} names {named:?}");
        let unknown = named.iter().filter(|name| !reference.contains(&format!("| `{name}` |")));
        assert_eq!(unknown.collect::<Vec<_>>(), Vec::<&&str>::new(), "{path}");
    }
}

#[test]
fn every_alert_has_a_section_in_the_runbook() {
    let (rules, page) = (read(EXAMPLES[1]), read("docs/operate/alerts.md"));
    let names = |text: &str, start: &str| -> Vec<String> {
        text.lines().filter_map(|it| it.trim().strip_prefix(start)).map(str::to_owned).collect()
    };
    let alerts = names(&rules, "- alert: ");
    assert!(alerts.len() > 20, "{alerts:?}");
    assert_eq!(names(&page, "## "), alerts);
    let anchor = |name: &String| format!("docs/operate/alerts.md#{}", name.to_lowercase());
    assert_eq!(names(&rules, "runbook: "), alerts.iter().map(anchor).collect::<Vec<_>>());
}

#[test]
fn dashboard_is_valid_json() {
    let dashboard: serde_json::Value = serde_json::from_str(&read(EXAMPLES[0])).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "two panels have the same ID");
}

#[test]
fn manifests_use_only_existing_flags() {
    let (manifests, reference) = (MANIFESTS.map(read).concat(), read("docs/reference/cli.md"));
    let arguments = manifests.lines().filter_map(|line| line.trim().strip_prefix("- --"));
    let flags: Vec<_> = arguments.map(|it| it.split('=').next().unwrap()).collect();
    assert!(flags.len() > 4, "{flags:?}");
    let is_known = |flag: &&&str| {
        [" ", "`"].iter().any(|end| reference.contains(&format!("| `--{flag}{end}")))
    };
    let unknown: Vec<_> = flags.iter().filter(|flag| !is_known(flag)).collect();
    assert_eq!(unknown, Vec::<&&str>::new());
}

#[test]
fn rbac_roles_grant_writes_only_to_statuses_leases_events_and_one_secret() {
    let manifests = MANIFESTS.map(read).join("\n---\n");
    let mut rules = 0;
    for role in manifests
        .split("\n---\n")
        .filter(|it| it.contains("kind: Role\n") || it.contains("kind: ClusterRole\n"))
    {
        for rule in role.split("- apiGroups:").skip(1) {
            rules += 1;
            let (resources, verbs) = rule.split_once("verbs:").unwrap();
            assert!(!rule.contains('*'), "{rule}");
            let verbs = verbs.trim().trim_start_matches('[').split(']').next().unwrap();
            if ["get", "get, list, watch"].contains(&verbs) {
                continue;
            }
            let resources = resources.split_once("resources:").unwrap().1;
            if let Some((secrets, names)) = resources.split_once("resourceNames:") {
                assert_eq!((secrets.trim(), names.trim()), ("[secrets]", "[sheave-replicas]"));
                assert!(!verbs.contains("delete"), "{rule}");
                continue;
            }
            let mut named = resources
                .split(|c: char| c.is_whitespace() || "[],".contains(c))
                .filter(|word| !["", "-"].contains(word));
            let may_write = |it| it == "leases" || it == "events" && verbs == "create, patch";
            assert!(named.all(|it| it.ends_with("/status") || may_write(it)), "{rule}");
        }
    }
    assert!(rules > 5, "{rules} rules");
}

#[test]
fn chart_version_matches_the_binary() {
    let chart = read("deploy/chart/Chart.yaml");
    let version = env!("CARGO_PKG_VERSION");
    assert!(chart.contains(&format!("\nversion: {version}\nappVersion: {version}\n")), "{chart}");
}

#[test]
fn chart_values_match_their_schema() {
    let values = read("deploy/chart/values.yaml");
    let schema: serde_json::Value =
        serde_json::from_str(&read("deploy/chart/values.schema.json")).unwrap();
    let known = schema["properties"].as_object().unwrap();
    let top: BTreeSet<_> = values
        .lines()
        .filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()))
        .map(|line| line.split(':').next().unwrap())
        .collect();
    let schema: BTreeSet<_> =
        known.keys().map(String::as_str).filter(|it| *it != "global").collect();
    assert_eq!(top, schema);
}

/// Renders the chart with these settings. Without Helm it is skipped, unless `CONFORMANCE_ALL` is
/// set.
fn chart(settings: &[&str]) -> Option<Output> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let is_built = fs::read_dir(root.join(".cache/helm")).is_ok_and(|it| it.count() > 0);
    if !is_built && std::env::var_os("CONFORMANCE_ALL").is_none() {
        eprintln!("skipped: Helm is not built; `scripts/helm version` builds it");
        return None;
    }
    let mut helm = Command::new(root.join("scripts/helm"));
    helm.args(["template", "sheave", "deploy/chart", "--kube-version", "1.34.0"]).current_dir(root);
    settings.iter().for_each(|setting| _ = helm.args(["--set", setting]));
    Some(helm.output().unwrap())
}

#[test]
fn chart_address_pool_renders_a_host_network_daemon_set() {
    let pool = "addresses.pool={192.0.2.0/24,2001:db8::/64}";
    let settings = [pool, "hostNetwork=true", "kind=DaemonSet", "service.enabled=false"];
    let Some(rendered) = chart(&settings) else { return };
    let rendered = String::from_utf8(rendered.stdout).unwrap();
    for part in [
        "kind: DaemonSet",
        "hostNetwork: true",
        "--pool=192.0.2.0/24",
        "--pool=2001:db8::/64",
        "name: announcer",
        "add: [NET_ADMIN, NET_RAW]",
    ] {
        assert!(rendered.contains(part), "{part}");
    }
    assert!(!rendered.contains("type: LoadBalancer"));
}

#[test]
fn chart_load_balancer_may_write_statuses_of_services_and_nothing_else_of_them() {
    let settings = ["loadBalancer.enabled=true", "hostNetwork=true", "service.enabled=false"];
    let Some(plain) = chart(&settings[1..]) else { return };
    let Some(rendered) = chart(&settings) else { return };
    let Some(in_namespace) = chart(&[&settings[..], &["rbac.namespaces={shop}"]].concat()) else {
        return;
    };
    let text = |output: Output| String::from_utf8(output.stdout).unwrap();
    let (plain, rendered, in_namespace) = (text(plain), text(rendered), text(in_namespace));
    for part in [
        "- --load-balancer\n",
        "- --node-name=$(NODE_NAME)",
        "fieldPath: spec.nodeName",
        "name: announcer",
        "add: [NET_ADMIN, NET_RAW]",
        "resources: [services/status]\n  verbs: [patch]",
        "resources: [addresspools/status, bgppeers/status]\n  verbs: [patch]",
        "resources: [addresspools, bgppeers]\n  verbs: [get, list, watch]",
        "resources: [nodes]\n  verbs: [get]",
        "resources: [events]\n  verbs: [create, patch]",
    ] {
        assert!(rendered.contains(part), "{part}");
        assert!(!plain.contains(part), "{part}");
    }
    assert!(!rendered.contains("--default-load-balancer"));
    // Pools belong to no namespace, Services to theirs.
    let cluster_roles = of_kind(&in_namespace, "ClusterRole");
    assert!(cluster_roles[0].contains("addresspools"), "{cluster_roles:?}");
    assert!(!cluster_roles[0].contains("services/status"), "{cluster_roles:?}");
    let roles = of_kind(&in_namespace, "Role");
    assert!(roles.iter().any(|it| it.contains("services/status")), "{roles:?}");
    assert!(!roles.iter().any(|it| it.contains("addresspools")), "{roles:?}");
}

#[test]
fn chart_per_gateway_services_grant_service_writes() {
    let Some(plain) = chart(&[]) else { return };
    let settings = ["service.perGateway=true", "service.annotations.lb=internal"];
    let Some(rendered) = chart(&settings) else { return };
    let (plain, rendered) =
        (String::from_utf8(plain.stdout).unwrap(), String::from_utf8(rendered.stdout).unwrap());
    let template =
        rendered.lines().find_map(|line| line.trim().strip_prefix("- \"--service-template="));
    let template = template.unwrap().strip_suffix('"').unwrap().replace("\\\"", "\"");
    let template: serde_json::Value = serde_json::from_str(&template).unwrap();
    assert_eq!(template["spec"]["type"], "LoadBalancer");
    assert_eq!(template["spec"]["selector"]["app.kubernetes.io/name"], "sheave");
    assert_eq!(template["metadata"]["annotations"]["lb"], "internal");
    let rbac_rule = "resources: [services]\n  verbs: [create, patch, delete]";
    assert!(rendered.contains(rbac_rule) && !plain.contains(rbac_rule));
    assert!(plain.contains("type: LoadBalancer\n") && !rendered.contains("type: LoadBalancer\n"));
}

#[test]
fn transparent_mode_has_one_capability_and_reads_no_secrets() {
    let manifests = read(MANIFESTS[1]);
    assert_eq!(of_kind(&manifests, "DaemonSet").len(), 1);
    assert!(of_kind(&manifests, "Deployment").is_empty());
    for part in
        ["add: [NET_ADMIN]", "drop: [ALL]", "maxSurge: 1", "hostNetwork: true", "privileged"]
    {
        assert!(manifests.contains(part), "{part}");
    }
    // Two pods share a node's network during an update: no port may be fixed.
    for part in ["containerPort", "hostPort", "httpGet"] {
        assert!(!manifests.contains(part), "{part}");
    }
    for role in of_kind(&manifests, "ClusterRole") {
        assert!(!role.contains("secrets") && !role.contains("configmaps"), "{role}");
    }
}

#[test]
fn chart_has_both_or_one_part() {
    let Some(both) = chart(&["transparent.enabled=true"]) else { return };
    let both = String::from_utf8(both.stdout).unwrap();
    assert_eq!(of_kind(&both, "Deployment").len() + of_kind(&both, "DaemonSet").len(), 2);
    // Services in front of Gateways must not select the pods of transparent mode.
    let agent = "app.kubernetes.io/name: sheave-transparent";
    let services = of_kind(&both, "Service");
    assert_eq!(services.iter().filter(|it| it.contains(agent)).count(), 1, "{services:?}");
}

#[test]
fn layer_4_agent_has_three_capabilities_and_only_reads() {
    let Some(rendered) = chart(&["l4.enabled=true", "gateways.enabled=false"]) else { return };
    let rendered = String::from_utf8(rendered.stdout).unwrap();
    assert!(of_kind(&rendered, "Deployment").is_empty());
    let agents = of_kind(&rendered, "DaemonSet");
    assert_eq!(agents.len(), 1, "{rendered}");
    for part in ["add: [BPF, NET_ADMIN, PERFMON]", "drop: [ALL]", "hostNetwork: true", "- l4\n"] {
        assert!(agents[0].contains(part), "{part}");
    }
    let reference = read("docs/reference/cli.md");
    let (_, flags) = reference.split_once("\n## `sheave l4`\n").unwrap();
    for argument in agents[0].lines().filter_map(|line| line.trim().strip_prefix("- --")) {
        let flag = argument.split('=').next().unwrap();
        assert!(
            [" ", "`"].iter().any(|end| flags.contains(&format!("| `--{flag}{end}"))),
            "{flag}"
        );
    }
    for role in of_kind(&rendered, "ClusterRole") {
        assert!(!role.contains("secrets") && !role.contains("patch"), "{role}");
    }
    assert!(of_kind(&rendered, "Role").is_empty());
    assert!(!MANIFESTS.map(read).concat().contains("sheave-l4"), "off by default");
}

#[test]
fn replicas_lease_slots_by_default_with_certificates_of_their_own() {
    let manifests = read(MANIFESTS[0]);
    let deployment = of_kind(&manifests, "Deployment")[0];
    for part in [
        "- --lease-slots\n",
        "- --replica-secret=sheave-replicas\n",
        "- --replica-port=9903\n",
        "- {name: leases, containerPort: 9903, protocol: TCP}\n",
    ] {
        assert!(deployment.contains(part), "{part}");
    }
    assert!(!deployment.contains("replica-certs"), "{deployment}");
    let policy = of_kind(&manifests, "NetworkPolicy")[0];
    let (_, sources) = policy.split_once("port: 9903}\n    from:\n").unwrap();
    assert!(sources.trim_start().starts_with("- podSelector:"), "{sources}");
    assert!(!sources.contains("namespaceSelector"), "{sources}");
    let roles = of_kind(&manifests, "Role");
    let rule = "resources: [secrets]\n  resourceNames: [sheave-replicas]\n  \
                verbs: [get, list, watch, create, patch, update]";
    assert!(roles.iter().any(|it| it.contains(rule)), "{roles:?}");
    // Agents of transparent mode lease none.
    assert!(!read(MANIFESTS[1]).contains("lease-slots"));
}

#[test]
fn chart_leases_need_no_secret_of_sheave_with_certificates_of_the_operator() {
    let Some(rendered) = chart(&["leases.certificateSecret=replica-tls"]) else { return };
    let rendered = String::from_utf8(rendered.stdout).unwrap();
    for part in ["--lease-slots", "--replica-certs=/etc/sheave/", "secretName: replica-tls"] {
        assert!(rendered.contains(part), "{part}");
    }
    assert!(!rendered.contains("sheave-replicas"), "{rendered}");
    let off = ["leases.enabled=false", "leases.certificateSecret=replica-tls"];
    let Some(rendered) = chart(&off) else { return };
    let rendered = String::from_utf8(rendered.stdout).unwrap();
    for part in ["lease-slots", "replica-certs", "replica-secret", "replica-tls", "9903"] {
        assert!(!rendered.contains(part), "{part}");
    }
}

#[test]
fn chart_rejects_invalid_values() {
    let cases = [
        ("replica=3", "replica"),
        ("kind=StatefulSet", "'Deployment', 'DaemonSet'"),
        ("addresses.pool={192.0.2.0}", "does not match pattern"),
        ("addresses.pool={192.0.2.0/24}", "needs hostNetwork"),
        ("loadBalancer.enabled=true", "loadBalancer.enabled needs hostNetwork"),
        ("loadBalancer.enabled=true,hostNetwork=true", "would serve Sheave's own Service"),
        ("loadBalancer.default=true", "needs loadBalancer.enabled"),
        ("drain.timeoutSeconds=0", "minimum"),
        ("logs.accessLog=2", "accessLog"),
        ("transparent.ports=all", "does not match pattern"),
        ("gateways.enabled=false", "nothing to install"),
        ("l4.mode=fast", "'auto', 'layer2', 'vxlan', 'full-nat'"),
        ("l4.enabled=true,rbac.namespaces={shop}", "l4.enabled reads the Services"),
        ("transparent.enabled=true,rbac.namespaces={shop}", "reads the Services of all namespaces"),
        ("rbac.certificates[0].namespace=shop", "missing property 'secrets'"),
    ];
    for (setting, message) in cases {
        let Some(rendered) = chart(&[setting]) else { return };
        let errors = String::from_utf8_lossy(&rendered.stderr);
        assert!(!rendered.status.success() && errors.contains(message), "{setting}: {errors}");
    }
}

/// Returns the documents of a kind in rendered manifests.
fn of_kind<'m>(manifests: &'m str, kind: &str) -> Vec<&'m str> {
    let kind = format!("\nkind: {kind}\n");
    manifests.split("\n---\n").filter(|it| format!("\n{it}").contains(&kind)).collect()
}

#[test]
fn roles_of_namespaces_leave_no_secrets_to_the_cluster_role() {
    let settings = ["rbac.namespaces={shop,bank}", "gatewayClass.controller=example.com/edge"];
    let Some(rendered) = chart(&settings) else { return };
    let rendered = String::from_utf8(rendered.stdout).unwrap();
    let cluster_roles = of_kind(&rendered, "ClusterRole");
    assert_eq!(cluster_roles.len(), 1);
    for resource in ["secrets", "configmaps", "services", "httproutes", "ingresses,"] {
        assert!(!cluster_roles[0].contains(resource), "{resource}: {}", cluster_roles[0]);
    }
    let roles = of_kind(&rendered, "Role");
    let in_namespace = |namespace: &str| {
        let field = format!("namespace: {namespace}\n");
        roles.iter().any(|it| it.contains(&field) && it.contains("secrets"))
    };
    assert!(in_namespace("shop") && in_namespace("bank"), "{roles:?}");
    // Named certificates are in no other role.
    let named = "rbac.certificates[0].namespace=shop,rbac.certificates[0].secrets={web-tls}";
    let Some(rendered_named) = chart(&[settings[0], named]) else { return };
    let rendered_named = String::from_utf8(rendered_named.stdout).unwrap();
    let roles = of_kind(&rendered_named, "Role");
    let own = "resourceNames: [sheave-replicas]";
    let reads_others = |it: &&&str| it.contains("secrets") && !it.contains(own);
    let with_secrets: Vec<_> = roles.iter().filter(reads_others).collect();
    assert_eq!(with_secrets.len(), 1, "{roles:?}");
    let named = "resources: [secrets]\n  resourceNames: [\"web-tls\"]\n";
    assert!(with_secrets[0].contains(named), "{with_secrets:?}");
    assert!(!rendered_named.contains("configmaps"));
    for argument in
        ["--watch-namespaces=shop", "--watch-namespaces=bank", "--controller=example.com/edge"]
    {
        assert!(rendered.contains(argument), "{argument}");
    }
}

#[test]
fn krew_manifest_names_the_packed_plugin_and_has_every_field() {
    let folder = TempDirectory::new().unwrap();
    let program = folder.path().join("program");
    fs::write(&program, "#!/bin/sh\necho plugin\n").unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("scripts/krew");
    let mut command = Command::new(script);
    command.arg(&program).arg("https://git.example/sheave").arg(folder.path());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let manifest = fs::read_to_string(folder.path().join("sheave.yaml")).unwrap();
    let field = |name: &str| {
        let line = manifest.lines().map(str::trim).find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name} is missing in {manifest}")).trim().to_owned()
    };
    assert_eq!(field("apiVersion:"), "krew.googlecontainertools.github.com/v1alpha2");
    assert_eq!((field("kind:"), field("name:")), ("Plugin".to_owned(), "sheave".to_owned()));
    let version = format!("v{}", env!("CARGO_PKG_VERSION"));
    assert_eq!(field("version:"), version);
    assert_eq!(field("homepage:"), "https://git.example/sheave");
    let about = field("shortDescription:");
    assert!((1..=50).contains(&about.len()) && !about.ends_with('.'), "{about}");
    assert_eq!((field("os:"), field("arch:")), ("linux".to_owned(), "amd64".to_owned()));
    let archive = "kubectl-sheave-linux-amd64.tar.gz";
    let place = format!("https://git.example/sheave/releases/download/{version}/{archive}");
    assert_eq!(field("uri:"), place);
    assert!(!manifest.contains('@'), "{manifest}");
    let run = |name: &str, arguments: &[&str]| {
        let mut command = Command::new(name);
        let output = command.args(arguments).arg(archive).current_dir(folder.path()).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    assert_eq!(run("sha256sum", &[]).split(' ').next().unwrap(), field("sha256:"));
    let packed = run("tar", &["--list", "--gzip", "--file"]);
    let packed: BTreeSet<_> = packed.lines().collect();
    assert_eq!(packed, BTreeSet::from(["LICENSE", "kubectl-sheave"]));
    // krew runs it by this name, by which the program knows that it is the plugin.
    assert_eq!(field("bin:"), "kubectl-sheave");
}

#[test]
fn role_of_the_plugin_reads_and_never_writes() {
    let role = read("deploy/examples/kubectl-rbac.yaml");
    let verbs: BTreeSet<_> =
        role.lines().filter_map(|line| line.trim().strip_prefix("verbs: ")).collect();
    assert_eq!(verbs, BTreeSet::from(["[get]", "[list]"]));
    assert!(!role.contains("secrets") && !role.contains("portforward"), "{role}");
}
