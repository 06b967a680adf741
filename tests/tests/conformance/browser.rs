//! Chromium, which tells by what each of its requests went.

use std::fs;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tests::{EndpointBehaviour, Result};

use crate::http3::ConformanceFixture;
use crate::tools;

/// What a browser does on a machine that is nobody's, for a page whose time passes as fast as it can.
const BROWSER_ARGUMENTS: &[&str] = &[
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--enable-quic",
    "--virtual-time-budget=20000",
];

/// By what the page came, and what it asked for afterwards.
async fn protocols_used(site: &ConformanceFixture, forced_port: &str) -> Result<Value> {
    let known = format!("--ignore-certificate-errors-spki-list={}", site.identity.pin());
    let forced = format!("--origin-to-force-quic-on=127.0.0.1:{forced_port}");
    let profile = format!("--user-data-dir={}", site.folder.path().join("profile").display());
    let url = site.url("/");
    let own = [known.as_str(), &forced, &profile, "--dump-dom", &url];
    let said =
        tools::standard_output("browser", BROWSER_ARGUMENTS.iter().copied().chain(own)).await?;
    let begin = said.rfind("<body>").context("no body")? + "<body>".len();
    let end = said.rfind("</body>").context("no end of the body")?;
    serde_json::from_str(said[begin..end].trim()).with_context(|| said.clone())
}

fn page() -> Result<EndpointBehaviour> {
    let page = fs::read_to_string(tools::conformance_folder().join("page.html"))?;
    let length = page.len();
    let head =
        format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {length}\r\n\r\n");
    Ok(EndpointBehaviour::answering(&format!("{head}{page}")))
}

#[tokio::test]
#[ignore = "needs a browser: make conformance"]
async fn browser_uses_http3_immediately() -> Result {
    if !tools::is_installed("browser")? {
        return Ok(());
    }
    let site = ConformanceFixture::of(page()?).await?;
    let went = protocols_used(&site, &site.port()).await?;
    // It asks more than once if what it notes of a request comes late.
    let again = went["again"].as_array().context("a list")?;
    let all_by_h3 = !again.is_empty() && again.iter().all(|by| by == "h3");
    ensure!(went["page"] == json!(["h3"]) && all_by_h3, "{went}");
    Ok(())
}

/// To force another port makes the browser take this host's certificate over QUIC, and nothing else.
#[tokio::test]
#[ignore = "needs a browser: make conformance"]
async fn browser_switches_to_http3_by_alt_svc() -> Result {
    if !tools::is_installed("browser")? {
        return Ok(());
    }
    let site = ConformanceFixture::of(page()?).await?;
    let went = protocols_used(&site, "1").await?;
    let again = went["again"].as_array().context("a list")?;
    ensure!(went["page"] == json!(["h2"]) && again.last() == Some(&json!("h3")), "{went}");
    Ok(())
}
