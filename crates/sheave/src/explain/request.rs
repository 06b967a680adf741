//! The request to explain, parsed from the command line.

use std::net::IpAddr;

use gateway::matching::{OwnedHostName, PlainRequest, RouteTable};
use gateway::snapshot::{Listener, ListenerProtocol, Rule};

use super::service;

/// Hypothetical request.
#[derive(Debug)]
pub(super) struct ExplainRequest {
    pub(super) request: PlainRequest,
    /// Port that it would be sent to.
    pub(super) port: u16,
    /// True if it would be sent over TLS.
    pub(super) is_https: bool,
    /// Host of the URL, whatever the header fields say.
    host: String,
    /// SNI host name; none for an IP address.
    pub(super) server_name: Option<OwnedHostName>,
    /// True if the URL names the port.
    is_port_given: bool,
}

impl ExplainRequest {
    /// Parses the request, or returns the error: one sentence that names the valid form.
    pub(super) fn parse(method: &str, url: &str, headers: &[String]) -> Result<Self, String> {
        if method.is_empty() || !method.bytes().all(is_token) {
            return Err(format!("{method:?} is not a method: write one such as GET"));
        }
        let (scheme, rest) =
            url.split_once("://").ok_or_else(|| format!("write the scheme too: http://{url}"))?;
        let (is_https, usual_port) = match scheme {
            "http" => (false, 80),
            "https" => (true, 443),
            _ => return Err(format!("{scheme} is not supported: use http or https")),
        };
        let rest = rest.split('#').next().unwrap_or_default();
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let (host, port) = host_and_port(authority)?;
        let mut request = PlainRequest {
            method: method.to_owned(),
            host: host.to_owned(),
            path: if path.is_empty() { "/".to_owned() } else { path.to_owned() },
            query: query.to_owned(),
            headers: headers.iter().map(|text| header(text)).collect::<Result<_, _>>()?,
        };
        let named = request.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("host"));
        if let Some((_, value)) = named {
            request.host = host_and_port(value)?.0.to_owned();
        }
        let host = host.to_owned();
        let is_address = host.starts_with('[') || host.parse::<IpAddr>().is_ok();
        let server_name = (!is_address).then(|| OwnedHostName::new(host.as_bytes()));
        let is_port_given = port.is_some();
        let port = port.unwrap_or(usual_port);
        Ok(Self { request, port, is_https, host, server_name, is_port_given })
    }

    /// Returns the listeners on the request's port; if the URL names no port and no listener has the default port, all.
    /// The address of a Service is reached only by a URL that names it, and then no other listener is.
    pub(super) fn listeners<'l>(&self, all: &'l [Listener]) -> Vec<(&'l Listener, &'l RouteTable)> {
        let named: Vec<_> = self.named(all).collect();
        if !named.is_empty() {
            return named.into_iter().filter_map(routes).collect();
        }
        let bound = all.iter().filter(|listener| listener.interception.is_none());
        let http: Vec<_> = bound.filter_map(routes).collect();
        let here = http.iter().filter(|(listener, _)| listener.address.port() == self.port);
        let here: Vec<_> = here.copied().collect();
        if here.is_empty() && !self.is_port_given { http } else { here }
    }

    /// Returns the listeners of the Service that the URL names, if they balance connections as a whole.
    pub(super) fn connections<'l>(&self, all: &'l [Listener]) -> Vec<(&'l Listener, &'l Rule)> {
        self.named(all).filter_map(connection_rule).collect()
    }

    /// Returns the listeners of the Service that the URL names.
    fn named<'l>(&self, all: &'l [Listener]) -> impl Iterator<Item = &'l Listener> {
        all.iter().filter(|listener| {
            listener.interception.is_some()
                && listener.address.port() == self.port
                && service::is_named(listener, &self.host)
        })
    }
}

fn routes(listener: &Listener) -> Option<(&Listener, &RouteTable)> {
    match &listener.protocol {
        ListenerProtocol::Http(routes) | ListenerProtocol::Detected { requests: routes, .. } => {
            Some((listener, routes))
        }
        ListenerProtocol::Tcp(_) | ListenerProtocol::Udp(_) => None,
    }
}

fn connection_rule(listener: &Listener) -> Option<(&Listener, &Rule)> {
    match &listener.protocol {
        ListenerProtocol::Tcp(rule) => Some((listener, rule.as_ref()?)),
        ListenerProtocol::Http(_)
        | ListenerProtocol::Detected { .. }
        | ListenerProtocol::Udp(_) => None,
    }
}

fn host_and_port(authority: &str) -> Result<(&str, Option<u16>), String> {
    let (host, port) = match authority.rsplit_once(':') {
        // The last colon may belong to an IPv6 address.
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        Some(_) | None => (authority, None),
    };
    if host.is_empty() {
        return Err("write the host too, as in http://example.com/".to_owned());
    }
    let port = port.map(|port| {
        port.parse().map_err(|_error| format!("`{port}` is not a port: write a number up to 65535"))
    });
    Ok((host, port.transpose()?))
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once(':')
        .ok_or_else(|| format!("write a header field as 'name: value', not {text:?}"))?;
    if name.is_empty() || !name.bytes().all(is_token) {
        return Err(format!("{name:?} is not the name of a header field"));
    }
    Ok((name.to_owned(), value.trim().to_owned()))
}

/// True for a character of a token (RFC 9110 §5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str, headers: &[&str]) -> Result<(String, u16, String, String), String> {
        let headers: Vec<String> = headers.iter().map(ToString::to_string).collect();
        let ExplainRequest { request, port, .. } = ExplainRequest::parse("GET", url, &headers)?;
        Ok((request.host, port, request.path, request.query))
    }

    #[test]
    fn url_is_split_into_its_parts() {
        let is = |host: &str, port, path: &str, query: &str| {
            Ok((host.to_owned(), port, path.to_owned(), query.to_owned()))
        };
        assert_eq!(parsed("http://a.test", &[]), is("a.test", 80, "/", ""));
        assert_eq!(parsed("https://a.test/b?c=d#e", &[]), is("a.test", 443, "/b", "c=d"));
        assert_eq!(parsed("http://[::1]:8080?q", &[]), is("[::1]", 8080, "/", "q"));
        assert_eq!(parsed("http://[::1]/", &[]), is("[::1]", 80, "/", ""));
        let host = "Host: b.test:1";
        assert_eq!(parsed("http://127.0.0.1:8080/", &[host]), is("b.test", 8080, "/", ""));
    }

    #[test]
    fn invalid_url_or_header_gives_an_actionable_error() {
        for (url, headers, part) in [
            ("a.test/", &[][..], "http://a.test/"),
            ("ftp://a.test/", &[], "http or https"),
            ("http:///path", &[], "write the host"),
            ("http://a.test:port/", &[], "not a port"),
            ("http://a.test/", &["no colon"], "'name: value'"),
            ("http://a.test/", &["a b: c"], "not the name"),
        ] {
            let error = parsed(url, headers).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        assert!(ExplainRequest::parse("G T", "http://a.test/", &[]).unwrap_err().contains("GET"));
    }
}
