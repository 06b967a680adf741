//! Annotations of ingress-nginx: tables of cases against Sheave and against nginx, configured as ingress-nginx would.
//!
//! The results are on a page of the documentation.

use std::env;

use anyhow::{bail, ensure};
use serde_json::{Value, json};
use tests::Result;
use tests::certificates::CertificateAuthority;
use tokio::task::{JoinSet, LocalSet};

use crate::tools;

/// The tables, as data.
mod table;
/// Endpoints of the cases' Services.
mod endpoints;
/// nginx with the cases of a table.
mod nginx;
/// Sheave with the cases of a table.
mod sheave_side;
/// A request, and what is observed of it.
mod exchange;
/// The page of results.
mod page;

use endpoints::ServiceEndpoints;
use exchange::{ClientTls, ServerUnderTest, expectation, observe};
use nginx::NginxServer;
use sheave_side::SheaveSide;
use table::{CaseGroup, ConformanceCase};

/// Least share of public cases without a difference, in percent; the aim is 90.
const LEAST_SAME: usize = 80;

/// The redirect of ingress-nginx's Lua code, which removes a slash at the end.
const REDIRECT_TO_HTTPS: &str = r#"
            set $scheme_and_uri $scheme$request_uri;
            if ($scheme_and_uri ~ "^http(/.*)?/$") { return 308 https://$host$1; }
            if ($scheme_and_uri ~ "^http(/.*)$") { return 308 https://$host$1; }
"#;

/// Result of one case.
struct CaseResult {
    name: String,
    /// True if Sheave's result is not the expected one.
    differs: bool,
    /// Differences of Sheave.
    found: Vec<String>,
    /// Differences of nginx, which are errors of the table.
    table_errors: Vec<String>,
}

#[tokio::test]
#[ignore = "needs nginx with modules: make conformance"]
async fn annotations_mean_the_same_as_in_ingress_nginx() -> Result {
    if !tools::is_installed("nginx")?
        || !tools::is_installed("nginx-modules/ngx_http_headers_more_filter_module.so")?
    {
        return Ok(());
    }
    let endpoint_authority = CertificateAuthority::new();
    let mut groups = table::read(&[
        ("ENDPOINT_CA", &endpoint_authority.pem),
        ("REDIRECT_TO_HTTPS", REDIRECT_TO_HTTPS),
    ])?;
    // One group alone, while its table is written.
    let only = env::var("INGRESS_NGINX_GROUP").ok();
    groups.retain(|group| only.as_ref().is_none_or(|only| *only == group.name));
    let mut finished = LocalSet::new().run_until(run_groups(groups, &endpoint_authority)).await?;
    finished.sort_by(|(_, a), (_, b)| a.name.cmp(&b.name));
    let (results, groups): (Vec<_>, Vec<_>) = finished.into_iter().unzip();
    let results: Vec<CaseResult> = results.into_iter().flatten().collect();
    let errors = print_results(&groups, &results);
    ensure!(errors == 0, "{errors} errors: see above");
    if only.is_some() {
        return Ok(());
    }
    let (covered, same) = page::public_cases(&groups, &results)?;
    eprintln!("{:30} {same:4} of {covered:4} the same", "public cases");
    ensure!(same * 100 >= covered * LEAST_SAME, "{same} of {covered} public cases are the same");
    page::check(&groups, &results)
}

/// Runs the groups side by side.
async fn run_groups(
    groups: Vec<CaseGroup>,
    endpoint_authority: &CertificateAuthority,
) -> Result<Vec<(Vec<CaseResult>, CaseGroup)>> {
    let mut running = JoinSet::new();
    for group in groups {
        let mut endpoints = ServiceEndpoints::default();
        for case in &group.cases {
            endpoints.start(case, endpoint_authority).await?;
        }
        let authority = CertificateAuthority::new();
        let tls = ClientTls::new(&authority, endpoint_authority);
        let endpoint_authority = endpoint_authority.pem.clone();
        running.spawn_local(async move {
            let authorities = (&authority, &*endpoint_authority);
            let results = run_group(&group, &endpoints, authorities, tls).await;
            (results, group)
        });
    }
    let (mut finished, mut failed) = (Vec::new(), Vec::new());
    while let Some(group) = running.join_next().await {
        match group? {
            (Ok(results), group) => finished.push((results, group)),
            (Err(error), group) => failed.push(format!("{}: {error:#}", group.name)),
        }
    }
    if !failed.is_empty() {
        let (results, groups): (Vec<_>, Vec<_>) = finished.into_iter().unzip();
        print_results(&groups, &results.into_iter().flatten().collect::<Vec<_>>());
        bail!("{}", failed.join("\n"));
    }
    Ok(finished)
}

/// Prints the results, and returns the number of errors: wrong tables, and differences that are not listed or are none.
fn print_results(groups: &[CaseGroup], results: &[CaseResult]) -> usize {
    let mut errors = 0;
    for case in groups.iter().flat_map(|group| &group.cases) {
        let Some(result) = results.iter().find(|result| result.name == case.name) else { continue };
        for error in &result.table_errors {
            errors += 1;
            eprintln!("{}: nginx: {error}", case.name);
        }
        match (&case.differs, result.differs) {
            (Some(_), true) | (None, false) => {}
            (Some(reason), false) => {
                errors += 1;
                eprintln!("{}: has no difference, but lists one: {reason}", case.name);
            }
            (None, true) => {
                errors += 1;
                for found in &result.found {
                    eprintln!("{}: Sheave: {found}", case.name);
                }
            }
        }
    }
    for group in groups {
        let is_same = |case: &&ConformanceCase| {
            results.iter().any(|result| result.name == case.name && !result.differs)
        };
        let same = group.cases.iter().filter(is_same).count();
        eprintln!("{:30} {same:4} of {:4} the same", group.name, group.cases.len());
    }
    let same = results.iter().filter(|result| !result.differs).count();
    eprintln!("{:30} {same:4} of {:4} the same", "all", results.len());
    errors
}

async fn run_group(
    group: &CaseGroup,
    endpoints: &ServiceEndpoints,
    (authority, endpoint_authority): (&CertificateAuthority, &str),
    tls: ClientTls,
) -> Result<Vec<CaseResult>> {
    let hosts: Vec<String> =
        group.cases.iter().flat_map(|case| [case.host(), format!("*.{}", case.host())]).collect();
    let hosts: Vec<&str> = hosts.iter().map(|host| &**host).collect();
    let identity = authority.issue(&hosts);
    let nginx = NginxServer::start(group, endpoints, &identity, endpoint_authority).await?;
    let sheave = SheaveSide::start(group, endpoints, &identity).await?;
    let under_test = ServerUnderTest { http: sheave.http, https: sheave.https, tls: tls.clone() };
    let reference = ServerUnderTest { http: nginx.http, https: Some(nginx.https), tls };
    let mut results = Vec::new();
    for case in &group.cases {
        let mut result = CaseResult {
            name: case.name.clone(),
            differs: false,
            found: Vec::new(),
            table_errors: Vec::new(),
        };
        for (number, request) in case.requests.iter().enumerate() {
            let expected = expectation(request);
            let place = format!("request {}, {}", number + 1, request.request);
            if case.without_nginx.is_none() {
                let seen = observe(case, request, &reference, endpoints).await;
                let seen = seen.unwrap_or_else(|error| json!({ "error": format!("{error:#}") }));
                result.table_errors.extend(difference(&place, &expected, &seen));
            }
            let host = request.host.clone().unwrap_or_else(|| case.host());
            let seen = match sheave.refused.get(&host) {
                Some(message) => json!({ "status": 500, "refused": message }),
                None => {
                    let seen = observe(case, request, &under_test, endpoints).await;
                    seen.unwrap_or_else(|error| json!({ "error": format!("{error:#}") }))
                }
            };
            result.found.extend(difference(&place, &expected, &seen));
        }
        result.differs = !result.found.is_empty();
        for message in sheave.left_out.get(&case.name).into_iter().flatten() {
            result.found.push(format!("left out: {message}"));
        }
        results.push(result);
    }
    Ok(results)
}

fn difference(place: &str, expected: &Value, seen: &Value) -> Option<String> {
    (expected != seen).then(|| format!("{place}: expected {expected}, seen {seen}"))
}
