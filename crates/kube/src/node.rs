//! The node of this process: its zone, and the pods on it, as far as transparent mode needs them.
//!
//! Only this node is read, and only pods that the API server says are on it, so that each of thousands of nodes costs
//! the API server little.

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use ipnet::IpNet;
use kube_client::{Api, Client};
use kube_core::{ApiResource, DynamicObject};
use kube_runtime::WatchStreamExt;
use kube_runtime::watcher::{Config, Event, watcher};
use serde_json::Value;
use tokio::sync::watch::{Receiver, Sender, channel};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::ClusterClient;
use crate::backoff::watch_backoff;

/// Label of a node with its zone.
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
/// Pause before a node without an answer or a zone is read again, first and at most. A cloud adds the zone some time
/// after the node has joined.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(1800);
/// Time limit of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Time within which changes of pods are coalesced.
const COALESCE: Duration = Duration::from_millis(20);
/// Most addresses of pods that are kept: a node has a few hundred pods.
const MAX_ADDRESSES: usize = 20_000;

/// Namespace of each pod, by address.
pub type PodNamespaces = HashMap<IpAddr, Arc<str>>;

/// A node, as its object describes it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct NodeDescription {
    /// Its zone, if it has one.
    pub zone: Option<Arc<str>>,
    /// Networks from which its pods get their addresses (`spec.podCIDRs`), if the cluster assigns them to nodes.
    pub pod_ranges: Vec<IpNet>,
    /// True if the API server has answered that there is no node of this name.
    pub is_missing: bool,
}

/// Keeps what is known of one node current. Dropping it ends that.
pub struct NodeWatch {
    /// The node; `None` until the API server has answered.
    pub description: Receiver<Option<NodeDescription>>,
    /// Namespace of each pod on the node that has an address of its own. It changes first when the list is complete.
    pub pod_namespaces: Receiver<PodNamespaces>,
    tasks: [JoinHandle<()>; 2],
}

impl NodeWatch {
    /// Starts to read the node of this name. Needs a running tokio runtime.
    #[must_use]
    pub fn start(cluster: &ClusterClient, name: &str) -> Self {
        let (describe, description) = channel(None);
        let (publish, pod_namespaces) = channel(PodNamespaces::new());
        let (client, name) = (cluster.client.clone(), name.to_owned());
        let tasks = [
            tokio::spawn(read_node(client.clone(), name.clone(), describe)),
            tokio::spawn(watch_pods(client, name, publish)),
        ];
        Self { description, pod_namespaces, tasks }
    }
}

