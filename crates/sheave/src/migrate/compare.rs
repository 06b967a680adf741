//! `sheave migrate --compare`: sends the requests of an access log to two servers, and says where the answers differ.
//!
//! What differs is asked for again at the first server: an answer that differs from its own former one shows nothing about
//! the second server.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use http::header::{CONTENT_TYPE, HOST, LOCATION, SET_COOKIE, USER_AGENT, WWW_AUTHENTICATE};
use http::uri::Scheme;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use http_body_util::Empty;
use hyper::body::Bytes;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::runtime;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::access_log::{LoggedRequest, LoggedRequests, is_host};
use crate::check::print;
use crate::failure::Failure;
use crate::flags::CompareFlags;
use crate::http_client::{client_config, connect, exchange};

/// Requests that are sent at once.
const CONCURRENCY: usize = 8;
/// Time limit of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum size of an answer's body that is read.
const MAX_BODY_BYTES: usize = 16 << 20;
/// Fields that differ from answer to answer, or from server to server, without a meaning for clients.
const IGNORED_FIELDS: [&str; 14] = [
    "age",
    "alt-svc",
    "connection",
    "content-length",
    "date",
    "etag",
    "expires",
    "keep-alive",
    "last-modified",
    "server",
    "transfer-encoding",
    "vary",
    "via",
    "x-request-id",
];
/// Fields whose values are compared; of the others, the names.
const COMPARED_FIELDS: [HeaderName; 3] = [CONTENT_TYPE, LOCATION, WWW_AUTHENTICATE];

/// Compares the servers.
///
/// # Errors
/// If a log cannot be read or has no request, a URL is not one of a server, or an answer differs.
pub(super) fn run(flags: &CompareFlags) -> Result<(), Failure> {
    let [first, second] = &*flags.compare else {
        return Err(Failure::input("--compare needs two URLs"));
    };
    if let Some(host) = flags.host.as_deref().filter(|host| !is_host(host)) {
        return Err(Failure::input(format_args!("--host: {host} is no host")));
    }
    let servers = [first, second].map(|url| ComparedServer::parse(url));
    let [first, second] = servers;
    let (first, second) = (first.map_err(Failure::input)?, second.map_err(Failure::input)?);
    let mut log = LoggedRequests::default();
    for path in &flags.access_log {
        let content = fs::read(path)
            .map_err(|error| Failure::input(format_args!("{}: {error}", path.display())))?;
        log.add(&String::from_utf8_lossy(&content), flags.host.as_deref());
    }
    if log.requests.is_empty() {
        return Err(Failure::input(nothing_to_send(&log)));
    }
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start its thread")?;
    let comparison = runtime.block_on(compare(&log, flags.limit, first, second));
    print(&comparison.map_err(Failure::input)?.into_lines(&log, flags.limit)?)
}

fn nothing_to_send(log: &LoggedRequests) -> String {
    let LoggedRequests { unsafe_lines, lines_without_host, unknown_lines, first_unknown, .. } = log;
    let reason = match (*lines_without_host, first_unknown) {
        (1.., _) => "no line has a host: add --host".to_owned(),
        (0, Some(line)) => {
            format!("of {unknown_lines} lines none has a request, the first: {line}")
        }
        (0, None) if *unsafe_lines > 0 => "all requests may change something".to_owned(),
        (0, None) => "the log is empty".to_owned(),
    };
    format!("there is no request to send: {reason}")
}

/// A server, with the address of its URL in place of that of each request's host.
struct ComparedServer {
    url: String,
    host: String,
    port: u16,
    tls: Option<Arc<ClientConfig>>,
}

/// The part of an answer that clients depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AnswerSummary {
    status: u16,
    /// The values of [`COMPARED_FIELDS`].
    fields: Vec<String>,
    names: BTreeSet<String>,
    cookies: BTreeSet<String>,
    body: Bytes,
}

