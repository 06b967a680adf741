//! Objects of any kind, as far as those who refer to others, and are told what is wrong, are alike.

use super::index::Name;
use crate::objects::{Metadata, Resource};
use crate::problem::{Origin, Problem, label};

/// An object of any kind: whose reference or listener it is, and to whom a problem goes.
#[derive(Clone, Copy)]
pub(super) struct Owner<'a> {
    pub(super) kind: &'static str,
    pub(super) metadata: &'a Metadata,
    origin: &'a Origin,
}

impl<'a> Owner<'a> {
    pub(super) const fn of<S>(kind: &'static str, object: &'a Resource<S>) -> Self {
        Self { kind, metadata: &object.metadata, origin: &object.origin }
    }

    /// Its namespace and name.
    pub(super) fn name(&self) -> Name<'a> {
        (&self.metadata.namespace, &self.metadata.name)
    }

    pub(super) fn problem(&self, field: &str, message: &str) -> Problem {
        Problem {
            origin: self.origin.clone(),
            object: label(self.kind, &self.metadata.namespace, &self.metadata.name),
            field: field.to_owned(),
            message: message.to_owned(),
        }
    }
}
