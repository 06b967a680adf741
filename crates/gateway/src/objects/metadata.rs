//! What every object has: where it was written, its name, its age.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use crate::problem::{ObjectOrigin, ObjectProblem, label};

/// An object: what was asked for, by which name, and where that is written.
#[derive(Clone, Debug, PartialEq)]
pub struct TypedObject<S> {
    /// Where it is written.
    pub origin: ObjectOrigin,
    /// What it is called.
    pub metadata: ObjectMeta,
    /// What it asks for.
    pub spec: S,
}

/// The metadata that mean something to us; all other is accepted and left out.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectMeta {
    /// Unique among the objects of its kind and namespace.
    #[schemars(extend("format" = "name"))]
    pub name: String,
    /// Where the object lives; `default` when not given.
    #[serde(default = "default_namespace")]
    #[schemars(extend("format" = "label"))]
    pub namespace: String,
    /// How other objects select it.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// What else its authors noted.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
    /// RFC 3339 in UTC, so that the order of the texts is the order of the times. Files have none as a rule.
    #[serde(default)]
    #[schemars(extend("format" = "timestamp"))]
    pub creation_timestamp: Option<String>,
    /// Which version of the spec this is: the `observedGeneration` of its status.
    #[serde(default)]
    pub generation: i64,
    /// Whether an API server holds it, where it may be somebody else's; what is in a file is meant for us.
    #[serde(skip)]
    pub in_cluster: bool,
}

impl ObjectMeta {
    /// A name and a namespace; all else is left to its default.
    pub fn named(namespace: &str, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            creation_timestamp: None,
            generation: 0,
            in_cluster: false,
        }
    }

    /// Gateway API's order among equals: the oldest first, then by name. What has no age is the youngest.
    pub fn precedence(&self) -> impl Ord + use<'_> {
        let age = self.creation_timestamp.as_deref();
        (age.is_none(), age, self.namespace.as_str(), self.name.as_str())
    }
}

/// An object that several keep: cheap to clone, and to compare with itself.
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
    /// Something wrong with this object.
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
