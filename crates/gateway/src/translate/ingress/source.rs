//! Attribution of problems: a problem of a derived object is reported on the Ingress that it was derived from.

use std::collections::{BTreeMap, BTreeSet};

use super::super::report::TranslationResult;
use crate::objects::TypedObject;
use crate::problem::{ObjectOrigin, ObjectProblem, label};
use crate::status::ObjectIdentity;

/// The Ingress fields that derived objects come from.
#[derive(Default)]
pub(super) struct IngressSources {
    /// By object, as problems name it; then by the number of the rule or listener.
    made: BTreeMap<String, Vec<IngressField>>,
}

/// A field of an Ingress.
#[derive(Clone)]
pub(super) struct IngressField {
    origin: ObjectOrigin,
    object: String,
    field: String,
}

impl IngressField {
    pub(super) fn of<S>(ingress: &TypedObject<S>, field: impl Into<String>) -> Self {
        let ObjectProblem { origin, object, field, .. } = ingress.problem("Ingress", field, "");
        Self { origin, object, field }
    }
}

impl IngressSources {
    /// Records the source of each part of an object. There must be at least one.
    pub(super) fn add<S>(
        &mut self,
        kind: &str,
        object: &TypedObject<S>,
        places: Vec<IngressField>,
    ) {
        let (namespace, name) = (&object.metadata.namespace, &object.metadata.name);
        self.made.insert(label(kind, namespace, name), places);
    }

    pub(super) fn attribute(&self, translation: &mut TranslationResult) {
        let is_made = |ObjectIdentity { kind, namespace, name }: &ObjectIdentity| {
            self.made.contains_key(&label(kind, namespace, name))
        };
        translation.statuses.retain(|status| !is_made(&status.object));
        let mut reported = BTreeSet::new();
        let problems = std::mem::take(&mut translation.problems).into_iter();
        translation.problems = problems
            .filter_map(|problem| match self.made.get(&problem.object) {
                // One error of an Ingress may appear in several derived objects.
                Some(places) => {
                    Some(attributed(problem, places)).filter(|it| reported.insert(it.clone()))
                }
                None => Some(problem),
            })
            .collect();
    }
}

/// Returns the same problem on the Ingress.
fn attributed(problem: ObjectProblem, places: &[IngressField]) -> ObjectProblem {
    let place = part(&problem.field).and_then(|n| places.get(n)).unwrap_or(&places[0]);
    let IngressField { origin, object, field } = place.clone();
    let field = within(field, &problem.field);
    ObjectProblem { origin, object, field, ..problem }
}

/// Returns the number of the rule or listener that a field belongs to.
fn part(field: &str) -> Option<usize> {
    let rest =
        field.strip_prefix("spec.rules[").or_else(|| field.strip_prefix("spec.listeners["))?;
    rest.split_once(']')?.0.parse().ok()
}

/// Returns the field of the path or backend that corresponds to a field of a rule.
fn within(place: String, field: &str) -> String {
    if field.contains(".matches[") {
        return format!("{place}.path");
    }
    match field.split_once(".backendRefs[0]") {
        Some((_, rest)) if place.ends_with("Backend") => format!("{place}.service{rest}"),
        Some((_, rest)) => format!("{place}.backend.service{rest}"),
        None => place,
    }
}
