//! `sheave migrate --compare`: sends the requests of an access log to two servers, and says where the answers differ.
//!
//! What differs is asked for again at both: a part of an answer that differs from its own former one shows nothing about
//! the servers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, BufRead, BufReader};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use http::header::{HOST, SET_COOKIE, USER_AGENT};
use http::{HeaderMap, HeaderName, Method, Request, Uri};
use http_body_util::Empty;
use hyper::body::Bytes;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::runtime;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::access_log::{LoggedRequest, LoggedRequests, is_host, without_port};
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
const COMPARED_FIELDS: [&str; 3] = ["content-type", "location", "www-authenticate"];

/// Compares the servers.
///
/// # Errors
/// If a log cannot be read or has no request, a URL is not one of a server, or an answer differs.
pub(super) fn run(flags: &CompareFlags) -> Result<(), Failure> {
    let [first, second] = &*flags.compare else {
        return Err(Failure::input("--compare needs two URLs"));
    };
    let host = flags.host.as_deref();
    if let Some(host) = host.filter(|host| !is_host(host) || without_port(host) != *host) {
        return Err(Failure::input(format_args!("--host: {host} is no host without a port")));
    }
    let servers = [first, second].map(|url| ComparedServer::parse(url));
    let [first, second] = servers;
    let (first, second) = (first.map_err(Failure::input)?, second.map_err(Failure::input)?);
    let mut log = LoggedRequests::new(flags.limit.get());
    for path in &flags.access_log {
        let unread = |error: io::Error| Failure::input(format_args!("{}: {error}", path.display()));
        let lines = BufReader::new(File::open(path).map_err(unread)?).split(b'\n');
        for line in lines {
            log.add(&String::from_utf8_lossy(&line.map_err(unread)?), host);
        }
    }
    if log.requests.is_empty() {
        return Err(Failure::input(nothing_to_send(&log)));
    }
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start its thread")?;
    let report = runtime.block_on(compare(&log, first, second)).map_err(Failure::input)?;
    let is_clean = report.is_clean();
    print(&report.into_lines(&log))?;
    if is_clean { Ok(()) } else { Err(Failure::Input(Vec::new())) }
}

