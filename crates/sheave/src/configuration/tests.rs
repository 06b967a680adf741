//! Tests of the configuration in force after a sequence of reloads, with a running data plane.

use std::net::TcpListener;
use std::num::NonZeroUsize;

use gateway::status::{ConditionReason, StatusDetail};
use proxy::ProxySettings;
use serde_json::json;

use super::*;
use crate::dns::scripted::ScriptedDns;

/// Returns a Gateway on this port, a route, a Service, and an EndpointSlice with these endpoints.
fn text(port: u16, endpoints: &[&str]) -> String {
    let addresses: String =
        endpoints.iter().map(|endpoint| format!("- addresses: [{endpoint}]\n")).collect();
    format!(
        "\
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {{name: sheave}}
spec: {{controllerName: sheave.dev/gateway}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: edge}}
spec:
  gatewayClassName: sheave
  addresses: [{{type: IPAddress, value: 127.0.0.1}}]
  listeners: [{{name: http, port: {port}, protocol: HTTP}}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: web}}
spec:
  parentRefs: [{{name: edge}}]
  rules: [{{backendRefs: [{{name: web, port: 80}}]}}]
---
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec: {{ports: [{{name: http, port: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
ports: [{{name: http, port: 9001}}]
endpoints:
{addresses}"
    )
}

/// A controller and its report.
struct ConfigurationFixture {
    proxy: Arc<Proxy>,
    configuration: ConfigurationController,
    report: watch::Receiver<ProcessReport>,
}

impl ConfigurationFixture {
    fn new() -> Self {
        Self::with_dns(&ScriptedDns::default())
    }

    fn with_dns(dns: &ScriptedDns) -> Self {
        let settings = ProxySettings {
            workers: NonZeroUsize::MIN,
            access_log: None,
            exemplars: false,
            traces: None,
            memory_limit: None,
            max_descriptors: None,
            affinity_key: None,
            interceptor: None,
            leases_slots: false,
        };
        let proxy = Arc::new(Proxy::start(settings).unwrap());
        let (sender, report) = watch::channel(ProcessReport::new());
        let names = dns.watcher(sender.clone());
        Self {
            configuration: ConfigurationController::new(proxy.clone(), names, None, sender),
            proxy,
            report,
        }
    }

    /// Reloads the text; returns the outcome and the endpoints after it.
    async fn reload(&mut self, text: &str) -> (ReloadOutcome, Vec<String>) {
        let (objects, problems) = gateway::parse(text, "test.yaml");
        let before = self.report.borrow().reloads;
        self.configuration.reload(SourceContents {
            objects,
            problems,
            ..SourceContents::default()
        });
        let after = self.report.borrow().reloads;
        let counted = |reload: &ReloadOutcome| after[*reload as usize] > before[*reload as usize];
        let reload = ReloadOutcome::ALL.into_iter().find(counted).expect("each reload is counted");
        (reload, self.endpoints())
    }

    fn endpoints(&self) -> Vec<String> {
        let backends = self.proxy.backends();
        let endpoints = backends.iter().flat_map(|backend| &backend.endpoints);
        endpoints.map(|endpoint| endpoint.address.ip().to_string()).collect()
    }

    fn generation(&self) -> u64 {
        self.report.borrow().generation
    }

    /// Returns the messages of routes whose names have answers that are rejected.
    fn rejected_answers(&self) -> Vec<String> {
        let report = self.report.borrow();
        let routes = report.statuses.iter().filter_map(|status| match &status.detail {
            StatusDetail::Route(parents) => Some(parents),
            _ => None,
        });
        let conditions = routes.flatten().flat_map(|parent| &parent.conditions);
        let rejected = conditions.filter(|it| it.reason == ConditionReason::AddressNotAllowed);
        rejected.map(|condition| condition.message.clone()).collect()
    }

    fn problems(&self) -> Vec<String> {
        self.report.borrow().problems.iter().map(ToString::to_string).collect()
    }
}

fn ips(endpoints: &[&str]) -> Vec<String> {
    endpoints.iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn endpoint_slice_change_takes_the_fast_path() {
    let mut fixture = ConfigurationFixture::new();
    let first = fixture.reload(&text(0, &["10.0.0.1"])).await;
    assert_eq!(first, (ReloadOutcome::Applied, ips(&["10.0.0.1"])));
    let address = fixture.proxy.listeners()[0].address;
    let second = fixture.reload(&text(0, &["10.0.0.1", "10.0.0.2"])).await;
    assert_eq!(second, (ReloadOutcome::Endpoints, ips(&["10.0.0.1", "10.0.0.2"])));
    assert_eq!(fixture.generation(), 2);
    assert_eq!(fixture.proxy.listeners()[0].address, address);
}

#[tokio::test]
async fn a_file_without_gateway_class_uses_the_built_in_one() {
    let mut fixture = ConfigurationFixture::new();
    let whole = text(0, &["10.0.0.1"]);
    let (class, without) = whole.split_once("---\n").unwrap();
    let applied = fixture.reload(without).await;
    assert_eq!(applied, (ReloadOutcome::Applied, ips(&["10.0.0.1"])));
    // If the file contains a class, only its classes exist.
    let other = format!("{}---\n{without}", class.replace("name: sheave}", "name: other}"));
    assert_eq!(fixture.reload(&other).await.0, ReloadOutcome::Refused);
    assert!(fixture.problems()[0].ends_with("there is no GatewayClass sheave"));
}

#[tokio::test]
async fn same_objects_change_nothing() {
    let mut fixture = ConfigurationFixture::new();
    fixture.reload(&text(0, &["10.0.0.1"])).await;
    let again = fixture.reload(&format!("# a comment\n{}", text(0, &["10.0.0.1"]))).await;
    assert_eq!(again, (ReloadOutcome::Unchanged, ips(&["10.0.0.1"])));
    assert_eq!(fixture.generation(), 1);
}

#[tokio::test]
async fn invalid_configuration_is_rejected_until_fixed() {
    let good = text(0, &["10.0.0.1"]);
    for (bad, part) in [
        (good.replace("rules:", "rulez:"), "spec.rulez: unknown field"),
        (good.replace("port: 80}]}]", "port: 81}]}]"), "spec.rules[0].backendRefs[0].port"),
        (text(0, &["10.0.0.2", "nowhere"]), "endpoints[1].addresses[0]"),
        (format!("{good}---\n{{"), "test.yaml"),
    ] {
        let mut fixture = ConfigurationFixture::new();
        fixture.reload(&good).await;
        assert_eq!(
            fixture.reload(&bad).await,
            (ReloadOutcome::Refused, ips(&["10.0.0.1"])),
            "{bad}"
        );
        assert_eq!(fixture.generation(), 1);
        let problems = fixture.problems().join("\n");
        assert!(problems.contains(part), "{problems}");
        assert_eq!(fixture.reload(&good).await.0, ReloadOutcome::Unchanged);
        assert_eq!(fixture.problems(), [""; 0]);
    }
}

#[tokio::test]
async fn address_in_use_is_reported_and_retried_on_reload() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let mut fixture = ConfigurationFixture::new();
    assert_eq!(fixture.reload(&text(port, &["10.0.0.1"])).await.0, ReloadOutcome::Refused);
    let problems = fixture.problems();
    assert_eq!(problems.len(), 1);
    assert!(
        problems[0].contains(&format!("cannot listen on 127.0.0.1:{port} (default/edge/http)"))
    );
    assert!(problems[0].ends_with("stop it, or choose another port"), "{problems:?}");
    drop(taken);
    assert_eq!(fixture.reload(&text(port, &["10.0.0.1"])).await.0, ReloadOutcome::Applied);
    assert_eq!(fixture.problems(), [""; 0]);
    assert_eq!(fixture.proxy.listeners()[0].address.port(), port);
}

/// Returns the configuration with a Service that is a DNS name.
fn named(port: u16, name: &str) -> String {
    let service = "spec: {ports: [{name: http, port: 80}]}";
    let external = format!("spec: {{type: ExternalName, externalName: {name}}}");
    let whole = text(port, &[]);
    let (without_slice, _) = whole.rsplit_once("---\n").unwrap();
    without_slice.replace(service, &external)
}

#[tokio::test]
async fn attempts_to_bind_an_address_restart_no_lookup() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let mut fixture = ConfigurationFixture::new();
    assert_eq!(fixture.reload(&named(0, "old.test")).await.0, ReloadOutcome::Applied);
    let first = fixture.configuration.dns.tasks();
    assert_eq!(first.keys().collect::<Vec<_>>(), ["old.test"]);

    assert_eq!(fixture.reload(&named(port, "new.test")).await.0, ReloadOutcome::Refused);
    let waiting = fixture.configuration.dns.tasks();
    assert_eq!(waiting.keys().collect::<Vec<_>>(), ["new.test", "old.test"]);
    assert_eq!(waiting["old.test"], first["old.test"]);
    fixture.configuration.retranslate();
    assert_eq!(fixture.configuration.dns.tasks(), waiting);

    // A return to what is in force ends the lookups of the other names.
    assert_eq!(fixture.reload(&named(0, "old.test")).await.0, ReloadOutcome::Unchanged);
    assert_eq!(fixture.configuration.dns.tasks(), first);
    fixture.reload(&named(port, "new.test")).await;
    drop(taken);
    fixture.configuration.retranslate();
    assert_eq!(fixture.configuration.dns.tasks().keys().collect::<Vec<_>>(), ["new.test"]);
}

/// A move to an address in use changes nothing, and is retried without a request.
#[tokio::test]
async fn move_to_an_address_in_use_changes_nothing_until_it_is_free() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let mut fixture = ConfigurationFixture::new();
    fixture.reload(&text(0, &["10.0.0.1"])).await;
    let before = fixture.proxy.listeners()[0].address;
    let reloaded = fixture.reload(&text(port, &["10.0.0.2"])).await;
    assert_eq!(reloaded, (ReloadOutcome::Refused, ips(&["10.0.0.1"])));
    assert_eq!(fixture.proxy.listeners()[0].address, before);
    drop(taken);
    fixture.configuration.retranslate_at = Some(Instant::now());
    fixture.configuration.follow().await;
    assert_eq!(fixture.problems(), [""; 0]);
    assert_eq!(fixture.proxy.listeners()[0].address.port(), port);
}

/// Returns a Gateway, and a route to a Service of a cluster that stands for this name.
fn external_name(name: &str) -> SourceContents {
    let whole = text(0, &[]);
    // The class, the Gateway and the route.
    let documents: Vec<_> = whole.split("---\n").take(3).collect();
    let (mut objects, problems) = gateway::parse(&documents.join("---\n"), "test.yaml");
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": "web", "namespace": "default" },
        "spec": { "type": "ExternalName", "externalName": name, "ports": [{ "port": 80 }] },
    });
    objects.extend(gateway::objects::read(service, ObjectOrigin::default()).0);
    let networks = vec!["10.0.0.0/8".parse().unwrap()];
    let address_filter = AddressFilter::new(networks);
    SourceContents {
        objects,
        problems,
        settings: TranslationSettings { address_filter, ..TranslationSettings::default() },
        error_policy: ErrorPolicy::SkipInvalid,
    }
}