/// The result for one request.
enum RequestResult {
    Same,
    /// The answers of the first server differ from each other.
    Varies,
    Different(String),
    Failed(String),
}

impl ComparedServer {
    fn parse(url: &str) -> Result<Self, String> {
        let is_whole = |uri: &Uri| uri.path() == "/" && uri.query().is_none();
        let uri: Uri = url.parse().map_err(|error| format!("--compare: {url}: {error}"))?;
        let (Some(scheme), Some(host)) = (uri.scheme(), uri.host().filter(|_| is_whole(&uri)))
        else {
            return Err(format!("--compare: {url} must be http://HOST:PORT or https://HOST:PORT"));
        };
        let is_encrypted = *scheme == Scheme::HTTPS;
        let tls = if is_encrypted { Some(client_config()?) } else { None };
        let port = uri.port_u16().unwrap_or(if is_encrypted { 443 } else { 80 });
        Ok(Self { url: url.to_owned(), host: host.trim_matches(['[', ']']).to_owned(), port, tls })
    }

    async fn addresses(&self) -> Result<Vec<IpAddr>, String> {
        let found = tokio::net::lookup_host((&*self.host, self.port)).await;
        let found = found.map_err(|error| format!("{}: {error}", self.url))?;
        Ok(found.map(|address| address.ip()).collect())
    }

    /// Sends a request over a connection of its own.
    async fn ask(
        &self,
        addresses: &[IpAddr],
        logged: &LoggedRequest,
    ) -> Result<AnswerSummary, String> {
        let LoggedRequest { method, host, target } = logged;
        let method: Method = method.parse().map_err(|_invalid| "the method is none".to_owned())?;
        let is_default = self.port == if self.tls.is_some() { 443 } else { 80 };
        let authority = if is_default { host.clone() } else { format!("{host}:{}", self.port) };
        let request = Request::builder()
            .method(method)
            .uri(&**target)
            .header(HOST, authority)
            .header(USER_AGENT, concat!("sheave-migrate/", env!("CARGO_PKG_VERSION")))
            .body(Empty::<Bytes>::new())
            .map_err(|error| error.to_string())?;
        let sent = async {
            let stream = connect(addresses, self.port).await?;
            let Some(config) = &self.tls else {
                return exchange(stream, request, MAX_BODY_BYTES, |_| Ok(())).await;
            };
            let name = host.trim_matches(['[', ']']).to_owned();
            let name = ServerName::try_from(name).map_err(|error| error.to_string())?;
            let stream = TlsConnector::from(Arc::clone(config)).connect(name, stream).await;
            let stream = stream.map_err(|error| format!("TLS: {error}"))?;
            exchange(stream, request, MAX_BODY_BYTES, |_| Ok(())).await
        };
        let answer = timeout(REQUEST_TIMEOUT, sent).await;
        let answer = answer.unwrap_or_else(|_elapsed| Err("no answer in time".to_owned()));
        let (head, body) = answer.map_err(|error| format!("{}: {error}", self.url))?.into_parts();
        let authority = format!("{host}:{}", self.port);
        Ok(AnswerSummary::new(head.status.as_u16(), &head.headers, body, &authority))
    }
}

impl AnswerSummary {
    /// Returns the summary of an answer. The port in `authority`, the one of the request, is no part of it.
    fn new(status: u16, headers: &HeaderMap, body: Bytes, authority: &str) -> Self {
        let text = |name: &HeaderName| {
            let values = headers.get_all(name).iter();
            let values: Vec<_> =
                values.map(|it| String::from_utf8_lossy(it.as_bytes()).into_owned()).collect();
            values.join(", ")
        };
        let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
        let fields = COMPARED_FIELDS.iter().map(|name| text(name).replace(authority, host));
        let names = headers.keys().map(|name| name.as_str().to_owned());
        let is_named = |name: &String| {
            !IGNORED_FIELDS.contains(&&**name)
                && !COMPARED_FIELDS.iter().any(|it| it.as_str() == name)
                && name != SET_COOKIE.as_str()
        };
        let cookie = |value: &HeaderValue| {
            let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
            text.split('=').next().unwrap_or_default().to_owned()
        };
        Self {
            status,
            fields: fields.collect(),
            names: names.filter(is_named).collect(),
            cookies: headers.get_all(SET_COOKIE).iter().map(cookie).collect(),
            body,
        }
    }

