//! Parsing of documents into objects: the items of a List, the kind of each, and all of its errors.

use std::sync::{Arc, LazyLock};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::document::documents;
use super::schema::{self, schema};
use super::{
    AddressPoolSpec, ApiObject, BackendPolicySpec, BackendTlsPolicySpec, BackendTrafficPolicySpec,
    BgpPeerSpec, ClientPolicySpec, ConfigMapSpec, EndpointSliceSpec, GatewayClassSpec, GatewaySpec,
    GrpcRouteSpec, HttpRouteSpec, IngressClassSpec, IngressSpec, InvalidObject, ListenerSetSpec,
    NamespaceSpec, NetworkPolicySpec, NodeFields, ObjectMeta, PartialPolicy, RateLimitPolicySpec,
    ReferenceGrantSpec, SecretSpec, SecurityPolicySpec, ServiceSpec, SharedObject, StreamRouteSpec,
    TlsRouteSpec, TrafficPolicySpec, TypedObject,
};
use crate::problem::{self, ObjectOrigin, ObjectProblem};

/// Kinds that a dump of a cluster usually contains and that Sheave ignores.
const IGNORED_KINDS: [&str; 31] = [
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
    "Job",
    "Lease",
    "LimitRange",
    "MutatingWebhookConfiguration",
    "NetworkPolicy",
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

/// The kind all of whose fields restrict the requests that are served.
pub(crate) const SECURITY_POLICY: &str = "SecurityPolicy";

/// Fields that restrict the effect of an object. An unknown field within them may restrict it further, so that the
/// known fields alone would apply to too much.
const NARROWING: [&str; 13] = [
    "allowedListeners",
    "allowedRoutes",
    "filters",
    "from",
    "matches",
    "namespaceSelector",
    "revocation",
    "serviceSelector",
    "targetRefs",
    "tls",
    "to",
    "validation",
    "xdsServers",
];

/// Parses a stream of YAML documents: every valid object, and every error of the others.
///
/// `file` is the name of the stream in problems. Empty documents are skipped, a `List` is unfolded, and kinds that a
/// dump of a cluster contains without any effect on Sheave (Deployment, Pod, …) are ignored.
pub fn parse(text: &str, file: &str) -> (Vec<ApiObject>, Vec<ObjectProblem>) {
    let file = Arc::from(file);
    let mut reader = ObjectReader::of(ObjectSource::File);
    for (index, document) in documents(text).iter().enumerate() {
        let origin = ObjectOrigin { file: Arc::clone(&file), document: index + 1 };
        match document.value() {
            Ok(value) => reader.read_value(&origin, value),
            Err(message) => reader.report(&origin, "", "", message),
        }
    }
    (reader.objects, reader.problems)
}

/// Parses an object of an API server. It differs from [`parse`] in unknown fields, because the cluster's CRDs may be
/// newer than this version of Sheave: unknown fields are reported and dropped, and the rest of the object applies. If
/// an unknown field may restrict the effect of the object (a match, a filter, a permission to attach), the whole object
/// is rejected. Built-in kinds of Kubernetes gain fields with every version, so their unknown fields are not reported.
/// A name that the CRD accepts but that no object can have counts as a reference to an object that does not exist.
///
/// A rejected object is replaced by an [`ApiObject::Invalid`], whose status states the error. Its existence still has
/// an effect: connections that an invalid BackendTLSPolicy applies to fail, and of Sheave's own policies all valid
/// parts apply.
pub fn read(mut value: Value, origin: ObjectOrigin) -> (Vec<ApiObject>, Vec<ObjectProblem>) {
    drop_managed_fields(&mut value);
    schema::drop_nulls(&mut value);
    let mut reader = ObjectReader::of(ObjectSource::Cluster);
    reader.read_value(&origin, value);
    (reader.objects, reader.problems)
}

/// Removes metadata that make up much of many an object and have no effect.
fn drop_managed_fields(value: &mut Value) {
    let Some(Value::Object(metadata)) = value.get_mut("metadata") else { return };
    metadata.remove("managedFields");
    if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}

/// The source of objects.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ObjectSource {
    /// A file, in which an unknown field is an error.
    File,
    /// An API server, which has already accepted the object.
    Cluster,
}

