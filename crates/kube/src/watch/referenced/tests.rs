//! Tests of the watches of single Secrets and ConfigMaps against the in-memory API server.

use serde_json::{Value, json};

use super::*;
use crate::api_server::ApiServer;
use crate::{ClusterContents, ClusterObjects, ReplicaIdentity, WatchSelection};

const SECRETS: &str = "/api/v1/secrets";
const CLASSES: &str = "/apis/gateway.networking.k8s.io/v1/gatewayclasses";
const GATEWAYS: &str = "/apis/gateway.networking.k8s.io/v1/gateways";
const SECURITY_POLICIES: &str = "/apis/sheave.dev/v1alpha1/securitypolicies";
/// Virtual time, far longer than any retry takes.
const LONG: Duration = Duration::from_secs(600);

fn secret(name: &str, chain: &str) -> Value {
    let metadata = json!({ "namespace": "shop", "name": name });
    json!({ "metadata": metadata, "data": { "tls.crt": chain, "tls.key": "UEVN" } })
}

/// Returns a Gateway with a listener for each of these Secrets.
fn gateway(class: &str, secrets: &[&str]) -> Value {
    let listener = |secret: &&str| {
        json!({ "name": secret, "port": 443, "protocol": "HTTPS", "hostname": format!("{secret}.test"),
            "tls": { "certificateRefs": [{ "name": secret }] } })
    };
    let listeners: Vec<_> = secrets.iter().map(listener).collect();
    json!({ "metadata": { "namespace": "shop", "name": class },
        "spec": { "gatewayClassName": class, "listeners": listeners } })
}

/// Returns a server with two classes, one of which is ours, and a Gateway of each.
fn server(own: &[&str], foreign: &[&str]) -> ApiServer {
    let server = ApiServer::default();
    for (class, controller, secrets) in
        [("ours", "sheave.dev/gateway", own), ("theirs", "theirs.test/gateway", foreign)]
    {
        let spec = json!({ "controllerName": controller });
        server.put(CLASSES, json!({ "metadata": { "name": class }, "spec": spec }));
        server.put(GATEWAYS, gateway(class, secrets));
    }
    server
}

fn watch(server: &ApiServer) -> ClusterObjects {
    let identity = ReplicaIdentity::for_tests("us");
    ClusterObjects::new(&server.cluster(), identity, WatchSelection::default())
}

async fn load(objects: &mut ClusterObjects) -> ClusterContents {
    timeout(LONG, objects.changed()).await.expect("something changes");
    objects.load(&[], &ControllerNames::default()).await
}

/// Returns the names of the Secrets with the first part of each.
fn secrets(contents: &ClusterContents) -> Vec<(String, String)> {
    let secret = |object: &ApiObject| {
        let ApiObject::Secret(it) = object else { return None };
        let chain = String::from_utf8_lossy(it.spec.value("tls.crt")?).into_owned();
        Some((it.metadata.name.clone(), chain))
    };
    contents.objects.iter().filter_map(secret).collect()
}

fn named(name: &str, chain: &str) -> (String, String) {
    (name.to_owned(), chain.to_owned())
}

#[tokio::test(start_paused = true)]
async fn only_referenced_secrets_are_read_from_the_first_load_on() {
    let server = server(&["web", "missing"], &["foreign"]);
    for name in ["web", "foreign", "other"] {
        server.put(SECRETS, secret(name, "b25l"));
    }
    let mut objects = watch(&server);
    let contents = load(&mut objects).await;
    assert_eq!(secrets(&contents), [named("web", "one")]);
    assert_eq!(contents.unreadable, BTreeMap::new());
    // Neither the other names nor a whole collection has been asked for.
    assert_eq!(server.watched_names(SECRETS), ["missing", "web"]);
}

#[tokio::test(start_paused = true)]
async fn rotation_deletion_and_new_references_are_seen() {
    let server = server(&["web"], &[]);
    server.put(SECRETS, secret("web", "b25l"));
    server.put(SECRETS, secret("more", "b25l"));
    let mut objects = watch(&server);
    assert_eq!(secrets(&load(&mut objects).await), [named("web", "one")]);
    server.put(SECRETS, secret("web", "dHdv"));
    assert_eq!(secrets(&load(&mut objects).await), [named("web", "two")]);
    server.remove(SECRETS, "shop", "web");
    assert_eq!(secrets(&load(&mut objects).await), []);
    server.put(SECRETS, secret("web", "b25l"));
    assert_eq!(secrets(&load(&mut objects).await), [named("web", "one")]);
    // A new reference is loaded together with its Secret.
    server.put(GATEWAYS, gateway("ours", &["more", "web"]));
    assert_eq!(secrets(&load(&mut objects).await), [named("more", "one"), named("web", "one")]);
    server.put(GATEWAYS, gateway("ours", &["more"]));
    assert_eq!(secrets(&load(&mut objects).await), [named("more", "one")]);
}

