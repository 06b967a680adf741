//! In-memory API server for tests: it lists, watches and stores objects as a real one does, as far as the tests need
//! it, and can be told to reject requests or not to answer.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use kube_client::Client;
use kube_client::client::Body;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::sleep;
use tower::service_fn;

use crate::ClusterClient;

/// Shared handle to the server, to inspect and change its state.
#[derive(Clone, Debug, Default)]
pub(crate) struct ApiServer(Arc<Mutex<ApiServerState>>);

#[derive(Debug, Default)]
struct ApiServerState {
    objects: BTreeMap<ObjectPath, Value>,
    version: u64,
    /// Watch events, by version and object.
    history: Vec<(u64, ObjectPath, Value)>,
    watches: Vec<(ObjectPath, UnboundedSender<Value>)>,
    /// Objects that may not be listed and watched, by collection and name.
    forbidden: BTreeSet<(String, String)>,
    /// Objects whose statuses were written, including rejected writes, in order.
    writes: Vec<String>,
    has_no_streaming_lists: bool,
    is_down: bool,
    /// Objects whose statuses may not be written, by name, with the response status.
    rejected: BTreeMap<String, StatusCode>,
    /// Objects for which writes never get an answer, by name.
    unresponsive: BTreeSet<String>,
    /// Latency of a write.
    delay: Duration,
}

/// Path of an object: its collection, its namespace (empty for none) and its name.
type ObjectPath = (String, String, String);

type ApiResponse = Response<UnsyncBoxBody<Bytes, Infallible>>;

impl ApiServer {
    /// Starts a server without streaming lists, the default of Kubernetes up to 1.33, except 1.32.
    pub(crate) fn without_streaming_lists() -> Self {
        let server = Self::default();
        server.state().has_no_streaming_lists = true;
        server
    }

    pub(crate) fn cluster(&self) -> ClusterClient {
        let server = self.clone();
        let service = service_fn(move |request| {
            let server = server.clone();
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        });
        ClusterClient { client: Client::new(service, "default") }
    }

    /// Writes an object as another client would, by the path of its collection.
    pub(crate) fn put(&self, collection: &str, mut object: Value) {
        let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
        let place = (collection.to_owned(), text("namespace"), text("name"));
        let mut state = self.state();
        if let (Some(held), true) = (state.objects.get(&place), object.get("status").is_none()) {
            object["status"] = held["status"].clone();
        }
        state.store(place, object);
    }

    /// Returns the current object.
    pub(crate) fn object(&self, collection: &str, namespace: &str, name: &str) -> Option<Value> {
        let place = (collection.to_owned(), namespace.to_owned(), name.to_owned());
        self.state().objects.get(&place).cloned()
    }

    /// Deletes an object as another client would.
    pub(crate) fn remove(&self, collection: &str, namespace: &str, name: &str) {
        self.state().remove(&(collection.to_owned(), namespace.to_owned(), name.to_owned()));
    }

    /// Forbids lists and watches of one object.
    pub(crate) fn forbid(&self, collection: &str, name: &str) {
        self.state().forbidden.insert((collection.to_owned(), name.to_owned()));
    }

    /// Permits what was forbidden.
    pub(crate) fn permit_all(&self) {
        self.state().forbidden.clear();
    }

    /// Returns the names by which objects of a collection are watched, sorted; an empty one for the whole collection.
    pub(crate) fn watched_names(&self, collection: &str) -> Vec<String> {
        let state = self.state();
        let watches = state.watches.iter().filter(|(selection, _)| selection.0 == collection);
        let names: BTreeSet<_> = watches.map(|(selection, _)| selection.2.clone()).collect();
        names.into_iter().collect()
    }

    pub(crate) fn reject_status_writes(&self, name: &str, status: StatusCode) {
        self.state().rejected.insert(name.to_owned(), status);
    }

    pub(crate) fn ignore(&self, name: &str) {
        self.state().unresponsive.insert(name.to_owned());
    }

    /// Ends all watches, and answers no request until `come_back`.
    pub(crate) fn go_down(&self) {
        let mut state = self.state();
        state.is_down = true;
        state.watches.clear();
    }

    /// Answers as before `go_down`.
    pub(crate) fn come_back(&self) {
        self.state().is_down = false;
    }

    /// Answers everything again.
    pub(crate) fn heed_all(&self) {
        self.state().unresponsive.clear();
    }

    pub(crate) fn slow_down(&self, delay: Duration) {
        self.state().delay = delay;
    }

    /// Returns the objects whose statuses were written since the last call, including rejected
    /// writes.
    pub(crate) fn writes(&self) -> Vec<String> {
        std::mem::take(&mut self.state().writes)
    }