#[tokio::test(start_paused = true)]
async fn answers_outside_the_networks_are_not_used_and_reported() {
    const TTL: Duration = Duration::from_secs(60);
    let dns = ScriptedDns::default();
    dns.set_addresses("app.test", &["10.0.0.1", "127.0.0.1", "192.0.2.1"], TTL);
    let mut fixture = ConfigurationFixture::with_dns(&dns);
    fixture.configuration.reload(external_name("app.test"));
    assert_eq!(fixture.problems(), [""; 0]);
    assert_eq!(fixture.endpoints(), ips(&[]), "there is no answer yet");
    fixture.configuration.follow().await;
    assert_eq!(fixture.endpoints(), ips(&["10.0.0.1"]));

    let begun = Instant::now();
    fixture.configuration.follow().await;
    assert_eq!(begun.elapsed(), REJECTION_DELAY, "the statuses are written anew");
    let reported = fixture.rejected_answers();
    assert_eq!(
        reported,
        [
            "app.test: 127.0.0.1 is a loopback address, 192.0.2.1 is in no network of --external-names"
        ]
    );

    dns.set_addresses("app.test", &["10.0.0.2"], TTL);
    fixture.configuration.follow().await;
    assert!((TTL..TTL * 2).contains(&begun.elapsed()));
    assert_eq!(fixture.endpoints(), ips(&["10.0.0.2"]));
    fixture.configuration.follow().await;
    assert_eq!(fixture.rejected_answers(), ips(&[]));
}
