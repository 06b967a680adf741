//! Ingresses, observed through their clients and endpoints.

use std::net::Ipv4Addr;

use anyhow::{Context as _, ensure};
use data_encoding::BASE64;
use serde_json::{Value, json};
use tests::{
    ConfigDirectory, Endpoint, EndpointBehaviour, Http1TestClient, Result, ServeStep,
    SheaveProcess, objects,
};

fn ingress_class() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IngressClass",
        "metadata": { "name": "sheave", "annotations": { "sheave.dev/http-port": "0" } },
        "spec": { "controller": "sheave.dev/ingress" },
    })
}

fn ingress(name: &str, annotations: Value, spec: Value) -> Value {
    let mut ingress = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": { "name": name, "annotations": annotations },
        "spec": spec,
    });
    ingress["spec"]["ingressClassName"] = "sheave".into();
    ingress
}

fn backend_ref(service: &str) -> Value {
    json!({ "service": { "name": service, "port": { "number": 80 } } })
}

fn rule(host: &str, path: &str, kind: &str, service: &str) -> Value {
    let path = json!({ "path": path, "pathType": kind, "backend": backend_ref(service) });
    json!({ "host": host, "http": { "paths": [path] } })
}

#[tokio::test]
async fn requests_are_routed_by_ingress() -> Result {
    let (shop, api) = (
        Endpoint::start(EndpointBehaviour::ok()).await?,
        Endpoint::start(EndpointBehaviour::ok()).await?,
    );
    let rules = json!([rule("shop.test", "/cart", "Prefix", "shop")]);
    let spec = json!({ "defaultBackend": backend_ref("shop"), "rules": rules });
    let pattern = rule("shop.test", "/api(/|$)(.*)", "ImplementationSpecific", "api");
    let rewrite = json!({ "nginx.ingress.kubernetes.io/rewrite-target": "/v1/$2" });
    let moved =
        json!({ "nginx.ingress.kubernetes.io/temporal-redirect": "http://new.test$request_uri" });
    let mut all = vec![
        ingress_class(),
        ingress("shop", json!({}), spec),
        ingress("api", rewrite, json!({ "rules": [pattern] })),
        ingress("old", moved, json!({ "rules": [rule("old.test", "/", "Prefix", "shop")] })),
        objects::service("shop"),
        objects::service("api"),
    ];
    all.extend(objects::slices("shop", &[shop.address]));
    all.extend(objects::slices("api", &[api.address]));
    let configuration = ConfigDirectory::empty()?;
    configuration.write("main.yaml", &all)?;
    let sheave = SheaveProcess::serve(&configuration).await?;
    let mut client = Http1TestClient::connect(sheave.address()).await?;
    for (host, target, routed) in [
        ("shop.test", "/cart/1", (&shop, "/cart/1")),
        ("shop.test", "/else", (&shop, "/else")),
        ("other.test", "/", (&shop, "/")),
        ("shop.test", "/api/users?id=1", (&api, "/v1/users?id=1")),
        ("shop.test", "/api", (&api, "/v1")),
        ("shop.test", "/apis", (&shop, "/apis")),
    ] {
        let response = client.exchange("GET", target, &[("Host", host)], b"").await?;
        ensure!(response.status() == 200, "{host}{target}: {response:?}");
        let (endpoint, expected) = routed;
        let seen = endpoint.requests().pop().map(|seen| seen.head.target().to_owned());
        assert_eq!(seen.as_deref(), Some(expected), "{host}{target}");
    }
    let response = client.exchange("GET", "/a?b", &[("Host", "old.test")], b"").await?;
    assert_eq!(
        (response.status(), response.field("location")),
        (302, Some("http://new.test/a?b".to_owned()))
    );
    Ok(())
}

#[tokio::test]
async fn ingress_with_unsupported_access_control_is_not_served() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let spec = json!({ "rules": [rule("shop.test", "/", "Prefix", "shop")] });
    let mut all =
        vec![ingress_class(), ingress("shop", json!({}), spec.clone()), objects::service("shop")];
    all.extend(objects::slices("shop", &[endpoint.address]));
    let configuration = ConfigDirectory::empty()?;
    configuration.write("main.yaml", &all)?;
    let sheave = SheaveProcess::serve(&configuration).await?;
    let lines = sheave.log_line_count();
    let guard = json!({ "nginx.ingress.kubernetes.io/auth-snippet": "deny all;" });
    all[1] = ingress("shop", guard, spec);
    configuration.write("main.yaml", &all)?;
    sheave.wait_for_log(lines, "nginx.ingress.kubernetes.io/auth-snippet is not supported").await?;
    // A file is loaded as a whole or not at all: the previous version stays in force.
    let mut client = Http1TestClient::connect(sheave.address()).await?;
    let response = client.exchange("GET", "/", &[("Host", "shop.test")], b"").await?;
    assert_eq!(response.status(), 200);
    Ok(())
}

