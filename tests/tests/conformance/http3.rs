//! Sheave with HTTP/3 in front of an endpoint, for third-party clients.

use std::fs;
use std::path::PathBuf;

use serde_json::json;
use tests::certificates::{CertificateAuthority, IssuedCertificate};
use tests::configuration::TempDirectory;
use tests::tls::TlsClientOptions;
use tests::{ConfigDirectory, Endpoint, EndpointBehaviour, Result, SheaveProcess, objects};

/// Names in the listener's certificate.
const NAMES: &[&str] = &["localhost", "127.0.0.1"];

/// Settings of a fixture.
pub(crate) struct FixtureOptions {
    /// Loopback address of the listener.
    pub(crate) address: &'static str,
    /// Further names in the listener's certificate.
    pub(crate) names: Vec<String>,
    pub(crate) zero_rtt: bool,
    /// Arguments of `sheave serve`.
    pub(crate) arguments: &'static [&'static str],
}

impl FixtureOptions {
    fn all_names(&self) -> Vec<&str> {
        NAMES.iter().copied().chain(self.names.iter().map(String::as_str)).collect()
    }
}

impl Default for FixtureOptions {
    fn default() -> Self {
        Self { address: "127.0.0.1", names: Vec::new(), zero_rtt: false, arguments: &[] }
    }
}

pub(crate) struct ConformanceFixture {
    pub(crate) endpoint: Endpoint,
    pub(crate) identity: IssuedCertificate,
    /// Folder for files that a program reads or writes.
    pub(crate) folder: TempDirectory,
    /// File with the certificate of the authority that issued the listener's.
    pub(crate) authority: PathBuf,
    /// TLS options of our own clients.
    pub(crate) tls_options: TlsClientOptions,
    pub(crate) sheave: SheaveProcess,
    _configuration: ConfigDirectory,
}

impl ConformanceFixture {
    pub(crate) async fn of(behaviour: impl Into<EndpointBehaviour>) -> Result<Self> {
        Self::with(behaviour, FixtureOptions::default()).await
    }

    pub(crate) async fn with(
        behaviour: impl Into<EndpointBehaviour>,
        options: FixtureOptions,
    ) -> Result<Self> {
        let endpoint = Endpoint::start(behaviour).await?;
        let authority = CertificateAuthority::new();
        let identity = authority.issue(&options.all_names());
        let mut gateway = objects::https_gateway(&["certificate"]);
        gateway[1]["spec"]["addresses"][0]["value"] = options.address.into();
        let http3 = json!({ "enabled": true, "zeroRtt": options.zero_rtt });
        let policy = objects::client_policy(json!({ "http3": http3 }));
        let more = [policy, identity.secret("certificate")];
        let configuration = ConfigDirectory::with_gateway(gateway, &[endpoint.address], &more)?;
        let sheave = SheaveProcess::serve_with(&configuration, options.arguments).await?;

        let folder = TempDirectory::new()?;
        let file = folder.path().join("ca.pem");
        fs::write(&file, &authority.pem)?;
        Ok(Self {
            endpoint,
            identity,
            folder,
            tls_options: TlsClientOptions::trusting(&authority),
            authority: file,
            sheave,
            _configuration: configuration,
        })
    }

    /// Returns the port, which is the same for TCP and UDP.
    pub(crate) fn port(&self) -> String {
        self.sheave.address().port().to_string()
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("https://127.0.0.1:{}{path}", self.port())
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}