fn nothing_to_send(log: &LoggedRequests) -> String {
    let LoggedRequests { unsafe_lines, lines_without_host, unknown_lines, first_unknown, .. } = log;
    let reason = match (*lines_without_host, first_unknown) {
        (1.., _) => "no line has a host: add --host".to_owned(),
        (0, Some(line)) => {
            format!("of {unknown_lines} lines none has a request, the first: {}", shown(line))
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

/// The parts of an answer that clients depend on, each with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AnswerSummary(BTreeMap<AnswerPart, String>);

/// A part of an answer, in the order of its weight.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum AnswerPart {
    Status,
    /// The value of one of [`COMPARED_FIELDS`].
    Field(&'static str),
    /// A field that is there, whatever its value.
    Name(String),
    Cookie(String),
    Body,
}

/// The result for one request.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RequestResult {
    Same,
    /// Answers of one server differ from each other in all in which those of the servers differ.
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
        let is_encrypted = match scheme.as_str() {
            "http" => false,
            "https" => true,
            other => return Err(format!("--compare: {url}: {other} is neither http nor https")),
        };
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
        Ok(AnswerSummary::new(head.status.as_u16(), &head.headers, &body, host, self.port))
    }
}

impl AnswerSummary {
    /// Returns the summary of an answer of a server with this port to a request with this host.
    fn new(status: u16, headers: &HeaderMap, body: &[u8], host: &str, port: u16) -> Self {
        let mut parts = BTreeMap::from([(AnswerPart::Status, status.to_string())]);
        for name in COMPARED_FIELDS {
            let values = headers.get_all(name).iter();
            let values: Vec<_> =
                values.map(|it| String::from_utf8_lossy(it.as_bytes()).into_owned()).collect();
            let value = without_port_of(&values.join(", "), host, port);
            parts.insert(AnswerPart::Field(name), value);
        }
        let is_compared = |name: &&str| {
            !IGNORED_FIELDS.contains(name)
                && !COMPARED_FIELDS.contains(name)
                && *name != SET_COOKIE.as_str()
        };
        let names = headers.keys().map(HeaderName::as_str).filter(is_compared);
        parts.extend(names.map(|name| (AnswerPart::Name(name.to_owned()), String::new())));
        for cookie in headers.get_all(SET_COOKIE) {
            let text = String::from_utf8_lossy(cookie.as_bytes()).into_owned();
            let name = text.split('=').next().unwrap_or_default().to_owned();
            parts.insert(AnswerPart::Cookie(name), String::new());
        }
        let mut hasher = DefaultHasher::new();
        hasher.write(body);
        let body = format!("of {} bytes with the checksum {:016x}", body.len(), hasher.finish());
        parts.insert(AnswerPart::Body, body);
        Self(parts)
    }

    /// Returns the parts in which another answer differs.
    fn differences(&self, other: &Self) -> BTreeSet<AnswerPart> {
        let parts = self.0.keys().chain(other.0.keys());
        parts.filter(|part| self.0.get(part) != other.0.get(part)).cloned().collect()
    }

    /// Describes a part in which another answer differs.
    fn describe(&self, other: &Self, part: &AnswerPart) -> String {
        let (first, second) = (self.0.get(part), other.0.get(part));
        let what = match part {
            AnswerPart::Status => "status".to_owned(),
            AnswerPart::Field(name) => (*name).to_owned(),
            AnswerPart::Name(name) => format!("the field {}", shown(name)),
            AnswerPart::Cookie(name) => format!("the cookie {}", shown(name)),
            AnswerPart::Body => "a body".to_owned(),
        };
        match (part, first, second) {
            (AnswerPart::Field(_), Some(first), Some(second)) => {
                format!("{what} {}, then {}", shown(first), shown(second))
            }
            (_, Some(first), Some(second)) => format!("{what} {first}, then {second}"),
            (_, Some(_), None) => format!("{what} is missing"),
            (_, None, _) => format!("{what} is new"),
        }
    }
}

/// Returns a URL without the port of the server, where it is that of a request's host: it differs between the servers
/// without a meaning.
fn without_port_of(url: &str, host: &str, port: u16) -> String {
    let authority = format!("://{host}:{port}");
    match url.split_once(&authority) {
        Some((scheme, rest)) if !rest.starts_with(|char: char| char.is_ascii_digit()) => {
            format!("{scheme}://{host}{rest}")
        }
        Some(_) | None => url.to_owned(),
    }
}

/// Returns a text of a server for a terminal: in quotes, without control characters, and not too long.
fn shown(text: &str) -> String {
    let short: String = text.chars().take(120).collect();
    format!("{short:?}")
}

/// The results.
#[derive(Default)]
struct ComparisonReport {
    lines: Vec<String>,
    same: usize,
    varied: usize,
    different: usize,
    failed: usize,
}

async fn compare(
    log: &LoggedRequests,
    first: ComparedServer,
    second: ComparedServer,
) -> Result<ComparisonReport, String> {
    let addresses = [first.addresses().await?, second.addresses().await?];
    let servers = Arc::new(([first, second], addresses));
    let mut comparison = ComparisonReport::default();
    for group in log.requests.chunks(CONCURRENCY) {
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
        if first == second {
            return Ok(RequestResult::Same);
        }
        let (first_again, second_again) = tokio::join!(ask(0), ask(1));
        let again = [first_again?, second_again?];
        Ok::<_, String>(result(&[first, second], &again))
    };
    compared.await.unwrap_or_else(RequestResult::Failed)
}

/// Returns the result of the answers of two servers that differ, and of their answers to the same request again.
fn result(answers: &[AnswerSummary; 2], again: &[AnswerSummary; 2]) -> RequestResult {
    let [first, second] = answers;
    let mut varying = first.differences(&again[0]);
    varying.extend(second.differences(&again[1]));
    let differing = first.differences(second);
    match differing.difference(&varying).next() {
        Some(part) => RequestResult::Different(first.describe(second, part)),
        None => RequestResult::Varies,
    }
}

impl ComparisonReport {
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

    /// True if each request has an answer, and none differs.
    fn is_clean(&self) -> bool {
        self.different + self.failed == 0
    }

    /// Returns the lines to print.
    fn into_lines(mut self, log: &LoggedRequests) -> Vec<String> {
        let Self { same, varied, different, failed, .. } = self;
        let count = same + varied + different + failed;
        self.lines.push(format!(
            "{count} requests: {same} answered the same, {different} differently, {failed} not answered, \
             {varied} by answers that vary at one server too"
        ));
        let LoggedRequests {
            further_lines, unsafe_lines, lines_without_host, unknown_lines, ..
        } = log;
        let left_out = [
            (*further_lines, "lines of requests beyond --limit"),
            (*unsafe_lines, "lines of requests that may change something"),
            (*lines_without_host, "lines without a host"),
            (*unknown_lines, "lines without a request"),
        ];
        for (count, what) in left_out.into_iter().filter(|(count, _)| *count > 0) {
            self.lines.push(format!("not sent, {what}: {count}"));
        }
        self.lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, fields: &[(&'static str, &str)], body: &str) -> AnswerSummary {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, value.parse().unwrap());
        }
        AnswerSummary::new(status, &headers, body.as_bytes(), "a.test", 80)
    }

    fn difference(first: &AnswerSummary, second: &AnswerSummary) -> Option<String> {
        let answers = [first.clone(), second.clone()];
        match result(&answers, &answers) {
            RequestResult::Different(text) => Some(text),
            RequestResult::Varies => None,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn differences_are_those_that_clients_see() {
        let html = ("content-type", "text/html");
        let base = || answer(200, &[html, ("x-a", "1")], "a");
        let same = [html, ("x-a", "2"), ("date", "now"), ("server", "x")];
        assert_eq!(base(), answer(200, &same, "a"));
        let cases = [
            (answer(404, &[], ""), "status 200, then 404"),
            (
                answer(200, &[("content-type", "a/b"), ("x-a", "1")], "a"),
                "content-type \"text/html\", then \"a/b\"",
            ),
            (answer(200, &[html], "a"), "the field \"x-a\" is missing"),
            (
                answer(200, &[html, ("x-a", "1"), ("set-cookie", "s=1")], "a"),
                "the cookie \"s\" is new",
            ),
        ];
        for (other, text) in cases {
            assert_eq!(difference(&base(), &other).as_deref(), Some(text));
        }
        let bodies = difference(&base(), &answer(200, &[html, ("x-a", "1")], "bc")).unwrap();
        assert!(bodies.starts_with("a body of 1 bytes with the checksum "), "{bodies}");
    }

    #[test]
    fn what_varies_at_one_server_hides_nothing_else() {
        let page = |status, body| answer(status, &[], body);
        let varying = [page(200, "1"), page(200, "2")];
        assert_eq!(result(&varying, &[page(200, "3"), page(200, "4")]), RequestResult::Varies);
        let failing = [page(200, "1"), page(404, "2")];
        let other = result(&failing, &[page(200, "3"), page(404, "4")]);
        assert_eq!(other, RequestResult::Different("status 200, then 404".to_owned()));
        let at_times = [page(200, ""), page(503, "")];
        assert_eq!(result(&at_times, &[page(200, ""), page(200, "")]), RequestResult::Varies);
    }

    #[test]
    fn the_port_of_a_server_is_no_difference() {
        assert_eq!(without_port_of("http://a.test:8080/b", "a.test", 8080), "http://a.test/b");
        for other in ["http://a.test:8080/b", "http://b.test:80/", "/b", "http://b.a.test:80/"] {
            assert_eq!(without_port_of(other, "a.test", 80), other);
        }
    }

    #[test]
    fn urls_are_those_of_servers() {
        for url in ["a.test", "http://a.test/b", "http://a.test?b", "ftp://a.test", "https://"] {
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
