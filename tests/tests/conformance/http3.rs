//! Sheave with HTTP/3 in front of an endpoint, for third-party clients.

use std::fs;
use std::path::PathBuf;

use serde_json::json;
use tests::certificates::{CertificateAuthority, IssuedCertificate};
use tests::configuration::TempDirectory;
use tests::{ConfigDirectory, Endpoint, EndpointBehaviour, Result, SheaveProcess, objects};

/// Names in the listener's certificate.
const NAMES: &[&str] = &["localhost", "127.0.0.1"];

pub(crate) struct ConformanceFixture {
    pub(crate) endpoint: Endpoint,
    pub(crate) identity: IssuedCertificate,
    /// Folder for files that a program reads or writes.
    pub(crate) folder: TempDirectory,
    /// File with the certificate of the authority that issued the listener's.
    pub(crate) authority: PathBuf,
    port: u16,
    _sheave: SheaveProcess,
    _configuration: ConfigDirectory,
}

impl ConformanceFixture {
    pub(crate) async fn of(behaviour: impl Into<EndpointBehaviour>) -> Result<Self> {
        let endpoint = Endpoint::start(behaviour).await?;
        let authority = CertificateAuthority::new();
        let identity = authority.issue(NAMES);
        let gateway = objects::https_gateway(&["certificate"]);
        let policy = objects::client_policy(json!({ "http3": { "enabled": true } }));
        let more = [policy, identity.secret("certificate")];
        let configuration = ConfigDirectory::with_gateway(gateway, &[endpoint.address], &more)?;
        let sheave = SheaveProcess::serve(&configuration).await?;

        let folder = TempDirectory::new()?;
        let file = folder.path().join("ca.pem");
        fs::write(&file, &authority.pem)?;
        Ok(Self {
            endpoint,
            identity,
            folder,
            authority: file,
            port: sheave.address().port(),
            _sheave: sheave,
            _configuration: configuration,
        })
    }

    /// Returns the port, which is the same for TCP and UDP.
    pub(crate) fn port(&self) -> String {
        self.port.to_string()
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("https://127.0.0.1:{}{path}", self.port)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}
