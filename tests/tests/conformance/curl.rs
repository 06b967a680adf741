//! curl, whose HTTP/3 is by ngtcp2 and nghttp3: at once, and by `Alt-Svc`.

use std::ffi::OsStr;
use std::fs;

use anyhow::{Context, ensure};
use tests::payload::{BodyDigest, pieces};
use tests::{EndpointBehaviour, Result, ServeStep};

use crate::http3::ConformanceFixture;
use crate::tools;

const BODY_BYTES: u64 = 16 << 20;
const MANY: usize = 500;

/// What curl says with these arguments.
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
    let said = curl(&site, &["--http3-only", "--write-out", " %{http_version}", &url]).await?;
    ensure!(said == "ok 3", "{said}");
    let said = curl(&site, &["--http3-only", "--head", &url]).await?;
    ensure!(said.starts_with("HTTP/3 200"), "{said}");
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
    let (sent, came) = (site.file("sent"), site.file("came"));
    fs::write(&sent, pieces(BODY_BYTES).collect::<Vec<_>>().concat())?;
    let body = format!("@{}", sent.display());
    let out = came.to_str().context("a path in UTF-8")?;
    let arguments = ["--http3-only", "--data-binary", &body, "--output", out, &site.url("/")];
    curl(&site, &arguments).await?;
    ensure!(
        BodyDigest::of(&fs::read(came)?) == BodyDigest::of_pattern(BODY_BYTES),
        "another body came"
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
    let told = ["--write-out", "%{http_version} %{http_code} %{size_download}\n", &all];
    let said = curl(&site, &[&arguments[..], &told].concat()).await?;
    ensure!(said.lines().count() == MANY && said.lines().all(|line| line == "3 200 2"), "{said}");
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
    let said = curl(&site, &arguments).await?;
    ensure!(said == "ok 2", "{said}");
    let said = curl(&site, &arguments).await?;
    ensure!(said == "ok 3", "{said}: {}", fs::read_to_string(kept)?);
    Ok(())
}