#[tokio::test(start_paused = true)]
async fn refusal_is_reported_and_affects_no_other_secret() {
    let server = server(&["web", "denied"], &[]);
    server.put(SECRETS, secret("web", "b25l"));
    server.put(SECRETS, secret("denied", "b25l"));
    server.forbid(SECRETS, "denied");
    let mut objects = watch(&server);
    let contents = load(&mut objects).await;
    assert_eq!(secrets(&contents), [named("web", "one")]);
    let [(object, reason)] = &contents.unreadable.into_iter().collect::<Vec<_>>()[..] else {
        panic!("one is unreadable")
    };
    assert_eq!((object.kind, &*object.name), (CertificateObjectKind::Secret, "denied"));
    assert!(
        reason.contains("the API server refuses it") && reason.contains("Forbidden"),
        "{reason}"
    );
    // It is tried again, and works once it is permitted.
    server.permit_all();
    let contents = load(&mut objects).await;
    assert_eq!(secrets(&contents), [named("denied", "one"), named("web", "one")]);
    assert_eq!(contents.unreadable, BTreeMap::new());
}

#[test]
fn namespaces_share_the_watches() {
    let object = |namespace: &str, n: usize| CertificateObject {
        kind: CertificateObjectKind::Secret,
        namespace: namespace.to_owned(),
        name: format!("{n:04}"),
    };
    let greedy = (0..5_000).map(|n| object("a", n));
    let modest = (0..10).map(|n| object("b", n));
    let order = in_fair_order(greedy.chain(modest).collect());
    assert_eq!(order.len(), 5_010);
    let modest = order[..20].iter().filter(|it| it.namespace == "b").count();
    assert_eq!(modest, 10);
}

/// Users, keys and pages have no names by which they could be told from other values.
#[tokio::test(start_paused = true)]
async fn referenced_objects_are_kept_whole() {
    let server = ApiServer::default();
    let metadata = |name: &str| json!({ "namespace": "shop", "name": name });
    let target = json!([{ "kind": "HTTPRoute", "name": "web" }]);
    let page = json!({ "statuses": [404], "bodyRef": { "name": "pages", "key": "404.html" } });
    let users = json!({ "users": { "name": "users" } });
    server.put(
        "/apis/sheave.dev/v1alpha1/trafficpolicies",
        json!({ "metadata": metadata("t"), "spec": { "targetRefs": target, "errorPages": [page] } }),
    );
    server.put(
        "/apis/sheave.dev/v1alpha1/securitypolicies",
        json!({ "metadata": metadata("s"), "spec": { "targetRefs": target, "basicAuth": users } }),
    );
    let page = json!({ "metadata": metadata("pages"), "data": { "404.html": "lost" } });
    server.put("/api/v1/configmaps", page);
    server.put(SECRETS, json!({ "metadata": metadata("users"), "data": { "auth": "YTpi" } }));
    let contents = load(&mut watch(&server)).await;
    let values: Vec<_> = contents
        .objects
        .iter()
        .filter_map(|object| match object {
            ApiObject::Secret(it) => it.spec.value("auth").map(<[u8]>::to_vec),
            ApiObject::ConfigMap(it) => it.spec.data.get("404.html").map(|it| it.clone().into()),
            _ => None,
        })
        .collect();
    assert!(values.contains(&b"a:b".to_vec()) && values.contains(&b"lost".to_vec()), "{values:?}");
}

#[tokio::test(start_paused = true)]
async fn secrets_of_credentials_are_read_whatever_the_names_of_their_values() {
    let server = server(&[], &[]);
    server.put(
        SECURITY_POLICIES,
        json!({
            "metadata": { "namespace": "shop", "name": "clients" },
            "spec": {
                "targetRefs": [{ "kind": "Gateway", "name": "ours" }],
                "basicAuth": { "users": { "name": "users" } },
                "apiKeys": {
                    "credentialRefs": [{ "name": "keys" }],
                    "extractFrom": { "headers": ["X-API-Key"] },
                },
            },
        }),
    );
    for (name, value) in [("users", "auth"), ("keys", "office")] {
        let metadata = json!({ "namespace": "shop", "name": name });
        let secret = json!({ "metadata": metadata, "type": "Opaque", "data": { value: "b25l" } });
        server.put(SECRETS, secret);
    }
    for selection in [
        WatchSelection::default(),
        WatchSelection { all_certificates: true, ..WatchSelection::default() },
    ] {
        let identity = ReplicaIdentity::for_tests("us");
        let mut objects = ClusterObjects::new(&server.cluster(), identity, selection);
        let contents = load(&mut objects).await;
        let value = |secret: &str, value: &str| {
            contents.objects.iter().find_map(|object| match object {
                ApiObject::Secret(it) if it.metadata.name == secret => it.spec.value(value),
                _ => None,
            })
        };
        assert_eq!(value("users", "auth"), Some(&b"one"[..]));
        assert_eq!(value("keys", "office"), Some(&b"one"[..]));
    }
}
