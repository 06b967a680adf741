//! aioquic and Niquests, in the versions of the article and in current versions.

use std::ffi::OsStr;

use anyhow::ensure;
use tests::{EndpointBehaviour, Result, ServeStep};

use crate::http3::ConformanceFixture;
use crate::tools;

/// Two environments: with the versions of the article, and with current versions.
const PYTHONS: &[&str] = &["python-pinned", "python-current"];

async fn script(python: &str, name: &str, arguments: &[&OsStr]) -> Result<String> {
    let path = tools::conformance_folder().join(name);
    tools::standard_output(python, [path.as_os_str()].iter().chain(arguments)).await
}

#[tokio::test]
#[ignore = "needs aioquic: make conformance"]
async fn aioquic_sends_many_requests_and_migrates() -> Result {
    for python in PYTHONS {
        if !tools::is_installed(python)? {
            continue;
        }
        let site = ConformanceFixture::of(vec![ServeStep::Echo]).await?;
        let port = site.port();
        let arguments = [OsStr::new("127.0.0.1"), OsStr::new(&port), site.authority.as_os_str()];
        let text = script(python, "many_requests.py", &arguments).await?;
        ensure!(text == "OK\n", "{python}: {text}");
        // 200 requests at once, a large one, one after a key update, and 20 during connection
        // migration.
        assert_eq!(site.endpoint.counts().requests, 222, "{python}");
    }
    Ok(())
}

/// Returns the HTTP version of each of six requests of a session.
async fn session(python: &str, mode: &str) -> Result<Vec<String>> {
    let site = ConformanceFixture::of(EndpointBehaviour::ok()).await?;
    let url = site.url("/");
    let (url, mode) = (OsStr::new(&url), OsStr::new(mode));
    let arguments = [url, site.authority.as_os_str(), mode, OsStr::new("6")];
    let text = script(python, "session.py", &arguments).await?;
    Ok(text.lines().map(str::to_owned).collect())
}

#[tokio::test]
#[ignore = "needs Niquests: make conformance"]
async fn niquests_starts_with_http3_when_forced() -> Result {
    for python in PYTHONS {
        if !tools::is_installed(python)? {
            continue;
        }
        for mode in ["forced", "unchecked"] {
            let lines = session(python, mode).await?;
            ensure!(lines == ["HTTP/3 200 2"; 6], "{python}, {mode}: {lines:?}");
        }
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs Niquests: make conformance"]
async fn niquests_switches_to_http3_by_alt_svc() -> Result {
    for python in PYTHONS {
        if !tools::is_installed(python)? {
            continue;
        }
        let lines = session(python, "discovering").await?;
        ensure!(lines[0] == "HTTP/2 200 2" && lines[5] == "HTTP/3 200 2", "{python}: {lines:?}");
    }
    Ok(())
}