/// Returns annotations of ingress-nginx.
fn annotations(settings: Value) -> Value {
    let settings = settings.as_object().into_iter().flatten();
    let named = settings
        .map(|(name, value)| (format!("nginx.ingress.kubernetes.io/{name}"), value.clone()));
    Value::from_iter(named)
}

/// The answers to a client of 127.0.0.1 with allowed and denied networks.
#[tokio::test]
async fn nginx_annotations_admit_clients_by_address() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let cases = [
        ("a.test", json!({ "whitelist-source-range": "10.0.0.0/8, 127.0.0.0/8" }), 200),
        ("b.test", json!({ "whitelist-source-range": "10.0.0.0/8" }), 403),
        ("c.test", json!({ "allowlist-source-range": "10.0.0.0/8" }), 403),
        ("d.test", json!({ "denylist-source-range": "127.0.0.1" }), 403),
        ("e.test", json!({ "denylist-source-range": "10.0.0.0/8" }), 200),
        (
            "f.test",
            json!({ "allowlist-source-range": "0.0.0.0/0", "denylist-source-range": "127.0.0.1" }),
            403,
        ),
    ];
    let mut all = vec![ingress_class(), objects::service("shop")];
    all.extend(objects::slices("shop", &[endpoint.address]));
    for (host, settings, _) in &cases {
        let spec = json!({ "rules": [rule(host, "/", "Prefix", "shop")] });
        all.push(ingress(host, annotations(settings.clone()), spec));
    }
    let configuration = ConfigDirectory::empty()?;
    configuration.write("main.yaml", &all)?;
    let sheave = SheaveProcess::serve(&configuration).await?;
    // The listener is of both families, so that it sees the address in its IPv6 form.
    let address = (Ipv4Addr::LOCALHOST, sheave.address().port()).into();
    let mut client = Http1TestClient::connect(address).await?;
    for (host, settings, status) in cases {
        let response = client.exchange("GET", "/", &[("Host", host)], b"").await?;
        ensure!(response.status() == status, "{settings}: {response:?}");
    }
    Ok(())
}

/// Users with their passwords, in both forms of the Secret.
#[tokio::test]
async fn nginx_annotations_ask_for_passwords() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    // Made by `htpasswd` of the password `secret`.
    let bcrypt = "$2y$05$PhRmFM0twWKvgUsfTnxtCOUtaX/xEKwZl5DFPaJFrqB/Wo0l4wtZq";
    let apr1 = "$apr1$1ldR0To.$ByyxwvND8ojBXW2mdNGtV/";
    let secret = |name: &str, values: Value| {
        let metadata = json!({ "name": name });
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": values })
    };
    let file = json!({ "auth-type": "basic", "auth-secret": "file", "auth-realm": "Shop" });
    let map = json!({
        "auth-type": "basic",
        "auth-secret": "default/map",
        "auth-secret-type": "auth-map",
    });
    let mut all = vec![
        ingress_class(),
        objects::service("shop"),
        secret("file", json!({ "auth": format!("ann:{bcrypt}\nbob:{apr1}\n") })),
        secret("map", json!({ "eve": apr1 })),
    ];
    all.extend(objects::slices("shop", &[endpoint.address]));
    for (host, settings) in [("file.test", file), ("map.test", map)] {
        let spec = json!({ "rules": [rule(host, "/", "Prefix", "shop")] });
        all.push(ingress(host, annotations(settings), spec));
    }
    let configuration = ConfigDirectory::empty()?;
    configuration.write("main.yaml", &all)?;
    let sheave = SheaveProcess::serve(&configuration).await?;
    let mut client = Http1TestClient::connect(sheave.address()).await?;
    for (host, user, status, realm) in [
        ("file.test", "ann:secret", 200, ""),
        ("file.test", "bob:secret", 200, ""),
        ("file.test", "bob:wrong", 401, "Shop"),
        ("file.test", "eve:secret", 401, "Shop"),
        ("map.test", "eve:secret", 200, ""),
        ("map.test", "ann:secret", 401, ""),
    ] {
        let value = format!("Basic {}", BASE64.encode(user.as_bytes()));
        let fields = [("Host", host), ("Authorization", &*value)];
        let response = client.exchange("GET", "/", &fields, b"").await?;
        ensure!(response.status() == status, "{host} {user}: {response:?}");
        let challenge = response.field("www-authenticate");
        let expected = format!("Basic realm=\"{realm}\", charset=\"UTF-8\"");
        ensure!(challenge == (status == 401).then_some(expected), "{response:?}");
    }
    let has_password = endpoint.requests().iter().any(|it| it.head.has_field("authorization"));
    ensure!(!has_password, "endpoints do not get the passwords");
    Ok(())
}

