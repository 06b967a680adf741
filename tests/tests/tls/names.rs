//! Different spellings of one name: for every spelling, the handshake and the routing of requests
//! select the same site.

use anyhow::{Context, ensure};
use bytes::Bytes;
use http::Request;
use serde_json::{Value, json};
use tests::certificates::{CertificateAuthority, IssuedCertificate};
use tests::server_name::{LiteralClient, valid_name};
use tests::tls::TlsClientOptions;
use tests::{
    ConfigDirectory, Endpoint, EndpointBehaviour, Http1TestClient, Result, SheaveProcess,
    eventually, http3, objects, within,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const SECURE: &str = "secure.example.com";
const OTHER: &str = "other.example.org";

/// Two Gateways on one port: `guarded` requires client certificates, `open` accepts every name and
/// requires none.
struct TwoGatewayFixture {
    sheave: SheaveProcess,
    authority: CertificateAuthority,
    guarded: Endpoint,
    open: Endpoint,
    configuration: ConfigDirectory,
}

impl TwoGatewayFixture {
    /// Returns a fixture; `hostname` is that of the Gateway `guarded`.
    async fn with(hostname: &str) -> Result<Self> {
        let site = Self::without_guarded().await?;
        site.add_guarded(hostname).await?;
        Ok(site)
    }

    async fn without_guarded() -> Result<Self> {
        let authority = CertificateAuthority::new();
        let guarded = Endpoint::start(EndpointBehaviour::ok()).await?;
        let open = Endpoint::start(EndpointBehaviour::ok()).await?;
        let spellings = [SECURE, OTHER].map(|name| (format!("{name}."), name.to_owned()));
        let names = spellings
            .into_iter()
            .flat_map(|(dotted, name)| [valid_name(&dotted), valid_name(&name), name]);
        let names: Vec<String> = names.collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let certificate = authority.issue(&names);
        let configuration = ConfigDirectory::empty()?;
        let mut all = vec![objects::gateway().remove(0), certificate.secret("certificate")];
        all.push(authority.config_map("ca"));
        all.extend(gateway_objects(gateway("open"), &open));
        configuration.write("open.yaml", &all)?;
        let sheave = SheaveProcess::serve(&configuration).await?;
        Ok(Self { sheave, authority, guarded, open, configuration })
    }

    /// Adds the Gateway `guarded`, and waits until it refuses clients.
    async fn add_guarded(&self, hostname: &str) -> Result {
        let mut gateway = gateway("guarded");
        gateway["spec"]["listeners"][0]["hostname"] = hostname.into();
        let roots = json!([{ "group": "", "kind": "ConfigMap", "name": "ca" }]);
        let validation = json!({ "caCertificateRefs": roots });
        gateway["spec"]["tls"] = json!({ "frontend": { "default": { "validation": validation } } });
        self.configuration.write("guarded.yaml", &gateway_objects(gateway, &self.guarded))?;
        let plain = TlsClientOptions::trusting(&self.authority);
        let observe = async || {
            let client = Http1TestClient::connect_tls(self.sheave.address(), SECURE, &plain).await;
            Ok(match client {
                Ok(mut client) => client.get("/").await.is_ok(),
                Err(_) => false,
            })
        };
        eventually("clients without a certificate are refused", observe, |served| !served).await?;
        Ok(())
    }

    /// Returns the status of a request over TCP, and of one over HTTP/3. It is an error if the
    /// handshake failed.
    async fn statuses(
        &self,
        server_name: &str,
        host: &str,
        identity: Option<&IssuedCertificate>,
    ) -> Result<[Result<u16>; 2]> {
        let client = LiteralClient::new(server_name, &self.authority, identity)?;
        Ok([self.over_tcp(&client, host).await, self.over_http3(&client, host).await])
    }

    async fn over_tcp(&self, client: &LiteralClient, host: &str) -> Result<u16> {
        let mut stream = client.connect(self.sheave.address()).await?;
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        // The length of the status line up to the status.
        let mut head = [0; 12];
        within("a response", stream.read_exact(&mut head)).await??;
        Ok(str::from_utf8(&head[9..])?.parse()?)
    }

    async fn over_http3(&self, client: &LiteralClient, host: &str) -> Result<u16> {
        let client =
            http3::Http3TestClient::connect_with(self.sheave.address(), client.quic_config()?)
                .await?;
        let request = Request::get(format!("https://{host}/")).body(())?;
        Ok(client.exchange(request, Bytes::new()).await?.head.status().as_u16())
    }
}

/// Returns a Gateway with one listener for every host.
fn gateway(name: &str) -> Value {
    let mut gateway = objects::https_gateway(&["certificate"]).remove(1);
    gateway["metadata"]["name"] = name.into();
    gateway
}

/// Returns the Gateway with HTTP/3, a route of its own, and a Service with the route's name.
fn gateway_objects(gateway: Value, endpoint: &Endpoint) -> Vec<Value> {
    let name = gateway["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let mut policy = objects::client_policy(json!({ "http3": { "enabled": true } }));
    policy["metadata"]["name"] = name.clone().into();
    policy["spec"]["targetRefs"][0]["name"] = name.clone().into();
    let mut route = objects::route(&name);
    route["spec"]["parentRefs"][0]["name"] = name.clone().into();
    let mut all = vec![gateway, policy, route, objects::service(&name)];
    all.extend(objects::slices(&name, &[endpoint.address]));
    all
}

/// A trailing dot does not make a different name: it bypasses neither the client certificate that a
/// listener requires, nor its routes.
#[tokio::test]
async fn trailing_dot_does_not_bypass_client_certificates() -> Result {
    for hostname in [SECURE, "*.example.com"] {
        let site = TwoGatewayFixture::with(hostname).await?;
        let known = site.authority.issue(&["client.test"]);
        let (secure, other) = (format!("{SECURE}."), format!("{OTHER}."));
        let spellings = [&secure, SECURE, "SECURE.example.COM."];

        for server_name in spellings {
            for host in spellings {
                let statuses = site.statuses(server_name, host, None).await?;
                let is_refused = statuses.iter().all(Result::is_err);
                ensure!(is_refused, "{hostname}: {server_name}, {host}: {statuses:?}");
            }
        }
        for host in spellings {
            for status in site.statuses(&other, host, None).await? {
                ensure!(status.context("the handshake")? == 421, "{hostname}: {host}");
            }
        }
        assert_eq!(site.guarded.counts().requests, 0, "{hostname}");

        let before = site.open.counts().requests;
        for status in site.statuses(&other, OTHER, None).await? {
            ensure!(status.context("a client of the open Gateway")? == 200);
        }
        assert_eq!(site.open.counts().requests, before + 2, "{hostname}");
        for status in site.statuses(&secure, &secure, Some(&known)).await? {
            ensure!(status.context("a client with a certificate")? == 200);
        }
        assert_eq!(site.guarded.counts().requests, 2, "{hostname}");
    }
    Ok(())
}

/// A connection from before the requirement of client certificates has presented none: it must not
/// reach the guarded routes.
#[tokio::test]
async fn older_connection_does_not_bypass_client_certificates() -> Result {
    let site = TwoGatewayFixture::without_guarded().await?;
    let plain = TlsClientOptions::trusting(&site.authority);
    let address = site.sheave.address();
    let mut older = Http1TestClient::connect_tls(address, SECURE, &plain).await?;
    let get = format!("GET / HTTP/1.1\r\nHost: {SECURE}\r\n\r\n");
    older.send(get.as_bytes()).await?;
    ensure!(older.response("GET").await?.status() == 200);
    let mut of_open = Http1TestClient::connect_tls(address, OTHER, &plain).await?;
    let open = format!("GET / HTTP/1.1\r\nHost: {OTHER}\r\n\r\n");

    site.add_guarded(SECURE).await?;
    older.send(get.as_bytes()).await?;
    let response = older.response("GET").await?;
    ensure!(response.status() == 421 && response.closes(), "{response:?}");
    of_open.send(open.as_bytes()).await?;
    ensure!(of_open.response("GET").await?.status() == 200);
    assert_eq!(site.guarded.counts().requests, 0);
    Ok(())
}