impl Drop for NodeWatch {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Reads the node until it has a zone and networks of pods: they do not change in the life of a node.
async fn read_node(client: Client, name: String, describe: Sender<Option<NodeDescription>>) {
    let api: Api<DynamicObject> = Api::all_with(client, &resource("Node", "nodes"));
    let mut pause = FIRST_PAUSE;
    let mut logged = String::new();
    loop {
        let failure = match timeout(REQUEST_TIMEOUT, api.get_opt(&name)).await {
            Ok(Ok(node)) => {
                let zone = node.as_ref().and_then(zone_of);
                let pod_ranges = node.as_ref().map(pod_ranges_of).unwrap_or_default();
                let is_complete = zone.is_some() && !pod_ranges.is_empty();
                let is_missing = node.is_none();
                let description = Some(NodeDescription { zone, pod_ranges, is_missing });
                describe.send_if_modified(|it| std::mem::replace(it, description) != *it);
                if is_complete {
                    return;
                }
                is_missing.then(|| "there is no Node of this name".to_owned())
            }
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("the API server does not answer".to_owned()),
        };
        if let Some(error) = failure.filter(|it| *it != logged) {
            tracing::error!(node = name, error, "the zone of this node is not known");
            logged = error;
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn zone_of(node: &DynamicObject) -> Option<Arc<str>> {
    let zone = node.metadata.labels.as_ref()?.get(ZONE_LABEL)?;
    (!zone.is_empty()).then(|| zone.as_str().into())
}

fn pod_ranges_of(node: &DynamicObject) -> Vec<IpNet> {
    let ranges = node.data.pointer("/spec/podCIDRs").and_then(Value::as_array);
    ranges.into_iter().flatten().filter_map(|it| it.as_str()?.parse().ok()).collect()
}

/// Follows the pods on a node, forever.
async fn watch_pods(client: Client, node: String, publish: Sender<PodNamespaces>) {
    let api: Api<DynamicObject> = Api::all_with(client, &resource("Pod", "pods"));
    let config = Config::default().fields(&format!("spec.nodeName={node}"));
    let mut events = pin!(watcher(api, config).backoff(watch_backoff()));
    let mut pods = NodePods::default();
    let (mut is_failing, mut is_published) = (false, false);
    loop {
        // A change is published when no other follows it at once.
        let event = match timeout(COALESCE, events.next()).await {
            Ok(event) => event,
            Err(_) => {
                if pods.is_listed {
                    let namespaces = pods.namespaces();
                    publish.send_if_modified(|it| {
                        let is_new = !is_published || *it != namespaces;
                        *it = namespaces;
                        is_new
                    });
                    is_published = true;
                }
                events.next().await
            }
        };
        match event {
            Some(Ok(event)) => {
                // A watch that begins anew says so, and may fail at once.
                is_failing &= matches!(event, Event::Init);
                pods.apply(event);
            }
            Some(Err(error)) => {
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::warn!(%error, "cannot watch the pods of this node; the last known ones stay valid");
                }
            }
            None => return,
        }
    }
}

fn resource(kind: &str, plural: &str) -> ApiResource {
    ApiResource {
        group: String::new(),
        version: "v1".to_owned(),
        api_version: "v1".to_owned(),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}

/// The pods on a node: their addresses, by namespace and name.
#[derive(Default)]
struct NodePods {
    pods: HashMap<(String, String), Vec<IpAddr>>,
    /// True once a list has been received.
    is_listed: bool,
    /// The list that is being received.
    partial: HashMap<(String, String), Vec<IpAddr>>,
}

impl NodePods {
    fn apply(&mut self, event: Event<DynamicObject>) {
        match event {
            Event::Init => self.partial.clear(),
            Event::InitApply(pod) => _ = self.partial.insert(name_of(&pod), addresses_of(&pod)),
            Event::InitDone => {
                self.pods = std::mem::take(&mut self.partial);
                self.is_listed = true;
            }
            Event::Apply(pod) => _ = self.pods.insert(name_of(&pod), addresses_of(&pod)),
            Event::Delete(pod) => _ = self.pods.remove(&name_of(&pod)),
        }
    }

    fn namespaces(&self) -> PodNamespaces {
        let entries = self.pods.iter().flat_map(|((namespace, _), addresses)| {
            let namespace: Arc<str> = namespace.as_str().into();
            addresses.iter().map(move |address| (*address, Arc::clone(&namespace)))
        });
        entries.take(MAX_ADDRESSES).collect()
    }
}

fn name_of(pod: &DynamicObject) -> (String, String) {
    let metadata = &pod.metadata;
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

/// Returns the addresses that belong to a pod alone: none if it shares its node's network, or has ended.
fn addresses_of(pod: &DynamicObject) -> Vec<IpAddr> {
    let field = |path: &str| pod.data.pointer(path);
    let is_on_host = field("/spec/hostNetwork").and_then(Value::as_bool).unwrap_or(false);
    let phase = field("/status/phase").and_then(Value::as_str).unwrap_or_default();
    if is_on_host || ["Succeeded", "Failed"].contains(&phase) {
        return Vec::new();
    }
    let list = field("/status/podIPs").and_then(Value::as_array);
    let address = |entry: &Value| entry.get("ip")?.as_str()?.parse().ok();
    list.into_iter().flatten().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api_server::ApiServer;

    fn pod(namespace: &str, name: &str, ip: &str, more: &Value) -> DynamicObject {
        let mut object = json!({
            "metadata": { "namespace": namespace, "name": name },
            "spec": {},
            "status": { "phase": "Running", "podIPs": [{ "ip": ip }] },
        });
        for (part, fields) in more.as_object().unwrap() {
            for (field, value) in fields.as_object().unwrap() {
                object[part][field] = value.clone();
            }
        }
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn pods_with_addresses_of_their_own_have_a_namespace() {
        let mut pods = NodePods::default();
        pods.apply(Event::Init);
        pods.apply(Event::InitApply(pod("shop", "web", "10.0.0.1", &json!({}))));
        let on_host = json!({ "spec": { "hostNetwork": true } });
        pods.apply(Event::InitApply(pod("system", "agent", "192.0.2.1", &on_host)));
        let ended = json!({ "status": { "phase": "Succeeded" } });
        pods.apply(Event::InitApply(pod("shop", "job", "10.0.0.2", &ended)));
        assert!(pods.namespaces().is_empty(), "the list is not complete");
        pods.apply(Event::InitDone);
        let one = PodNamespaces::from([("10.0.0.1".parse().unwrap(), "shop".into())]);
        assert_eq!(pods.namespaces(), one);
        // The address of the job's pod is given to another one.
        pods.apply(Event::Apply(pod("bank", "db", "10.0.0.2", &json!({}))));
        assert_eq!(pods.namespaces().len(), 2);
        pods.apply(Event::Delete(pod("shop", "web", "10.0.0.1", &json!({}))));
        let one = PodNamespaces::from([("10.0.0.2".parse().unwrap(), "bank".into())]);
        assert_eq!(pods.namespaces(), one);
    }

    #[tokio::test(start_paused = true)]
    async fn zone_is_found_when_the_cloud_has_set_it() {
        let server = ApiServer::default();
        let mut watch = NodeWatch::start(&server.cluster(), "n1");
        let mut described = async || {
            watch.description.changed().await.unwrap();
            watch.description.borrow_and_update().clone().unwrap()
        };
        assert!(described().await.is_missing);
        let mut node = json!({ "metadata": { "name": "n1", "labels": {} } });
        server.put("/api/v1/nodes", node.clone());
        assert_eq!(described().await, NodeDescription::default());
        node["metadata"]["labels"][ZONE_LABEL] = json!("z1");
        server.put("/api/v1/nodes", node.clone());
        assert_eq!(described().await.zone.as_deref(), Some("z1"));
        // The controller of networks may be late as well.
        node["spec"] = json!({ "podCIDRs": ["10.244.1.0/24", "fd00:1::/64", "?"] });
        server.put("/api/v1/nodes", node);
        let ranges: Vec<_> = described().await.pod_ranges.iter().map(IpNet::to_string).collect();
        assert_eq!(ranges, ["10.244.1.0/24", "fd00:1::/64"]);
    }

    #[tokio::test(start_paused = true)]
    async fn empty_list_of_pods_is_a_change() {
        let server = ApiServer::default();
        let mut watch = NodeWatch::start(&server.cluster(), "n1");
        watch.pod_namespaces.changed().await.unwrap();
        assert!(watch.pod_namespaces.borrow_and_update().is_empty());
    }
}
