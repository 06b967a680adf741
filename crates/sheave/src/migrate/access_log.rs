//! Requests in access logs: lines of JSON, as Sheave and many nginx write them, or lines that quote the request line, as
//! nginx, Apache, HAProxy and Envoy do by default.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Methods that do not change anything (RFC 9110 §9.2.1), so that requests may be sent again.
const SAFE_METHODS: [&str; 3] = ["GET", "HEAD", "OPTIONS"];
/// Maximum length of the target of a request.
const MAX_TARGET_BYTES: usize = 8 * 1024;

/// Keys of methods, of hosts and of targets with a query, in JSON. The first that is there counts.
const METHOD_KEYS: [&str; 4] = ["http.request.method", "method", "request_method", "verb"];
const HOST_KEYS: [&str; 6] =
    ["server.address", "host", "http_host", "vhost", "authority", "server_name"];
const TARGET_KEYS: [&str; 5] = ["request_uri", "uri", "url", "path", "request_path"];

/// A request, as a log has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LoggedRequest {
    pub(super) method: String,
    /// The host, without a port.
    pub(super) host: String,
    /// The path and the query.
    pub(super) target: String,
}

/// The requests of a log.
#[derive(Debug, Default)]
pub(super) struct LoggedRequests {
    /// Maximum number of different requests.
    limit: usize,
    /// Lines of further requests.
    pub(super) further_lines: u64,
    /// Each request once, in the order of their first lines, with the number of its lines.
    pub(super) requests: Vec<(LoggedRequest, u64)>,
    /// Lines of requests that may change something, which are not sent again.
    pub(super) unsafe_lines: u64,
    /// Lines without a host, where no flag gives one.
    pub(super) lines_without_host: u64,
    /// Lines that have no request, with the first of them.
    pub(super) unknown_lines: u64,
    pub(super) first_unknown: Option<String>,
    known: BTreeMap<LoggedRequest, usize>,
}

/// The meaning of a line.
#[derive(Debug, PartialEq, Eq)]
enum LineMeaning {
    Request(LoggedRequest),
    Unsafe,
    NoHost,
    Unknown,
}

impl LoggedRequests {
    /// Returns no requests yet, and this number of different ones at most.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Adds a line of a log. `host` is that of requests without one.
    pub(super) fn add(&mut self, line: &str, host: Option<&str>) {
        if line.trim().is_empty() {
            return;
        }
        match meaning(line, host) {
            LineMeaning::Request(request) => self.count(request),
            LineMeaning::Unsafe => self.unsafe_lines += 1,
            LineMeaning::NoHost => self.lines_without_host += 1,
            LineMeaning::Unknown => {
                self.unknown_lines += 1;
                self.first_unknown.get_or_insert_with(|| line.chars().take(80).collect());
            }
        }
    }

    fn count(&mut self, request: LoggedRequest) {
        if let Some(index) = self.known.get(&request) {
            self.requests[*index].1 += 1;
        } else if self.requests.len() < self.limit {
            self.known.insert(request.clone(), self.requests.len());
            self.requests.push((request, 1));
        } else {
            self.further_lines += 1;
        }
    }
}

fn meaning(line: &str, host: Option<&str>) -> LineMeaning {
    let found = match serde_json::from_str::<Map<String, Value>>(line) {
        Ok(fields) => of_json(&fields),
        Err(_) => of_text(line),
    };
    let Some((method, logged_host, target)) = found else { return LineMeaning::Unknown };
    let is_method = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let is_target = |it: &str| {
        it.starts_with('/')
            && it.len() <= MAX_TARGET_BYTES
            && it.bytes().all(|it| it.is_ascii_graphic())
    };
    // A target may be a whole URL, with a host of its own.
    let (url_host, target) = split_url(&target);
    if !is_method || !is_target(&target) {
        return LineMeaning::Unknown;
    }
    if !SAFE_METHODS.contains(&&*method) {
        return LineMeaning::Unsafe;
    }
    let given = host.map(str::to_owned);
    let Some(host) = url_host.or(logged_host).filter(|host| is_host(host)).or(given) else {
        return LineMeaning::NoHost;
    };
    LineMeaning::Request(LoggedRequest { method, host, target })
}

/// Returns the method, the host and the target of a line of JSON.
fn of_json(fields: &Map<String, Value>) -> Option<(String, Option<String>, String)> {
    let find =
        |keys: &[&str]| keys.iter().find_map(|key| fields.get(*key)?.as_str().map(str::to_owned));
    let host = find(&HOST_KEYS).map(|host| without_port(&host).to_owned());
    if let Some(path) = fields.get("url.path").and_then(Value::as_str) {
        let query = fields.get("url.query").and_then(Value::as_str);
        let query = query.map(|query| format!("?{query}")).unwrap_or_default();
        return Some((find(&METHOD_KEYS)?, host, format!("{path}{query}")));
    }
    let line = fields.get("request").and_then(Value::as_str);
    if let Some((method, target)) = line.and_then(request_line) {
        return Some((method, host, target));
    }
    Some((find(&METHOD_KEYS)?, host, find(&TARGET_KEYS)?))
}

