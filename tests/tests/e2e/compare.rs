//! `sheave migrate --compare`: the requests of an access log, sent to two servers.

use anyhow::{Context, ensure};
use serde_json::json;
use tests::configuration::TempDirectory;
use tests::fixture::addresses;
use tests::sheave::run;
use tests::{ConfigDirectory, HttpFixture, Result, SheaveProcess};

/// The end of a comparison: its exit code, and all that it prints.
struct ComparisonResult {
    code: i32,
    text: String,
}

impl ComparisonResult {
    fn expect(&self, code: i32, texts: &[&str]) -> Result {
        let Self { code: actual, text } = self;
        ensure!(*actual == code, "exit code {actual}: {text}");
        for expected in texts {
            ensure!(text.contains(expected), "{expected} is missing: {text}");
        }
        Ok(())
    }
}

/// Two servers in front of the same endpoint.
struct ComparedSite {
    first: HttpFixture,
    second: SheaveProcess,
    second_configuration: ConfigDirectory,
    folder: TempDirectory,
}

impl ComparedSite {
    async fn start() -> Result<Self> {
        let endpoints = vec![tests::Endpoint::start(tests::EndpointBehaviour::ok()).await?];
        let second_configuration = ConfigDirectory::for_endpoints(&addresses(&endpoints))?;
        let first = HttpFixture::with(endpoints, &[], &["--access-log", "on"]).await?;
        let second = SheaveProcess::serve(&second_configuration).await?;
        Ok(Self { first, second, second_configuration, folder: TempDirectory::new()? })
    }

    async fn compare(&self, log: &str, arguments: &[&str]) -> Result<ComparisonResult> {
        let urls = [self.first.sheave.address(), self.second.address()];
        self.compare_urls(urls.map(|it| format!("http://{it}")), log, arguments).await
    }

    async fn compare_urls(
        &self,
        urls: [String; 2],
        log: &str,
        arguments: &[&str],
    ) -> Result<ComparisonResult> {
        let file = self.folder.path().join("access.log");
        std::fs::write(&file, log)?;
        let file = file.to_str().context("a path of UTF-8")?;
        let [first, second] = &urls;
        let start = ["migrate", "--compare", first, second, "--access-log", file];
        let output = run(start.iter().chain(arguments)).await?;
        let text = [output.stdout, output.stderr].concat();
        let code = output.status.code().context("the process has not been killed")?;
        Ok(ComparisonResult { code, text: String::from_utf8(text)? })
    }
}

#[tokio::test]
async fn requests_of_an_access_log_are_answered_the_same_or_not() -> Result {
    let site = ComparedSite::start().await?;
    let mut client = site.first.client().await?;
    for (method, target) in [("GET", "/a?b=c"), ("GET", "/a?b=c"), ("HEAD", "/d"), ("POST", "/e")] {
        client.exchange(method, target, &[], b"").await?;
    }
    let lines = site.first.sheave.wait_for_access_log(4).await?;
    let log: String = lines.iter().map(|line| format!("{line}\n")).collect();
    let before = site.first.endpoint().counts().requests;
    let same = "2 requests: 2 answered the same, 0 differently";
    let post = "not sent, lines of requests that may change something: 1";
    site.compare(&log, &[]).await?.expect(0, &[same, post])?;
    ensure!(site.first.endpoint().counts().requests == before + 4, "two requests to each server");

    let closed = json!({
        "apiVersion": "sheave.dev/v1alpha1",
        "kind": "TrafficPolicy",
        "metadata": { "name": "closed" },
        "spec": {
            "targetRefs": [{ "kind": "Gateway", "name": "edge" }],
            "directResponse": { "status": 503 },
        },
    });
    let from = site.second.log_line_count();
    site.second_configuration.write("closed.yaml", &[closed])?;
    site.second.wait_for_log(from, "configuration in force").await?;
    let differences = [
        "/a?b=c (2 times): status 200, then 503",
        "HEAD test/d: status 200, then 503",
        "2 requests: 0 answered the same, 2 differently",
    ];
    site.compare(&log, &[]).await?.expect(1, &differences)?;
    let limited = ["1 requests: 0 answered", "not sent, lines of requests beyond --limit: 1"];
    site.compare(&log, &["--limit", "1"]).await?.expect(1, &limited)
}

#[tokio::test]
async fn what_cannot_be_compared_is_said() -> Result {
    let site = ComparedSite::start().await?;
    let combined = "192.0.2.1 - - [x] \"GET /a HTTP/1.1\" 200 5\n\"\\x16\" 400 0\n";
    let unknown = "not sent, lines without a request: 1";
    site.compare(combined, &["--host", "a.test"]).await?.expect(0, &["1 requests: 1", unknown])?;
    site.compare(combined, &[]).await?.expect(1, &["no line has a host: add --host"])?;
    site.compare(combined, &["--host", "a b"])
        .await?
        .expect(1, &["--host: a b is no host without a port"])?;
    site.compare("nothing\n", &[])
        .await?
        .expect(1, &["of 1 lines none has a request, the first: \"nothing\""])?;
    site.compare("", &[]).await?.expect(1, &["the log is empty"])?;

    let first = format!("http://{}", site.first.sheave.address());
    let other = |url: &str| [first.clone(), url.to_owned()];
    let path = site.compare_urls(other("http://127.0.0.1/a"), combined, &[]).await?;
    path.expect(1, &["must be http://HOST:PORT or https://HOST:PORT"])?;
    // The socket has the port, and does not listen.
    let socket = tokio::net::TcpSocket::new_v4()?;
    socket.bind(([127, 0, 0, 1], 0).into())?;
    let closed = socket.local_addr()?;
    let unreachable = other(&format!("http://{closed}"));
    let answer = site.compare_urls(unreachable, combined, &["--host", "a.test"]).await?;
    answer.expect(1, &["cannot connect to", "1 not answered"])?;
    for arguments in [&["--limit", "0"][..], &["--ingress-class", "nginx"]] {
        let refused = site.compare(combined, arguments).await?;
        ensure!(refused.code != 0 && refused.text.contains(arguments[0]), "{}", refused.text);
    }
    Ok(())
}
