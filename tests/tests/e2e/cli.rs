//! The command line: bad input gives an error of one line that says what to do, and the exit code
//! distinguishes user errors from failures.

use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::process::Output;

use anyhow::{Context as _, ensure};
use serde_json::json;
use tests::configuration::SERVICE;
use tests::sheave::run;
use tests::{
    ConfigDirectory, Endpoint, EndpointBehaviour, Http1TestClient, Result, SheaveProcess, objects,
};

/// Returns what a finished command has written to both outputs.
fn combined_output(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// Checks that the command ends with this exit code and prints all of these parts.
async fn check_exit(arguments: &[&str], code: i32, parts: &[&str]) -> Result<String> {
    let output = run(arguments).await?;
    let text = combined_output(&output);
    ensure!(output.status.code() == Some(code), "{arguments:?}: {}: {text}", output.status);
    for part in parts {
        ensure!(text.contains(part), "{arguments:?}: {part:?} is missing in:\n{text}");
    }
    Ok(text)
}

/// Checks the same, and that the error is a single line.
async fn check_one_line_error(arguments: &[&str], parts: &[&str]) -> Result {
    let text = check_exit(arguments, 1, &[]).await?;
    let errors: Vec<&str> = text.lines().filter(|line| !line.contains("INFO")).collect();
    ensure!(errors.len() == 1, "{arguments:?}: not one line:\n{text}");
    ensure!(parts.iter().all(|part| errors[0].contains(part)), "{arguments:?}: {}", errors[0]);
    Ok(())
}

#[tokio::test]
async fn transparent_mode_that_cannot_start_gives_a_one_line_error() -> Result {
    let serve = |more: &[&'static str]| {
        [&["serve", "--kubernetes", "--transparent", "--admin", "off"], more].concat()
    };
    let addresses = ["--transparent-addresses", "127.0.0.1"];
    check_one_line_error(&serve(&addresses), &["127.0.0.1 is a loopback", "pods cannot reach"])
        .await?;
    let addresses = ["--transparent-addresses", "203.0.113.1"];
    check_one_line_error(&serve(&addresses), &["203.0.113.1 is no address of this node"]).await?;
    // Every address of the machine has this port taken; a machine without a network has no address at all.
    let taken = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0))?;
    let port = taken.local_addr()?.port();
    let ports = format!("{port}-{port}");
    let arguments = [&serve(&[])[..], &["--transparent-ports", &ports]].concat();
    check_one_line_error(&arguments, &["--transparent-"]).await?;
    check_exit(&["serve", "--transparent"], 1, &["--kubernetes"]).await?;
    check_exit(&["probe", "live", "--ready-file", "/nowhere"], 1, &["not ready yet"]).await?;
    Ok(())
}

#[tokio::test]
async fn unusable_listen_address_gives_a_one_line_error() -> Result {
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let taken = taken.local_addr()?.to_string();
    let url = format!("http://{taken}");
    let to = ["--to", "127.0.0.1:1", "--admin", "127.0.0.1:0"];
    let serve = |url| [&["serve", "--listen", url], &to[..]].concat();
    check_one_line_error(&serve(&url), &[&taken, "another process listens there"]).await?;
    // An address that no machine has (RFC 5737).
    check_one_line_error(&serve("http://203.0.113.1:8080"), &["203.0.113.1:8080"]).await?;

    let admin =
        ["serve", "--listen", "http://127.0.0.1:0", "--to", "127.0.0.1:1", "--admin", &taken];
    check_one_line_error(&admin, &[&taken, "--admin", "another process listens there"]).await?;
    if !rustix::process::geteuid().is_root() && TcpListener::bind("127.0.0.1:1").is_err() {
        check_one_line_error(&serve("http://127.0.0.1:1"), &["127.0.0.1:1", "1024"]).await?;
    }
    Ok(())
}

#[tokio::test]
async fn unreadable_configuration_is_named() -> Result {
    let serve = ["serve", "--config", "/nowhere/at/all.yaml", "--admin", "127.0.0.1:0"];
    check_exit(&serve, 1, &["/nowhere/at/all.yaml", "no such file"]).await?;
    check_exit(&["check", "/nowhere/at/all.yaml"], 1, &["/nowhere/at/all.yaml", "no such file"])
        .await?;
    Ok(())
}

