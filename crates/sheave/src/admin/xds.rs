//! `/api/v1/xds`: clients of the xDS server, what they have rejected, what they do not follow, and their load.

use ::xds::{ClusterLoad, LoadStatus, ResponseRejection, ServerStatus, TranslationFinding};
use serde::Serialize;

/// The response.
#[derive(Debug, Serialize)]
pub(super) struct XdsResponse {
    /// Clients with a stream.
    clients: u64,
    /// The newest rejections of responses, each text once.
    rejections: Vec<RejectionInfo>,
    /// Parts of the configuration that clients do not follow.
    findings: Vec<XdsFindingInfo>,
    /// The number of further parts, which are not listed.
    further_findings: usize,
    /// Clients that report their load to this replica.
    load_clients: u64,
    /// Load that they have reported, by backend.
    load: Vec<XdsLoadInfo>,
}

/// Requests of clients to a backend. All but those in progress are counts since the start.
#[derive(Debug, Serialize)]
struct XdsLoadInfo {
    backend: String,
    in_progress: u64,
    issued: u64,
    succeeded: u64,
    failed: u64,
    /// Requests that clients have not sent, because the limit of the backend was reached.
    dropped: u64,
    shares: u64,
}

/// A response that a client has rejected.
#[derive(Debug, Serialize)]
struct RejectionInfo {
    #[serde(rename = "type")]
    kind: &'static str,
    /// The first client that has rejected it.
    client: String,
    /// The words of the client, shortened.
    message: String,
    count: u64,
}

/// A part of the configuration that clients do not follow.
#[derive(Debug, Serialize)]
struct XdsFindingInfo {
    /// The rule (`namespace/route/rule`) or the backend.
    subject: String,
    message: String,
}

pub(super) fn response(status: ServerStatus, load: LoadStatus) -> XdsResponse {
    let rejection = |ResponseRejection { kind, client, message, count }| RejectionInfo {
        kind: kind.label(),
        client,
        message,
        count,
    };
    let finding = |TranslationFinding { subject, message }| XdsFindingInfo {
        subject: subject.to_string(),
        message,
    };
    let reported = |it: &(_, ClusterLoad)| it.1 != ClusterLoad::default();
    let load_clients = load.clients;
    let load = load.clusters.into_iter().filter(reported).map(|(key, load)| {
        let ClusterLoad { in_progress, issued, succeeded, failed, dropped, shares } = load;
        let backend = key.to_string();
        XdsLoadInfo { backend, in_progress, issued, succeeded, failed, dropped, shares }
    });
    XdsResponse {
        clients: status.clients,
        rejections: status.rejections.into_iter().map(rejection).collect(),
        findings: status.findings.into_iter().map(finding).collect(),
        further_findings: status.further_findings,
        load_clients,
        load: load.collect(),
    }
}
