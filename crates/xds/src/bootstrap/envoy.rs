//! The configuration of an Envoy with one listener, whose routes come from the server.

use std::net::{IpAddr, SocketAddr};

use serde_json::{Value, json};
use thiserror::Error;

use super::{BootstrapSettings, CertificateFiles, ClientCredentials};

/// The name of the cluster of the server.
const SERVER_CLUSTER: &str = "sheave-xds";

/// Settings of an Envoy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvoySettings {
    /// The address of its listener.
    pub listen: SocketAddr,
    /// The name of the RouteConfiguration: `namespace/service:port` for one Service and any host, or `services:port` for
    /// all Services with that port by their hosts.
    pub routes: String,
}

/// The server is not given as an Envoy needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("an Envoy needs the server as NAME:PORT")]
pub struct InvalidServer;

/// The server: a name or an address, and a port.
struct ServerAddress<'a> {
    host: &'a str,
    port: u16,
}

impl<'a> ServerAddress<'a> {
    fn parse(server: &'a str) -> Result<Self, InvalidServer> {
        let (host, port) = server.rsplit_once(':').ok_or(InvalidServer)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        let host = bare.unwrap_or(host);
        let is_name = !host.contains([':', '/', '[', ']']) || host.parse::<IpAddr>().is_ok();
        let port = port.parse().map_err(|_error| InvalidServer)?;
        (is_name && !host.is_empty()).then_some(Self { host, port }).ok_or(InvalidServer)
    }
}

/// Returns the configuration, in JSON.
///
/// # Errors
/// If the server is not `NAME:PORT`.
pub fn envoy_bootstrap(
    settings: &BootstrapSettings,
    envoy: &EnvoySettings,
) -> Result<String, InvalidServer> {
    let mut node = json!({"id": settings.node_id, "cluster": settings.node_id});
    if let Some(zone) = &settings.zone {
        node["locality"] = json!({"zone": zone});
    }
    let server = ServerAddress::parse(&settings.server)?;
    let file: Value = json!({
        "node": node,
        "dynamic_resources": {
            "ads_config": {
                "api_type": "DELTA_GRPC",
                "transport_api_version": "V3",
                "set_node_on_first_message_only": true,
                "grpc_services": [{"envoy_grpc": {"cluster_name": SERVER_CLUSTER}}],
            },
            "cds_config": same_stream(),
        },
        "static_resources": {
            "listeners": [listener(envoy)],
            "clusters": [server_cluster(&server, &settings.credentials)],
        },
    });
    Ok(format!("{file:#}"))
}

fn same_stream() -> Value {
    json!({"ads": {}, "resource_api_version": "V3"})
}