/// A supported kind.
struct ObjectKind {
    name: &'static str,
    /// The accepted values of `apiVersion`, all of one group.
    versions: &'static [&'static str],
    /// The schema of the spec, created on first use.
    schema: LazyLock<Value>,
    read: fn(&mut ObjectReader, &mut RawObject<'_>) -> Option<ApiObject>,
}

/// The schema of the metadata of every kind.
static METADATA: LazyLock<Value> = LazyLock::new(schema::<ObjectMeta>);

const GATEWAY_API: &[&str] = &["gateway.networking.k8s.io/v1", "gateway.networking.k8s.io/v1beta1"];
/// The versions of kinds that became stable later. Objects of the earlier versions mean the same.
const GATEWAY_API_LATER: &[&str] = &[
    "gateway.networking.k8s.io/v1",
    "gateway.networking.k8s.io/v1alpha2",
    "gateway.networking.k8s.io/v1alpha3",
];
const SHEAVE: &[&str] = &["sheave.dev/v1alpha1"];

static KINDS: [ObjectKind; 27] = [
    ObjectKind {
        name: "Namespace",
        versions: &["v1"],
        schema: LazyLock::new(schema::<NamespaceSpec>),
        read: |reader, raw| reader.read_spec(raw).map(ApiObject::Namespace),
    },
    ObjectKind {
        name: "GatewayClass",
        versions: GATEWAY_API,
        schema: LazyLock::new(schema::<GatewayClassSpec>),
        read: |reader, raw| reader.read_spec(raw).map(ApiObject::GatewayClass),
    },
    ObjectKind {
        name: "Gateway",
        versions: GATEWAY_API,
        schema: LazyLock::new(schema::<GatewaySpec>),
        read: |reader, raw| reader.read_spec(raw).map(ApiObject::Gateway),
    },
    ObjectKind {
        name: "ListenerSet",
        versions: &["gateway.networking.k8s.io/v1"],
        schema: LazyLock::new(schema::<ListenerSetSpec>),
        read: |reader, raw| reader.read_spec(raw).map(ApiObject::ListenerSet),
    },
    ObjectKind {
        name: "HTTPRoute",
        versions: GATEWAY_API,
        schema: LazyLock::new(schema::<HttpRouteSpec>),
        read: |reader, raw| reader.read_spec(raw).map(ApiObject::HttpRoute),
    },
    ObjectKind {
        name: "GRPCRoute",
        versions: GATEWAY_API_LATER,
        schema: LazyLock::new(schema::<GrpcRouteSpec>),
        read: |reader, raw| reader.read_spec(raw).map(ApiObject::GrpcRoute),
    },
    ObjectKind {
        name: "TLSRoute",
        versions: GATEWAY_API_LATER,
        schema: LazyLock::new(schema::<TlsRouteSpec>),
        read: |reader, raw| reader.read_spec(raw).map(ApiObject::TlsRoute),
    },
    ObjectKind {
        name: "TCPRoute",
        versions: GATEWAY_API_LATER,
        schema: LazyLock::new(schema::<StreamRouteSpec>),
        read: |reader, raw| reader.read_spec(raw).map(ApiObject::TcpRoute),
    },
    ObjectKind {
        name: "UDPRoute",
        versions: GATEWAY_API_LATER,
        schema: LazyLock::new(schema::<StreamRouteSpec>),
        read: |reader, raw| reader.read_spec(raw).map(ApiObject::UdpRoute),
    },
    ObjectKind {
        name: "IngressClass",
        versions: &["networking.k8s.io/v1"],
        schema: LazyLock::new(schema::<IngressClassSpec>),
        read: |reader, raw| reader.read_spec(raw).map(ApiObject::IngressClass),
    },
    ObjectKind {
        name: "Ingress",
        versions: &["networking.k8s.io/v1"],
        schema: LazyLock::new(schema::<IngressSpec>),
        read: |reader, raw| reader.read_spec(raw).map(ApiObject::Ingress),
    },
    ObjectKind {
        name: "ReferenceGrant",
        versions: GATEWAY_API,
        schema: LazyLock::new(schema::<ReferenceGrantSpec>),
        read: |reader, raw| reader.read_spec(raw).map(ApiObject::ReferenceGrant),
    },
    ObjectKind {
        name: "Service",
        versions: &["v1"],
        schema: LazyLock::new(schema::<ServiceSpec>),
        read: |reader, raw| reader.read_service(raw).map(ApiObject::Service),
    },
    ObjectKind {
        name: "EndpointSlice",
        versions: &["discovery.k8s.io/v1"],
        schema: LazyLock::new(schema::<EndpointSliceSpec>),
        read: |reader, raw| reader.read_flat(raw).map(ApiObject::EndpointSlice),
    },
    ObjectKind {
        name: "Node",
        versions: &["v1"],
        schema: LazyLock::new(schema::<NodeFields>),
        read: |reader, raw| reader.read_flat(raw).map(ApiObject::Node),
    },
    ObjectKind {
        name: "NetworkPolicy",
        versions: &["networking.k8s.io/v1"],
        schema: LazyLock::new(schema::<NetworkPolicySpec>),
        read: |reader, raw| reader.read_spec(raw).map(ApiObject::NetworkPolicy),
    },
    ObjectKind {
        name: "Secret",
        versions: &["v1"],
        schema: LazyLock::new(schema::<SecretSpec>),
        read: |reader, raw| reader.read_flat(raw).map(ApiObject::Secret),
    },
    ObjectKind {
        name: "ConfigMap",
        versions: &["v1"],
        schema: LazyLock::new(schema::<ConfigMapSpec>),
        read: |reader, raw| reader.read_flat(raw).map(ApiObject::ConfigMap),
    },
    ObjectKind {
        name: "BackendTLSPolicy",
        versions: GATEWAY_API_LATER,
        schema: LazyLock::new(schema::<BackendTlsPolicySpec>),
        read: |reader, raw| reader.read_spec(raw).map(ApiObject::BackendTlsPolicy),
    },
    ObjectKind {
        name: "XBackendTrafficPolicy",
        versions: &["gateway.networking.x-k8s.io/v1alpha1"],
        schema: LazyLock::new(schema::<BackendTrafficPolicySpec>),
        read: |reader, raw| reader.read_spec(raw).map(ApiObject::BackendTrafficPolicy),
    },
    ObjectKind {
        name: "BackendPolicy",
        versions: SHEAVE,
        schema: LazyLock::new(schema::<BackendPolicySpec>),
        read: |reader, raw| reader.read_spec(raw).map(ApiObject::BackendPolicy),
    },
    ObjectKind {
        name: "ClientPolicy",
        versions: SHEAVE,
        schema: LazyLock::new(schema::<ClientPolicySpec>),
        read: |reader, raw| reader.read_spec(raw).map(ApiObject::ClientPolicy),
    },
    ObjectKind {
        name: "RateLimitPolicy",
        versions: SHEAVE,
        schema: LazyLock::new(schema::<RateLimitPolicySpec>),
        read: |reader, raw| reader.read_spec(raw).map(ApiObject::RateLimitPolicy),
    },
    ObjectKind {
        name: SECURITY_POLICY,
        versions: SHEAVE,
        schema: LazyLock::new(schema::<SecurityPolicySpec>),
        read: |reader, raw| reader.read_spec(raw).map(ApiObject::SecurityPolicy),
    },
    ObjectKind {
        name: "TrafficPolicy",
        versions: SHEAVE,
        schema: LazyLock::new(schema::<TrafficPolicySpec>),
        read: |reader, raw| reader.read_spec(raw).map(ApiObject::TrafficPolicy),
    },
    ObjectKind {
        name: "AddressPool",
        versions: SHEAVE,
        schema: LazyLock::new(schema::<AddressPoolSpec>),
        read: |reader, raw| reader.read_spec(raw).map(ApiObject::AddressPool),
    },
    ObjectKind {
        name: "BgpPeer",
        versions: SHEAVE,
        schema: LazyLock::new(schema::<BgpPeerSpec>),
        read: |reader, raw| reader.read_spec(raw).map(ApiObject::BgpPeer),
    },
];