    /// Returns the first difference from another answer; `None`: they mean the same.
    fn difference(&self, other: &Self) -> Option<String> {
        if self.status != other.status {
            return Some(format!("status {}, then {}", self.status, other.status));
        }
        let values = self.fields.iter().zip(&other.fields);
        for (name, (value, other)) in COMPARED_FIELDS.iter().zip(values) {
            if value != other {
                return Some(format!("{name} {}, then {}", shown(value), shown(other)));
            }
        }
        let sets = [
            ("the field", &self.names, &other.names),
            ("the cookie", &self.cookies, &other.cookies),
        ];
        for (what, first, second) in sets {
            if let Some(name) = first.difference(second).next() {
                return Some(format!("{what} {} is missing", shown(name)));
            }
            if let Some(name) = second.difference(first).next() {
                return Some(format!("{what} {} is new", shown(name)));
            }
        }
        let lengths = (self.body.len(), other.body.len());
        (self.body != other.body)
            .then(|| format!("a body of {} bytes, then another of {}", lengths.0, lengths.1))
    }
}

/// Returns a text of a server for a terminal: in quotes, without control characters, and not too long.
fn shown(text: &str) -> String {
    let short: String = text.chars().take(120).collect();
    format!("{short:?}")
}

/// The results.
#[derive(Default)]
struct Comparison {
    lines: Vec<String>,
    same: usize,
    varied: usize,
    different: usize,
    failed: usize,
}

async fn compare(
    log: &LoggedRequests,
    limit: usize,
    first: ComparedServer,
    second: ComparedServer,
) -> Result<Comparison, String> {
    let addresses = [first.addresses().await?, second.addresses().await?];
    let servers = Arc::new(([first, second], addresses));
    let mut comparison = Comparison::default();
    let wanted: Vec<_> = log.requests.iter().take(limit).collect();
    for group in wanted.chunks(CONCURRENCY) {
        let running: Vec<_> = group
            .iter()
            .map(|(request, _)| {
                let (servers, request) = (Arc::clone(&servers), request.clone());
                tokio::spawn(async move { compare_one(&servers.0, &servers.1, &request).await })
            })
            .collect();
        for ((request, count), task) in group.iter().zip(running) {
            let result = task.await.map_err(|error| error.to_string())?;
            comparison.add(request, *count, result);
        }
    }
    Ok(comparison)
}

async fn compare_one(
    servers: &[ComparedServer; 2],
    addresses: &[Vec<IpAddr>; 2],
    request: &LoggedRequest,
) -> RequestResult {
    let ask = |index: usize| servers[index].ask(&addresses[index], request);
    let compared = async {
        let (first, second) = tokio::join!(ask(0), ask(1));
        let (first, second) = (first?, second?);
        let Some(difference) = first.difference(&second) else { return Ok(RequestResult::Same) };
        let again = ask(0).await?;
        Ok::<_, String>(match again.difference(&second) {
            Some(_) if first.difference(&again).is_none() => RequestResult::Different(difference),
            Some(_) | None => RequestResult::Varies,
        })
    };
    compared.await.unwrap_or_else(RequestResult::Failed)
}

