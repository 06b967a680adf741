//! The tables of cases: files of `tests/data/ingress-nginx`, as data.
//!
//! In their texts `CASE` is the case's name and `HOST` its host, so that cases do not share anything.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde::Deserialize;
use serde_json::Value;
use tests::Result;

/// Cases of one file, which are about one subject.
pub(super) struct CaseGroup {
    pub(super) name: String,
    pub(super) cases: Vec<ConformanceCase>,
}

/// Ingresses, the configuration of nginx that is equivalent, and requests with the expected result.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ConformanceCase {
    /// Name in the group; after reading, in all groups.
    #[serde(rename = "case")]
    pub(super) name: String,
    /// Cases of the public lists: the list, the suite and numbers, such as `migration cors 1-3`.
    #[serde(default)]
    pub(super) stands_for: Vec<String>,
    /// Reason that Sheave's result is another one.
    pub(super) differs: Option<String>,
    /// Reason that nginx has no part in this case.
    pub(super) without_nginx: Option<String>,
    /// Annotations of ingress-nginx, without their prefix.
    #[serde(default)]
    pub(super) annotations: BTreeMap<String, String>,
    /// Paths of the first Ingress; there is none without any.
    #[serde(default = "every_path")]
    pub(super) paths: Vec<IngressPath>,
    #[serde(default)]
    pub(super) tls: bool,
    /// Further Ingresses.
    #[serde(default)]
    pub(super) also: Vec<FurtherIngress>,
    /// Further objects.
    #[serde(default)]
    pub(super) objects: Vec<Value>,
    /// Endpoints of each Service.
    #[serde(default = "one_service")]
    pub(super) services: BTreeMap<String, Vec<EndpointKind>>,
    #[serde(default)]
    pub(super) nginx: NginxConfiguration,
    pub(super) requests: Vec<CaseRequest>,
}

/// An Ingress beside the first one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct FurtherIngress {
    pub(super) host: Option<String>,
    #[serde(default)]
    pub(super) annotations: BTreeMap<String, String>,
    #[serde(default = "every_path")]
    pub(super) paths: Vec<IngressPath>,
    #[serde(default)]
    pub(super) tls: bool,
}

/// Path of an Ingress.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IngressPath {
    pub(super) path: String,
    #[serde(default = "prefix", rename = "type")]
    pub(super) kind: String,
    #[serde(default = "app")]
    pub(super) service: String,
}

/// Behaviour of an endpoint.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum EndpointKind {
    /// Answers as the request asks.
    Ok,
    /// Refuses connections.
    Refuses,
    /// Closes the connection in place of an answer.
    Closes,
    /// Answers as the request asks, with TLS.
    Tls,
    /// Like `Tls`, with a certificate of an authority that is not trusted.
    UntrustedTls,
    /// Answers always the same: status and field lines.
    Answers { status: u16, fields: Vec<String> },
}

/// The part of nginx's configuration that ingress-nginx derives from the annotations.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NginxConfiguration {
    /// Lines outside of servers.
    #[serde(default)]
    pub(super) http: String,
    /// Lines of the server.
    #[serde(default)]
    pub(super) server: String,
    /// Further names of the server.
    #[serde(default)]
    pub(super) names: Vec<String>,
    /// Lines of the location `/`, if there are no `locations`.
    #[serde(default)]
    pub(super) lines: String,
    #[serde(default)]
    pub(super) locations: Vec<NginxLocation>,
    /// Texts of files, `FOLDER/CASE-NAME`.
    #[serde(default)]
    pub(super) files: BTreeMap<String, String>,
    /// Further servers.
    #[serde(default)]
    pub(super) servers: Vec<FurtherServer>,
}

/// A server for other hosts.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FurtherServer {
    pub(super) name: String,
    #[serde(default)]
    pub(super) server: String,
    #[serde(default)]
    pub(super) locations: Vec<NginxLocation>,
}

/// A location, or several with the same lines.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NginxLocation {
    #[serde(rename = "match")]
    pub(super) matches: Vec<String>,
    #[serde(default)]
    pub(super) lines: String,
    /// The URL of `proxy_pass`; nothing if it is empty.
    #[serde(default = "pass_to_app")]
    pub(super) pass: String,
}