#[tokio::test]
async fn nginx_snippets_change_fields_and_restrict_clients() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let snippets = [
        (
            "fields.test",
            "more_set_headers \"X-Frame-Options: DENY\";\nadd_header X-Robots-Tag noindex always;\n\
             proxy_set_header X-Tenant blue;\nproxy_set_header X-Secret \"\";",
            200,
        ),
        ("office.test", "allow 192.0.2.0/24;\ndeny all;", 403),
        ("local.test", "allow 127.0.0.0/8; allow ::1;\ndeny all;", 200),
        ("gone.test", "return 403;", 403),
        ("lost.test", "return 404;", 404),
        ("text.test", "default_type text/plain;\nreturn 200 \"ok\\n\";", 200),
        ("moved.test", "return 308 https://new.test$request_uri;", 308),
    ];
    let mut all = vec![ingress_class(), objects::service("shop")];
    all.extend(objects::slices("shop", &[endpoint.address]));
    for (host, snippet, _) in snippets {
        let settings = annotations(json!({ "configuration-snippet": snippet }));
        let rules = json!({ "rules": [rule(host, "/", "Prefix", "shop")] });
        all.push(ingress(host, settings, rules));
    }
    let configuration = ConfigDirectory::empty()?;
    configuration.write("main.yaml", &all)?;
    let sheave = SheaveProcess::serve(&configuration).await?;
    let mut client = Http1TestClient::connect(sheave.address()).await?;
    for (host, _, status) in snippets {
        let fields = [("Host", host), ("X-Secret", "a"), ("X-Tenant", "red")];
        let response = client.exchange("GET", "/a", &fields, b"").await?;
        ensure!(response.status() == status, "{host}: {response:?}");
        if host == "fields.test" {
            ensure!(response.field("x-frame-options").as_deref() == Some("DENY"), "{response:?}");
            ensure!(response.field("x-robots-tag").as_deref() == Some("noindex"), "{response:?}");
            let seen = endpoint.requests().pop().context("no request")?;
            ensure!(seen.head.field("x-tenant").as_deref() == Some("blue"), "{seen:?}");
            ensure!(!seen.head.has_field("x-secret"), "{seen:?}");
        }
        if host == "text.test" {
            ensure!(response.text() == "ok\n", "{response:?}");
            let content_type = response.field("content-type");
            ensure!(content_type.as_deref() == Some("text/plain"), "{response:?}");
        }
        if status == 308 {
            let location = response.field("location");
            ensure!(location.as_deref() == Some("https://new.test/a"), "{response:?}");
        }
    }
    ensure!(endpoint.counts().requests == 2, "{:?}", endpoint.counts());
    Ok(())
}