    fn state(&self) -> MutexGuard<'_, ApiServerState> {
        self.0.lock().unwrap()
    }

    async fn answer(&self, request: Request<Body>) -> ApiResponse {
        if self.state().is_down {
            return error_response(StatusCode::SERVICE_UNAVAILABLE);
        }
        let (head, body) = request.into_parts();
        let body = body.collect_bytes().await.unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let query = head.uri.query().unwrap_or_default().to_owned();
        let (mut place, is_status) = parse_path(head.uri.path());
        if place.2.is_empty() {
            place.2 = selected_name(&query);
        }
        let is_selection = query.contains("fieldSelector") || query.contains("watch=true");
        if head.method != Method::GET && self.state().unresponsive.contains(&place.2) {
            return std::future::pending().await;
        }
        let is_write = head.method != Method::GET;
        let answer = if is_selection && self.state().is_forbidden(&place) {
            error_response(StatusCode::FORBIDDEN)
        } else {
            self.dispatch(head.method, &query, place, is_status, body)
        };
        let delay = self.state().delay;
        if is_write {
            sleep(delay).await;
        }
        answer
    }

    fn dispatch(
        &self,
        method: Method,
        query: &str,
        place: ObjectPath,
        is_status: bool,
        body: Value,
    ) -> ApiResponse {
        let mut state = self.state();
        match method {
            Method::GET if query.contains("watch=true") => state.watch(place, query),
            Method::GET if place.2.is_empty() || query.contains("fieldSelector") => {
                state.list(&place)
            }
            Method::GET => state.object(&place),
            Method::POST => {
                let name = body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                state.create((place.0, place.1, name), body)
            }
            Method::PUT => state.replace(place, body),
            Method::PATCH if is_status => state.patch_status(place, &body),
            Method::PATCH if place.0.ends_with("/secrets") => state.apply(place, body),
            Method::PATCH => state.merge(place, body),
            _ => error_response(StatusCode::METHOD_NOT_ALLOWED),
        }
    }
}

impl ApiServerState {
    fn store(&mut self, place: ObjectPath, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let change = if self.objects.contains_key(&place) { "MODIFIED" } else { "ADDED" };
        let event = json!({ "type": change, "object": object });
        self.notify(&place, event);
        self.objects.insert(place, object.clone());
        object
    }

    fn remove(&mut self, place: &ObjectPath) {
        self.version += 1;
        let mut object = self.objects.remove(place).unwrap();
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.notify(place, json!({ "type": "DELETED", "object": object }));
    }

    fn notify(&mut self, place: &ObjectPath, event: Value) {
        let watches = &mut self.watches;
        watches.retain(|(of, watch)| !selects(of, place) || watch.send(event.clone()).is_ok());
        self.history.push((self.version, place.clone(), event));
    }

    fn is_forbidden(&self, (collection, _, name): &ObjectPath) -> bool {
        self.forbidden.contains(&(collection.clone(), name.clone()))
    }

    fn selected<'s>(&'s self, selection: &'s ObjectPath) -> impl Iterator<Item = &'s Value> {
        self.objects.iter().filter(|(place, _)| selects(selection, place)).map(|(_, it)| it)
    }

