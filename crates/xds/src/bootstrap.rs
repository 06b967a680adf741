//! The bootstrap file of clients: the server, and the name of the client (gRFC A27). That of an Envoy is its whole
//! configuration.

/// Envoy's configuration.
mod envoy;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

pub use envoy::{EnvoySettings, InvalidServer, envoy_bootstrap};

/// Settings of a bootstrap file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootstrapSettings {
    /// The server, as a target of gRPC: `NAME:PORT`.
    pub server: String,
    /// The credentials of connections to the server.
    pub credentials: ClientCredentials,
    /// The name of the client, for logs.
    pub node_id: String,
    /// The zone of the client; `None`: not known, so that no zone is preferred.
    pub zone: Option<String>,
}

/// Credentials of connections of clients to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientCredentials {
    /// Plaintext, on one machine.
    Insecure,
    /// TLS, with the files of a folder on the client's machine: `ca.crt`, `tls.crt` and `tls.key`.
    Folder(PathBuf),
}

/// The files of a folder with certificates.
struct CertificateFiles {
    authorities: String,
    certificate: String,
    key: String,
}

impl CertificateFiles {
    fn of(folder: &Path) -> Self {
        let file = |name| folder.join(name).display().to_string();
        Self { authorities: file("ca.crt"), certificate: file("tls.crt"), key: file("tls.key") }
    }
}

/// Returns the file, in JSON.
#[must_use]
pub fn bootstrap(settings: &BootstrapSettings) -> String {
    let credentials = match &settings.credentials {
        ClientCredentials::Insecure => json!({"type": "insecure"}),
        ClientCredentials::Folder(folder) => {
            let CertificateFiles { authorities, certificate, key } = CertificateFiles::of(folder);
            json!({"type": "tls", "config": {
                "ca_certificate_file": authorities,
                "certificate_file": certificate,
                "private_key_file": key,
            }})
        }
    };
    // gRPC for Node.js requires a locality, even if it is empty.
    let mut node = json!({"id": settings.node_id, "locality": {}});
    if let Some(zone) = &settings.zone {
        node["locality"] = json!({"zone": zone});
    }
    let file: Value = json!({
        "xds_servers": [{
            "server_uri": settings.server,
            "channel_creds": [credentials],
            "server_features": ["xds_v3"],
        }],
        "node": node,
    });
    format!("{file:#}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bootstrap_names_server_credentials_and_client() {
        let mut settings = BootstrapSettings {
            server: "sheave.sheave:9905".to_owned(),
            credentials: ClientCredentials::Insecure,
            node_id: "shop".to_owned(),
            zone: None,
        };
        let parsed =
            |settings: &_| -> Value { serde_json::from_str(&bootstrap(settings)).unwrap() };
        let file = parsed(&settings);
        assert_eq!(file["xds_servers"][0]["server_uri"], "sheave.sheave:9905");
        assert_eq!(file["xds_servers"][0]["channel_creds"], json!([{"type": "insecure"}]));
        assert_eq!(file["node"], json!({"id": "shop", "locality": {}}));

        settings.credentials = ClientCredentials::Folder("/etc/xds".into());
        settings.zone = Some("a".to_owned());
        let file = parsed(&settings);
        let credentials = &file["xds_servers"][0]["channel_creds"][0];
        assert_eq!(credentials["type"], "tls");
        assert_eq!(credentials["config"]["ca_certificate_file"], "/etc/xds/ca.crt");
        assert_eq!(file["node"]["locality"]["zone"], "a");
    }
}