fn listener(envoy: &EnvoySettings) -> Value {
    let manager = json!({
        "@type": type_url(
            "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        ),
        "stat_prefix": "services",
        "rds": {"route_config_name": envoy.routes, "config_source": same_stream()},
        "http_filters": [{
            "name": "envoy.filters.http.router",
            "typed_config": {"@type": type_url("envoy.extensions.filters.http.router.v3.Router")},
        }],
    });
    json!({
        "name": "services",
        "address": socket_address(&envoy.listen.ip().to_string(), envoy.listen.port()),
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    })
}

fn server_cluster(server: &ServerAddress<'_>, credentials: &ClientCredentials) -> Value {
    const OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    let endpoint = json!({"endpoint": {"address": socket_address(server.host, server.port)}});
    let mut cluster = json!({
        "name": SERVER_CLUSTER,
        // A name can have addresses of both families: Envoy tries them in turn (RFC 8305).
        "type": "LOGICAL_DNS",
        "dns_lookup_family": "ALL",
        "connect_timeout": "5s",
        "load_assignment": {
            "cluster_name": SERVER_CLUSTER,
            "endpoints": [{"lb_endpoints": [endpoint]}],
        },
        "typed_extension_protocol_options": {OPTIONS: {
            "@type": type_url(OPTIONS),
            "explicit_http_config": {"http2_protocol_options": {
                // A stream may be silent for hours; a server that has gone must be noticed.
                "connection_keepalive": {"interval": "20s", "timeout": "10s"},
            }},
        }},
    });
    if let ClientCredentials::Folder(folder) = credentials {
        cluster["transport_socket"] = json!({
            "name": "envoy.transport_sockets.tls",
            "typed_config": tls_context(server, &CertificateFiles::of(folder)),
        });
    }
    cluster
}

/// Returns the settings of TLS: the certificate of the server must have the name by which it is reached.
fn tls_context(server: &ServerAddress<'_>, files: &CertificateFiles) -> Value {
    let is_address = server.host.parse::<IpAddr>().is_ok();
    let name = json!({
        "san_type": if is_address { "IP_ADDRESS" } else { "DNS" },
        "matcher": {"exact": server.host},
    });
    let mut context = json!({
        "@type": type_url("envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"),
        "common_tls_context": {
            "tls_certificates": [{
                "certificate_chain": {"filename": files.certificate},
                "private_key": {"filename": files.key},
            }],
            "validation_context": {
                "trusted_ca": {"filename": files.authorities},
                "match_typed_subject_alt_names": [name],
            },
        },
    });
    if !is_address {
        context["sni"] = json!(server.host);
    }
    context
}

fn socket_address(host: &str, port: u16) -> Value {
    json!({"socket_address": {"address": host, "port_value": port}})
}

fn type_url(name: &str) -> String {
    format!("type.googleapis.com/{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(server: &str) -> BootstrapSettings {
        BootstrapSettings {
            server: server.to_owned(),
            credentials: ClientCredentials::Folder("/etc/xds".into()),
            node_id: "edge".to_owned(),
            zone: Some("a".to_owned()),
            workload_certificates: None,
            served_port: None,
        }
    }

    fn file(server: &str) -> Result<Value, InvalidServer> {
        let listen = ([127, 0, 0, 1], 10_000).into();
        let envoy = EnvoySettings { listen, routes: "services:80".to_owned() };
        Ok(serde_json::from_str(&envoy_bootstrap(&settings(server), &envoy)?).unwrap())
    }

    #[test]
    fn file_has_listener_routes_server_and_certificates() {
        let file = file("sheave-xds.sheave.svc:9905").unwrap();
        assert_eq!(file["node"]["locality"]["zone"], "a");
        let resources = &file["static_resources"];
        let listener = &resources["listeners"][0];
        assert_eq!(listener["address"]["socket_address"]["port_value"], 10_000);
        let manager = &listener["filter_chains"][0]["filters"][0]["typed_config"];
        assert_eq!(manager["rds"]["route_config_name"], "services:80");
        let cluster = &resources["clusters"][0];
        let endpoint = &cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"];
        let address = &endpoint["address"]["socket_address"];
        assert_eq!(
            (&address["address"], &address["port_value"]),
            (&json!("sheave-xds.sheave.svc"), &json!(9905))
        );
        let context = &cluster["transport_socket"]["typed_config"];
        assert_eq!(context["sni"], "sheave-xds.sheave.svc");
        let trusted = &context["common_tls_context"]["validation_context"];
        assert_eq!(trusted["trusted_ca"]["filename"], "/etc/xds/ca.crt");
        assert_eq!(trusted["match_typed_subject_alt_names"][0]["san_type"], "DNS");
    }

    #[test]
    fn server_is_a_name_or_an_address_with_a_port() {
        for server in ["sheave", "sheave:http", ":9905", "dns:///sheave:9905", "[sheave:9905"] {
            assert_eq!(file(server).unwrap_err(), InvalidServer, "{server}");
        }
        let file = file("[::1]:9905").unwrap();
        let context = &file["static_resources"]["clusters"][0]["transport_socket"]["typed_config"];
        assert!(context.get("sni").is_none());
        let names =
            &context["common_tls_context"]["validation_context"]["match_typed_subject_alt_names"];
        assert_eq!(names[0], json!({"san_type": "IP_ADDRESS", "matcher": {"exact": "::1"}}));
    }
}
