//! The cases of Autobahn's list, with wsproto as both ends, through Sheave between every pair of HTTP versions.

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tests::certificates::CertificateAuthority;
use tests::configuration::TempDirectory;
use tests::{ConfigDirectory, Result, SheaveProcess, objects};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdout};
use tokio::time::timeout;

use crate::tools;

/// Names in the certificate of both Sheave and the endpoint for HTTP/3.
const NAMES: &[&str] = &["localhost", "127.0.0.1"];
/// Longer than all cases take on a busy machine.
const BOUND: Duration = Duration::from_secs(300);
/// HTTP versions of the endpoints, and the `appProtocol` of each.
const PROTOCOLS: &[(&str, Option<&str>)] =
    &[("1", None), ("2", Some("kubernetes.io/h2c")), ("3", Some("sheave.dev/h3"))];
/// Each case runs by the client and by the server, directly by three HTTP versions, and through Sheave by nine pairs.
const RUNS_OF_A_CASE: usize = 2 * (3 + 9);

#[tokio::test]
#[ignore = "needs wsproto: make conformance"]
async fn websockets_are_the_same_through_sheave() -> Result {
    if !tools::is_installed("python-current")? {
        return Ok(());
    }
    let authority = CertificateAuthority::new();
    let folder = TempDirectory::new()?;
    let identity = authority.issue(NAMES);
    fs::write(folder.path().join("ca.pem"), &authority.pem)?;
    fs::write(folder.path().join("chain.pem"), &identity.certificate_pem)?;
    fs::write(folder.path().join("key.pem"), &identity.key_pem)?;

    let mut ends = BothEnds::start(&folder).await?;
    let endpoints = ends.endpoints().await?;
    let configuration = ConfigDirectory::empty()?;
    let secrets = [identity.secret("certificate"), authority.config_map("ca")];
    configuration.write("main.yaml", &[objects(&endpoints)?, secrets.to_vec()].concat())?;
    let sheave = SheaveProcess::serve(&configuration).await?;
    let address = |ending: &str| -> Result<SocketAddr> {
        let mut all = sheave.listeners.iter().filter(|(name, _)| name.ends_with(ending));
        Ok(all.next().with_context(|| format!("{:?}", sheave.listeners))?.1)
    };
    let (http, https) = (address("/http")?, address("/https")?);
    let text = ends.run(&json!({ "1": http, "2": http, "3": https })).await?;

    let table = fs::read_to_string(tools::conformance_folder().join("websocket/cases.tsv"))?;
    let cases = table.lines().filter(|line| !line.starts_with('#')).count();
    let all_same = format!("same: {}, different: 0", cases * RUNS_OF_A_CASE);
    ensure!(cases > 0 && text.lines().next_back() == Some(&all_same), "{text}");
    Ok(())
}

/// Returns a listener with TLS and HTTP/3, a cleartext one, and a Service for each version, by the start of the path.
fn objects(endpoints: &HashMap<String, SocketAddr>) -> Result<Vec<Value>> {
    let mut all = objects::https_gateway(&["certificate"]);
    // Two listeners that choose their ports need an address each.
    let mut plain = objects::gateway_at("127.0.0.2", "HTTP").remove(1);
    plain["metadata"]["name"] = "plain".into();
    all.push(plain);
    all.push(objects::client_policy(json!({ "http3": { "enabled": true } })));
    let mut rules = Vec::new();
    for (version, protocol) in PROTOCOLS {
        let name = format!("http{version}");
        let address = *endpoints.get(*version).context("an address")?;
        let service = objects::service(&name);
        all.push(match protocol {
            Some(protocol) => objects::with_app_protocol(protocol, service),
            None => service,
        });
        all.extend(objects::slices(&name, &[address]));
        rules.push(json!({
            "matches": [{ "path": { "type": "PathPrefix", "value": format!("/{version}") } }],
            "backendRefs": [{ "name": name, "port": 80 }],
        }));
    }
    let mut route = objects::route_with("websockets", json!({ "rules": rules }));
    route["spec"]["parentRefs"] = json!([{ "name": "edge" }, { "name": "plain" }]);
    all.push(route);
    all.push(objects::backend_tls_policy("http3", json!({ "hostname": NAMES[0] })));
    Ok(all)
}

/// The process with the clients and the servers. It is killed when dropped.
struct BothEnds {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl BothEnds {
    async fn start(folder: &TempDirectory) -> Result<Self> {
        let mut command = tools::program("python-current")?;
        command.arg(tools::conformance_folder().join("websocket/run.py")).arg(folder.path());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = BufReader::new(child.stdout.take().context("the output is a pipe")?);
        Ok(Self { child, output })
    }

    /// Returns the addresses of the servers, by HTTP version.
    async fn endpoints(&mut self) -> Result<HashMap<String, SocketAddr>> {
        let mut line = String::new();
        timeout(BOUND, self.output.read_line(&mut line)).await??;
        Ok(serde_json::from_str(&line)?)
    }

    /// Runs all cases through these listeners; returns what is reported.
    async fn run(mut self, sheave: &Value) -> Result<String> {
        let mut input = self.child.stdin.take().context("the input is a pipe")?;
        input.write_all(format!("{sheave}\n").as_bytes()).await?;
        let mut text = String::new();
        timeout(BOUND, self.output.read_to_string(&mut text)).await.context("not done")??;
        Ok(text)
    }
}