#[tokio::test]
async fn invalid_flags_give_an_actionable_error() -> Result {
    let cases: [(&[&str], &[&str]); 9] = [
        (&["serve"], &["--config", "--listen"]),
        (&["serve", "--to", "127.0.0.1:1"], &["--listen"]),
        (&["serve", "--listen", "http://:0"], &["--to"]),
        (&["serve", "--listen", "https://:0", "--to", "127.0.0.1:1", "--cert", "a"], &["--key"]),
        (&["serve", "--listen", "http://:0", "--to", "nonsense"], &["--to", "nonsense"]),
        (
            &["serve", "--listen", "http://:0", "--to", "127.0.0.1:1", "--max-in-flight", "0"],
            &["--max-in-flight"],
        ),
        (&["serve", "--config", ".", "--workers", "0"], &["--workers"]),
        (&["serve", "--config", ".", "--no-such-flag"], &["--no-such-flag"]),
        (&["no-such-command"], &["no-such-command"]),
    ];
    for (arguments, parts) in cases {
        check_exit(arguments, 1, parts).await?;
    }
    Ok(())
}

const INVALID_OBJECTS: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: { name: edge }
spec:
  gatewayClassName: sheave
  lisseners: []
  listeners:
  - { name: http, protocol: HTTP, port: 70000 }
---
apiVersion: sheave.dev/v1alpha1
kind: BackendPolicy
metadata: { name: limits }
spec:
  targetRefs: [{ group: "", kind: Service, name: app }]
  maxInFlightPerEndpoint: -1
  queue: { timeout: soon }
"#;

/// Location of each error in [`INVALID_OBJECTS`].
const ERRORS: [&str; 4] = [
    "document 1: Gateway default/edge: spec.lisseners",
    "document 1: Gateway default/edge: spec.listeners[0].port",
    "document 2: BackendPolicy default/limits: spec.maxInFlightPerEndpoint",
    "document 2: BackendPolicy default/limits: spec.queue.timeout",
];

#[tokio::test]
async fn every_configuration_error_is_reported_with_its_location() -> Result {
    let configuration = ConfigDirectory::empty()?;
    configuration.write_text("wrong.yaml", INVALID_OBJECTS)?;
    configuration.write_text("broken.yaml", "a: [1,\n")?;
    let path = configuration.path().to_str().unwrap().to_owned();
    let serve = ["serve", "--config", &path, "--admin", "127.0.0.1:0"];
    for command in [&["check", &path][..], &serve] {
        let text = check_exit(command, 1, &ERRORS).await?;
        let wrong = text.lines().filter(|line| line.contains("wrong.yaml: document"));
        ensure!(wrong.count() >= ERRORS.len(), "{text}");
        ensure!(text.contains("broken.yaml"), "{text}");
        ensure!(
            text.lines().last().unwrap().contains("errors"),
            "no number of errors at the end:\n{text}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn valid_configuration_passes_check() -> Result {
    let configuration = ConfigDirectory::for_endpoints(&["127.0.0.1:1".parse()?])?;
    let path = configuration.path().to_str().unwrap().to_owned();
    check_exit(&["check", &path], 0, &["5 objects, fine"]).await?;
    // Hidden files and files of other types are not configuration.
    configuration.write_text(".hidden.yaml", INVALID_OBJECTS)?;
    configuration.write_text("README.md", INVALID_OBJECTS)?;
    check_exit(&["check", &path], 0, &["5 objects, fine"]).await?;
    Ok(())
}

#[tokio::test]
async fn duplicate_object_names_both_files() -> Result {
    let configuration = ConfigDirectory::for_endpoints(&["127.0.0.1:1".parse()?])?;
    let mut other = objects::service(SERVICE);
    other["spec"]["ports"][0]["port"] = json!(81);
    configuration.write("twice.yaml", &[other])?;
    let path = configuration.path().to_str().unwrap().to_owned();
    check_exit(&["check", &path], 1, &["main.yaml", "twice.yaml", "Service default/app"]).await?;
    Ok(())
}

#[tokio::test]
async fn flags_serve_like_configuration_files() -> Result {
    let gated = Endpoint::start(EndpointBehaviour::gated()).await?;
    let to = gated.address.to_string();
    let flags = ["--listen", "http://127.0.0.1:0", "--to", &to];
    let limits = ["--max-in-flight", "1", "--queue", "1", "--queue-timeout", "1h"];
    let sheave = SheaveProcess::start(flags.iter().chain(&limits)).await?;
    let mut clients = Vec::new();
    for _ in 0..2 {
        let mut client = Http1TestClient::connect(sheave.address()).await?;
        client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await?;
        clients.push(client);
    }
    sheave.wait_for_queue_length(1).await?;
    ensure!(Http1TestClient::connect(sheave.address()).await?.get("/").await?.status() == 429);
    gated.open_gate(2);
    for client in &mut clients {
        ensure!(client.response("GET").await?.status() == 200);
    }
    Ok(())
}

#[tokio::test]
async fn listen_without_an_address_binds_all_interfaces() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let to = endpoint.address.to_string();
    let sheave = SheaveProcess::start(["--listen", "http://:0", "--to", &to]).await?;
    let mut addresses = vec![SocketAddr::from(([127, 0, 0, 1], sheave.address().port()))];
    // On a machine without IPv6 the listener is IPv4 only.
    if TcpListener::bind("[::1]:0").is_ok() {
        addresses.push((Ipv6Addr::LOCALHOST, sheave.address().port()).into());
    }
    for address in addresses {
        ensure!(
            Http1TestClient::connect(address).await?.get("/").await?.status() == 200,
            "{address}"
        );
    }
    let seen = endpoint.requests();
    let clients: Vec<_> = seen.iter().map(|seen| seen.head.field("x-forwarded-for")).collect();
    ensure!(clients[0].as_deref() == Some("127.0.0.1"), "{clients:?}");
    Ok(())
}

#[tokio::test]
async fn endpoints_may_be_dns_names() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let to = format!("localhost:{}", endpoint.address.port());
    let sheave = SheaveProcess::start(["--listen", "http://127.0.0.1:0", "--to", &to]).await?;
    ensure!(Http1TestClient::connect(sheave.address()).await?.get("/").await?.status() == 200);
    Ok(())
}