impl Comparison {
    fn add(&mut self, request: &LoggedRequest, count: u64, result: RequestResult) {
        let LoggedRequest { method, host, target } = request;
        let times = if count == 1 { String::new() } else { format!(" ({count} times)") };
        let mut line = |text: fmt::Arguments<'_>| {
            self.lines.push(format!("{method} {host}{target}{times}: {text}"));
        };
        match result {
            RequestResult::Same => self.same += 1,
            RequestResult::Varies => self.varied += 1,
            RequestResult::Different(difference) => {
                line(format_args!("{difference}"));
                self.different += 1;
            }
            RequestResult::Failed(error) => {
                line(format_args!("{error}"));
                self.failed += 1;
            }
        }
    }

    /// Returns the lines to print.
    ///
    /// # Errors
    /// The same lines, if an answer differs or is missing.
    fn into_lines(mut self, log: &LoggedRequests, limit: usize) -> Result<Vec<String>, Failure> {
        let Self { same, varied, different, failed, .. } = self;
        let count = same + varied + different + failed;
        self.lines.push(format!(
            "{count} requests: {same} answered the same, {different} differently, {failed} not answered, \
             {varied} by answers that vary at the first server too"
        ));
        let LoggedRequests { requests, unsafe_lines, lines_without_host, unknown_lines, .. } = log;
        let left_out = [
            (requests.len().saturating_sub(limit) as u64, "requests beyond --limit"),
            (*unsafe_lines, "lines of requests that may change something"),
            (*lines_without_host, "lines without a host"),
            (*unknown_lines, "lines without a request"),
        ];
        for (count, what) in left_out.into_iter().filter(|(count, _)| *count > 0) {
            self.lines.push(format!("not sent, {what}: {count}"));
        }
        match different + failed {
            0 => Ok(self.lines),
            _ => Err(Failure::Input(self.lines)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, fields: &[(&'static str, &str)], body: &'static str) -> AnswerSummary {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, value.parse().unwrap());
        }
        AnswerSummary::new(status, &headers, body.into(), "a.test:8080")
    }

    #[test]
    fn differences_are_those_that_clients_see() {
        let base = || answer(200, &[("content-type", "text/html"), ("x-a", "1")], "a");
        let same = [("content-type", "text/html"), ("x-a", "2"), ("date", "now"), ("server", "x")];
        assert_eq!(base().difference(&answer(200, &same, "a")), None);
        let cases = [
            (answer(404, &[], ""), "status 200, then 404"),
            (
                answer(200, &[("content-type", "a/b")], "a"),
                "content-type \"text/html\", then \"a/b\"",
            ),
            (answer(200, &[("content-type", "text/html")], "a"), "the field \"x-a\" is missing"),
            (
                answer(
                    200,
                    &[("content-type", "text/html"), ("x-a", "1"), ("set-cookie", "s=1")],
                    "a",
                ),
                "the cookie \"s\" is new",
            ),
            (
                answer(200, &[("content-type", "text/html"), ("x-a", "1")], "bc"),
                "a body of 1 bytes, then another of 2",
            ),
        ];
        for (other, difference) in cases {
            assert_eq!(base().difference(&other).as_deref(), Some(difference));
        }
    }

    #[test]
    fn the_port_of_a_server_is_no_difference() {
        let first = answer(301, &[("location", "http://a.test:8080/b")], "");
        let second = answer(301, &[("location", "http://a.test/b")], "");
        assert_eq!(first.difference(&second), None);
        let other = answer(301, &[("location", "http://b.test/b")], "");
        assert!(first.difference(&other).unwrap().starts_with("location "));
    }

    #[test]
    fn urls_are_those_of_servers() {
        for url in ["a.test", "http://a.test/b", "http://a.test?b", "ftp://", "https://"] {
            assert!(ComparedServer::parse(url).is_err(), "{url}");
        }
        let server = ComparedServer::parse("http://[::1]:8080").ok().unwrap();
        assert_eq!((&*server.host, server.port), ("::1", 8080));
    }

    #[test]
    fn text_of_a_server_cannot_control_the_terminal() {
        assert_eq!(shown("a\u{1b}[31m\n"), r#""a\u{1b}[31m\n""#);
    }
}
