//! From documents to objects: the items of a List, the kind of each, and all that is wrong with it.

use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::Object;
use super::document::documents;
use super::metadata::{Metadata, Resource};
use super::schema::{self, schema};
use crate::problem::{self, Origin, Problem};

/// Kinds that a cluster's dump naturally holds and that mean nothing to us.
const IGNORED_KINDS: [&str; 34] = [
    "APIService",
    "ClusterRole",
    "ClusterRoleBinding",
    "ControllerRevision",
    "CronJob",
    "CustomResourceDefinition",
    "DaemonSet",
    "Deployment",
    "Endpoints",
    "Event",
    "HorizontalPodAutoscaler",
    "IngressClass",
    "Job",
    "Lease",
    "LimitRange",
    "MutatingWebhookConfiguration",
    "Namespace",
    "NetworkPolicy",
    "Node",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "Pod",
    "PodDisruptionBudget",
    "PodTemplate",
    "PriorityClass",
    "ReplicaSet",
    "ReplicationController",
    "ResourceQuota",
    "Role",
    "RoleBinding",
    "ServiceAccount",
    "StatefulSet",
    "StorageClass",
    "ValidatingWebhookConfiguration",
];

/// Kinds that ask for something we do not serve yet.
const UNSERVED_KINDS: [&str; 2] = ["Ingress", "ListenerSet"];

/// Reads a stream of YAML documents: every object that is well formed, and every fault of the others.
///
/// `file` is what the stream is called in problems. An empty document is skipped, a `List` is unfolded, and kinds that
/// a cluster's dump holds without asking us for anything (Deployment, Pod, …) are left out.
pub fn parse(text: &str, file: &str) -> (Vec<Object>, Vec<Problem>) {
    let file = Arc::from(file);
    let mut reader = Reader::default();
    for (index, document) in documents(text).iter().enumerate() {
        let origin = Origin { file: Arc::clone(&file), document: index + 1 };
        match document.value() {
            Ok(value) => reader.read_value(&origin, value),
            Err(message) => reader.report(&origin, "", "", message),
        }
    }
    (reader.objects, reader.problems)
}

/// A kind that we understand.
struct Kind {
    name: &'static str,
    /// What `apiVersion` may be; all are of one group.
    versions: &'static [&'static str],
    read: fn(&mut Reader, Raw<'_>) -> Option<Object>,
}

const GATEWAY_API: &[&str] = &["gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1beta1"];
/// Kinds that have grown up later have left these behind; what is written in them means the same.
const GATEWAY_API_LATER: &[&str] = &[
    "gateway.networking.k8s.io/v1",
    "gateway.networking.k8s.io/v1alpha2",
    "gateway.networking.k8s.io/v1alpha3",
];
const SHEAVE: &[&str] = &["sheave.dev/v1alpha1"];

const KINDS: [Kind; 15] = [
    Kind {
        name: "GatewayClass",
        versions: GATEWAY_API,
        read: |reader, raw| reader.read_spec(raw).map(Object::GatewayClass),
    },
    Kind {
        name: "Gateway",
        versions: GATEWAY_API,
        read: |reader, raw| reader.read_spec(raw).map(Object::Gateway),
    },
    Kind {
        name: "HTTPRoute",
        versions: GATEWAY_API,
        read: |reader, raw| reader.read_spec(raw).map(Object::HttpRoute),
    },
    Kind {
        name: "GRPCRoute",
        versions: GATEWAY_API_LATER,
        read: |reader, raw| reader.read_spec(raw).map(Object::GrpcRoute),
    },
    Kind {
        name: "TLSRoute",
        versions: GATEWAY_API_LATER,
        read: |reader, raw| reader.read_spec(raw).map(Object::TlsRoute),
    },
    Kind {
        name: "TCPRoute",
        versions: GATEWAY_API_LATER,
        read: |reader, raw| reader.read_spec(raw).map(Object::TcpRoute),
    },
    Kind {
        name: "UDPRoute",
        versions: GATEWAY_API_LATER,
        read: |reader, raw| reader.read_spec(raw).map(Object::UdpRoute),
    },
    Kind {
        name: "ReferenceGrant",
        versions: GATEWAY_API,
        read: |reader, raw| reader.read_spec(raw).map(Object::ReferenceGrant),
    },
    Kind {
        name: "Service",
        versions: &["v1"],
        read: |reader, raw| reader.read_spec(raw).map(Object::Service),
    },
    Kind {
        name: "EndpointSlice",
        versions: &["discovery.k8s.io/v1"],
        read: |reader, raw| reader.read_flat(raw).map(Object::EndpointSlice),
    },
    Kind {
        name: "Secret",
        versions: &["v1"],
        read: |reader, raw| reader.read_flat(raw).map(Object::Secret),
    },
    Kind {
        name: "ConfigMap",
        versions: &["v1"],
        read: |reader, raw| reader.read_flat(raw).map(Object::ConfigMap),
    },
    Kind {
        name: "BackendTLSPolicy",
        versions: GATEWAY_API_LATER,
        read: |reader, raw| reader.read_spec(raw).map(Object::BackendTlsPolicy),
    },
    Kind {
        name: "BackendPolicy",
        versions: SHEAVE,
        read: |reader, raw| reader.read_spec(raw).map(Box::new).map(Object::BackendPolicy),
    },
    Kind {
        name: "ClientPolicy",
        versions: SHEAVE,
        read: |reader, raw| reader.read_spec(raw).map(Object::ClientPolicy),
    },
];