#[tokio::test]
async fn migrated_ingresses_are_served_as_gateway_api() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let ingress = |name: &str, annotation: &str, value: &str| {
        let annotations = json!({ format!("nginx.ingress.kubernetes.io/{annotation}"): value });
        let service = json!({ "name": SERVICE, "port": { "number": 80 } });
        let path = json!({ "path": "/", "pathType": "Prefix", "backend": { "service": service } });
        json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "Ingress",
            "metadata": { "name": name, "annotations": annotations },
            "spec": {
                "ingressClassName": "nginx",
                "rules": [{ "host": format!("{name}.test"), "http": { "paths": [path] } }],
            },
        })
    };
    let class = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IngressClass",
        "metadata": { "name": "nginx", "annotations": { "sheave.dev/http-port": "0" } },
        "spec": { "controller": "k8s.io/ingress-nginx" },
    });
    let others =
        json!({ "apiVersion": "example.com/v1", "kind": "Other", "metadata": { "name": "a" } });
    let ingresses = ConfigDirectory::empty()?;
    let sized = ingress("sized", "proxy-body-size", "1k");
    let plain = ingress("plain", "proxy-cookie-path", "/a /b");
    let shop = [class, sized, plain, others];
    ingresses.write("ingresses.yaml", &shop)?;
    let input = ingresses.path().join("ingresses.yaml");
    let input = input.to_str().context("a path of text")?;
    let output = run(&["migrate", input]).await?;
    let report = String::from_utf8(output.stderr)?;
    ensure!(output.status.success(), "{report}");
    for line in ["Ingress default/sized: served as before", "Ingress default/plain: served with"] {
        ensure!(report.contains(line), "{report}");
    }

    let migrated = ConfigDirectory::empty()?;
    let mut services = vec![objects::service(SERVICE)];
    services.extend(objects::slices(SERVICE, &[endpoint.address]));
    migrated.write("services.yaml", &services)?;
    migrated.write_text("gateway-api.yaml", &String::from_utf8(output.stdout)?)?;
    let sheave = SheaveProcess::serve(&migrated).await?;
    for (host, bytes, status) in
        [("sized.test", 1024, 200), ("sized.test", 1025, 413), ("plain.test", 1025, 200)]
    {
        let mut client = Http1TestClient::connect(sheave.address()).await?;
        let fields = [("Host", host)];
        let response = client.exchange("POST", "/", &fields, &vec![b'a'; bytes]).await?;
        ensure!(response.status() == status, "{host}: {response:?}");
    }

    let guarded = ingress("guarded", "auth-snippet", "deny all;");
    ingresses.write("ingresses.yaml", &[guarded])?;
    check_exit(&["migrate", input], 1, &["default/guarded: refused", "auth-snippet"]).await?;
    let other = ["migrate", "--ingress-class", "other", input];
    check_exit(&other, 1, &["there is no Ingress of class other"]).await?;
    check_exit(&["migrate", "/nowhere.yaml"], 1, &["/nowhere.yaml"]).await?;
    Ok(())
}

