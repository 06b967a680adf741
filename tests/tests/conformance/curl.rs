//! curl with ngtcp2 and nghttp3: HTTP/3 at once, and discovered by `Alt-Svc`.

use std::ffi::OsStr;
use std::fs;

use anyhow::{Context, ensure};
use tests::payload::{BodyDigest, pieces};
use tests::{EndpointBehaviour, Result, ServeStep};

use crate::http3::ConformanceFixture;
use crate::tools;

const BODY_BYTES: u64 = 16 << 20;
const MANY: usize = 500;

/// Returns the output of curl with these arguments.
async fn curl(site: &ConformanceFixture, arguments: &[&str]) -> Result<String> {
    let usual = ["--silent", "--show-error", "--max-time", "60", "--cacert"].map(OsStr::new);
    let authority = [site.authority.as_os_str()];
    let all = usual.into_iter().chain(authority).chain(arguments.iter().map(OsStr::new));
    tools::standard_output("curl", all).await
}

#[tokio::test]
#[ignore = "needs curl: make conformance"]
async fn curl_sends_get_and_head() -> Result {
    if !tools::is_installed("curl")? {
        return Ok(());
    }
    let site = ConformanceFixture::of(EndpointBehaviour::ok()).await?;
    let url = site.url("/path?query");
    let text = curl(&site, &["--http3-only", "--write-out", " %{http_version}", &url]).await?;
    ensure!(text == "ok 3", "{text}");
    let text = curl(&site, &["--http3-only", "--head", &url]).await?;
    ensure!(text.starts_with("HTTP/3 200"), "{text}");
    let seen = site.endpoint.requests();
    assert_eq!(seen.iter().map(|seen| seen.head.method()).collect::<Vec<_>>(), ["GET", "HEAD"]);
    assert_eq!(seen[0].head.target(), "/path?query");
    Ok(())
}

#[tokio::test]
#[ignore = "needs curl: make conformance"]
async fn large_bodies_pass_both_ways() -> Result {
    if !tools::is_installed("curl")? {
        return Ok(());
    }
    let site = ConformanceFixture::of(vec![ServeStep::Echo]).await?;
    let (sent, received) = (site.file("sent"), site.file("received"));
    fs::write(&sent, pieces(BODY_BYTES).collect::<Vec<_>>().concat())?;
    let body = format!("@{}", sent.display());
    let out = received.to_str().context("a path in UTF-8")?;
    let arguments = ["--http3-only", "--data-binary", &body, "--output", out, &site.url("/")];
    curl(&site, &arguments).await?;
    ensure!(
        BodyDigest::of(&fs::read(received)?) == BodyDigest::of_pattern(BODY_BYTES),
        "the response body differs"
    );
    Ok(())
}

#[tokio::test]
#[ignore = "needs curl: make conformance"]
async fn many_requests_share_a_connection() -> Result {
    if !tools::is_installed("curl")? {
        return Ok(());
    }
    let site = ConformanceFixture::of(EndpointBehaviour::ok()).await?;
    let all = format!("{}[1-{MANY}]", site.url("/"));
    let arguments =
        ["--http3-only", "--parallel", "--parallel-max", "100", "--output", "/dev/null"];
    let format = ["--write-out", "%{http_version} %{http_code} %{size_download}\n", &all];
    let text = curl(&site, &[&arguments[..], &format].concat()).await?;
    ensure!(text.lines().count() == MANY && text.lines().all(|line| line == "3 200 2"), "{text}");
    assert_eq!(site.endpoint.counts().requests, MANY as u64);
    Ok(())
}

#[tokio::test]
#[ignore = "needs curl: make conformance"]
async fn curl_switches_to_http3_by_alt_svc() -> Result {
    if !tools::is_installed("curl")? {
        return Ok(());
    }
    let site = ConformanceFixture::of(EndpointBehaviour::ok()).await?;
    let kept = site.file("alt-svc");
    let kept = kept.to_str().context("a path in UTF-8")?;
    let arguments = ["--alt-svc", kept, "--write-out", " %{http_version}", &site.url("/")];
    let text = curl(&site, &arguments).await?;
    ensure!(text == "ok 2", "{text}");
    let text = curl(&site, &arguments).await?;
    ensure!(text == "ok 3", "{text}: {}", fs::read_to_string(kept)?);
    Ok(())
}
