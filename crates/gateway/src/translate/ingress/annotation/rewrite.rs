//! Changes to the request that an endpoint gets.

use std::net::Ipv4Addr;

use super::super::super::index::ObjectIndex;
use super::super::dialect::AnnotationDialect;
use super::value::{parse_bool, parse_path};
use crate::matching::HostPattern;
use crate::objects::ServicePort;

/// An annotation about changes to requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum RewriteAnnotation {
    /// ingress-nginx: `X-Forwarded-Prefix` of requests whose path is rewritten.
    ForwardedPrefix,
    /// ingress-nginx: `Host` of the request to the endpoint.
    Host,
    /// ingress-nginx: the server that gets a copy of each request.
    Mirror,
    Target,
    UsesPatterns,
}

/// Changes to the requests of an Ingress.
#[derive(Default)]
pub(in super::super) struct IngressRewrite {
    /// The rewrite of paths.
    pub(in super::super) target: Option<RewriteTarget>,
    /// True if paths of `ImplementationSpecific` are regular expressions.
    pub(in super::super) uses_patterns: bool,
    /// The host of the request to the endpoint.
    pub(in super::super) host: Option<String>,
    /// The value of `X-Forwarded-Prefix`.
    pub(in super::super) forwarded_prefix: Option<String>,
    /// The Service that gets a copy of each request.
    pub(in super::super) mirror: Option<MirrorService>,
}

/// A Service that gets copies of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct MirrorService {
    pub(in super::super) name: String,
    namespace: String,
    pub(in super::super) port: u16,
}

/// The new path of a request to an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum RewriteTarget {
    /// This path, regardless of the requested one.
    FullPath(String),
    /// This path in place of the path of the rule.
    Prefix(String),
    /// A path with captures of a regular expression: `$1`, `$2`.
    Captures(String),
}

impl IngressRewrite {
    pub(super) fn add(
        &mut self,
        dialect: AnnotationDialect,
        setting: RewriteAnnotation,
        value: &str,
    ) -> Result<(), String> {
        match setting {
            RewriteAnnotation::ForwardedPrefix => self.forwarded_prefix = Some(parse_path(value)?),
            RewriteAnnotation::Host => self.host = Some(parse_authority(value)?),
            RewriteAnnotation::Mirror => self.mirror = Some(parse_mirror(value)?),
            RewriteAnnotation::Target => self.target = Some(parse_target(dialect, value)?),
            RewriteAnnotation::UsesPatterns => self.uses_patterns = parse_bool(value)?,
        }
        Ok(())
    }

    /// Removes what has no effect, and returns the annotations and reasons.
    pub(super) fn remove_ineffective(
        &mut self,
        index: &ObjectIndex<'_>,
        namespace: &str,
    ) -> Vec<String> {
        let mut faults = Vec::new();
        if self.target.is_none() && self.forwarded_prefix.take().is_some() {
            faults.push("x-forwarded-prefix has no effect without rewrite-target".to_owned());
        }
        let Some(mirror) = &self.mirror else { return faults };
        let service = index.services.get(&(&*mirror.namespace, &*mirror.name));
        let has_port = |ports: &[ServicePort]| ports.iter().any(|port| port.port == mirror.port);
        let fault = match service {
            _ if mirror.namespace != namespace => "must be a Service of the Ingress's namespace",
            None => "must be a Service that exists",
            Some(service) if !has_port(&service.spec.ports) => "must be a port of the Service",
            Some(_) => return faults,
        };
        faults.push(format!("mirror-target {fault}: requests are not copied"));
        self.mirror = None;
        faults
    }
}

/// Parses the host of requests, which may have a port.
fn parse_authority(value: &str) -> Result<String, String> {
    let text = value.to_ascii_lowercase();
    let (host, port) = text.split_once(':').unwrap_or((&text, "1"));
    let is_host = matches!(HostPattern::parse(host), Ok(HostPattern::Exact(_)));
    let is_valid = (is_host || host.parse::<Ipv4Addr>().is_ok()) && port.parse::<u16>().is_ok();
    let message = || format!("must be a host without variables, is {value}");
    is_valid.then(|| text.clone()).ok_or_else(message)
}

/// Parses the URL of a server that gets copies of requests: `http://SERVICE.NAMESPACE.svc.cluster.local$request_uri`.
fn parse_mirror(value: &str) -> Result<MirrorService, String> {
    let message = || {
        format!(
            "must be http://SERVICE.NAMESPACE.svc:PORT$request_uri, is {value}: requests are not copied"
        )
    };
    let url = value.strip_suffix("$request_uri").ok_or_else(message)?;
    let authority = url.strip_suffix('/').unwrap_or(url).strip_prefix("http://");
    let authority = authority.ok_or_else(message)?;
    let (host, port) = authority.split_once(':').unwrap_or((authority, "80"));
    let host = host.strip_suffix(".cluster.local").unwrap_or(host);
    let labels = host.strip_suffix(".svc").and_then(|host| host.split_once('.'));
    let (name, namespace) = labels.ok_or_else(message)?;
    let port = port.parse().ok().filter(|port| *port != 0).ok_or_else(message)?;
    Ok(MirrorService { name: name.to_owned(), namespace: namespace.to_owned(), port })
}

fn parse_target(dialect: AnnotationDialect, value: &str) -> Result<RewriteTarget, String> {
    if dialect == AnnotationDialect::HaproxyIngress {
        return parse_path(value).map(RewriteTarget::Prefix);
    }
    let has_captures = value.contains('$');
    if has_captures {
        Ok(RewriteTarget::Captures(value.to_owned()))
    } else {
        parse_path(value).map(RewriteTarget::FullPath)
    }
}