    fn list(&self, selection: &ObjectPath) -> ApiResponse {
        let items: Vec<_> = self.selected(selection).collect();
        let metadata = json!({ "resourceVersion": self.version.to_string() });
        json_response(
            StatusCode::OK,
            &json!({ "kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items }),
        )
    }

    /// Watches from a version on; with `sendInitialEvents`, sends the existing objects first, and a bookmark at their
    /// end.
    fn watch(&mut self, selection: ObjectPath, query: &str) -> ApiResponse {
        let streams = query.contains("sendInitialEvents=true");
        if streams && self.has_no_streaming_lists {
            return error_response(StatusCode::UNPROCESSABLE_ENTITY);
        }
        let (sender, events) = unbounded_channel();
        if streams {
            for object in self.selected(&selection) {
                sender.send(json!({ "type": "ADDED", "object": object })).unwrap();
            }
            let annotations = json!({ "k8s.io/initial-events-end": "true" });
            let version = self.version.to_string();
            let metadata = json!({ "resourceVersion": version, "annotations": annotations });
            let mark = json!({ "kind": "Any", "apiVersion": "v1", "metadata": metadata });
            sender.send(json!({ "type": "BOOKMARK", "object": mark })).unwrap();
        } else {
            let since =
                query.split('&').find_map(|it| it.strip_prefix("resourceVersion=")).unwrap();
            let since: u64 = since.parse().unwrap();
            let missed =
                self.history.iter().filter(|it| it.0 > since && selects(&selection, &it.1));
            missed.for_each(|(_, _, event)| sender.send(event.clone()).unwrap());
        }
        self.watches.push((selection, sender));
        Response::new(StreamBody::new(lines(events)).boxed_unsync())
    }

    fn object(&self, place: &ObjectPath) -> ApiResponse {
        self.objects.get(place).map_or_else(
            || error_response(StatusCode::NOT_FOUND),
            |it| json_response(StatusCode::OK, it),
        )
    }

    fn create(&mut self, place: ObjectPath, object: Value) -> ApiResponse {
        if self.objects.contains_key(&place) {
            return error_response(StatusCode::CONFLICT);
        }
        json_response(StatusCode::CREATED, &self.store(place, object))
    }

    fn replace(&mut self, place: ObjectPath, object: Value) -> ApiResponse {
        if place.0.ends_with("/secrets") && !self.objects.contains_key(&place) {
            return error_response(StatusCode::NOT_FOUND);
        }
        if !self.is_current(&place, &object) {
            return error_response(StatusCode::CONFLICT);
        }
        json_response(StatusCode::OK, &self.store(place, object))
    }

    /// Creates an object by server-side apply of a field manager of its own. Other values have another manager, so
    /// they conflict.
    fn apply(&mut self, place: ObjectPath, object: Value) -> ApiResponse {
        match self.objects.get(&place) {
            Some(existing) if existing["data"] == object["data"] => {
                json_response(StatusCode::OK, existing)
            }
            Some(_) => error_response(StatusCode::CONFLICT),
            None => json_response(StatusCode::CREATED, &self.store(place, object)),
        }
    }

    /// Replaces the fields that a merge patch has.
    fn merge(&mut self, place: ObjectPath, patch: Value) -> ApiResponse {
        let Some(mut object) = self.objects.get(&place).cloned() else {
            return error_response(StatusCode::NOT_FOUND);
        };
        if !self.is_current(&place, &patch) {
            return error_response(StatusCode::CONFLICT);
        }
        merge_values(&mut object, patch);
        json_response(StatusCode::OK, &self.store(place, object))
    }

    /// Patches a status, whatever the type of the patch: the caller is the only writer.
    fn patch_status(&mut self, place: ObjectPath, patch: &Value) -> ApiResponse {
        self.writes.push(place.2.clone());
        if let Some(status) = self.rejected.get(&place.2) {
            return error_response(*status);
        }
        let Some(mut object) = self.objects.get(&place).cloned() else {
            return error_response(StatusCode::NOT_FOUND);
        };
        if !self.is_current(&place, patch) {
            return error_response(StatusCode::CONFLICT);
        }
        object["status"] = patch["status"].clone();
        json_response(StatusCode::OK, &self.store(place, object))
    }

    /// True if the written object has the current version, or names none.
    fn is_current(&self, place: &ObjectPath, written: &Value) -> bool {
        let version = |of: &Value| of["metadata"]["resourceVersion"].as_str().map(str::to_owned);
        version(written).is_none_or(|it| Some(it) == self.objects.get(place).and_then(version))
    }
}

/// Applies a merge patch (RFC 7396).
fn merge_values(target: &mut Value, patch: Value) {
    match patch {
        Value::Object(fields) => {
            for (name, value) in fields {
                merge_values(&mut target[name], value);
            }
        }
        other => *target = other,
    }
}

/// True if a list or watch of this collection, namespace and name, which may be empty, has an object.
fn selects(selection: &ObjectPath, place: &ObjectPath) -> bool {
    let (is_all, is_any) = (selection.1.is_empty(), selection.2.is_empty());
    selection.0 == place.0
        && (is_all || selection.1 == place.1)
        && (is_any || selection.2 == place.2)
}

/// Returns the name in a field selector; it is empty if there is none.
fn selected_name(query: &str) -> String {
    let name = query.split('&').find_map(|it| it.strip_prefix("fieldSelector=metadata.name%3D"));
    name.unwrap_or_default().to_owned()
}

/// Parses a path; true if it is that of a status.
fn parse_path(path: &str) -> (ObjectPath, bool) {
    let parts: Vec<_> = path.trim_matches('/').split('/').collect();
    let (api, rest) = parts.split_at(if parts[0] == "api" { 2 } else { 3 });
    let (namespace, rest) = match rest {
        ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
        _ => ("", rest),
    };
    let collection = format!("/{}/{}", api.join("/"), rest[0]);
    let name = rest.get(1).copied().unwrap_or_default();
    ((collection, namespace.to_owned(), name.to_owned()), rest.get(2) == Some(&"status"))
}

/// Streams events, one per line, until all senders are dropped.
fn lines(
    events: UnboundedReceiver<Value>,
) -> impl stream::Stream<Item = Result<Frame<Bytes>, Infallible>> {
    stream::unfold(events, |mut events| async move { Some((events.recv().await?, events)) })
        .map(|event| Ok(Frame::data(Bytes::from(format!("{event}\n")))))
}

fn json_response(status: StatusCode, body: &Value) -> ApiResponse {
    let body = Full::new(Bytes::from(body.to_string())).boxed_unsync();
    Response::builder().status(status).body(body).unwrap()
}

fn error_response(status: StatusCode) -> ApiResponse {
    let reason = status.canonical_reason().unwrap_or_default().replace(' ', "");
    let (kind, code) = ("Status", status.as_u16());
    let message = format!("the test's API server says: {reason}");
    json_response(
        status,
        &json!({ "kind": kind, "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason, "code": code }),
    )
}
