//! One request of a case to one server, and the observation of what the case has an expectation of.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Context;
use serde_json::{Map, Value, json};
use tests::certificates::CertificateAuthority;
use tests::endpoint::RecordedRequest;
use tests::http1::ParsedHead;
use tests::tls::TlsClientOptions;
use tests::{Http1TestClient, Http1TestResponse, Result};
use tokio::task::JoinSet;
use tokio::time::{Instant, interval};

use super::endpoints::ServiceEndpoints;
use super::table::{CaseRequest, ClientCertificate, ConformanceCase};

/// Time in which a mirrored request arrives.
const MIRROR_TIME: Duration = Duration::from_secs(5);

/// A server under test.
pub(super) struct ServerUnderTest {
    pub(super) http: SocketAddr,
    pub(super) https: Option<SocketAddr>,
    pub(super) tls: ClientTls,
}

/// TLS of clients without a certificate, and with one.
#[derive(Clone)]
pub(super) struct ClientTls {
    none: TlsClientOptions,
    trusted: TlsClientOptions,
    untrusted: TlsClientOptions,
}

impl ClientTls {
    /// Returns clients that trust this authority of servers, whose certificates are of the other authority.
    pub(super) fn new(servers: &CertificateAuthority, clients: &CertificateAuthority) -> Self {
        let none = TlsClientOptions::trusting(servers);
        let certified = |authority: &CertificateAuthority| {
            none.clone().with_client_certificate(&authority.issue(&["client.test"]))
        };
        let (trusted, untrusted) = (certified(clients), certified(&CertificateAuthority::new()));
        Self { none, trusted, untrusted }
    }

    fn of(&self, certificate: ClientCertificate) -> &TlsClientOptions {
        match certificate {
            ClientCertificate::None => &self.none,
            ClientCertificate::Trusted => &self.trusted,
            ClientCertificate::Untrusted => &self.untrusted,
        }
    }
}

/// Response without what no case asks for.
struct Answer {
    status: u16,
    head: ParsedHead,
    text: String,
}

/// Returns the expected observation of this request.
pub(super) fn expectation(request: &CaseRequest) -> Value {
    let mut all = Map::new();
    if let Some(statuses) = &request.statuses {
        all.insert("statuses".to_owned(), json!(ranges(statuses)));
    } else {
        all.insert("status".to_owned(), request.status.into());
    }
    if !request.response.is_empty() {
        let field = |(name, value): (&String, &Option<String>)| {
            (name.clone(), value.as_ref().map(|value| without_spaces_of_list(name, value)))
        };
        let fields: BTreeMap<_, _> = request.response.iter().map(field).collect();
        all.insert("response".to_owned(), json!(fields));
    }
    if let Some(text) = &request.text {
        all.insert("text".to_owned(), text.clone().into());
    }
    if let Some(shares) = &request.shares {
        all.insert("shares".to_owned(), json!(ranges(shares)));
    } else if request.statuses.is_none() {
        all.insert("served".to_owned(), json!(request.expected_services()));
    }
    if let Some([least, most]) = request.spread {
        all.insert("spread".to_owned(), range(least, most).into());
    }
    if let Some(received) = &request.received {
        if let Some(line) = &received.request {
            all.insert("received".to_owned(), line.clone().into());
        }
        if !received.fields.is_empty() {
            all.insert("received fields".to_owned(), json!(received.fields));
        }
    }
    all.into()
}

/// Sends the request, `times` times, and returns the observation.
pub(super) async fn observe(
    case: &ConformanceCase,
    request: &CaseRequest,
    server: &ServerUnderTest,
    endpoints: &ServiceEndpoints,
) -> Result<Value> {
    let before = counts(endpoints, case);
    let answers = send_all(case, request, server).await?;
    let expected = request.expected_services();
    // Copies arrive later than the answer.
    let end = Instant::now() + MIRROR_TIME;
    let mut ticks = interval(Duration::from_millis(2));
    let mut new = new_requests(endpoints, case, &before);
    while expected.len() > 1 && new.len() < expected.len() && Instant::now() < end {
        ticks.tick().await;
        new = new_requests(endpoints, case, &before);
    }
    Ok(observation(request, &answers, &new))
}

