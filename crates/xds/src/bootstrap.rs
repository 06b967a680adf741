//! The bootstrap file of clients: the server, and the name of the client (gRFC A27). That of an Envoy is its whole
//! configuration.

/// Envoy's configuration.
mod envoy;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::client::CERTIFICATES_FIELD;
use crate::name;

pub use envoy::{EnvoySettings, InvalidServer, envoy_bootstrap};

/// The name of the certificates of a client or a server in its bootstrap file.
pub(crate) const CERTIFICATE_PROVIDER: &str = "default";

/// The interval at which a client or a server reads its certificates again, which may have been renewed.
const CERTIFICATE_INTERVAL: &str = "60s";

/// Settings of a bootstrap file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootstrapSettings {
    /// The server, as a target of gRPC: `NAME:PORT`.
    pub server: String,
    /// The credentials of connections to the server.
    pub credentials: ClientCredentials,
    /// The folder of the certificates for TLS between clients and servers (`ca.crt`, `tls.crt`, `tls.key`); `None`: there
    /// are none, and clients and servers use the credentials of their code.
    pub workload_certificates: Option<PathBuf>,
    /// The port of a Service (`NAMESPACE/SERVICE:PORT`) whose server gets its listener; `None`: clients alone.
    pub served_port: Option<String>,
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
    let mut file: Value = json!({
        "xds_servers": [{
            "server_uri": settings.server,
            "channel_creds": [credentials],
            "server_features": ["xds_v3"],
        }],
        "node": node,
    });
    if let Some(folder) = &settings.workload_certificates {
        let CertificateFiles { authorities, certificate, key } = CertificateFiles::of(folder);
        file["certificate_providers"] = json!({CERTIFICATE_PROVIDER: {
            "plugin_name": "file_watcher",
            "config": {
                "certificate_file": certificate,
                "private_key_file": key,
                "ca_certificate_file": authorities,
                "refresh_interval": CERTIFICATE_INTERVAL,
            },
        }});
        // Clients reject a Cluster that names certificates that they do not have.
        file["node"]["metadata"] = json!({CERTIFICATES_FIELD: CERTIFICATE_PROVIDER});
    }
    if let Some(port) = &settings.served_port {
        file["server_listener_resource_name_template"] = name::server_template(port).into();
    }
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
            workload_certificates: None,
            served_port: None,
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
        assert!(file.get("certificate_providers").is_none());
        assert!(file.get("server_listener_resource_name_template").is_none());

        settings.workload_certificates = Some("/etc/own".into());
        settings.served_port = Some("shop/web:80".to_owned());
        let file = parsed(&settings);
        let provider = &file["certificate_providers"]["default"];
        assert_eq!(provider["config"]["private_key_file"], "/etc/own/tls.key");
        assert_eq!(file["node"]["metadata"]["sheave.dev/certificate-provider"], "default");
        let template = "grpc/server/shop/web:80?xds.resource.listening_address=%s";
        assert_eq!(file["server_listener_resource_name_template"], template);
    }
}
