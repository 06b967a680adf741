//! Whose fault it is: what is said of an object that was made is said of the Ingress that it was made of.

use std::collections::{BTreeMap, BTreeSet};

use super::super::TranslationResult;
use crate::objects::TypedObject;
use crate::problem::{ObjectOrigin, ObjectProblem, label};
use crate::status::ObjectIdentity;

/// Where the parts of what was made come from.
#[derive(Default)]
pub(super) struct IngressSources {
    /// By object, as problems call it; then by the number of the rule or listener.
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
    /// Notes where an object comes from, part by part: there is at least one.
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
        let mut told = BTreeSet::new();
        let problems = std::mem::take(&mut translation.problems).into_iter();
        translation.problems = problems
            .filter_map(|problem| match self.made.get(&problem.object) {
                // One fault of an Ingress may show in several objects.
                Some(places) => {
                    Some(attributed(problem, places)).filter(|it| told.insert(it.clone()))
                }
                None => Some(problem),
            })
            .collect();
    }
}

/// The same problem, of the Ingress.
fn attributed(problem: ObjectProblem, places: &[IngressField]) -> ObjectProblem {
    let place = part(&problem.field).and_then(|n| places.get(n)).unwrap_or(&places[0]);
    let IngressField { origin, object, field } = place.clone();
    let field = within(field, &problem.field);
    ObjectProblem { origin, object, field, ..problem }
}

/// The number of the rule or listener that a field is of.
fn part(field: &str) -> Option<usize> {
    let rest =
        field.strip_prefix("spec.rules[").or_else(|| field.strip_prefix("spec.listeners["))?;
    rest.split_once(']')?.0.parse().ok()
}

/// The part of a path or backend that is meant by a part of a rule.
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