impl ObjectKind {
    /// Returns the kind with this name, in any version of the group.
    fn find(name: &str, version: &str) -> Option<&'static Self> {
        KINDS.iter().find(|kind| kind.name == name && group(kind.versions[0]) == group(version))
    }

    /// True if the kind is one of Sheave.
    fn is_ours(&self) -> bool {
        self.versions == SHEAVE
    }

    /// True if the kind is built into Kubernetes.
    fn is_of_kubernetes(&self) -> bool {
        ["", "discovery.k8s.io", "networking.k8s.io"].contains(&group(self.versions[0]))
    }
}

fn group(version: &str) -> &str {
    version.split_once('/').map_or("", |(group, _)| group)
}

/// An object before its content is parsed.
struct RawObject<'a> {
    origin: &'a ObjectOrigin,
    /// `Kind namespace/name`, as far as they are known.
    label: String,
    kind: &'static ObjectKind,
    metadata: Value,
    /// The spec, once it has been separated from the other fields.
    spec: Value,
    /// All fields that have not been processed yet.
    fields: Map<String, Value>,
}

/// Collects objects and problems from documents.
struct ObjectReader {
    source: ObjectSource,
    objects: Vec<ApiObject>,
    problems: Vec<ObjectProblem>,
}

impl ObjectReader {
    const fn of(source: ObjectSource) -> Self {
        Self { source, objects: Vec::new(), problems: Vec::new() }
    }