/// Limits, canaries and CORS of ingress-nginx, as a client sees them.
#[tokio::test]
async fn nginx_annotations_limit_divert_and_permit_requests() -> Result {
    let (shop, canary, busy) = (
        Endpoint::start(EndpointBehaviour::ok()).await?,
        Endpoint::start(EndpointBehaviour::ok()).await?,
        Endpoint::start(EndpointBehaviour::gated()).await?,
    );
    let of_host = |host: &str, service: &str| rule(host, "/", "Prefix", service);
    let limits = annotations(json!({ "limit-rpm": "1", "limit-burst-multiplier": "2" }));
    let limited = json!({ "rules": [of_host("a.test", "shop"), of_host("b.test", "shop")] });
    let share = annotations(json!({ "canary": "true", "canary-by-header": "X-Canary" }));
    let in_flight = annotations(json!({ "limit-connections": "1" }));
    let cors = annotations(json!({ "enable-cors": "true" }));
    let sized = annotations(json!({ "proxy-body-size": "1k" }));
    let mut all = vec![
        ingress_class(),
        ingress("limited", limits, limited),
        ingress("main", cors, json!({ "rules": [of_host("c.test", "shop")] })),
        ingress("canary", share, json!({ "rules": [of_host("c.test", "canary")] })),
        ingress("sized", sized, json!({ "rules": [of_host("e.test", "shop")] })),
        ingress("busy", in_flight, json!({ "rules": [of_host("d.test", "busy")] })),
    ];
    for (name, endpoint) in [("shop", &shop), ("canary", &canary), ("busy", &busy)] {
        all.push(objects::service(name));
        all.extend(objects::slices(name, &[endpoint.address]));
    }
    let configuration = ConfigDirectory::empty()?;
    configuration.write("main.yaml", &all)?;
    let sheave = SheaveProcess::serve(&configuration).await?;
    let mut client = Http1TestClient::connect(sheave.address()).await?;
    // One request and a burst of two, for both hosts together.
    for (host, status) in [("a.test", 200), ("b.test", 200), ("a.test", 200), ("b.test", 503)] {
        let response = client.exchange("GET", "/", &[("Host", host)], b"").await?;
        ensure!(response.status() == status, "{host}: {response:?}");
    }
    let before = shop.counts().requests;
    for (value, of_canary, of_main) in [("always", 1, 0), ("never", 1, 1), ("other", 1, 2)] {
        let fields = [("Host", "c.test"), ("X-Canary", value), ("Origin", "http://o.test")];
        let response = client.exchange("GET", "/", &fields, b"").await?;
        ensure!(response.status() == 200, "{value}: {response:?}");
        ensure!(response.field("access-control-allow-origin").as_deref() == Some("*"));
        ensure!(response.field("access-control-allow-credentials").is_none(), "{response:?}");
        let counts = (canary.counts().requests, shop.counts().requests - before);
        ensure!(counts == (of_canary, of_main), "{value}: {counts:?}");
    }
    for (bytes, status) in [(1024, 200), (1025, 413)] {
        let mut client = Http1TestClient::connect(sheave.address()).await?;
        let fields = [("Host", "e.test")];
        let response = client.exchange("POST", "/", &fields, &vec![b'a'; bytes]).await?;
        ensure!(response.status() == status, "{bytes}: {response:?}");
    }
    let mut first = Http1TestClient::connect(sheave.address()).await?;
    first.send("GET / HTTP/1.1\r\nHost: d.test\r\n\r\n").await?;
    busy.wait_for_counts("a request", |counts| counts.in_flight == 1).await?;
    let rejected = client.exchange("GET", "/", &[("Host", "d.test")], b"").await?;
    ensure!(rejected.status() == 429, "{rejected:?}");
    busy.open_gate(1);
    ensure!(first.response("GET").await?.status() == 200);
    Ok(())
}

