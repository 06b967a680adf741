//! Names of resources.
//!
//! A Listener has the name that a client dials, in each form that DNS has for a Service. All other resources of a port
//! of a Service have the name of the backend: `namespace/service:port`. The routes of all Services with a port, by their
//! hosts, are `services:port`.

use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;

use gateway::snapshot::{BackendKey, ServicePortRoutes, TransportProtocol};

/// The cluster of references that cannot be resolved. It has no endpoints, so that its calls fail; it is no name of a
/// backend.
pub(crate) const UNRESOLVED: &str = "unresolved";

/// Returns the names of the Listeners of a port: `SERVICE.NAMESPACE:PORT`, and with `.svc` and the domain of the cluster.
pub(crate) fn listeners(port: &ServicePortRoutes, cluster_domain: &str) -> [Arc<str>; 3] {
    hosts(port, cluster_domain).map(|host| format!("{host}:{}", port.port).into())
}

/// Returns the names that DNS has for the Service.
pub(crate) fn hosts(port: &ServicePortRoutes, cluster_domain: &str) -> [String; 3] {
    let ServicePortRoutes { namespace, service, .. } = port;
    let host = format!("{service}.{namespace}");
    [host.clone(), format!("{host}.svc"), format!("{host}.svc.{cluster_domain}")]
}

/// The start of the names of servers' Listeners.
const SERVER: &str = "grpc/server/";
/// The end of them, before the address.
const LISTENING_ADDRESS: &str = "?xds.resource.listening_address=";

/// Returns the name of the Listener of a server at a port (`NAMESPACE/SERVICE:PORT`), in which clients put its address
/// in place of `%s`.
pub(crate) fn server_template(port: &str) -> String {
    format!("{SERVER}{port}{LISTENING_ADDRESS}%s")
}

/// Returns the port and the address in the name of a server's Listener.
pub(crate) fn server_port(name: &str) -> Option<(&str, SocketAddr)> {
    let (port, address) = name.strip_prefix(SERVER)?.split_once(LISTENING_ADDRESS)?;
    Some((port, address.parse().ok()?))
}

/// Returns the name of the RouteConfiguration of all Services with a port.
pub(crate) fn services(port: u16) -> Arc<str> {
    format!("services:{port}").into()
}

/// Returns the name of the RouteConfiguration of a port.
pub(crate) fn routes(port: &ServicePortRoutes) -> Arc<str> {
    let key = BackendKey {
        namespace: Arc::clone(&port.namespace),
        service: Arc::clone(&port.service),
        port: port.port,
        transport: TransportProtocol::Tcp,
        node: None,
    };
    cluster(&key)
}

/// Returns the name of the Cluster of a backend, and of its endpoints.
pub(crate) fn cluster(key: &BackendKey) -> Arc<str> {
    key.to_string().into()
}

/// Returns a text of another process without control characters and of limited length, for logs and statuses.
pub(crate) fn quoted(text: &str, max_bytes: usize) -> String {
    let mut quoted = String::new();
    for char in text.chars() {
        if quoted.len() + char.len_utf8() > max_bytes {
            quoted.push_str("...");
            break;
        }
        match char.is_control() {
            true => quoted.push(' '),
            false => quoted.write_char(char).expect("a String takes everything"),
        }
    }
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_client_are_shortened_and_have_no_control_characters() {
        assert_eq!(quoted("bad\nroute \u{1b}[31m", 80), "bad route  [31m");
        assert_eq!(quoted("ääää", 5), "ää...");
        assert_eq!(quoted("", 5), "");
    }

    #[test]
    fn the_name_of_a_servers_listener_has_its_address() {
        for address in ["[::]:50051", "10.0.0.1:80"] {
            let name = server_template("shop/web:80").replace("%s", address);
            assert_eq!(server_port(&name), Some(("shop/web:80", address.parse().unwrap())));
        }
        assert_eq!(server_port("web.shop:80"), None);
        assert_eq!(server_port(&server_template("shop/web:80")), None);
    }
}