    fn report(
        &mut self,
        origin: &ObjectOrigin,
        object: &str,
        field: &str,
        message: impl Into<String>,
    ) {
        let (object, field) = (object.to_owned(), field.to_owned());
        self.problems.push(ObjectProblem {
            origin: origin.clone(),
            object,
            field,
            message: message.into(),
        });
    }

    fn read_value(&mut self, origin: &ObjectOrigin, value: Value) {
        let mut fields = match value {
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
        let Some(known) = ObjectKind::find(&kind, &version) else {
            return self.refuse(origin, &label, &kind, &version);
        };
        if !known.versions.contains(&version.as_str()) {
            let message = format!("must be {}, is {version}", known.versions.join(" or "));
            return self.report(origin, &label, "apiVersion", message);
        }
        let before = self.problems.len();
        // The whole spec is kept, because parsing removes the unknown fields from it.
        let is_kept = self.source == ObjectSource::Cluster && known.is_ours();
        let policy = is_kept.then(|| fields.get("spec").cloned()).flatten();
        let metadata = fields.remove("metadata").unwrap_or_else(|| json!({}));
        let mut raw = RawObject { origin, label, kind: known, metadata, spec: Value::Null, fields };
        let object =
            (known.read)(self, &mut raw).or_else(|| self.invalid_object(raw, policy, before));
        self.objects.extend(object);
    }

    /// Returns the replacement of an invalid object of a cluster, with the first of the problems since `before`. `spec`
    /// is the whole spec if it is a policy of Sheave.
    fn invalid_object(
        &self,
        raw: RawObject<'_>,
        policy: Option<Value>,
        before: usize,
    ) -> Option<ApiObject> {
        if self.source == ObjectSource::File {
            return None;
        }
        let metadata = serde_json::from_value(raw.metadata).ok()?;
        let metadata = ObjectMeta { in_cluster: true, ..metadata };
        let ObjectProblem { field, message, .. } = self.problems.get(before)?;
        let kind = raw.kind;
        let spec = InvalidObject::of(kind.name, &raw.spec, format!("{field}: {message}"));
        let narrows = |field: &str| narrows(kind, field);
        let remains = policy.and_then(|it| PartialPolicy::of(kind.name, it, &kind.schema, narrows));
        let spec = InvalidObject { partial_policy: remains, ..spec };
        let origin = raw.origin.clone();
        Some(ApiObject::Invalid(TypedObject { origin, metadata, spec }.into()))
    }

    fn read_list(&mut self, origin: &ObjectOrigin, mut fields: Map<String, Value>) {
        let Some(Value::Array(items)) = fields.remove("items") else {
            return self.report(origin, "List", "items", "must be a list of objects");
        };
        for item in items {
            self.read_value(origin, item);
        }
    }

    /// Reports an unsupported kind.
    fn refuse(&mut self, origin: &ObjectOrigin, label: &str, kind: &str, version: &str) {
        if !IGNORED_KINDS.contains(&kind) {
            self.report(origin, label, "kind", format!("unknown kind {kind} of {version}"));
        }
    }

    /// Parses an object with `metadata`, `spec` and a status, which Sheave does not read.
    fn read_spec<S: DeserializeOwned>(
        &mut self,
        raw: &mut RawObject<'_>,
    ) -> Option<SharedObject<S>> {
        raw.spec = raw.fields.remove("spec").unwrap_or_else(|| json!({}));
        let unknown = |name: &&String| !["apiVersion", "kind", "status"].contains(&name.as_str());
        let unknown: Vec<_> = raw.fields.keys().filter(unknown).cloned().collect();
        let reported = if self.ignores_unknown_fields(raw) { &[] } else { &unknown[..] };
        for name in reported {
            let message = "unknown field, known here: metadata, spec, status";
            self.report(raw.origin, &raw.label, name, message);
        }
        let resource = self.read_parts(raw, "spec");
        resource.filter(|_| unknown.is_empty() || self.source == ObjectSource::Cluster)
    }

    /// Parses a Service. Of a file, the addresses in its status are read too.
    fn read_service(&mut self, raw: &mut RawObject<'_>) -> Option<SharedObject<ServiceSpec>> {
        let service = self.read_spec::<ServiceSpec>(raw)?;
        let status = raw.fields.get("status").filter(|_| self.source == ObjectSource::File);
        let ingress = status.and_then(|it| it.pointer("/loadBalancer/ingress")?.as_array());
        let address = |it: &Value| it.get("ip")?.as_str()?.parse().ok();
        let status_addresses: Vec<_> = ingress.into_iter().flatten().filter_map(address).collect();
        if status_addresses.is_empty() {
            return Some(service);
        }
        let TypedObject { origin, metadata, spec } = (*service).clone();
        Some(
            TypedObject { origin, metadata, spec: ServiceSpec { status_addresses, ..spec } }.into(),
        )
    }

    /// Parses an object without a `spec`, whose fields stand beside its metadata.
    fn read_flat<S: DeserializeOwned>(
        &mut self,
        raw: &mut RawObject<'_>,
    ) -> Option<SharedObject<S>> {
        let mut fields = std::mem::take(&mut raw.fields);
        fields.retain(|name, _| !["apiVersion", "kind"].contains(&name.as_str()));
        raw.spec = Value::Object(fields);
        self.read_parts(raw, "")
    }

    fn read_parts<S: DeserializeOwned>(
        &mut self,
        raw: &mut RawObject<'_>,
        field: &str,
    ) -> Option<SharedObject<S>> {
        // They are put back: if the object is invalid, its parents and targets are read from them.
        let (mut metadata, mut spec) = (raw.metadata.take(), raw.spec.take());
        let parsed_metadata =
            self.read_part::<ObjectMeta>(raw, &METADATA, "metadata", &mut metadata);
        let parsed_spec = self.read_part::<S>(raw, &raw.kind.schema, field, &mut spec);
        (raw.metadata, raw.spec) = (metadata, spec);
        let metadata =
            ObjectMeta { in_cluster: self.source == ObjectSource::Cluster, ..parsed_metadata? };
        Some(TypedObject { origin: raw.origin.clone(), metadata, spec: parsed_spec? }.into())
    }

    /// Parses a part of an object. Returns it if it is valid; reports all errors.
    fn read_part<T: DeserializeOwned>(
        &mut self,
        raw: &RawObject<'_>,
        allowed: &Value,
        field: &str,
        value: &mut Value,
    ) -> Option<T> {
        let unknown = match self.source {
            ObjectSource::File => Vec::new(),
            ObjectSource::Cluster => schema::prune(value, allowed, field),
        };
        let mut faults = schema::faults(value, allowed, field);
        faults.retain(|fault| self.source == ObjectSource::File || !fault.is_name);
        let reported = if self.ignores_unknown_fields(raw) { &[] } else { &unknown[..] };
        for fault in reported.iter().chain(&faults) {
            self.report(raw.origin, &raw.label, &fault.field, &fault.message);
        }
        if !faults.is_empty() || unknown.iter().any(|it| narrows(raw.kind, &it.field)) {
            return None;
        }
        match T::deserialize(&*value) {
            Ok(part) => Some(part),
            Err(error) => {
                self.report(raw.origin, &raw.label, field, error.to_string());
                None
            }
        }
    }

    /// True if unknown fields of an object are not reported.
    fn ignores_unknown_fields(&self, raw: &RawObject<'_>) -> bool {
        self.source == ObjectSource::Cluster && raw.kind.is_of_kubernetes()
    }
}

/// True if an unknown field may restrict the effect of an object of this kind.
fn narrows(kind: &ObjectKind, field: &str) -> bool {
    let mut parts = field.split('.').map(|part| part.split('[').next().unwrap_or(part));
    // Any field of a SecurityPolicy may be a further check.
    kind.name == SECURITY_POLICY
        || !kind.is_of_kubernetes() && parts.any(|part| NARROWING.contains(&part))
}

/// Returns `Kind namespace/name`, as far as they are given.
fn label(fields: &Map<String, Value>) -> String {
    let metadata = |name: &str| fields.get("metadata").and_then(|m| m[name].as_str());
    let kind = fields.get("kind").and_then(Value::as_str).unwrap_or("object");
    let namespace = metadata("namespace").unwrap_or("default");
    metadata("name").map_or_else(|| kind.to_owned(), |name| problem::label(kind, namespace, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(text: &str) -> (Vec<ApiObject>, Vec<String>) {
        let value = serde_saphyr::from_str(text).unwrap();
        let origin = ObjectOrigin { file: Arc::from("cluster"), document: 0 };
        let (objects, problems) = read(value, origin);
        (objects, problems.iter().map(ToString::to_string).collect())
    }

    const ROUTE: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata:
  name: web
  uid: 1b4e28ba
  managedFields: [{manager: kubectl}]
  creationTimestamp: 2026-01-31T12:00:00Z
spec:
  parentRefs: [{name: edge}]
  rules: [{name: all, matches: [{path: {type: PathPrefix, value: /}}], backendRefs: null}]
status: {parents: []}
";

    #[test]
    fn fields_added_by_a_cluster_are_accepted() {
        let (objects, problems) = held(ROUTE);
        assert_eq!((objects.len(), problems), (1, vec![]));
    }

    #[test]
    fn unknown_field_from_a_cluster_is_dropped_with_a_warning() {
        let newer = ROUTE.replace("name: all,", "name: all, patience: 7,");
        let (objects, problems) = held(&newer);
        let [problem] = &problems[..] else { panic!("{problems:?}") };
        assert!(
            problem.starts_with("cluster: HTTPRoute default/web: spec.rules[0].patience: unknown"),
            "{problem}"
        );
        assert_eq!(objects, held(ROUTE).0);
        assert_eq!(parse(&newer, "file.yaml").0, [], "a file is refused");
    }

    #[test]
    fn unknown_match_field_rejects_the_object() {
        let (objects, problems) = held(&ROUTE.replace("[{path:", "[{body: {size: 7}, path:"));
        assert_eq!(problems.len(), 1, "{problems:?}");
        let [ApiObject::Invalid(refused)] = &objects[..] else { panic!("{objects:?}") };
        assert_eq!((refused.spec.kind, &*refused.spec.parents[0].name), ("HTTPRoute", "edge"));
        let message = "spec.rules[0].matches[0].body: unknown field";
        assert!(refused.spec.message.starts_with(message), "{}", refused.spec.message);
    }

    #[test]
    fn invalid_reference_name_from_a_cluster_is_accepted_and_rejected_from_a_file() {
        let odd = ROUTE.replace("name: edge", "name: No_Name");
        assert!(
            matches!(held(&odd), (objects, problems) if objects.len() == 1 && problems.is_empty())
        );
        assert_eq!(parse(&odd, "file.yaml").0, [], "a file is refused");
    }

    #[test]
    fn unknown_fields_of_core_kubernetes_kinds_are_ignored_silently() {
        let service = "
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {ports: [{port: 80, quality: high}], hedge: {height: 2}}
extra: {}
";
        let (objects, problems) = held(service);
        assert_eq!((objects.len(), problems), (1, vec![]));
    }

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