fn observation(
    request: &CaseRequest,
    answers: &[Answer],
    new: &BTreeMap<String, Vec<(usize, RecordedRequest)>>,
) -> Value {
    let mut all = Map::new();
    if let Some(statuses) = &request.statuses {
        let number = |status: &str| {
            answers.iter().filter(|answer| answer.status.to_string() == status).count()
        };
        all.insert("statuses".to_owned(), json!(within_ranges(statuses, number)));
    } else {
        let unexpected = answers.iter().find(|answer| answer.status != request.status);
        let status = unexpected.map_or(request.status, |answer| answer.status);
        all.insert("status".to_owned(), status.into());
    }
    let last = answers.last();
    if !request.response.is_empty() {
        let fields = last.map(|answer| fields(&answer.head, &request.response));
        all.insert("response".to_owned(), json!(fields));
    }
    if let Some(text) = &request.text {
        let found = last.map(|answer| answer.text.clone()).unwrap_or_default();
        all.insert("text".to_owned(), as_expected(Some(found), Some(text)).into());
    }
    if let Some(shares) = &request.shares {
        let number = |service: &str| new.get(service).map_or(0, Vec::len);
        all.insert("shares".to_owned(), json!(within_ranges(shares, number)));
    } else if request.statuses.is_none() {
        let mut served: Vec<&String> = new.keys().collect();
        let expected = request.expected_services();
        served.sort_by_key(|name| expected.iter().position(|it| it == *name));
        all.insert("served".to_owned(), json!(served));
    }
    if let Some([least, most]) = request.spread {
        let number: usize = new
            .values()
            .map(|requests| {
                requests.iter().map(|(endpoint, _)| endpoint).collect::<BTreeSet<_>>().len()
            })
            .sum();
        let is_within = (least..=most).contains(&number);
        let found = if is_within { range(least, most) } else { number.to_string() };
        all.insert("spread".to_owned(), found.into());
    }
    if let Some(received) = &request.received {
        let expected = request.expected_services();
        let of_first = expected.first().and_then(|service| new.get(service));
        let head = of_first.and_then(|requests| requests.last()).map(|(_, it)| &it.head);
        if received.request.is_some() {
            let line = head.map(|it| it.start.trim_end_matches(" HTTP/1.1").to_owned());
            all.insert("received".to_owned(), line.into());
        }
        if !received.fields.is_empty() {
            let fields = head.map(|head| fields(head, &received.fields));
            all.insert("received fields".to_owned(), json!(fields));
        }
    }
    all.into()
}

async fn send_all(
    case: &ConformanceCase,
    request: &CaseRequest,
    server: &ServerUnderTest,
) -> Result<Vec<Answer>> {
    let mut answers: Vec<Answer> = Vec::new();
    if request.at_once {
        let mut running = JoinSet::new();
        for _ in 0..request.times {
            let exchange = prepare(case, request, server, &[]).await?;
            running.spawn(exchange.finish());
        }
        while let Some(answer) = running.join_next().await {
            answers.push(answer??);
        }
        return Ok(answers);
    }
    let mut cookies = Vec::new();
    for _ in 0..request.times {
        let answer = prepare(case, request, server, &cookies).await?.finish().await?;
        let set = answer.head.field_values("set-cookie");
        if request.keep_cookies && !set.is_empty() {
            let pair = |it: &str| it.split(';').next().unwrap_or("").to_owned();
            cookies = set.into_iter().map(pair).collect();
        }
        answers.push(answer);
    }
    Ok(answers)
}

/// A connection, and the request for it.
struct PreparedExchange {
    client: Http1TestClient,
    method: String,
    target: String,
    fields: Vec<(String, String)>,
    body: Vec<u8>,
    /// Ports of the server.
    ports: [u16; 2],
}

async fn prepare(
    case: &ConformanceCase,
    request: &CaseRequest,
    server: &ServerUnderTest,
    cookies: &[String],
) -> Result<PreparedExchange> {
    let host = request.host.clone().unwrap_or_else(|| case.host());
    let client = if request.https {
        let address = server.https.context("no HTTPS listener")?;
        let name = host.split(':').next().unwrap_or("");
        let tls = server.tls.of(request.client_certificate);
        Http1TestClient::connect_tls(address, name, tls).await?
    } else {
        let from = request.from.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        Http1TestClient::connect_from(from, server.http).await?
    };
    let mut fields = vec![("Host".to_owned(), host)];
    for line in &request.fields {
        let (name, value) = line.split_once(':').context("a field has a colon")?;
        fields.push((name.to_owned(), value.trim().to_owned()));
    }
    if !cookies.is_empty() {
        fields.push(("Cookie".to_owned(), cookies.join("; ")));
    }
    let (method, target) = (request.method().to_owned(), request.target().to_owned());
    let body = vec![b'x'; request.body_bytes];
    let ports = [server.http.port(), server.https.map_or(0, |address| address.port())];
    Ok(PreparedExchange { client, method, target, fields, body, ports })
}

