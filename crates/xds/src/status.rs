//! The state of the server, and its counts.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gateway::status::XdsProblem;

use crate::message::ResourceType;
use crate::rejection::RejectionTable;
use crate::translate::TranslationFinding;

/// Maximum number of rejections that are kept.
pub const MAX_REJECTIONS: usize = 16;

/// A response that a client has rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseRejection {
    /// The type of the resources.
    pub kind: ResourceType,
    /// The first client that has rejected such a response.
    pub client: String,
    /// The words of the client, shortened.
    pub message: String,
    /// The number of responses that were rejected with these words.
    pub count: u64,
}

/// Counts of events since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCounts {
    /// Streams of clients that were accepted.
    pub streams: u64,
    /// Streams that were refused, because there were too many.
    pub refused_streams: u64,
    /// Streams that were ended, because the client exceeded a limit.
    pub exceeded_limits: u64,
    /// Streams that were ended, because the client did not reply to a response in time.
    pub unacknowledged: u64,
    /// Requests of clients.
    pub requests: u64,
    /// Requests for a type that is not served.
    pub unknown_types: u64,
    /// Responses by type, in the order of [`ResourceType::ALL`].
    pub responses: [u64; 4],
    /// Responses that clients have rejected, by type.
    pub rejected: [u64; 4],
}

/// The state of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerStatus {
    /// Clients with a stream.
    pub clients: u64,
    /// Resources by type, in the order of [`ResourceType::ALL`].
    pub resources: [usize; 4],
    /// Counts of events.
    pub counts: ServerCounts,
    /// The newest rejections; each text once.
    pub rejections: Vec<ResponseRejection>,
    /// Parts of the configuration that clients do not follow.
    pub findings: Vec<TranslationFinding>,
    /// The number of further ones.
    pub further_findings: usize,
}

/// Records what happens.
#[derive(Debug, Default)]
pub(crate) struct StatusRecorder {
    pub(crate) clients: AtomicU64,
    pub(crate) streams: AtomicU64,
    pub(crate) refused_streams: AtomicU64,
    pub(crate) exceeded_limits: AtomicU64,
    pub(crate) unacknowledged: AtomicU64,
    pub(crate) requests: AtomicU64,
    unknown_types: AtomicU64,
    responses: [AtomicU64; 4],
    rejected: [AtomicU64; 4],
    pub(crate) rejected_resources: Arc<RejectionTable>,
    texts: Mutex<StatusTexts>,
}

#[derive(Debug, Default)]
struct StatusTexts {
    rejections: VecDeque<ResponseRejection>,
    findings: Vec<TranslationFinding>,
    further_findings: usize,
}

impl StatusRecorder {
    pub(crate) fn add(count: &AtomicU64) {
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn record_response(&self, kind: ResourceType) {
        Self::add(&self.responses[kind as usize]);
    }

    /// Records a request for a type that is not served; the first is logged.
    pub(crate) fn record_unknown_type(&self, client: &str, type_url: &str) {
        if self.unknown_types.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(client, type_url, "an xDS client asks for a type that is not served");
        }
    }

    /// Records a rejection. Each text is logged once, as long as it is among the newest.
    pub(crate) fn record_rejection(&self, kind: ResourceType, client: &str, message: String) {
        Self::add(&self.rejected[kind as usize]);
        let mut texts = self.texts();
        let is_same = |it: &&mut ResponseRejection| it.kind == kind && it.message == message;
        if let Some(known) = texts.rejections.iter_mut().find(is_same) {
            known.count += 1;
            return;
        }
        tracing::warn!(client, kind = kind.label(), %message, "an xDS client rejects resources");
        if texts.rejections.len() >= MAX_REJECTIONS {
            texts.rejections.pop_front();
        }
        let client = client.to_owned();
        texts.rejections.push_back(ResponseRejection { kind, client, message, count: 1 });
    }

    /// Replaces the findings; those that are new are logged.
    pub(crate) fn set_findings(&self, findings: Vec<TranslationFinding>, further_findings: usize) {
        let mut texts = self.texts();
        for TranslationFinding { subject, message } in
            findings.iter().filter(|it| texts.findings.binary_search(it).is_err())
        {
            tracing::warn!(%subject, "xDS clients do not follow all of the configuration: {message}");
        }
        (texts.findings, texts.further_findings) = (findings, further_findings);
    }

    /// Returns the findings of routes.
    pub(crate) fn route_findings(&self) -> Vec<XdsProblem> {
        let problem = |TranslationFinding { subject, message }: &TranslationFinding| {
            // The subject of others is a backend: `namespace/service:port`.
            let (route, rule) = subject.rsplit_once('/').filter(|(it, _)| it.contains('/'))?;
            let message = format!("rule {rule}: {message}");
            Some(XdsProblem { route: route.into(), parent: None, is_rejected: false, message })
        };
        self.texts().findings.iter().filter_map(problem).collect()
    }

    pub(crate) fn status(&self, resources: impl Fn(ResourceType) -> usize) -> ServerStatus {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let counts = ServerCounts {
            streams: read(&self.streams),
            refused_streams: read(&self.refused_streams),
            exceeded_limits: read(&self.exceeded_limits),
            unacknowledged: read(&self.unacknowledged),
            requests: read(&self.requests),
            unknown_types: read(&self.unknown_types),
            responses: self.responses.each_ref().map(read),
            rejected: self.rejected.each_ref().map(read),
        };
        let texts = self.texts();
        ServerStatus {
            clients: read(&self.clients),
            resources: ResourceType::ALL.map(resources),
            counts,
            rejections: texts.rejections.iter().cloned().collect(),
            findings: texts.findings.clone(),
            further_findings: texts.further_findings,
        }
    }

    fn texts(&self) -> MutexGuard<'_, StatusTexts> {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
