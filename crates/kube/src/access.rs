//! Requests of an operator's tools: pods, their logs, a port of a pod by the API server's proxy, and lists of objects.
//!
//! They change nothing. Each knows the permission that it needs, so that a refusal can name it.

/// Objects of a cluster, listed once.
mod listing;
/// Lines of the log of a container, as they are written.
mod log_lines;
/// Pods, as far as tools need them.
mod pod;

use std::error::Error as StdError;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use kube_client::client::Body;
use kube_client::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube_client::{Client, Config};
use kube_core::Status;
use serde_json::Value;
use thiserror::Error;
use tokio::time::timeout;

use crate::ClusterClient;

pub use listing::ClusterListing;
pub use log_lines::LogLines;
pub use pod::{EndpointMention, PodSummary};

/// Time limit of a request, from its beginning to the last byte of its answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Size limit of an answer of the API server.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;
/// Size limit of an error.
const MAX_ERROR_BYTES: usize = 64 * 1024;
/// Name under which every admin API answers.
const LOCAL_HOST: &str = "localhost";

/// Credentials of an operator, as kubectl's flags name them.
#[derive(Clone, Debug, Default)]
pub struct OperatorCredentials {
    /// File; `None`: those of `KUBECONFIG`, `~/.kube/config`, or the credentials of the pod.
    pub kubeconfig: Option<PathBuf>,
    /// Context in it; `None`: the current one.
    pub context: Option<String>,
}

/// Permission that a request needs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequiredPermission {
    /// Verb.
    pub verb: &'static str,
    /// Resource with its subresource and group, as `kubectl auth can-i` takes it.
    pub resource: String,
    /// `None`: the whole cluster.
    pub namespace: Option<String>,
}

impl RequiredPermission {
    fn in_namespace(verb: &'static str, resource: &str, namespace: &str) -> Self {
        Self { verb, resource: resource.to_owned(), namespace: Some(namespace.to_owned()) }
    }
}

/// Formats `get pods/proxy in namespace sheave-system`.
impl fmt::Display for RequiredPermission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ", self.verb, self.resource)?;
        match &self.namespace {
            Some(namespace) => write!(f, "in namespace {namespace}"),
            None => f.write_str("in the whole cluster"),
        }
    }
}

/// Reason why a request has no answer that can be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum AccessError {
    /// The user lacks a permission.
    #[error("you may not {0}: a Role or ClusterRole of yours has to permit it")]
    Forbidden(RequiredPermission),
    /// The credentials are not accepted.
    #[error("the API server does not accept your credentials")]
    Unauthorized,
    /// The object does not exist.
    #[error("there is no {0}")]
    NotFound(String),
    /// A name cannot be one of an object.
    #[error("{0:?} cannot be the name of an object")]
    InvalidName(String),
    /// There is no answer in time.
    #[error("the API server does not answer within 15 s")]
    Timeout,
    /// The API server cannot be reached.
    #[error("cannot reach the API server: {0}")]
    Unreachable(String),
    /// The API server cannot reach a port of the pod.
    #[error("the API server cannot reach port {port} of pod {pod}: {message}")]
    PodUnreachable {
        /// Name of the pod.
        pod: String,
        /// Port.
        port: u16,
        /// Message of the API server.
        message: String,
    },
    /// Any other refusal.
    #[error("the API server answers {code}: {message}")]
    Rejected {
        /// HTTP status.
        code: u16,
        /// Message of the API server.
        message: String,
    },
    /// The answer is not what the API says.
    #[error("the answer of the API server is not understood: {0}")]
    Malformed(String),
}

/// Answer of a port of a pod.
#[derive(Clone, Debug)]
pub struct PodAnswer {
    /// HTTP status.
    pub status: StatusCode,
    /// Header fields.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
}

impl ClusterClient {
    /// Uses the credentials of an operator. Sends no request yet.
    ///
    /// # Errors
    /// If there are no credentials, or they cannot be used.
    pub async fn connect_as(credentials: &OperatorCredentials) -> Result<Self, crate::Error> {
        let mut config = credentials.config().await?;
        // An operator waits in front of the terminal: a failure is shown at once.
        config.default_retry = false;
        config.connect_timeout = Some(REQUEST_TIMEOUT);
        let client =
            Client::try_from(config).map_err(|error| crate::Error::Client(Box::new(error)))?;
        Ok(Self { client })
    }

