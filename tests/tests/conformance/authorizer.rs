//! An authorizer with grpc-go and the generated code of Envoy's protocol: it reads what Sheave asks, and Sheave what it
//! answers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tests::certificates::CertificateAuthority;
use tests::configuration::SERVICE;
use tests::{Endpoint, EndpointBehaviour, HttpFixture, Result, objects};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout};
use tokio::time::timeout;

use crate::proxyless::site::CertificateFolder;
use crate::tools;

/// Longer than the authorizer takes on a busy machine.
const BOUND: Duration = Duration::from_secs(60);

/// The authorizer of `tests/conformance/authorizer`.
struct Authorizer {
    address: SocketAddr,
    questions: Lines<BufReader<ChildStdout>>,
    _running: Child,
}

impl Authorizer {
    async fn start(files: &[String]) -> Result<Self> {
        let mut command = tools::program("authorizer")?;
        let mut running = command.args(files).stdout(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(running.stdout.take().context("a pipe")?).lines();
        let address = timeout(BOUND, lines.next_line()).await??.context("an address")?;
        Ok(Self { address: address.parse()?, questions: lines, _running: running })
    }

    /// Returns the attributes of the next question.
    async fn question(&mut self) -> Result<Value> {
        let line = timeout(BOUND, self.questions.next_line()).await??.context("a question")?;
        let question: Value = serde_json::from_str(&line)?;
        Ok(question["attributes"].clone())
    }

    /// Starts Sheave with a policy that asks this authorizer.
    async fn fixture(&self, mut auth: Value, more: &[Value]) -> Result<HttpFixture> {
        auth["protocol"] = json!("GRPC");
        auth["backendRef"] = json!({ "name": "auth", "port": 80 });
        let policy = json!({
            "apiVersion": "sheave.dev/v1alpha1",
            "kind": "SecurityPolicy",
            "metadata": { "name": "auth" },
            "spec": {
                "targetRefs": [{ "kind": "HTTPRoute", "name": SERVICE }],
                "externalAuth": auth,
            },
        });
        let mut all = vec![policy, objects::service("auth")];
        all.extend(objects::slices("auth", &[self.address]));
        all.extend_from_slice(more);
        let endpoints = vec![Endpoint::start(EndpointBehaviour::ok()).await?];
        HttpFixture::with(endpoints, &all, &[]).await
    }
}

#[tokio::test]
#[ignore = "needs grpc-go: make conformance"]
async fn authorizer_of_envoys_protocol_allows_and_changes_a_request() -> Result {
    let mut authorizer = Authorizer::start(&[]).await?;
    let auth = json!({ "forwardBody": { "maxSize": 100 } });
    let fixture = authorizer.fixture(auth, &[]).await?;
    let mut client = fixture.client().await?;
    let fields = [
        ("Host", "app.test:8080"),
        ("X-User", "root"),
        ("X_User", "root"),
        ("X-Groups", "guests"),
        ("X-Token", "t"),
        ("X-A", "1"),
        ("X-A", "2"),
    ];
    let target = "/a/b?user=root&debug=1&x=%2F";
    let response = client.exchange("POST", target, &fields, b"body").await?;
    ensure!(response.status() == 200, "{response:?}");
    ensure!(response.field("set-cookie").as_deref() == Some("session=1"), "{response:?}");
    ensure!(response.field("x-served-for").as_deref() == Some("alice"), "{response:?}");

    let question = authorizer.question().await?;
    let port = client.local_address().port();
    let source = &question["source"]["address"]["socketAddress"];
    ensure!(*source == json!({ "address": "127.0.0.1", "portValue": port }), "{question}");
    let destination = &question["destination"]["address"]["socketAddress"];
    let own = fixture.sheave.address().port();
    ensure!(*destination == json!({ "address": "127.0.0.1", "portValue": own }), "{question}");
    let http = &question["request"]["http"];
    for (name, value) in [
        ("method", "POST"),
        ("path", target),
        ("host", "app.test:8080"),
        ("scheme", "http"),
        ("protocol", "HTTP/1.1"),
        ("size", "4"),
        ("body", "body"),
    ] {
        ensure!(http[name] == value, "{name}: {question}");
    }
    for (name, value) in [
        (":method", "POST"),
        (":path", target),
        (":authority", "app.test:8080"),
        (":scheme", "http"),
        ("x-user", "root"),
        ("x-a", "1,2"),
        ("x-forwarded-for", "127.0.0.1"),
    ] {
        ensure!(http["headers"][name] == value, "{name}: {question}");
    }

    let served = fixture.endpoint().only_request();
    let head = &served.head;
    ensure!(head.start == "POST /a/b?x=%2F&user=a%20b HTTP/1.1", "{head:?}");
    ensure!(head.field_values("x-user") == ["alice"] && !head.has_field("x_user"), "{head:?}");
    ensure!(head.field_values("x-groups") == ["guests", "staff"], "{head:?}");
    ensure!(!head.has_field("x-token"), "{head:?}");
    ensure!(head.field("host").as_deref() == Some("app.test:8080"), "{head:?}");
    ensure!(head.field("content-length").as_deref() == Some("4"), "{head:?}");
    ensure!(head.field("x-request-id").as_deref() == http["id"].as_str(), "{head:?}");
    Ok(())
}

#[tokio::test]
#[ignore = "needs grpc-go: make conformance"]
async fn only_the_named_fields_go_to_the_authorizer_and_come_from_it() -> Result {
    let mut authorizer = Authorizer::start(&[]).await?;
    let auth = json!({ "requestHeaders": ["X-Tenant"], "responseHeaders": ["X-Groups"] });
    let fixture = authorizer.fixture(auth, &[]).await?;
    let fields = [("X-Tenant", "t"), ("X-Groups", "guests"), ("X-User", "me"), ("Cookie", "a=b")];
    let response = fixture.client().await?.exchange("GET", "/", &fields, b"").await?;
    ensure!(response.status() == 200, "{response:?}");
    let question = authorizer.question().await?;
    ensure!(question["request"]["http"]["headers"] == json!({ "x-tenant": "t" }), "{question}");
    let head = fixture.endpoint().only_request().head;
    ensure!(head.field_values("x-groups") == ["staff"], "the client's own is removed: {head:?}");
    ensure!(head.field_values("x-user") == ["me"], "{head:?}");
    Ok(())
}

#[tokio::test]
#[ignore = "needs grpc-go: make conformance"]
async fn authorizer_of_envoys_protocol_denies_or_fails() -> Result {
    let authorizer = Authorizer::start(&[]).await?;
    let auth = json!({ "timeout": "1s" });
    let fixture = authorizer.fixture(auth, &[]).await?;
    let mut client = fixture.client().await?;
    let response = client.get("/denied").await?;
    ensure!(response.status() == 401 && response.text() == "sign in", "{response:?}");
    ensure!(response.field("www-authenticate").as_deref() == Some("Bearer"), "{response:?}");
    ensure!(response.head.field_values("set-cookie") == ["a=1", "b=2"], "{response:?}");
    let response = client.get("/moved").await?;
    ensure!(response.status() == 302, "{response:?}");
    ensure!(response.field("location").as_deref() == Some("/elsewhere"), "{response:?}");
    let mut counts = BTreeMap::from([("authorization_denied", 1.0)]);
    for (target, status, reason) in [
        ("/forbidden", 403, "authorization_denied"),
        ("/refused-call", 403, "authorization_denied"),
        ("/broken-call", 500, "authorizer_error"),
        ("/slow", 500, "authorizer_timeout"),
        ("/nothing", 500, "authorizer_error"),
        ("/large", 500, "authorizer_error"),
        ("/long-field", 500, "authorizer_error"),
        ("/injected", 500, "authorizer_error"),
        ("/error", 500, "authorizer_error"),
    ] {
        let response = fixture.client().await?.get(target).await?;
        ensure!(response.status() == status, "{target}: {response:?}");
        let count = counts.entry(reason).or_insert(0.0);
        *count += 1.0;
        fixture.sheave.wait_for_sum("sheave_failures_total", &[reason], *count).await?;
    }
    ensure!(fixture.endpoint().counts().requests == 0);
    Ok(())
}

#[tokio::test]
#[ignore = "needs grpc-go: make conformance"]
async fn authorizer_is_verified_by_its_backend_tls_policy() -> Result {
    let authority = CertificateAuthority::new();
    let folder = CertificateFolder::new(&authority, &authority, "auth.test")?;
    let files = ["tls.crt", "tls.key"].map(|name| format!("{}/{name}", folder.path()));
    let authorizer = Authorizer::start(&files).await?;
    for (name, status) in [("auth.test", 200), ("other.test", 500)] {
        let tls = objects::backend_tls_policy("auth", json!({ "hostname": name }));
        let policies = [tls, authority.config_map("ca")];
        let fixture = authorizer.fixture(json!({}), &policies).await?;
        let response = fixture.client().await?.get("/").await?;
        ensure!(response.status() == status, "{name}: {response:?}");
    }
    Ok(())
}
