//! Sheave with the Ingresses of a group.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use tests::certificates::IssuedCertificate;
use tests::{ConfigDirectory, Result, SheaveProcess, objects, sheave};
use tokio::net::TcpListener;

use super::endpoints::ServiceEndpoints;
use super::table::{CaseGroup, ConformanceCase, IngressPath};

const PREFIX: &str = "nginx.ingress.kubernetes.io/";
/// The part of an error that says that an Ingress is not served at all.
const REFUSAL: &str = "answered with 500";

/// A process for all cases of a group.
pub(super) struct SheaveSide {
    pub(super) http: SocketAddr,
    pub(super) https: Option<SocketAddr>,
    /// Hosts of Ingresses that are refused, with the message: requests are answered with 500.
    pub(super) refused: BTreeMap<String, String>,
    /// Annotations that are left out, by case, with the message.
    pub(super) left_out: BTreeMap<String, Vec<String>>,
    _process: SheaveProcess,
    _configuration: ConfigDirectory,
}

impl SheaveSide {
    pub(super) async fn start(
        group: &CaseGroup,
        endpoints: &ServiceEndpoints,
        identity: &IssuedCertificate,
    ) -> Result<Self> {
        let mut cases = BTreeMap::new();
        for case in &group.cases {
            cases.insert(case.name.clone(), case_objects(case, endpoints, identity));
        }
        let configuration = ConfigDirectory::empty()?;
        let mut https_port = free_port().await?;
        let (mut refused, mut left_out) = (BTreeMap::new(), BTreeMap::<_, Vec<_>>::new());
        // In a cluster, Sheave serves the rest of what has an error; files it loads as a whole or not at all. So what the
        // errors name is removed, as in a cluster.
        for _ in 0..20 {
            let mut all = vec![ingress_class(https_port)];
            all.extend(cases.values().flatten().cloned());
            configuration.write("cases.yaml", &all)?;
            let check = sheave::run(["check".as_ref(), configuration.path().as_os_str()]).await?;
            if check.status.success() {
                break;
            }
            let mut done = Vec::new();
            for line in String::from_utf8_lossy(&check.stdout).lines() {
                let Some((_, error)) = line.split_once("Ingress default/") else { continue };
                let (ingress, message) = error.split_once(": ").context("a message")?;
                let case = case_of(&cases, ingress)?;
                let objects = cases.get_mut(&case).context("a case")?;
                if done.iter().any(|it| it == ingress) {
                    continue;
                }
                // So is one whose error is in a Secret.
                if message.contains(REFUSAL) || message.contains("Secret default/") {
                    let place = place_of(objects, ingress, message)?;
                    let host = objects.remove(place)["spec"]["rules"][0]["host"].take();
                    refused.insert(host.as_str().unwrap_or("").to_owned(), message.to_owned());
                } else {
                    remove(objects, ingress, message)?;
                    left_out.entry(case).or_default().push(message.to_owned());
                }
                // The places of further errors may have moved.
                done.push(ingress.to_owned());
            }
        }
        let mut attempts = 0..4;
        let process = loop {
            let mut all = vec![ingress_class(https_port)];
            all.extend(cases.values().flatten().cloned());
            configuration.write("cases.yaml", &all)?;
            match SheaveProcess::serve(&configuration).await {
                Ok(process) => break process,
                Err(_) if attempts.next().is_some() => https_port = free_port().await?,
                Err(error) => return Err(error),
            }
        };
        let mut ports = process.listeners.iter().map(|(_, address)| address.port());
        let http = ports.find(|port| *port != https_port).context("a listener")?;
        let http = SocketAddr::from((Ipv4Addr::LOCALHOST, http));
        let https = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, https_port)));
        Ok(Self {
            http,
            https,
            refused,
            left_out,
            _process: process,
            _configuration: configuration,
        })
    }
}

/// Returns a port that was free a moment ago, for not both ports of a class can be any.
async fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("[::]:0").await?.local_addr()?.port())
}

/// Returns the case that has this Ingress.
fn case_of(cases: &BTreeMap<String, Vec<Value>>, ingress: &str) -> Result<String> {
    let has = |objects: &Vec<Value>| {
        objects.iter().any(|it| it["kind"] == "Ingress" && it["metadata"]["name"] == ingress)
    };
    // A second error of an Ingress that has been removed belongs to the case of its name.
    let of_name = || cases.keys().filter(|name| ingress.starts_with(&***name)).max();
    let found = cases.iter().find(|(_, objects)| has(objects)).map(|(name, _)| name);
    Ok(found.or_else(of_name).with_context(|| ingress.to_owned())?.clone())
}