impl Kind {
    /// The kind of a name and of any version of its group.
    fn find(name: &str, version: &str) -> Option<&'static Self> {
        KINDS.iter().find(|kind| kind.name == name && group(kind.versions[0]) == group(version))
    }
}

fn group(version: &str) -> &str {
    version.split_once('/').map_or("", |(group, _)| group)
}

/// An object whose content is not known yet.
struct Raw<'a> {
    origin: &'a Origin,
    /// `Kind namespace/name`, as far as they are known.
    label: String,
    kind: &'static str,
    fields: Map<String, Value>,
}

/// Collects what documents hold.
#[derive(Default)]
struct Reader {
    objects: Vec<Object>,
    problems: Vec<Problem>,
    /// By kind, and of metadata; each is made once, when it is first needed.
    schemas: BTreeMap<&'static str, Value>,
}

impl Reader {
    fn report(&mut self, origin: &Origin, object: &str, field: &str, message: impl Into<String>) {
        let (object, field) = (object.to_owned(), field.to_owned());
        self.problems.push(Problem {
            origin: origin.clone(),
            object,
            field,
            message: message.into(),
        });
    }

    fn read_value(&mut self, origin: &Origin, value: Value) {
        let fields = match value {
            Value::Null => return,
            Value::Object(fields) => fields,
            Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                return self.report(origin, "", "", "must be an object with apiVersion and kind");
            }
        };
        let label = label(&fields);
        let text = |name: &str| fields.get(name).and_then(Value::as_str).map(str::to_owned);
        let (kind, version) = (text("kind"), text("apiVersion"));
        for (name, value) in [("kind", &kind), ("apiVersion", &version)] {
            if value.is_none() {
                let is_there = fields.contains_key(name);
                let message = if is_there { "must be a string" } else { "is missing" };
                self.report(origin, &label, name, message);
            }
        }
        let (Some(kind), Some(version)) = (kind, version) else { return };
        if (version.as_str(), kind.as_str()) == ("v1", "List") {
            return self.read_list(origin, fields);
        }
        let Some(known) = Kind::find(&kind, &version) else {
            return self.refuse(origin, &label, &kind, &version);
        };
        if !known.versions.contains(&version.as_str()) {
            let message = format!("must be {}, is {version}", known.versions.join(" or "));
            return self.report(origin, &label, "apiVersion", message);
        }
        let object = (known.read)(self, Raw { origin, label, kind: known.name, fields });
        self.objects.extend(object);
    }

    fn read_list(&mut self, origin: &Origin, mut fields: Map<String, Value>) {
        let Some(Value::Array(items)) = fields.remove("items") else {
            return self.report(origin, "List", "items", "must be a list of objects");
        };
        for item in items {
            self.read_value(origin, item);
        }
    }

    /// A kind that we do not understand.
    fn refuse(&mut self, origin: &Origin, label: &str, kind: &str, version: &str) {
        if UNSERVED_KINDS.contains(&kind) {
            return self.report(origin, label, "kind", format!("{kind} is not supported"));
        }
        if !IGNORED_KINDS.contains(&kind) {
            self.report(origin, label, "kind", format!("unknown kind {kind} of {version}"));
        }
    }

    /// An object as most are: `metadata` and `spec`, and a status that is not ours to read.
    fn read_spec<S: DeserializeOwned + JsonSchema>(
        &mut self,
        mut raw: Raw<'_>,
    ) -> Option<Resource<S>> {
        let metadata = raw.fields.remove("metadata");
        let spec = raw.fields.remove("spec").unwrap_or_else(|| json!({}));
        let unknown = |name: &&String| !["apiVersion", "kind", "status"].contains(&name.as_str());
        let unknown: Vec<_> = raw.fields.keys().filter(unknown).cloned().collect();
        for name in &unknown {
            let message = "unknown field, known here: metadata, spec, status";
            self.report(raw.origin, &raw.label, name, message);
        }
        let resource = self.read_parts(&raw, metadata, "spec", spec);
        resource.filter(|_| unknown.is_empty())
    }

    /// An object without a `spec`, whose fields stand beside its metadata.
    fn read_flat<S: DeserializeOwned + JsonSchema>(
        &mut self,
        mut raw: Raw<'_>,
    ) -> Option<Resource<S>> {
        let metadata = raw.fields.remove("metadata");
        let mut fields = std::mem::take(&mut raw.fields);
        fields.retain(|name, _| !["apiVersion", "kind"].contains(&name.as_str()));
        self.read_parts(&raw, metadata, "", Value::Object(fields))
    }

    fn read_parts<S: DeserializeOwned + JsonSchema>(
        &mut self,
        raw: &Raw<'_>,
        metadata: Option<Value>,
        field: &str,
        spec: Value,
    ) -> Option<Resource<S>> {
        let metadata = metadata.unwrap_or_else(|| json!({}));
        let metadata = self.read_part::<Metadata>(raw, "metadata", "metadata", metadata);
        let spec = self.read_part::<S>(raw, raw.kind, field, spec);
        Some(Resource { origin: raw.origin.clone(), metadata: metadata?, spec: spec? })
    }

    /// A part of an object, if it is without fault; all faults are reported.
    fn read_part<T: DeserializeOwned + JsonSchema>(
        &mut self,
        raw: &Raw<'_>,
        schema_name: &'static str,
        field: &str,
        value: Value,
    ) -> Option<T> {
        let allowed = self.schemas.entry(schema_name).or_insert_with(schema::<T>);
        let faults = schema::faults(&value, allowed, field);
        for fault in &faults {
            self.report(raw.origin, &raw.label, &fault.field, &fault.message);
        }
        if !faults.is_empty() {
            return None;
        }
        match serde_json::from_value(value) {
            Ok(part) => Some(part),
            Err(error) => {
                self.report(raw.origin, &raw.label, field, error.to_string());
                None
            }
        }
    }
}

/// `Kind namespace/name`, as far as they are there.
fn label(fields: &Map<String, Value>) -> String {
    let metadata = |name: &str| fields.get("metadata").and_then(|m| m[name].as_str());
    let kind = fields.get("kind").and_then(Value::as_str).unwrap_or("object");
    let namespace = metadata("namespace").unwrap_or("default");
    metadata("name").map_or_else(|| kind.to_owned(), |name| problem::label(kind, namespace, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alias_bomb_is_an_error() {
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for n in 1..12 {
            let alias = format!("*a{}", n - 1);
            bomb += &format!("a{n}: &a{n} [{}]\n", vec![alias; 10].join(", "));
        }
        let (objects, problems) = parse(&bomb, "bomb.yaml");
        assert_eq!((objects.len(), problems.len()), (0, 1), "{problems:?}");
    }

    #[test]
    fn deep_nesting_is_an_error() {
        let (objects, problems) = parse(&"[".repeat(100_000), "deep.yaml");
        assert_eq!((objects.len(), problems.len()), (0, 1), "{problems:?}");
    }
}
