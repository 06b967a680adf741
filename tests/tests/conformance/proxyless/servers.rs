//! gRPC servers that get their listener from Sheave: TLS in both directions, and the clients that they accept. The
//! configuration is the one of the guide.

use std::collections::BTreeMap;

use anyhow::ensure;
use tests::certificates::CertificateAuthority;
use tests::{ConfigDirectory, Result, SheaveProcess, eventually};

use super::clients::{GrpcClient, GrpcLibrary};
use super::site::{BootstrapFile, CertificateFolder, GrpcServer, guide_block, set_endpoints};

const TARGET: &str = "xds:///cart.shop:80";
const SERVER_NAME: &str = "cart.shop.svc";
const CLIENT_NAME: &str = "web.shop.svc";
const METHOD: &str = "/shop.Cart/Get";

/// Codes of gRPC statuses.
const PERMISSION_DENIED: u8 = 7;
const UNAVAILABLE: u8 = 14;

#[tokio::test]
#[ignore = "needs grpc-go: make conformance"]
async fn go_client_and_server_verify_each_other() -> Result {
    verifies_and_is_verified(GrpcLibrary::Go).await
}

#[tokio::test]
#[ignore = "needs grpc-java: make conformance"]
async fn java_client_and_server_verify_each_other() -> Result {
    verifies_and_is_verified(GrpcLibrary::Java).await
}

#[tokio::test]
#[ignore = "needs grpcio: make conformance"]
async fn python_client_and_server_verify_each_other() -> Result {
    verifies_and_is_verified(GrpcLibrary::Python).await
}

#[tokio::test]
#[ignore = "needs grpc-js: make conformance"]
async fn node_client_and_server_verify_each_other() -> Result {
    verifies_and_is_verified(GrpcLibrary::Node).await
}

#[tokio::test]
#[ignore = "needs grpc-go: make conformance"]
async fn running_servers_follow_changes() -> Result {
    let site = ServerFixture::start(GrpcLibrary::Go).await?;
    let mut client = site.client(GrpcLibrary::Go, CLIENT_NAME).await?;
    client.ask("wait cart").await?;
    let clients = "clientNames: [web.shop.svc]";
    let denied = Some(PERMISSION_DENIED);
    let changes = [
        ("clientNames: [spiffe://cluster.local/ns/shop/sa/web]", denied),
        ("clientAddresses: {deny: [127.0.0.0/8]}", denied),
        ("clientAddresses: {allow: [127.0.0.0/8], deny: [127.0.0.64/26]}", None),
        ("clientNames: [web.shop.svc], clientAddresses: {allow: [192.0.2.0/24]}", denied),
        ("requireClientCertificate: true", None),
        (clients, None),
    ];
    for (settings, status) in changes {
        site.configure(clients, settings)?;
        let call = async || client.call(METHOD, 1, "").await;
        let expected = status.map_or_else(|| "cart".to_owned(), |code| format!("status-{code}"));
        eventually(settings, call, |counts| counts.contains_key(&expected)).await?;
    }
    let status = site.sheave.admin_json("/api/v1/xds").await?;
    ensure!(status["rejections"].as_array().is_some_and(Vec::is_empty), "{status}");
    Ok(())
}

#[tokio::test]
#[ignore = "needs grpc-go: make conformance"]
async fn server_without_a_policy_accepts_every_client_in_plaintext() -> Result {
    let site = ServerFixture::start(GrpcLibrary::Go).await?;
    let service = guide_block("kind: BackendTLSPolicy").split("---").next().unwrap_or_default();
    site.configuration.write_text("main.yaml", service)?;
    let bootstrap = BootstrapFile::new(&site.sheave, &["--serve", "shop/cart:80"]).await?;
    let server = GrpcServer::start_by_xds(GrpcLibrary::Go, "plain", bootstrap).await?;
    set_endpoints(&site.configuration, "cart", &[server.address])?;
    let bootstrap = BootstrapFile::new(&site.sheave, &[]).await?;
    let mut client = GrpcClient::start(GrpcLibrary::Go, TARGET, bootstrap, None)?;
    client.ask("wait plain").await?;
    Ok(())
}

#[tokio::test]
#[ignore = "needs grpc-java: make conformance"]
async fn java_server_verifies_its_clients() -> Result {
    server_verifies_its_clients(GrpcLibrary::Java).await
}

#[tokio::test]
#[ignore = "needs grpcio: make conformance"]
async fn python_server_verifies_its_clients() -> Result {
    server_verifies_its_clients(GrpcLibrary::Python).await
}

#[tokio::test]
#[ignore = "needs grpc-js: make conformance"]
async fn node_server_verifies_its_clients() -> Result {
    server_verifies_its_clients(GrpcLibrary::Node).await
}

/// A server of the library accepts the clients that Sheave says, and follows when that changes.
async fn server_verifies_its_clients(library: GrpcLibrary) -> Result {
    if !library.is_installed()? {
        return Ok(());
    }
    let site = ServerFixture::start(library).await?;
    let mut client = site.client(GrpcLibrary::Go, CLIENT_NAME).await?;
    client.ask("wait cart").await?;
    let mut other = site.client(GrpcLibrary::Go, "other.shop.svc").await?;
    expect_status(&mut other, PERMISSION_DENIED, "a client of another name").await?;
    let foreign =
        CertificateFolder::new(&CertificateAuthority::new(), &site.authority, CLIENT_NAME)?;
    let mut foreign = site.client_with(GrpcLibrary::Go, foreign).await?;
    expect_status(&mut foreign, UNAVAILABLE, "a certificate of another authority").await?;
    let bootstrap = BootstrapFile::new(&site.sheave, &[]).await?;
    let mut plain = GrpcClient::start(GrpcLibrary::Go, TARGET, bootstrap, None)?;
    expect_status(&mut plain, UNAVAILABLE, "plaintext").await?;

    site.configure("clientNames: [web.shop.svc]", "clientNames: [other.shop.svc]")?;
    let call = async || other.call(METHOD, 1, "").await;
    eventually("the other name", call, |counts| counts.contains_key("cart")).await?;
    let call = async || client.call(METHOD, 1, "").await;
    let denied = format!("status-{PERMISSION_DENIED}");
    eventually("the former name", call, |counts| counts.contains_key(&denied)).await?;
    let status = site.sheave.admin_json("/api/v1/xds").await?;
    ensure!(status["rejections"].as_array().is_some_and(Vec::is_empty), "{status}");
    Ok(())
}