impl PreparedExchange {
    async fn finish(mut self) -> Result<Answer> {
        let fields: Vec<_> = self.fields.iter().map(|(name, value)| (&**name, &**value)).collect();
        let request = tests::client::request(&self.method, &self.target, &fields, &self.body);
        let sent = self.client.send(&request).await;
        // A server may answer and close before it has read the body.
        if let Err(error) = sent
            && self.body.is_empty()
        {
            return Err(error.into());
        }
        match self.client.response(&self.method).await {
            Ok(answer) => Ok(Answer::of(answer, self.ports)),
            Err(error) if error.is_connection_end() => {
                Ok(Answer { status: 0, head: ParsedHead::default(), text: error.to_string() })
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl Answer {
    /// Returns the answer of a server with this port. A port that is not the scheme's is in the URLs of redirects; in a
    /// cluster it is the scheme's.
    fn of(mut response: Http1TestResponse, ports: [u16; 2]) -> Self {
        let locations = response.head.fields.iter_mut();
        for (_, value) in locations.filter(|(name, _)| name.eq_ignore_ascii_case("location")) {
            for port in ports {
                *value = value.replacen(&format!(":{port}"), "", 1);
            }
        }
        Self { status: response.status(), text: response.text(), head: response.head }
    }
}

/// Returns the number of requests that each endpoint has received.
fn counts(endpoints: &ServiceEndpoints, case: &ConformanceCase) -> BTreeMap<String, Vec<usize>> {
    let received = endpoints.received(case).into_iter();
    received.map(|(name, all)| (name, all.iter().map(Vec::len).collect())).collect()
}

/// Returns the requests that have arrived since, with the number of their endpoint, by Service.
fn new_requests(
    endpoints: &ServiceEndpoints,
    case: &ConformanceCase,
    before: &BTreeMap<String, Vec<usize>>,
) -> BTreeMap<String, Vec<(usize, RecordedRequest)>> {
    let mut all = BTreeMap::new();
    for (service, received) in endpoints.received(case) {
        let earlier = &before[&service];
        let numbered = received.into_iter().enumerate();
        let new: Vec<_> = numbered
            .flat_map(|(number, requests)| {
                requests.into_iter().skip(earlier[number]).map(move |request| (number, request))
            })
            .collect();
        if !new.is_empty() {
            all.insert(service, new);
        }
    }
    all
}

fn fields(
    head: &ParsedHead,
    expected: &BTreeMap<String, Option<String>>,
) -> BTreeMap<String, Option<String>> {
    let field = |(name, value): (&String, &Option<String>)| {
        let found = head.field(name).map(|found| without_spaces_of_list(name, &found));
        (name.clone(), as_expected(found, value.as_deref()))
    };
    expected.iter().map(field).collect()
}

/// Returns the value of a field; lists of CORS have no spaces, which mean nothing there.
fn without_spaces_of_list(name: &str, value: &str) -> String {
    if name.starts_with("access-control-") { value.replace(", ", ",") } else { value.to_owned() }
}

/// Returns the text, or the expected one if that is `~TEXT` and the text contains it.
fn as_expected(text: Option<String>, expected: Option<&str>) -> Option<String> {
    match (&text, expected.and_then(|it| it.strip_prefix('~'))) {
        (Some(found), Some(part)) if found.contains(part) => expected.map(str::to_owned),
        _ => text,
    }
}

fn range(least: usize, most: usize) -> String {
    format!("{least} to {most}")
}

fn ranges(expected: &BTreeMap<String, [usize; 2]>) -> BTreeMap<String, String> {
    let entry =
        |(name, [least, most]): (&String, &[usize; 2])| (name.clone(), range(*least, *most));
    expected.iter().map(entry).collect()
}

/// Returns the ranges, or the numbers that are outside of theirs.
fn within_ranges(
    expected: &BTreeMap<String, [usize; 2]>,
    number: impl Fn(&str) -> usize,
) -> BTreeMap<String, String> {
    let entry = |(name, [least, most]): (&String, &[usize; 2])| {
        let found = number(name);
        let is_within = (*least..=*most).contains(&found);
        (name.clone(), if is_within { range(*least, *most) } else { found.to_string() })
    };
    expected.iter().map(entry).collect()
}
