//! Normalisation of paths: a route and its endpoint see the same path.

use anyhow::ensure;
use bytes::Bytes;
use serde_json::{Value, json};
use tests::ConfigDirectory;
use tests::{Endpoint, EndpointBehaviour, Http1TestClient, Result, SheaveProcess, http2, objects};

/// Sheave with a rule for `/admin` and one for all else, which mark their responses.
struct GuardedFixture {
    sheave: SheaveProcess,
    endpoint: Endpoint,
    _configuration: ConfigDirectory,
}

impl GuardedFixture {
    async fn with_client_policy(spec: Value) -> Result<Self> {
        let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
        let rule = |name: &str, path: Value| {
            json!({
                "matches": [{ "path": path }],
                "filters": [{
                    "type": "ResponseHeaderModifier",
                    "responseHeaderModifier": { "set": [{ "name": "x-rule", "value": name }] },
                }],
                "backendRefs": [{ "name": "app", "port": 80 }],
            })
        };
        let rules = json!([
            rule("guard", json!({ "type": "PathPrefix", "value": "/admin" })),
            rule("pattern", json!({ "type": "RegularExpression", "value": "/v[0-9]/secret" })),
            // An escaped `e`, as the author of a route may write it.
            rule("escaped", json!({ "type": "PathPrefix", "value": "/%65scaped" })),
            rule("open", json!({ "type": "PathPrefix", "value": "/" })),
        ]);
        let mut all = objects::gateway();
        all.push(objects::route_with("site", json!({ "rules": rules })));
        all.push(objects::service("app"));
        all.extend(objects::slices("app", &[endpoint.address]));
        all.push(objects::client_policy(spec));
        let configuration = ConfigDirectory::empty()?;
        configuration.write("site.yaml", &all)?;
        let sheave = SheaveProcess::serve_with(&configuration, &["--workers", "1"]).await?;
        Ok(Self { sheave, endpoint, _configuration: configuration })
    }

    /// Sends a GET for this target. Returns the rule and the target that the endpoint got, or the status of a
    /// rejection.
    async fn get(&self, target: &str) -> Result<(String, String)> {
        let mut client = Http1TestClient::connect(self.sheave.address()).await?;
        let response = client.get(target).await?;
        if response.status() != 200 {
            ensure!(response.closes(), "{response:?}");
            return Ok((response.status().to_string(), String::new()));
        }
        let seen = self.endpoint.requests().pop().expect("the endpoint got it");
        Ok((response.field("x-rule").unwrap_or_default(), seen.head.target().to_owned()))
    }

    async fn check(&self, cases: &[(&str, &str, &str)]) -> Result {
        for (target, rule, forwarded) in cases {
            let got = self.get(target).await?;
            assert_eq!(got, ((*rule).to_owned(), (*forwarded).to_owned()), "{target}");
        }
        Ok(())
    }
}

#[tokio::test]
async fn routes_match_the_normalised_path_and_endpoints_get_it() -> Result {
    let site = GuardedFixture::with_client_policy(json!({})).await?;
    site.check(&[
        ("/admin", "guard", "/admin"),
        ("//admin", "guard", "/admin"),
        ("/./admin?a=//b/../%61", "guard", "/admin?a=//b/../%61"),
        ("/x/../admin", "guard", "/admin"),
        ("/%61dmin/", "guard", "/admin/"),
        ("/x/%2e%2E/admin", "guard", "/admin"),
        ("/v1//secret", "pattern", "/v1/secret"),
        ("/admin/../open", "open", "/open"),
        ("/admin%2fx", "open", "/admin%2fx"),
        ("/escaped", "escaped", "/escaped"),
        ("/%65sc%61ped/x", "escaped", "/escaped/x"),
        ("/%C3%a9%20a.b", "open", "/%C3%a9%20a.b"),
        ("/..", "400", ""),
        ("/x/%2e%2e/../admin", "400", ""),
    ])
    .await?;
    // The same over HTTP/2.
    let client = http2::Http2TestClient::connect(site.sheave.address()).await?;
    let response = client.exchange(http2::get("/x/..//%61dmin"), Bytes::new()).await?;
    assert_eq!(response.field("x-rule"), Some("guard"));
    let seen = site.endpoint.requests().pop().expect("the endpoint got it");
    assert_eq!(seen.head.target(), "/admin");
    let response = client.exchange(http2::get("/../admin"), Bytes::new()).await?;
    ensure!(response.status() == 400, "{response:?}");
    Ok(())
}

#[tokio::test]
async fn policy_turns_each_step_off_or_rejects_escaped_slashes() -> Result {
    let off = json!({ "path": { "normalize": false, "mergeSlashes": false } });
    let site = GuardedFixture::with_client_policy(off).await?;
    let target = "//admin/../%61";
    site.check(&[(target, "open", target)]).await?;
    let keys = json!({ "path": { "mergeSlashes": false } });
    let site = GuardedFixture::with_client_policy(keys).await?;
    site.check(&[("/bucket//a/./%61", "open", "/bucket//a/a")]).await?;
    let strict = json!({ "path": { "escapedSlashes": "Reject" } });
    let site = GuardedFixture::with_client_policy(strict).await?;
    site.check(&[("/admin%2fx", "400", ""), ("/a%5Cb", "400", ""), ("/a%20b", "open", "/a%20b")])
        .await
}
