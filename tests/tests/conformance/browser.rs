//! Chromium, which reports the protocol of each of its requests.

use std::fs;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tests::{EndpointBehaviour, Result};

use crate::http3::ConformanceFixture;
use crate::tools;

/// Flags for a browser on a headless test machine, and for a page whose virtual time runs as fast
/// as it can.
const BROWSER_ARGUMENTS: &[&str] = &[
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--enable-quic",
    "--virtual-time-budget=20000",
];

/// Returns the protocol of the page, and those of its later requests.
async fn protocols_used(site: &ConformanceFixture, forced_port: &str) -> Result<Value> {
    let known = format!("--ignore-certificate-errors-spki-list={}", site.identity.pin());
    let forced = format!("--origin-to-force-quic-on=127.0.0.1:{forced_port}");
    let profile = format!("--user-data-dir={}", site.folder.path().join("profile").display());
    let url = site.url("/");
    let own = [known.as_str(), &forced, &profile, "--dump-dom", &url];
    let output =
        tools::standard_output("browser", BROWSER_ARGUMENTS.iter().copied().chain(own)).await?;
    let begin = output.rfind("<body>").context("no body")? + "<body>".len();
    let end = output.rfind("</body>").context("no end of the body")?;
    serde_json::from_str(output[begin..end].trim()).with_context(|| output.clone())
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
    let used = protocols_used(&site, &site.port()).await?;
    // The page asks more than once if the browser reports the timing of a request late.
    let again = used["again"].as_array().context("a list")?;
    let all_by_h3 = !again.is_empty() && again.iter().all(|by| by == "h3");
    ensure!(used["page"] == json!(["h3"]) && all_by_h3, "{used}");
    Ok(())
}

/// Forcing QUIC on another port only makes the browser accept this host's certificate over QUIC.
#[tokio::test]
#[ignore = "needs a browser: make conformance"]
async fn browser_switches_to_http3_by_alt_svc() -> Result {
    if !tools::is_installed("browser")? {
        return Ok(());
    }
    let site = ConformanceFixture::of(page()?).await?;
    let used = protocols_used(&site, "1").await?;
    let again = used["again"].as_array().context("a list")?;
    ensure!(used["page"] == json!(["h2"]) && again.last() == Some(&json!("h3")), "{used}");
    Ok(())
}
