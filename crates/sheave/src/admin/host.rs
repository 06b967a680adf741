//! The host names under which the admin API answers.
//!
//! A web page can make its own name resolve to the address of this API (DNS rebinding), and so read it by the browser
//! of an operator. Its requests then carry that name in the Host field. Names that no stranger can own are served:
//! addresses, names without a dot, this machine's name, names below `.localhost`, and below `.svc` and `.cluster.local`,
//! which only a cluster's own DNS resolves.

use std::net::{IpAddr, Ipv6Addr};

use axum::http::header::HOST;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri};

/// Domains that public DNS does not have.
const PRIVATE_DOMAINS: [&str; 3] = [".localhost", ".svc", ".cluster.local"];

/// Host names that are served in addition to those that no stranger can own.
#[derive(Clone, Debug)]
pub(crate) struct ServedHosts(Vec<String>);

impl ServedHosts {
    /// Serves these names, in any case of letters.
    pub(crate) fn new(names: impl IntoIterator<Item = String>) -> Self {
        Self(names.into_iter().map(|name| normalize(&name)).collect())
    }

    /// Returns the host of a request that is not served. A request without a host comes from no browser.
    pub(crate) fn rejected<'r>(&self, uri: &'r Uri, headers: &'r HeaderMap) -> Option<&'r str> {
        if let Some(authority) = uri.authority() {
            return Some(authority.host()).filter(|host| !self.serves(host));
        }
        let mut fields = headers.get_all(HOST).into_iter();
        let field = fields.next()?.to_str().unwrap_or_default();
        if fields.next().is_some() {
            return Some(field);
        }
        match field.parse::<Authority>() {
            Ok(authority) if self.serves(authority.host()) => None,
            Ok(_) | Err(_) => Some(field),
        }
    }

    fn serves(&self, host: &str) -> bool {
        let host = normalize(host);
        is_address(&host)
            || !host.contains('.')
            || PRIVATE_DOMAINS.iter().any(|domain| host.ends_with(domain))
            || self.0.contains(&host)
    }
}

/// Returns the name in lower case, without the dot of the root.
fn normalize(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

fn is_address(host: &str) -> bool {
    let v6 = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    v6.map_or_else(|| host.parse::<IpAddr>().is_ok(), |host| host.parse::<Ipv6Addr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(host: &str, is_served: bool) {
        let hosts = ServedHosts::new(["Node-1.lan.example".to_owned()]);
        let headers = HeaderMap::from_iter([(HOST, host.parse().unwrap())]);
        let uri = Uri::from_static("/metrics");
        assert_eq!(hosts.rejected(&uri, &headers), (!is_served).then_some(host));
    }

    #[test]
    fn names_that_no_stranger_can_own_are_served() {
        for host in [
            "127.0.0.1:9900",
            "10.0.0.7",
            "[::1]:9900",
            "localhost:9900",
            "LOCALHOST.",
            "sheave-admin",
            "sheave-admin.sheave-system.svc:9900",
            "sheave-admin.sheave-system.svc.cluster.local",
            "node-1.lan.example:9900",
        ] {
            check(host, true);
        }
    }

    #[test]
    fn other_names_are_rejected() {
        for host in [
            "evil.example",
            "evil.example:9900",
            "127.0.0.1.evil.example",
            "svc.evil.example",
            "localhost.evil.example",
            "sheave-admin.sheave-system",
            "two, hosts.example",
            "user@evil.example",
        ] {
            check(host, false);
        }
    }

    #[test]
    fn request_without_host_is_served_and_with_two_rejected() {
        let hosts = ServedHosts::new([]);
        assert_eq!(hosts.rejected(&Uri::from_static("/"), &HeaderMap::new()), None);
        let mut headers = HeaderMap::new();
        headers.append(HOST, "localhost".parse().unwrap());
        headers.append(HOST, "evil.example".parse().unwrap());
        assert_eq!(hosts.rejected(&Uri::from_static("/"), &headers), Some("localhost"));
    }

    #[test]
    fn absolute_target_decides_over_the_field() {
        let hosts = ServedHosts::new([]);
        let headers = HeaderMap::from_iter([(HOST, "localhost".parse().unwrap())]);
        let uri = Uri::from_static("http://evil.example/metrics");
        assert_eq!(hosts.rejected(&uri, &headers), Some("evil.example"));
    }
}
