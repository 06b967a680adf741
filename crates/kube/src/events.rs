//! Events of objects (events.k8s.io/v1), which `kubectl describe` shows.
//!
//! Callers hand events over and never wait. An event that holds is written again before the API server forgets it;
//! the same event is written once in that time, however often it is handed over, and by one of several replicas if all
//! of them report it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube_client::api::{Patch, PatchParams, PostParams};
use kube_client::{Api, Client, Error};
use kube_core::{ApiResource, DynamicObject};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::sync::watch::{Receiver, channel};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::ClusterClient;

/// Time after which an event that still holds is written again. The API server keeps events for an hour by default.
const REPEAT_INTERVAL: Duration = Duration::from_secs(30 * 60);
/// Time between two writes: a change that concerns many objects must not load the API server.
const WRITE_INTERVAL: Duration = Duration::from_millis(100);
/// Time limit of a write.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after the first write that the API server did not answer, and the longest one.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(120);
/// Maximum number of events of one source that hold, and of others that wait to be written.
const MAX_EVENTS: usize = 1_000;
/// Limits of the API server: bytes of a note, and of a name that a caller gives.
const MAX_NOTE_BYTES: usize = 1_024;
const MAX_INSTANCE_BYTES: usize = 128;
/// Part of an object's name that is in the name of its events.
const MAX_NAME_BYTES: usize = 200;
/// Namespace of events of objects that have none.
const CLUSTER_EVENTS_NAMESPACE: &str = "default";

/// Something that an operator should know about an object.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct ObjectEvent {
    /// The object.
    pub object: EventObject,
    /// True if something is wrong or not done (`Warning`), false for information (`Normal`).
    pub is_warning: bool,
    /// The reason, one word in CamelCase.
    pub reason: &'static str,
    /// The action that was taken or failed, one word in CamelCase.
    pub action: &'static str,
    /// A sentence for operators.
    pub message: String,
    /// The processes that report it.
    pub reporter: EventReporter,
}

/// The object that an event is about.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct EventObject {
    /// Group and version.
    pub api_version: &'static str,
    /// Kind.
    pub kind: &'static str,
    /// Namespace; empty for objects without one.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID, if known.
    pub uid: Option<String>,
}

impl EventObject {
    /// Returns a node as the kubelet names it in its events: with its name as UID.
    #[must_use]
    pub fn node(name: &str) -> Self {
        let (namespace, uid) = (String::new(), Some(name.to_owned()));
        Self { api_version: "v1", kind: "Node", namespace, name: name.to_owned(), uid }
    }
}

/// The processes that report an event.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum EventReporter {
    /// All replicas know it, so the leader reports it.
    Leader,
    /// This process alone knows it.
    Process,
}

/// Hands events over to the task that writes them. Clones share that task.
#[derive(Clone, Debug, Default)]
pub struct EventRecorder(Arc<RecorderState>);

#[derive(Debug, Default)]
struct RecorderState {
    queue: Mutex<EventQueue>,
    wake: Notify,
}

#[derive(Debug, Default)]
struct EventQueue {
    /// Events that hold, by source.
    standing: BTreeMap<&'static str, Vec<ObjectEvent>>,
    /// Events that happened.
    once: VecDeque<ObjectEvent>,
    /// Events that found no room.
    dropped: u64,
}

impl EventRecorder {
    /// Replaces the events of a source that hold now. Each is written, and again while it holds.
    pub fn set_standing(&self, source: &'static str, mut events: Vec<ObjectEvent>) {
        events.sort();
        events.dedup();
        let mut queue = self.lock();
        queue.dropped += events.len().saturating_sub(MAX_EVENTS) as u64;
        events.truncate(MAX_EVENTS);
        if queue.standing.get(source) != Some(&events) {
            queue.standing.insert(source, events);
            self.0.wake.notify_one();
        }
    }

    /// Reports that something happened.
    pub fn record(&self, event: ObjectEvent) {
        let mut queue = self.lock();
        if queue.once.contains(&event) {
            return;
        }
        if queue.once.len() >= MAX_EVENTS {
            queue.dropped += 1;
            queue.once.pop_front();
        }
        queue.once.push_back(event);
        self.0.wake.notify_one();
    }

    /// Returns the events that found no room since the start.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.lock().dropped
    }

    fn lock(&self) -> MutexGuard<'_, EventQueue> {
        self.0.queue.lock().expect("no holder of the lock panics")
    }
}

