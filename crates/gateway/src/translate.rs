//! From objects to a Snapshot and statuses: a pure function.

use crate::objects::Object;
use crate::problem::Problem;
use crate::snapshot::{BackendKey, EndpointSpec, Snapshot};
use crate::status::Status;

/// What objects come to.
#[derive(Clone, Debug, Default)]
pub struct Translation {
    /// What the data plane is asked to do; valid, whatever the problems are.
    pub snapshot: Snapshot,
    /// What became of each object of ours.
    pub statuses: Vec<Status>,
    /// Everything that is wrong, in the order of files and documents.
    pub problems: Vec<Problem>,
}

/// What these objects ask for.
pub fn translate(objects: &[Object]) -> Translation {
    let _ = objects;
    Translation::default()
}

/// The endpoints of every Service: the short way for a change in EndpointSlices alone.
#[derive(Clone, Debug)]
pub struct Endpoints<'a> {
    objects: &'a [Object],
}

impl<'a> Endpoints<'a> {
    /// Sorts the EndpointSlices by Service.
    pub fn new(objects: &'a [Object]) -> Self {
        Self { objects }
    }

    /// The endpoints of a backend, sorted by address; empty when there is no such Service.
    pub fn of(&self, key: &BackendKey) -> Vec<EndpointSpec> {
        let _ = (self.objects, key);
        Vec::new()
    }
}