#[tokio::test]
async fn explain_shows_the_route_of_a_request() -> Result {
    let configuration = ConfigDirectory::for_endpoints(&["10.0.0.1:80".parse()?])?;
    let path = configuration.path().to_str().unwrap();
    let explain = ["explain", path, "GET", "http://a.test/path"];
    check_exit(&explain, 0, &["default/edge/http", "default/app/0", "10.0.0.1:80", "LeastLoad"])
        .await?;
    check_one_line_error(&["explain", path, "GET", "a.test"], &["http://a.test"]).await?;
    check_one_line_error(&["explain", path, "GET", "http://a.test:81/"], &["port 81"]).await?;
    check_exit(&["explain", "/nowhere.yaml", "GET", "http://a.test/"], 1, &["no such file"])
        .await?;
    Ok(())
}

#[tokio::test]
async fn explain_shows_the_scaling_of_a_service() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let configuration = ConfigDirectory::for_endpoints(&[endpoint.address])?;
    let sheave = SheaveProcess::serve(&configuration).await?;
    let admin = sheave.admin.to_string();
    let explain = |service| ["explain", "--scaling", service, "--admin", &admin];
    let told = ["service    default/app:80", "demand     0.00", "endpoints  1, 1 serving"];
    check_exit(&explain("default/app"), 0, &told).await?;
    check_exit(&explain("app:80"), 0, &told).await?;
    let unknown = ["no route refers to Service shop/app", "default/app:80"];
    check_one_line_error(&explain("shop/app"), &unknown).await?;
    check_exit(&explain("a/b/c"), 1, &["NAMESPACE/NAME:PORT"]).await?;
    drop(sheave);
    check_one_line_error(&explain("app"), &["cannot read the demand at", &admin]).await?;
    check_exit(&["explain", "--scaling", "app", "/etc/sheave"], 1, &["cannot be used with"])
        .await?;
    Ok(())
}

#[tokio::test]
async fn top_prints_tables_without_a_terminal() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let configuration = ConfigDirectory::for_endpoints(&[endpoint.address])?;
    let sheave = SheaveProcess::serve(&configuration).await?;
    let (admin, address) = (sheave.admin.to_string(), endpoint.address.to_string());
    let top = ["top", "--admin", &admin, "--interval", "10ms", "--count", "2"];
    let text = check_exit(&top, 0, &["BACKEND", "REQ/S", "default/app:80", &address]).await?;
    ensure!(text.matches("BACKEND").count() == 2, "{text}");
    ensure!(text.lines().all(|line| line.chars().count() <= 80), "{text}");

    let free = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    check_one_line_error(&["top", "--admin", &free], &[&free, "sheave serve"]).await?;
    Ok(())
}

#[tokio::test]
async fn help_lists_commands_and_flags() -> Result {
    let commands = ["serve", "check", "Examples", "Exit codes"];
    check_exit(&["--help"], 0, &commands).await?;
    let serve = [
        "--config",
        "--listen",
        "--to",
        "--admin",
        "--workers",
        "--max-in-flight",
        "--queue",
        "--queue-timeout",
        "--access-log",
        "--drain-timeout",
        "--ready-file",
        "--log-format",
        "default",
        "SIGTERM",
        "Examples",
    ];
    check_exit(&["serve", "--help"], 0, &serve).await?;
    check_exit(&["check", "--help"], 0, &["PATH", "Examples"]).await?;
    check_exit(&["--version"], 0, &["sheave "]).await?;
    Ok(())
}

#[tokio::test]
async fn the_access_log_has_a_line_for_each_request() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let configuration = ConfigDirectory::for_endpoints(&[endpoint.address])?;
    let sheave = SheaveProcess::serve_with(&configuration, &["--access-log", "on"]).await?;
    let mut client = Http1TestClient::connect(sheave.address()).await?;
    client.post("/path?query=1", b"hello").await?;
    client.get("/second").await?;
    let lines = sheave.wait_for_access_log(2).await?;
    let expected = json!({
        "http.request.method": "POST",
        "url.path": "/path",
        "http.response.status_code": 200,
        "http.request.body.size": 5,
        "http.response.body.size": 2,
        "client.address": "127.0.0.1",
        "network.peer.address": "127.0.0.1",
        "network.protocol.name": "http",
        "network.protocol.version": "1.1",
        "url.query": "query=1",
    });
    for (key, value) in expected.as_object().unwrap() {
        ensure!(lines[0][key] == *value, "{key} in {:#}", lines[0]);
    }
    ensure!(lines[0]["sheave.endpoint"] == endpoint.address.to_string(), "{:#}", lines[0]);
    ensure!(lines[1]["url.path"] == "/second", "{:#}", lines[1]);
    Ok(())
}