/// A client of the library and a server in Go need certificates of the right authority and names.
async fn verifies_and_is_verified(library: GrpcLibrary) -> Result {
    if !library.is_installed()? {
        return Ok(());
    }
    let site = ServerFixture::start(GrpcLibrary::Go).await?;
    let mut client = site.client(library, CLIENT_NAME).await?;
    client.ask("wait cart").await?;
    let counts = client.call(METHOD, 20, "").await?;
    ensure!(counts == BTreeMap::from([("cart".to_owned(), 20), ("failed".to_owned(), 0)]));

    let mut other = site.client(library, "other.shop.svc").await?;
    expect_status(&mut other, PERMISSION_DENIED, "a client of another name").await?;
    let foreign =
        CertificateFolder::new(&CertificateAuthority::new(), &site.authority, CLIENT_NAME)?;
    let mut foreign = site.client_with(library, foreign).await?;
    expect_status(&mut foreign, UNAVAILABLE, "a certificate of another authority").await?;
    let bootstrap = BootstrapFile::new(&site.sheave, &[]).await?;
    let mut plain = GrpcClient::start(library, TARGET, bootstrap, None)?;
    expect_status(&mut plain, UNAVAILABLE, "plaintext").await?;

    // An impostor has a certificate of the right authority with another name.
    let certificates = CertificateFolder::new(&site.authority, &site.authority, "other.shop.svc")?;
    let impostor = site.server("impostor", &certificates).await?;
    set_endpoints(&site.configuration, "cart", &[impostor.address])?;
    let call = async || client.call(METHOD, 1, "").await;
    let counts = eventually("the impostor", call, |it| !it.contains_key("cart")).await?;
    ensure!(counts.get("status-14") == Some(&1), "the client does not accept it: {counts:?}");
    let status = site.sheave.admin_json("/api/v1/xds").await?;
    ensure!(status["rejections"].as_array().is_some_and(Vec::is_empty), "{status}");
    Ok(())
}

async fn expect_status(client: &mut GrpcClient, status: u8, what: &str) -> Result {
    let counts = client.call(METHOD, 1, "").await?;
    ensure!(counts.contains_key(&format!("status-{status}")), "{what}: {counts:?}");
    Ok(())
}

/// Sheave, and a server of the Service `cart`.
struct ServerFixture {
    sheave: SheaveProcess,
    configuration: ConfigDirectory,
    authority: CertificateAuthority,
    _server: GrpcServer,
    _certificates: CertificateFolder,
}

impl ServerFixture {
    async fn start(library: GrpcLibrary) -> Result<Self> {
        let configuration = ConfigDirectory::empty()?;
        configuration.write_text("main.yaml", guide_block("kind: BackendTLSPolicy"))?;
        let sheave = SheaveProcess::serve_with(&configuration, &["--xds", "127.0.0.1:0"]).await?;
        let authority = CertificateAuthority::new();
        let certificates = CertificateFolder::new(&authority, &authority, SERVER_NAME)?;
        let server = start_server(&sheave, library, "cart", &certificates).await?;
        set_endpoints(&configuration, "cart", &[server.address])?;
        Ok(Self { sheave, configuration, authority, _server: server, _certificates: certificates })
    }

    /// Replaces a part of the configuration of the guide.
    fn configure(&self, old: &str, new: &str) -> Result {
        let guide = guide_block("kind: BackendTLSPolicy");
        ensure!(guide.contains(old), "the guide has no {old}");
        Ok(self.configuration.write_text("main.yaml", &guide.replace(old, new))?)
    }

    async fn server(&self, name: &str, certificates: &CertificateFolder) -> Result<GrpcServer> {
        start_server(&self.sheave, GrpcLibrary::Go, name, certificates).await
    }

    async fn client(&self, library: GrpcLibrary, name: &str) -> Result<GrpcClient> {
        let own = CertificateFolder::new(&self.authority, &self.authority, name)?;
        self.client_with(library, own).await
    }

    async fn client_with(
        &self,
        library: GrpcLibrary,
        certificates: CertificateFolder,
    ) -> Result<GrpcClient> {
        let arguments = ["--workload-certs", certificates.path()];
        let bootstrap = BootstrapFile::new(&self.sheave, &arguments).await?;
        GrpcClient::start_with_credentials(library, TARGET, bootstrap, certificates)
    }
}

async fn start_server(
    sheave: &SheaveProcess,
    library: GrpcLibrary,
    name: &str,
    certificates: &CertificateFolder,
) -> Result<GrpcServer> {
    let arguments = ["--serve", "shop/cart:80", "--workload-certs", certificates.path()];
    let bootstrap = BootstrapFile::new(sheave, &arguments).await?;
    GrpcServer::start_by_xds(library, name, bootstrap).await
}