fn place_of(objects: &[Value], ingress: &str, message: &str) -> Result<usize> {
    let is_it = |it: &Value| it["kind"] == "Ingress" && it["metadata"]["name"] == ingress;
    let found = objects.iter().position(is_it);
    found.with_context(|| format!("{ingress}: {message}"))
}

/// Removes what an error names: an annotation, or a path.
fn remove(objects: &mut Vec<Value>, ingress: &str, message: &str) -> Result {
    let place = place_of(objects, ingress, message)?;
    // A canary in error has no part in the requests.
    if message.contains("gets no requests") && !message.starts_with("spec.rules") {
        objects.remove(place);
        return Ok(());
    }
    if message.starts_with("spec.rules[0].http.paths") {
        let number = message.split(['[', ']']).nth(3).and_then(|it| it.parse().ok());
        let number: usize = number.with_context(|| message.to_owned())?;
        let paths = objects[place]["spec"]["rules"][0]["http"]["paths"].as_array_mut();
        let paths = paths.context("paths")?;
        paths.remove(number);
        if paths.is_empty() {
            objects.remove(place);
        }
        return Ok(());
    }
    let annotations = objects[place]["metadata"]["annotations"].as_object_mut();
    let annotations = annotations.with_context(|| message.to_owned())?;
    let names: Vec<String> = annotations.keys().cloned().collect();
    let named = names.iter().filter(|name| message.contains(&***name));
    let Some(name) = named.max_by_key(|name| name.len()) else {
        bail!("names no annotation: {message}");
    };
    ensure!(annotations.remove(name).is_some());
    // After an error no origin is allowed.
    if name.ends_with("/cors-allow-origin") {
        annotations.remove(&format!("{PREFIX}enable-cors"));
    }
    Ok(())
}

fn ingress_class(https_port: u16) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IngressClass",
        "metadata": {
            "name": "sheave",
            "annotations": {
                "sheave.dev/http-port": "0",
                "sheave.dev/https-port": https_port.to_string(),
            },
        },
        "spec": { "controller": "sheave.dev/ingress" },
    })
}

fn case_objects(
    case: &ConformanceCase,
    endpoints: &ServiceEndpoints,
    identity: &IssuedCertificate,
) -> Vec<Value> {
    let host = case.host();
    let mut all = Vec::new();
    if !case.paths.is_empty() {
        let parts = (&case.annotations, &*case.paths, case.tls);
        all.push(ingress(case, &case.name, &host, parts));
    }
    for (number, further) in case.also.iter().enumerate() {
        let name = format!("{}-{}", case.name, number + 2);
        let parts = (&further.annotations, &*further.paths, further.tls);
        all.push(ingress(case, &name, further.host.as_ref().unwrap_or(&host), parts));
    }
    if case.tls || case.also.iter().any(|further| further.tls) {
        all.push(identity.secret(&format!("{}-tls", case.name)));
    }
    for service in case.services.keys() {
        let name = format!("{}-{service}", case.name);
        if case.objects.iter().any(|it| it["kind"] == "Service" && it["metadata"]["name"] == name) {
            continue;
        }
        all.push(objects::service(&name));
        all.extend(objects::slices(&name, &endpoints.addresses(&name)));
    }
    all.extend_from_slice(&case.objects);
    all
}

fn ingress(
    case: &ConformanceCase,
    name: &str,
    host: &str,
    (annotations, paths, tls): (&BTreeMap<String, String>, &[IngressPath], bool),
) -> Value {
    let annotations =
        annotations.iter().map(|(name, value)| (format!("{PREFIX}{name}"), value.clone().into()));
    let annotations: serde_json::Map<String, Value> = annotations.collect();
    let path = |path: &IngressPath| {
        let service = format!("{}-{}", case.name, path.service);
        let backend = json!({ "service": { "name": service, "port": { "number": 80 } } });
        json!({ "path": path.path, "pathType": path.kind, "backend": backend })
    };
    let paths: Vec<Value> = paths.iter().map(path).collect();
    let mut ingress = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": { "name": name, "annotations": annotations },
        "spec": { "ingressClassName": "sheave", "rules": [{ "host": host, "http": { "paths": paths } }] },
    });
    if tls {
        let secret = format!("{}-tls", case.name);
        let mut hosts = vec![host.to_owned()];
        if case.annotations.contains_key("from-to-www-redirect") {
            hosts.push(format!("www.{host}"));
        }
        ingress["spec"]["tls"] = json!([{ "hosts": hosts, "secretName": secret }]);
    }
    ingress
}
