//! Metadata of every object: origin, name, age.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::problem::{ObjectOrigin, ObjectProblem, label};

/// An object: spec, metadata and origin.
#[derive(Clone, Debug, PartialEq)]
pub struct TypedObject<S> {
    /// The place where it is written.
    pub origin: ObjectOrigin,
    /// The metadata.
    pub metadata: ObjectMeta,
    /// The spec.
    pub spec: S,
}

/// The metadata that Sheave uses. All other metadata are accepted and dropped.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectMeta {
    /// The name, unique among the objects of its kind and namespace.
    #[schemars(extend("format" = "name"))]
    pub name: String,
    /// The namespace. Default: `default`.
    #[serde(default = "default_namespace")]
    #[schemars(extend("format" = "label"))]
    pub namespace: String,
    /// Labels, by which other objects select it.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
    /// The time of creation, in RFC 3339 and UTC, so that texts sort by time. Objects in files usually have none.
    #[serde(default)]
    #[schemars(extend("format" = "timestamp"))]
    pub creation_timestamp: Option<String>,
    /// The identity that the API server gave the object when it was created. Objects in files usually have none.
    #[serde(default)]
    pub uid: Option<String>,
    /// The version of the spec, for `observedGeneration` of the status.
    #[serde(default)]
    pub generation: i64,
    /// True if the object comes from an API server, where it may belong to another controller. Objects in files are
    /// always Sheave's.
    #[serde(skip)]
    pub in_cluster: bool,
}

impl ObjectMeta {
    /// Returns metadata with a namespace and a name, and the defaults for all else.
    pub fn named(namespace: &str, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            creation_timestamp: None,
            uid: None,
            generation: 0,
            in_cluster: false,
        }
    }

    /// Returns the sort key of Gateway API for conflicts: the oldest object first, then by name. An object without an
    /// age counts as the youngest.
    pub fn precedence(&self) -> impl Ord + use<'_> {
        let age = self.creation_timestamp.as_deref();
        (age.is_none(), age, self.namespace.as_str(), self.name.as_str())
    }
}

/// A Gateway by its namespace and name.
pub type GatewayName = (String, String);

/// A shared object: cheap to clone, and to compare with itself.
#[derive(Debug)]
pub struct SharedObject<S>(Arc<TypedObject<S>>);

impl<S> Clone for SharedObject<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S> Deref for SharedObject<S> {
    type Target = TypedObject<S>;

    fn deref(&self) -> &TypedObject<S> {
        &self.0
    }
}

impl<S: PartialEq> PartialEq for SharedObject<S> {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl<S> From<TypedObject<S>> for SharedObject<S> {
    fn from(object: TypedObject<S>) -> Self {
        Self(Arc::new(object))
    }
}

impl<S> TypedObject<S> {
    /// Returns a problem with this object.
    pub fn problem(
        &self,
        kind: &str,
        field: impl Into<String>,
        message: impl Into<String>,
    ) -> ObjectProblem {
        ObjectProblem {
            origin: self.origin.clone(),
            object: label(kind, &self.metadata.namespace, &self.metadata.name),
            field: field.into(),
            message: message.into(),
        }
    }
}

fn default_namespace() -> String {
    "default".to_owned()
}