/// A request and its expected result. Not given is: from `127.0.0.1` without TLS to the host of the case, once; the status
/// 200 from the Service `app`, or another status from no Service.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct CaseRequest {
    /// Method and target.
    pub(super) request: String,
    pub(super) host: Option<String>,
    #[serde(default)]
    pub(super) https: bool,
    pub(super) from: Option<IpAddr>,
    #[serde(default)]
    pub(super) client_certificate: ClientCertificate,
    /// Lines of header fields.
    #[serde(default)]
    pub(super) fields: Vec<String>,
    #[serde(default)]
    pub(super) body_bytes: usize,
    #[serde(default = "once")]
    pub(super) times: usize,
    #[serde(default = "ok")]
    pub(super) status: u16,
    /// Numbers of responses by status, if there are several: least and most.
    pub(super) statuses: Option<BTreeMap<String, [usize; 2]>>,
    /// Fields of the response; one that must be absent is null. `~TEXT` is any value with this text.
    #[serde(default)]
    pub(super) response: BTreeMap<String, Option<String>>,
    /// Text of the response's body; `~TEXT` is one with this text.
    pub(super) text: Option<String>,
    /// Services that received the request.
    pub(super) served: Option<Vec<String>>,
    /// Numbers of requests by Service, of several `times`: least and most.
    pub(super) shares: Option<BTreeMap<String, [usize; 2]>>,
    /// Number of endpoints that received requests, of several `times`: least and most.
    pub(super) spread: Option<[usize; 2]>,
    /// The request that the first of the Services received.
    pub(super) received: Option<ReceivedRequest>,
    /// Cookies of the responses are sent with the next request of `times`.
    #[serde(default)]
    pub(super) keep_cookies: bool,
    /// Requests of `times` are sent at once.
    #[serde(default)]
    pub(super) at_once: bool,
}

/// The certificate of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum ClientCertificate {
    #[default]
    None,
    /// One of the authority `ENDPOINT_CA`.
    Trusted,
    Untrusted,
}

/// A request as a Service receives it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReceivedRequest {
    pub(super) request: Option<String>,
    #[serde(default)]
    pub(super) fields: BTreeMap<String, Option<String>>,
}

impl CaseRequest {
    pub(super) fn method(&self) -> &str {
        self.request.split_once(' ').map_or("GET", |(method, _)| method)
    }

    pub(super) fn target(&self) -> &str {
        self.request.split_once(' ').map_or("/", |(_, target)| target)
    }

    /// Returns the Services that must receive the request.
    pub(super) fn expected_services(&self) -> Vec<String> {
        match &self.served {
            Some(services) => services.clone(),
            None if self.status == 200 => vec![app()],
            None => Vec::new(),
        }
    }
}

impl ConformanceCase {
    pub(super) fn host(&self) -> String {
        format!("{}.test", self.name)
    }
}

/// Returns the folder of the tables.
pub(super) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/ingress-nginx")
}

/// Reads all tables, in order of their names. `replacements` are further words and their texts.
pub(super) fn read(replacements: &[(&str, &str)]) -> Result<Vec<CaseGroup>> {
    let files = fs::read_dir(folder())?.map(|entry| Ok(entry?.path()));
    let mut files = files.collect::<Result<Vec<_>>>()?;
    files.sort();
    let tables = files.iter().filter(|path| path.file_stem().is_some_and(|it| it != "public"));
    tables.map(|path| read_group(path, replacements)).collect()
}

fn read_group(path: &Path, replacements: &[(&str, &str)]) -> Result<CaseGroup> {
    let group = path.file_stem().and_then(|it| it.to_str()).context("a name")?.to_owned();
    let values: Vec<Value> = serde_saphyr::from_str(&fs::read_to_string(path)?)
        .with_context(|| format!("{}", path.display()))?;
    let mut cases: Vec<ConformanceCase> = Vec::new();
    for mut value in values {
        let name = format!("{group}-{}", value["case"].as_str().context("a case has a name")?);
        ensure!(cases.iter().all(|case| case.name != name), "{name}: two cases have this name");
        value["case"] = name.clone().into();
        let host = format!("{name}.test");
        let mut words = vec![("HOST", &*host), ("CASE", &*name)];
        words.extend_from_slice(replacements);
        replace(&mut value, &words);
        let case: ConformanceCase = serde_json::from_value(value).context(name.clone())?;
        let has_nginx = case.without_nginx.is_none();
        ensure!(has_nginx || case.nginx.is_empty(), "{name}: nginx has no part in it");
        cases.push(case);
    }
    Ok(CaseGroup { name: group, cases })
}

impl NginxConfiguration {
    fn is_empty(&self) -> bool {
        let lines = [&self.http, &self.server, &self.lines];
        lines.iter().all(|lines| lines.is_empty()) && self.locations.is_empty()
    }
}

/// Replaces words in all texts.
fn replace(value: &mut Value, words: &[(&str, &str)]) {
    match value {
        Value::String(text) => {
            for (word, new) in words {
                if text.contains(word) {
                    *text = text.replace(word, new);
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| replace(value, words)),
        Value::Object(fields) => fields.values_mut().for_each(|value| replace(value, words)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn every_path() -> Vec<IngressPath> {
    vec![IngressPath { path: "/".to_owned(), kind: prefix(), service: app() }]
}

fn one_service() -> BTreeMap<String, Vec<EndpointKind>> {
    BTreeMap::from([(app(), vec![EndpointKind::Ok])])
}

fn prefix() -> String {
    "Prefix".to_owned()
}

fn app() -> String {
    "app".to_owned()
}

fn pass_to_app() -> String {
    "http://app".to_owned()
}

fn once() -> usize {
    1
}

fn ok() -> u16 {
    200
}
