//! Objects of any kind, as far as those who refer to others, and are told what is wrong, are alike.

use super::index::NamespacedName;
use crate::objects::{ObjectMeta, TypedObject};
use crate::problem::{ObjectOrigin, ObjectProblem, label};

/// An object of any kind: whose reference or listener it is, and to whom a problem goes.
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

    /// Its namespace and name.
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
