//! Objects of any kind that hold references or listeners, and receive problems.

use super::index::NamespacedName;
use crate::objects::{ObjectMeta, TypedObject};
use crate::problem::{ObjectOrigin, ObjectProblem, label};

/// An object of any kind: the owner of a reference or listener, and the recipient of its problems.
#[derive(Clone, Copy)]
pub(super) struct OwnerObject<'a> {
    pub(super) kind: &'static str,
    pub(super) metadata: &'a ObjectMeta,
    origin: &'a ObjectOrigin,
}

impl<'a> OwnerObject<'a> {
    pub(super) const fn of<S>(kind: &'static str, object: &'a TypedObject<S>) -> Self {
        Self { kind, metadata: &object.metadata, origin: &object.origin }
    }

    /// Returns its namespace and name.
    pub(super) fn name(&self) -> NamespacedName<'a> {
        (&self.metadata.namespace, &self.metadata.name)
    }

    pub(super) fn problem(&self, field: &str, message: &str) -> ObjectProblem {
        ObjectProblem {
            origin: self.origin.clone(),
            object: label(self.kind, &self.metadata.namespace, &self.metadata.name),
            field: field.to_owned(),
            message: message.to_owned(),
        }
    }
}