/// An authorizer below the path of the same host, as oauth2-proxy is installed, and one by the name of its Service.
#[tokio::test]
async fn nginx_annotations_ask_an_authorizer() -> Result {
    let (shop, authorizer) = (
        Endpoint::start(EndpointBehaviour::ok()).await?,
        Endpoint::start(vec![
            ServeStep::ReadBody,
            ServeStep::AnswerFor(
                "/oauth2/auth",
                "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nSet-Cookie: csrf=1\r\n\r\n",
            ),
            ServeStep::send("HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\nX-User: alice\r\n\r\n"),
        ])
        .await?,
    );
    let service = "http://auth.default.svc.cluster.local:80/check";
    let sign_in = annotations(json!({
        "auth-url": "https://$host/oauth2/auth",
        "auth-signin": "https://$host/oauth2/start?rd=$escaped_request_uri",
    }));
    let open = annotations(json!({ "auth-url": service, "auth-response-headers": "X-User" }));
    let mut all = vec![
        ingress_class(),
        ingress("a", sign_in, json!({ "rules": [rule("a.test", "/", "Prefix", "shop")] })),
        ingress("b", open, json!({ "rules": [rule("b.test", "/", "Prefix", "shop")] })),
        ingress(
            "proxy",
            json!({}),
            json!({ "rules": [rule("a.test", "/oauth2", "Prefix", "auth")] }),
        ),
    ];
    for (name, endpoint) in [("shop", &shop), ("auth", &authorizer)] {
        all.push(objects::service(name));
        all.extend(objects::slices(name, &[endpoint.address]));
    }
    let configuration = ConfigDirectory::empty()?;
    configuration.write("main.yaml", &all)?;
    let sheave = SheaveProcess::serve(&configuration).await?;
    let mut client = Http1TestClient::connect(sheave.address()).await?;
    let fields = [("Host", "a.test"), ("X-Any", "1"), ("X-User", "root")];
    let response = client.exchange("POST", "/cart?x=1", &fields, b"body").await?;
    ensure!(response.status() == 302, "{response:?}");
    let location = response.field("location");
    ensure!(location.as_deref() == Some("https://a.test/oauth2/start?rd=%2Fcart%3Fx%3D1"));
    ensure!(response.field("set-cookie").as_deref() == Some("csrf=1"), "{response:?}");
    let asked = authorizer.only_request().head;
    ensure!(asked.start == "GET /oauth2/auth HTTP/1.1", "{asked:?}");
    ensure!(asked.field("host").as_deref() == Some("a.test"), "{asked:?}");
    ensure!(asked.field("x-any").as_deref() == Some("1"), "{asked:?}");
    ensure!(asked.field("x-original-url").as_deref() == Some("http://a.test/cart?x=1"));
    ensure!(shop.counts().requests == 0, "{:?}", shop.counts());
    // The sign-in page itself is open.
    let mut client = Http1TestClient::connect(sheave.address()).await?;
    let page = client.exchange("GET", "/oauth2/start", &[("Host", "a.test")], b"").await?;
    ensure!(page.status() == 202, "{page:?}");
    let fields = [("Host", "b.test"), ("X-User", "root")];
    let response = client.exchange("GET", "/", &fields, b"").await?;
    ensure!(response.status() == 200, "{response:?}");
    let served = shop.only_request().head;
    ensure!(served.field("x-user").as_deref() == Some("alice"), "{served:?}");
    let asked = &authorizer.requests()[2].head;
    ensure!(asked.field("host").as_deref() == Some("auth.default.svc.cluster.local:80"));
    Ok(())
}

#[tokio::test]
async fn nginx_error_pages_and_header_fields_are_served() -> Result {
    let lost = "HTTP/1.1 404 Lost\r\nContent-Length: 4\r\n\r\nlost";
    let (shop, errors) = (
        Endpoint::start(EndpointBehaviour::answering(lost)).await?,
        Endpoint::start(EndpointBehaviour::ok()).await?,
    );
    let pages = json!({
        "custom-http-errors": "404,503",
        "default-backend": "errors",
        "custom-headers": "default/fields",
    });
    let fields = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": "fields" },
        "data": { "X-Frame-Options": "DENY" },
    });
    let spare = annotations(json!({ "default-backend": "errors" }));
    let of = |host: &str, service: &str| json!({ "rules": [rule(host, "/", "Prefix", service)] });
    let mut all = vec![
        ingress_class(),
        fields,
        ingress("shop", annotations(pages), of("shop.test", "shop")),
        ingress("idle", spare, of("idle.test", "idle")),
    ];
    all.extend(["shop", "errors", "idle"].map(objects::service));
    all.extend(objects::slices("shop", &[shop.address]));
    all.extend(objects::slices("errors", &[errors.address]));
    let configuration = ConfigDirectory::empty()?;
    configuration.write("main.yaml", &all)?;
    let sheave = SheaveProcess::serve(&configuration).await?;
    let mut client = Http1TestClient::connect(sheave.address()).await?;
    for (host, code, line, service) in [
        ("shop.test", "404", "GET / HTTP/1.1", "shop"),
        ("idle.test", "503", "GET /a HTTP/1.1", "idle"),
    ] {
        let response = client.exchange("GET", "/a", &[("Host", host)], b"").await?;
        // nginx: the status is that of the default backend.
        ensure!(response.status() == 200, "{host}: {response:?}");
        let asked = errors.requests().pop().context("no query")?.head;
        ensure!(asked.start == line, "{asked:?}");
        for (name, value) in [
            ("x-code", code),
            ("x-namespace", "default"),
            ("x-ingress-name", service),
            ("x-service-name", service),
        ] {
            ensure!(asked.field(name).as_deref() == Some(value), "{name}: {asked:?}");
        }
        let frames = response.field("x-frame-options");
        ensure!(frames.is_some() == (host == "shop.test"), "{response:?}");
    }
    Ok(())
}