    /// Sends a GET to a port of a pod by the proxy of the API server; takes any status of the pod.
    ///
    /// # Errors
    /// If the API server or the pod does not answer.
    pub async fn pod_get(
        &self,
        (namespace, pod): (&str, &str),
        port: u16,
        path_and_query: &str,
    ) -> Result<PodAnswer, AccessError> {
        let (place, name) = (object_name(namespace)?, object_name(pod)?);
        let path = format!("/api/v1/namespaces/{place}/pods/{name}:{port}/proxy{path_and_query}");
        let permission = RequiredPermission::in_namespace("get", "pods/proxy", namespace);
        let answer = async {
            let answer = self.proxied(&path, None).await?;
            // The proxy passes on the host name of the API server, which is none of the admin API's own. Only then it is
            // replaced: what is in front of the API server may choose it by the host name.
            match answer.status {
                StatusCode::MISDIRECTED_REQUEST => self.proxied(&path, Some(LOCAL_HOST)).await,
                _ => Ok(answer),
            }
        };
        let answer = timeout(REQUEST_TIMEOUT, answer).await;
        let answer = answer.unwrap_or(Err(AccessError::Timeout))?;
        let Some(status) = status_of(&answer.body) else { return Ok(answer) };
        match answer.status {
            StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
            | StatusCode::INTERNAL_SERVER_ERROR => {
                let (pod, message) = (pod.to_owned(), status.message);
                Err(AccessError::PodUnreachable { pod, port, message })
            }
            code => Err(rejection(code, &answer.body, &permission, &format!("pod {pod}"))),
        }
    }

    async fn proxied(&self, path: &str, host: Option<&str>) -> Result<PodAnswer, AccessError> {
        let (head, body) = self.send(path, host).await?.into_parts();
        let body = collect(body, MAX_ANSWER_BYTES).await?;
        Ok(PodAnswer { status: head.status, headers: head.headers, body })
    }

    /// Returns the JSON of a path.
    async fn get_json(
        &self,
        path: &str,
        permission: &RequiredPermission,
        what: &str,
    ) -> Result<Value, AccessError> {
        let answer = async {
            let response = self.accepted(path, permission, what).await?;
            collect(response.into_body(), MAX_ANSWER_BYTES).await
        };
        let body = timeout(REQUEST_TIMEOUT, answer).await.unwrap_or(Err(AccessError::Timeout))?;
        serde_json::from_slice(&body).map_err(|error| AccessError::Malformed(error.to_string()))
    }

    /// Returns the response with a status of success.
    async fn accepted(
        &self,
        path: &str,
        permission: &RequiredPermission,
        what: &str,
    ) -> Result<Response<Body>, AccessError> {
        let response = self.send(path, None).await?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = collect(response.into_body(), MAX_ERROR_BYTES).await?;
        Err(rejection(status, &body, permission, what))
    }

    async fn send(&self, path: &str, host: Option<&str>) -> Result<Response<Body>, AccessError> {
        let mut request = Request::get(path);
        if let Some(host) = host {
            request = request.header(header::HOST, host);
        }
        let request = request.body(Body::empty());
        let request = request.map_err(|error| AccessError::Malformed(error.to_string()))?;
        self.client.send(request).await.map_err(|error| AccessError::Unreachable(cause(&error)))
    }
}

impl OperatorCredentials {
    async fn config(&self) -> Result<Config, crate::Error> {
        let options =
            KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let unusable = |error: KubeconfigError| crate::Error::Kubeconfig(Box::new(error));
        match (&self.kubeconfig, &self.context) {
            (Some(path), _) => {
                let file = Kubeconfig::read_from(path).map_err(unusable)?;
                Config::from_custom_kubeconfig(file, &options).await.map_err(unusable)
            }
            (None, Some(_)) => Config::from_kubeconfig(&options).await.map_err(unusable),
            (None, None) => {
                Config::infer().await.map_err(|error| crate::Error::Credentials(Box::new(error)))
            }
        }
    }
}

/// Returns the name if it can be a part of a path.
fn object_name(name: &str) -> Result<&str, AccessError> {
    let is_inner =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let is_valid = (1..=253).contains(&name.len())
        && name.bytes().all(is_inner)
        && !name.starts_with(['.', '-']);
    is_valid.then_some(name).ok_or_else(|| AccessError::InvalidName(name.to_owned()))
}

async fn collect(body: Body, limit: usize) -> Result<Bytes, AccessError> {
    let body = Limited::new(body, limit).collect().await;
    let body = body.map_err(|error| AccessError::Unreachable(cause(&*error)))?;
    Ok(body.to_bytes())
}

/// Returns the Status of the API server, if it is one.
fn status_of(body: &[u8]) -> Option<Status> {
    let value: Value = serde_json::from_slice(body).ok()?;
    (value["kind"] == "Status" && value["apiVersion"] == "v1").then_some(())?;
    serde_json::from_value(value).ok()
}

fn rejection(
    code: StatusCode,
    body: &[u8],
    permission: &RequiredPermission,
    what: &str,
) -> AccessError {
    match code {
        StatusCode::UNAUTHORIZED => AccessError::Unauthorized,
        StatusCode::FORBIDDEN => AccessError::Forbidden(permission.clone()),
        StatusCode::NOT_FOUND => AccessError::NotFound(what.to_owned()),
        _ => {
            let text = || String::from_utf8_lossy(body).trim().chars().take(200).collect();
            let message = status_of(body).map_or_else(text, |status| status.message);
            AccessError::Rejected { code: code.as_u16(), message }
        }
    }
}

/// Returns the innermost cause of an error, which says what has happened; the outer ones name layers of the client.
fn cause(error: &(dyn StdError + 'static)) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

#[cfg(test)]
mod tests;