/// No input of a client can break a line of the log, or be mistaken for a known method.
#[tokio::test]
async fn access_log_is_valid_json_for_any_client_input() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let configuration = ConfigDirectory::for_endpoints(&[endpoint.address])?;
    let sheave = SheaveProcess::serve_with(&configuration, &["--access-log", "on"]).await?;
    let mut client = Http1TestClient::connect(sheave.address()).await?;
    let agent = "\"quoted\" \\ and\ttabbed";
    let fields = [("User-Agent", agent), ("Host", "a.test:8080")];
    client.exchange("BREW", "/", &fields, b"").await?;
    let lines = sheave.wait_for_access_log(1).await?;
    ensure!(lines[0]["user_agent.original"] == agent, "{:#}", lines[0]);
    ensure!(lines[0]["server.address"] == "a.test", "{:#}", lines[0]);
    ensure!(lines[0]["server.port"] == 8080, "{:#}", lines[0]);
    ensure!(lines[0]["http.request.method"] == "_OTHER", "{:#}", lines[0]);
    ensure!(lines[0]["http.request.method_original"] == "BREW", "{:#}", lines[0]);
    let id = &lines[0]["http.request.header.x-request-id"][0];
    ensure!(id.as_str().is_some_and(|id| id.len() == 32), "{:#}", lines[0]);
    Ok(())
}

#[tokio::test]
async fn access_log_can_be_sampled() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let configuration = ConfigDirectory::for_endpoints(&[endpoint.address])?;
    let sheave = SheaveProcess::serve_with(&configuration, &["--access-log", "0.1"]).await?;
    let mut client = Http1TestClient::connect(sheave.address()).await?;
    for _ in 0..2000 {
        client.get("/").await?;
    }
    let lines = sheave.wait_for_access_log(100).await?.len();
    ensure!(lines < 400, "{lines} lines of 2000 requests");
    Ok(())
}

#[tokio::test]
async fn cluster_commands_without_a_cluster_say_in_one_line_what_is_needed() -> Result {
    for command in ["check", "migrate"] {
        check_one_line_error(&[command], &["name files or directories", "--cluster"]).await?;
        check_one_line_error(&[command, ".", "--context", "c"], &["add --cluster"]).await?;
        let missing = [command, "--cluster", "--kubeconfig", "/nowhere"];
        check_one_line_error(&missing, &["the kubeconfig cannot be used", "/nowhere"]).await?;
        check_exit(&[command, ".", "--cluster"], 1, &["cannot be used with"]).await?;
    }
    let plugin = ["kubectl", "status", "--kubeconfig", "/nowhere"];
    check_one_line_error(&plugin, &["the kubeconfig cannot be used", "/nowhere"]).await?;
    check_exit(&["kubectl", "tap", "UPPER/x/y"], 1, &["is not NAME"]).await?;
    check_exit(&["kubectl", "tap", "web", "--status", "9xx"], 1, &["is not a status"]).await?;
    check_exit(&["kubectl", "tap", "web", "--rate", "0"], 1, &["from 1 to 1000"]).await?;
    Ok(())
}

#[tokio::test]
async fn api_server_that_does_not_answer_is_named() -> Result {
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?;
    drop(taken);
    let directory = ConfigDirectory::empty()?;
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{ "name": "c", "cluster": { "server": format!("http://{address}") } }],
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "c" } }],
        "users": [{ "name": "c", "user": {} }],
    });
    directory.write_text("kubeconfig", &config.to_string())?;
    let path = directory.path().join("kubeconfig");
    let path = path.to_str().context("the path is text")?;
    for command in [&["kubectl", "status"][..], &["migrate", "--cluster"], &["check", "--cluster"]]
    {
        let arguments = [command, &["--kubeconfig", path]].concat();
        check_one_line_error(&arguments, &["cannot reach the API server", "refused"]).await?;
    }
    Ok(())
}