/// Returns those of the first quoted request line.
fn of_text(line: &str) -> Option<(String, Option<String>, String)> {
    let quoted = line.split('"').skip(1).step_by(2);
    let (method, target) = quoted.filter_map(request_line).next()?;
    Some((method, None, target))
}

/// Splits `GET /path HTTP/1.1`.
fn request_line(line: &str) -> Option<(String, String)> {
    let mut words = line.split(' ');
    let (method, target, version) = (words.next()?, words.next()?, words.next()?);
    let is_line = version.starts_with("HTTP/") && words.next().is_none();
    is_line.then(|| (method.to_owned(), target.to_owned()))
}

fn split_url(target: &str) -> (Option<String>, String) {
    let url = target.strip_prefix("http://").or_else(|| target.strip_prefix("https://"));
    let Some(url) = url else { return (None, target.to_owned()) };
    let (authority, path) = url.split_at(url.find(['/', '?']).unwrap_or(url.len()));
    let slash = if path.starts_with('/') { "" } else { "/" };
    (Some(without_port(authority).to_owned()), format!("{slash}{path}"))
}

/// Returns a host without its port. An address of version 6 keeps its brackets.
pub(super) fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|it| it.is_ascii_digit()) => name,
        _ => host,
    }
}

/// True for a host that a request may name: `-` and `_` stand for none.
pub(super) fn is_host(host: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    host.bytes().any(|byte| byte.is_ascii_alphanumeric()) && host.bytes().all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(line: &str) -> String {
        match meaning(line, None) {
            LineMeaning::Request(LoggedRequest { method, host, target }) => {
                format!("{method} {host} {target}")
            }
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn requests_of_json_are_read() {
        let sheave = r#"{"http.request.method":"GET","server.address":"a.test","server.port":8080,"url.path":"/x","url.query":"y=1"}"#;
        assert_eq!(request(sheave), "GET a.test /x?y=1");
        let nginx = r#"{"request":"HEAD /a?b HTTP/2.0","host":"b.test:8443","status":200}"#;
        assert_eq!(request(nginx), "HEAD b.test /a?b");
        let other = r#"{"request_method":"GET","vhost":"[::1]:80","request_uri":"/"}"#;
        assert_eq!(request(other), "GET [::1] /");
        assert_eq!(request(r#"{"method":"GET","path":"/"}"#), "NoHost");
        assert_eq!(request(r#"{"method":"GET","path":"/","host":"-"}"#), "NoHost");
        assert_eq!(request(r#"{"method":"DELETE","path":"/","host":"a"}"#), "Unsafe");
        assert_eq!(request(r#"{"status":200}"#), "Unknown");
        let named = r#"{"request":"x","method":"GET","uri":"/a","host":"b"}"#;
        assert_eq!(request(named), "GET b /a");
    }

    #[test]
    fn requests_of_text_are_read() {
        let combined = "192.0.2.1 - - [1/Jan/2026:00:00:00 +0000] \"GET /a?b=c HTTP/1.1\" 200 5 \"-\" \"curl/8\"";
        let is_meant = LoggedRequest {
            method: "GET".to_owned(),
            host: "shop.test".to_owned(),
            target: "/a?b=c".to_owned(),
        };
        assert_eq!(meaning(combined, Some("shop.test")), LineMeaning::Request(is_meant));
        assert_eq!(request(combined), "NoHost");
        let proxied = "x \"GET http://a.test:81/b HTTP/1.1\" 200";
        assert_eq!(request(proxied), "GET a.test /b");
        assert_eq!(request("\"GET http://a.test?b=1 HTTP/1.1\""), "GET a.test /?b=1");
        for line in ["", "no request", "\"GET /\" 400", "\"\\x16\\x03\" 400", "\"GET b HTTP/1.1\""]
        {
            assert_eq!(request(line), "Unknown", "{line}");
        }
    }

    #[test]
    fn each_request_is_there_once_with_the_number_of_its_lines() {
        let mut requests = LoggedRequests::new(2);
        for path in ["/b", "/a", "/b", "/c", "/a"] {
            requests.add(&format!("\"GET {path} HTTP/1.1\" 200"), Some("a.test"));
        }
        for line in ["\"POST / HTTP/1.1\"", "", "nothing"] {
            requests.add(line, Some("a.test"));
        }
        let counts: Vec<_> =
            requests.requests.iter().map(|(it, count)| (&*it.target, *count)).collect();
        assert_eq!((counts, requests.further_lines), (vec![("/b", 2), ("/a", 2)], 1));
        assert_eq!((requests.unsafe_lines, requests.unknown_lines), (1, 1));
        assert_eq!(requests.first_unknown.as_deref(), Some("nothing"));
    }
}
