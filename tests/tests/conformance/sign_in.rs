//! A real browser signs in through oauth2-proxy, with the configurations of the guides.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;
use tests::configuration::TempDirectory;
use tests::{
    ConfigDirectory, Endpoint, EndpointBehaviour, Result, SheaveProcess, eventually, objects,
};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;
use tokio::time::timeout;

use crate::tools;

/// Longer than the start of the servers takes on a busy machine.
const BOUND: Duration = Duration::from_secs(60);

const POLICY: &str = include_str!("../../../examples/external-auth.yaml");
const INGRESS: &str = include_str!("../../../examples/ingress-oauth2-proxy.yaml");

const PAGE: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 11\r\n\r\nhello there";

#[tokio::test]
#[ignore = "needs a browser and oauth2-proxy: make conformance"]
async fn browser_signs_in_and_out_by_a_security_policy() -> Result {
    sign_in_and_out(POLICY).await
}

#[tokio::test]
#[ignore = "needs a browser and oauth2-proxy: make conformance"]
async fn browser_signs_in_and_out_by_annotations_of_an_ingress() -> Result {
    sign_in_and_out(INGRESS).await
}

async fn sign_in_and_out(example: &str) -> Result {
    if !tools::is_installed("browser")? || !tools::is_installed("python-browser")? {
        return Ok(());
    }
    let application = Endpoint::start(EndpointBehaviour::answering(PAGE)).await?;
    let configuration = ConfigDirectory::empty()?;
    configuration.write_text("main.yaml", &without_endpoints(example))?;
    configuration.write("app.yaml", &objects::slices("app", &[application.address]))?;
    let sheave = SheaveProcess::serve(&configuration).await?;
    let url = format!("http://app.localhost:{}", sheave.address().port());
    let provider = Provider::start(&url).await?;
    configuration.write("proxy.yaml", &objects::slices("oauth2-proxy", &[provider.proxy]))?;
    let backends = async || sheave.backends().await;
    eventually("oauth2-proxy", backends, |backends| {
        backends.iter().any(|it| it.service == "oauth2-proxy" && !it.endpoints.is_empty())
    })
    .await?;

    let page = format!("{url}/page?x=1&y=a%2Fb");
    let shown = browse(&page).await?;
    let login = format!("{}login/username?authRequestID=", provider.issuer);
    for step in ["first", "signed_out", "last"] {
        let at = shown[step].as_str().context("a URL")?;
        ensure!(at.starts_with(&login), "{step}: {shown}");
    }
    ensure!(shown["page"]["url"] == page.as_str(), "{shown}");
    ensure!(shown["page"]["text"] == "hello there", "{shown}");
    let cookies = shown["cookies"].as_array().context("a list")?;
    ensure!(cookies.iter().any(|name| name == "_oauth2_proxy"), "{shown}");
    ensure!(shown["again"]["status"] == 200 && shown["again"]["redirected"] == false, "{shown}");
    ensure!(shown["cookies_after"].as_array().is_some_and(Vec::is_empty), "{shown}");
    for request in application.requests() {
        let email = request.head.field("x-auth-request-email");
        ensure!(email.as_deref() == Some("test-user@zitadel.ch"), "{request:?}");
    }
    let pages =
        application.requests().into_iter().filter(|it| it.head.target().starts_with("/page"));
    ensure!(pages.count() == 2, "{:?}", application.requests());
    Ok(())
}

/// Returns an example with free ports, and without its endpoints.
fn without_endpoints(example: &str) -> String {
    let documents = example.split("\n---\n").filter(|it| !it.contains("kind: EndpointSlice"));
    let documents = documents.collect::<Vec<_>>().join("\n---\n");
    documents.replace("port: 8080", "port: 0").replace("http-port: \"8080\"", "http-port: \"0\"")
}

/// Drives a browser, and returns what it has shown.
async fn browse(page: &str) -> Result<Value> {
    let folder = TempDirectory::new()?;
    let mut command = tools::program("python-browser")?;
    command.arg(tools::conformance_folder().join("sign_in.py"));
    command.arg(tools::path("browser")?).arg(folder.path().join("profile")).arg(page);
    let output = tools::output_of(command).await?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{errors}");
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// oauth2-proxy and an OpenID provider.
struct Provider {
    proxy: SocketAddr,
    issuer: String,
    _running: Child,
}

impl Provider {
    async fn start(url: &str) -> Result<Self> {
        let mut command = tools::program("sign-in")?;
        command.arg(tools::path("oauth2-proxy")?).arg(url).stdout(Stdio::piped());
        let mut running = command.spawn()?;
        let mut lines = BufReader::new(running.stdout.take().context("a pipe")?).lines();
        let line = timeout(BOUND, lines.next_line()).await??.context("an address")?;
        let (proxy, issuer) = line.split_once(' ').context("two addresses")?;
        Ok(Self { proxy: proxy.parse()?, issuer: issuer.to_owned(), _running: running })
    }
}
