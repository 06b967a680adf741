//! Sheave before an endpoint, with HTTP/3, for programs that come by it.

use std::fs;
use std::path::PathBuf;

use serde_json::json;
use tests::certificates::{Authority, Identity};
use tests::configuration::Scratch;
use tests::{Behaviour, Configuration, Endpoint, Result, Sheave, objects};

/// Whom the listener is.
const NAMES: &[&str] = &["localhost", "127.0.0.1"];

pub(crate) struct Site {
    pub(crate) endpoint: Endpoint,
    pub(crate) identity: Identity,
    /// For whatever a program wants to read or write.
    pub(crate) folder: Scratch,
    /// The certificate of who vouches for the listener, in a file.
    pub(crate) authority: PathBuf,
    port: u16,
    _sheave: Sheave,
    _configuration: Configuration,
}

impl Site {
    pub(crate) async fn of(behaviour: impl Into<Behaviour>) -> Result<Self> {
        let endpoint = Endpoint::start(behaviour).await?;
        let authority = Authority::new();
        let identity = authority.vouch(NAMES);
        let gateway = objects::https_gateway(&["certificate"]);
        let policy = objects::client_policy(json!({ "http3": { "enabled": true } }));
        let more = [policy, identity.secret("certificate")];
        let configuration = Configuration::behind(gateway, &[endpoint.address], &more)?;
        let sheave = Sheave::serve(&configuration).await?;

        let folder = Scratch::new()?;
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

    /// The port, over TCP and over UDP.
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
