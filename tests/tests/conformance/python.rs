//! aioquic and Niquests, in the versions of the article and in today's.

use std::ffi::OsStr;

use anyhow::ensure;
use tests::{EndpointBehaviour, Result, ServeStep};

use crate::http3::ConformanceFixture;
use crate::tools;

/// Both environments: of the article, and today's.
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
        let said = script(python, "many_requests.py", &arguments).await?;
        ensure!(said == "OK\n", "{python}: {said}");
        // 200 at once, a large one, one after a key update, 20 while it moves.
        assert_eq!(site.endpoint.counts().requests, 222, "{python}");
    }
    Ok(())
}

/// By which version each of six requests of a session went.
async fn session(python: &str, way: &str) -> Result<Vec<String>> {
    let site = ConformanceFixture::of(EndpointBehaviour::ok()).await?;
    let url = site.url("/");
    let (url, way) = (OsStr::new(&url), OsStr::new(way));
    let arguments = [url, site.authority.as_os_str(), way, OsStr::new("6")];
    let said = script(python, "session.py", &arguments).await?;
    Ok(said.lines().map(str::to_owned).collect())
}

#[tokio::test]
#[ignore = "needs Niquests: make conformance"]
async fn niquests_starts_with_http3_when_forced() -> Result {
    for python in PYTHONS {
        if !tools::is_installed(python)? {
            continue;
        }
        for way in ["forced", "unchecked"] {
            let said = session(python, way).await?;
            ensure!(said == ["HTTP/3 200 2"; 6], "{python}, {way}: {said:?}");
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
        let said = session(python, "discovering").await?;
        ensure!(said[0] == "HTTP/2 200 2" && said[5] == "HTTP/3 200 2", "{python}: {said:?}");
    }
    Ok(())
}
