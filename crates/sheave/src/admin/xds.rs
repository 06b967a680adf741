//! `/api/v1/xds`: clients of the xDS server, what they have rejected, and what they do not follow.

use ::xds::{ResponseRejection, ServerStatus, TranslationFinding};
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

pub(super) fn response(status: ServerStatus) -> XdsResponse {
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
    XdsResponse {
        clients: status.clients,
        rejections: status.rejections.into_iter().map(rejection).collect(),
        findings: status.findings.into_iter().map(finding).collect(),
        further_findings: status.further_findings,
    }
}