/// The name under which events are written.
#[derive(Clone, Debug)]
pub(crate) struct ReporterIdentity {
    /// Name of the controller.
    pub(crate) controller: String,
    /// Name of this process.
    pub(crate) instance: String,
}

/// Writes the events of a recorder.
pub(crate) struct EventWriter {
    client: Client,
    recorder: EventRecorder,
    identity: ReporterIdentity,
    /// Time until which this replica is the leader.
    leadership: Receiver<Option<Instant>>,
    /// Events that were written: when, and how often.
    written: BTreeMap<ObjectEvent, (Instant, u32)>,
}

impl EventWriter {
    pub(crate) fn new(
        client: Client,
        recorder: EventRecorder,
        identity: ReporterIdentity,
        leadership: Receiver<Option<Instant>>,
    ) -> Self {
        Self { client, recorder, identity, leadership, written: BTreeMap::new() }
    }

    /// Writes events, forever.
    pub(crate) async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let Some(event) = self.next_due(Instant::now()) else {
                self.wait().await;
                continue;
            };
            let count = self.written.get(&event).map_or(1, |(_, count)| count + 1);
            match write_event(&self.client, &self.identity, &event, count).await {
                // What the API server refuses now, it refuses a second later too: both wait for the repetition.
                Ok(()) | Err(EventError::Refused) => {
                    self.written.insert(event, (Instant::now(), count));
                    pause = FIRST_PAUSE;
                    sleep(WRITE_INTERVAL).await;
                }
                Err(EventError::Unavailable) => {
                    self.put_back(event);
                    sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    /// Returns the next event to write, and forgets those that no longer matter.
    fn next_due(&mut self, now: Instant) -> Option<ObjectEvent> {
        let is_leader = self.leadership.borrow().is_some_and(|until| until > now);
        let mut queue = self.recorder.lock();
        let is_recent = |at: Instant| now.saturating_duration_since(at) < REPEAT_INTERVAL;
        let standing = || queue.standing.values().flatten();
        self.written.retain(|event, (at, _)| is_recent(*at) || standing().any(|it| it == event));
        let written = &self.written;
        let is_due = |event: &ObjectEvent| {
            let may_report = is_leader || event.reporter == EventReporter::Process;
            may_report && !written.get(event).is_some_and(|(at, _)| is_recent(*at))
        };
        if let Some(event) = standing().find(|event| is_due(event)) {
            return Some(event.clone());
        }
        while let Some(event) = queue.once.pop_front() {
            if is_due(&event) {
                return Some(event);
            }
        }
        None
    }

    /// Keeps an event for another attempt.
    fn put_back(&self, event: ObjectEvent) {
        let mut queue = self.recorder.lock();
        let is_standing = queue.standing.values().flatten().any(|it| *it == event);
        if !is_standing && queue.once.len() < MAX_EVENTS {
            queue.once.push_front(event);
        }
    }

    /// Waits until an event may be due.
    async fn wait(&mut self) {
        let repetition = self.written.values().map(|(at, _)| *at + REPEAT_INTERVAL).min();
        let repetition = async {
            match repetition {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.recorder.0.wake.notified() => {}
            () = repetition => {}
            changed = self.leadership.changed() => if changed.is_err() {
                // No more elections: this process shuts down.
                std::future::pending::<()>().await;
            }
        }
    }
}

impl ClusterClient {
    /// Returns a recorder whose events are written while the runtime runs, those of [`EventReporter::Process`] alone.
    /// Needs a running tokio runtime.
    #[must_use]
    pub fn record_process_events(&self, controller: &str, instance: &str) -> EventRecorder {
        let (controller, instance) = (controller.to_owned(), instance.to_owned());
        let identity = ReporterIdentity { controller, instance };
        let recorder = EventRecorder::default();
        // There is no election: this process is never the leader.
        let (leads, leadership) = channel(None);
        let writer = EventWriter::new(self.client.clone(), recorder.clone(), identity, leadership);
        drop(tokio::spawn(async move {
            writer.run().await;
            drop(leads);
        }));
        recorder
    }
}

/// Writes one event now, before a process ends. Waits for the API server, but only for a short time, and reports no
/// error: the caller has a better one.
pub async fn write_last_event(
    cluster: &ClusterClient,
    controller: &str,
    instance: &str,
    event: &ObjectEvent,
) {
    let (controller, instance) = (controller.to_owned(), instance.to_owned());
    let identity = ReporterIdentity { controller, instance };
    // The error of the process is on its standard error in any case.
    drop(write_event(&cluster.client, &identity, event, 1).await);
}

/// Error of a write.
enum EventError {
    /// The API server refused it.
    Refused,
    /// The API server did not answer.
    Unavailable,
}

/// Writes an event for the first time, or counts it again.
async fn write_event(
    client: &Client,
    identity: &ReporterIdentity,
    event: &ObjectEvent,
    count: u32,
) -> Result<(), EventError> {
    let written = timeout(WRITE_TIMEOUT, create_or_count(client, identity, event, count)).await;
    let error = match written {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => Some(error),
        Err(_) => None,
    };
    let EventObject { kind, namespace, name, .. } = &event.object;
    let reason = event.reason;
    match error {
        Some(Error::Api(status)) if status.code < 500 => {
            let error = &status.message;
            tracing::warn!(kind, %namespace, %name, reason, error, "the API server refuses an Event");
            Err(EventError::Refused)
        }
        error => {
            let error = error.map(tracing::field::display);
            tracing::debug!(kind, %namespace, %name, reason, error, "cannot write an Event; it is tried again");
            Err(EventError::Unavailable)
        }
    }
}

async fn create_or_count(
    client: &Client,
    identity: &ReporterIdentity,
    event: &ObjectEvent,
    count: u32,
) -> Result<(), Error> {
    let namespace = event_namespace(&event.object);
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource());
    let name = event_name(event);
    // Another process, or this one before its start, may have written it.
    let again = async |count: u32| {
        let series = json!({ "series": { "count": count, "lastObservedTime": now() } });
        api.patch(&name, &PatchParams::default(), &Patch::Merge(&series)).await.map(drop)
    };
    if count > 1 {
        match again(count).await {
            // The API server has forgotten it.
            Err(Error::Api(status)) if status.code == 404 => {}
            result => return result,
        }
    }
    let object = serde_json::from_value(manifest(&name, identity, event));
    let object: DynamicObject = object.map_err(Error::SerdeError)?;
    match api.create(&PostParams::default(), &object).await {
        Err(Error::Api(status)) if status.code == 409 => again(count.max(2)).await,
        result => result.map(drop),
    }
}

fn resource() -> ApiResource {
    ApiResource {
        group: "events.k8s.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "events.k8s.io/v1".to_owned(),
        kind: "Event".to_owned(),
        plural: "events".to_owned(),
    }
}

fn event_namespace(object: &EventObject) -> &str {
    if object.namespace.is_empty() { CLUSTER_EVENTS_NAMESPACE } else { &object.namespace }
}

/// Returns the name of an event: the same for the same event, so that all processes write one object.
fn event_name(event: &ObjectEvent) -> String {
    let EventObject { kind, namespace, name, uid, .. } = &event.object;
    let uid = uid.as_deref().unwrap_or_default();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for part in [*kind, namespace, name, uid, event.reason, event.action, &event.message] {
        // FNV-1a, with a byte between the parts that no part has.
        for byte in part.bytes().chain([0xff]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    format!("{}.{hash:016x}", cut(name, MAX_NAME_BYTES).trim_end_matches(['.', '-']))
}

/// Returns the object to create.
fn manifest(name: &str, identity: &ReporterIdentity, event: &ObjectEvent) -> Value {
    let EventObject { api_version, kind, namespace, name: object, uid } = &event.object;
    let mut regarding = json!({ "apiVersion": api_version, "kind": kind, "name": object });
    if !namespace.is_empty() {
        regarding["namespace"] = json!(namespace);
    }
    if let Some(uid) = uid {
        regarding["uid"] = json!(uid);
    }
    json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": { "name": name, "namespace": event_namespace(&event.object) },
        "eventTime": now(),
        "reportingController": identity.controller,
        "reportingInstance": cut(&identity.instance, MAX_INSTANCE_BYTES),
        "regarding": regarding,
        "type": if event.is_warning { "Warning" } else { "Normal" },
        "reason": event.reason,
        "action": event.action,
        "note": cut(&event.message, MAX_NOTE_BYTES),
    })
}

fn now() -> MicroTime {
    MicroTime(Timestamp::now())
}

/// Returns the longest part from the start that has at most this many bytes.
fn cut(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests;
